"""The corpus: what its recordings are, and that they are made once."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fedimmune import attacks
from fedimmune.adaptive.recordings import Recording, digest_of
from fedimmune.errors import FedimmuneError, InputError, ParameterError
from fedimmune.tasks import Data
from reproduction import corpus, corpus_data, corpus_models, immunity
from reproduction.corpus import Draft, draw, make, parse_only, record, selected

MANY = 3000
NOWHERE = Path("nowhere")


@pytest.fixture(scope="module")
def drafts() -> list[Draft]:
    return [draw(1, number) for number in range(MANY)]


def cheap(drafts: list[Draft], **having: str) -> Iterator[Draft]:
    """Those that take a fraction of a second."""
    for each in drafts:
        task = each.fields["task"]
        small = task["samples"] < 500 and each.fields["rounds"] <= 8 and not task["warm_up"]
        if small and all(getattr(each, name) == value for name, value in having.items()):
            yield each


def test_a_number_says_what_a_recording_is(drafts: list[Draft]) -> None:
    for number in (0, 17, MANY - 1):
        assert draw(1, number) == drafts[number]
        assert draw(2, number) != drafts[number]
    assert len({each.file_name for each in drafts}) == MANY
    assert len({each.scenario.digest for each in drafts[:200]}) == 200


def test_everything_is_drawn_and_half_of_it_without_attack(drafts: list[Draft]) -> None:
    kinds, families = corpus_data.KINDS, corpus_models.FAMILIES
    pairs = {(each.dataset, each.family) for each in drafts}
    missing = {
        (dataset, family)
        for kind in kinds
        for dataset in kinds[kind]
        for family in families[kind]
        if (dataset, family) not in pairs
    }
    assert not missing
    assert {each.attack for each in drafts} == set(attacks.available())
    quiet = sum(each.attack == "none" for each in drafts) / MANY
    assert 0.45 < quiet < 0.55
    fields = [each.fields for each in drafts]
    assert {one["partition"]["name"] for one in fields} >= {"iid", "dirichlet", "by-label"}
    assert {one["optimizer"]["name"] for one in fields} == {"sgd", "adam"}
    varied = [one["variation"] for one in fields if one["variation"]]
    assert {each.get("odd") for each in varied} == {
        *(None, "one-class", "inverted", "brighter", "noisy"),
    }
    assert any(each.get("epochs", 1) > 3 for each in varied)
    clients = [one["clients"] for one in fields]
    assert min(clients) == 4
    assert max(clients) > 50
    assert all(one["attackers"] <= 0.46 * one["clients"] or one["clients"] < 7 for one in fields)
    assert 0.05 < sum(one["anchor"] == 0 for one in fields) / MANY < 0.2


def test_all_that_is_drawn_can_be_made(drafts: list[Draft]) -> None:
    """Scenarios are valid, and attacks fit the data that is drawn with them."""
    for each in drafts[:600]:
        full = each.scenario.resolve()
        full.make_attack().check(
            corpus_data.spec_of(each.dataset, full.task.parameters["data_seed"])
        )
        if full.make_attack().knowledge == "defense":
            assert full.rule.name != "oracle"


@pytest.mark.parametrize("kind", corpus_data.KINDS)
def test_data_is_as_its_spec_says(kind: str) -> None:
    for name in corpus_data.KINDS[kind]:
        for seed in range(3):
            spec = corpus_data.spec_of(name, seed)
            data = corpus_data.load_set(name, seed, 80, 30, NOWHERE)
            assert (len(data.clients), len(data.server)) == (80, 30)
            assert (data.spec.classes, data.spec.shape, data.spec.words) == (
                *(spec.classes, spec.shape, spec.words),
            )
            assert (data.highest is None) == (spec.highest is None)
            again = corpus_data.load_set(name, seed, 80, 30, NOWHERE)
            assert torch.equal(data.clients.inputs, again.clients.inputs)
            if not data.clients.inputs.is_floating_point():
                assert int(data.clients.inputs.max()) < (spec.words or 0)


@pytest.mark.parametrize("kind", corpus_models.FAMILIES)
def test_models_take_the_data(kind: str) -> None:
    draws = random.Random(1)
    for family in corpus_models.FAMILIES[kind]:
        for name in corpus_data.KINDS[kind]:
            data: Data = corpus_data.load_set(name, draws.randrange(99), 20, 4, NOWHERE)
            net = corpus_models.build(family, corpus_models.draw_shape(family, draws), data)
            logits = net(data.clients.inputs)
            assert logits.shape == (20, data.classes)
            logits.sum().backward()
            assert all(weight.grad is not None for weight in net.parameters())


def test_generated_data_can_be_learned() -> None:
    """A small net tells classes apart far better than by chance."""
    for name, family in (("strokes", "mlp"), ("textures", "cnn"), ("topics", "linear")):
        task = corpus.CorpusTask(dataset=name, family=family, data_seed=5, samples=600, warm_up=250)
        data = task.load(NOWHERE)
        torch.manual_seed(0)
        net = task.model(data).eval()
        said = net(data.server.inputs).argmax(1)
        right = float((said == data.server.labels).float().mean())
        assert right > min(0.9, 2 / data.classes)


def test_a_recording_is_the_same_each_time_and_says_what_it_is(drafts: list[Draft]) -> None:
    one = next(cheap(drafts, family="mlp"))
    first, second = make(one, NOWHERE), make(draw(1, one.number), NOWHERE)
    assert digest_of([first]) == digest_of([second])
    about = first.about
    assert (about.task, about.attack) == (f"{one.dataset}/{one.family}", one.attack)
    assert about.run == one.number
    assert about.references == (("anchor",) if one.fields["anchor"] else ())
    assert 1 <= len(first) <= one.keep
    assert torch.isfinite(first.grams).all()


def test_odd_clients_are_labeled_honest(drafts: list[Draft]) -> None:
    odd = (
        each
        for each in cheap(drafts, attack="none")
        if (each.fields["variation"] or {}).get("odd") == "inverted"
    )
    assert not make(next(odd), NOWHERE).attackers.any()
    attacked = (
        each
        for each in cheap(drafts, family="mlp")
        if each.attack != "none"
        and (each.fields["variation"] or {}).get("odd")
        and each.fields["participation"] == 1
    )
    one = next(attacked)
    found = make(one, NOWHERE).attackers
    assert (found.sum(1) <= one.fields["attackers"]).all()
    assert found.any()
    assert (2 * found.sum(1) < found.shape[1]).all(), "a majority is nothing to learn from"


def test_what_is_there_is_not_made_again(drafts: list[Draft], tmp_path: Path) -> None:
    chosen = list(cheap(drafts, family="linear"))[:3]
    assert record(chosen[:2], tmp_path, NOWHERE) == {"made": 2, "before": 0, "failed": 0}
    made = {file: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    assert len(made) == 2
    assert record(chosen, tmp_path, NOWHERE) == {"made": 1, "before": 2, "failed": 0}
    assert all(file.stat().st_mtime_ns == time for file, time in made.items())
    for each in chosen:
        assert Recording.load(tmp_path / each.file_name).about.run == each.number
    table = immunity.used(tmp_path / each.file_name for each in chosen)
    assert "| all | 3 |" in table


def test_one_that_fails_is_left_out_and_said(
    drafts: list[Draft], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = list(cheap(drafts, family="linear"))[:2]

    def fails(draft: Draft, place: Path) -> Recording:
        if draft == bad:
            raise FedimmuneError("it diverged")
        return make(draft, place)

    monkeypatch.setattr(corpus, "make", fails)
    said: list[tuple[Draft, str | None]] = []
    counts = record([bad, good], tmp_path, NOWHERE, on_done=lambda *done: said.append(done))
    assert counts == {"made": 1, "before": 0, "failed": 1}
    assert said == [(bad, "it diverged"), (good, None)]


def test_some_can_be_selected(drafts: list[Draft]) -> None:
    only = parse_only(["family=cnn,family=mlp", "attack=omniscient"])
    assert only == {"family": {"cnn", "mlp"}, "attack": {"sign-flip"}}
    found = selected(drafts, only)
    assert found
    assert found == [
        each for each in drafts if each.family in {"cnn", "mlp"} and each.attack == "sign-flip"
    ]
    assert selected(drafts, {}) == drafts
    for wrong in ("family=tree", "model=cnn", "cnn", "attack=", "dataset=imagenet"):
        with pytest.raises(ParameterError):
            parse_only([wrong])


def test_public_sets_are_drawn_only_where_they_are(tmp_path: Path) -> None:
    assert corpus_data.present(tmp_path) == ()
    found = {draw(1, number, ("mnist", "imdb")).dataset for number in range(300)}
    assert {"mnist", "imdb"} <= found
    assert "cifar10" not in found


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        check=False,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def test_the_command_from_end_to_end(tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    where = ("--folder", str(folder), "--data", str(tmp_path / "none"))
    some = ("record", "--recordings", "25", "--only", "family=linear", "--workers", "2")
    first = run("reproduction", "immunity", *some, *where)
    assert first.returncode == 0, first.stderr
    assert "| linear |" in first.stdout
    files = sorted(folder.glob("*.recording"))
    assert len(files) == len(
        selected((draw(1, k) for k in range(25)), parse_only(["family=linear"]))
    )
    again = run("reproduction.immunity", *some, *where)
    assert again.stdout == first.stdout
    assert f"0 recordings made in 1 s, {len(files)} there before" in again.stderr
    files[0].unlink()
    assert called("record", "--recordings", "0", *where) == 2
    assert called("record", "--only", "family=tree", *where) == 2
    assert called("record", "--only", "family=resnet18,dataset=iris", *where) == 1
    assert called("record", "--seed", "2", *where) == 1
    assert not files[0].exists(), "what is refused makes nothing"


def called(*arguments: str) -> object:
    with pytest.raises(SystemExit) as end:
        immunity.main(arguments)
    return end.value.code


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "some.recording").write_bytes(b"")
    with pytest.raises(InputError, match="recordings of something else"):
        immunity._check_same(tmp_path, {"seed": 1})
