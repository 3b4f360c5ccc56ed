"""Recordings: round trip, damage, and that a round is the same wherever it comes from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save_file
from torch import Tensor

from fedimmune import Updates, rules
from fedimmune.adaptive.defense import Defense
from fedimmune.adaptive.recordings import (
    Recording,
    Sampled,
    digest_of,
    of_attacks,
    read_recordings,
)
from fedimmune.errors import InputError, ParameterError
from fedimmune.io import described, read_description
from tests.adaptive.rehearsed import LAYERS, grams_of, honest_round, negated, recording


@pytest.mark.parametrize("anchor", [True, False])
def test_round_trip(tmp_path: Path, anchor: bool) -> None:
    made = recording(2, anchor=anchor)
    made.median_distances[1] = torch.nan  # nobody honest took part, say
    made.save(tmp_path / "a.recording")
    again = Recording.load(tmp_path / "a.recording")
    assert again.about == made.about
    assert torch.equal(again.grams, made.grams)
    assert torch.equal(again.attackers, made.attackers)
    assert torch.equal(again.median_distances.isnan(), made.median_distances.isnan())
    assert len(again) == len(made) == 6
    assert "omniscient by 2 of 8" in repr(again)


def rewritten(**changes: Any) -> Callable[[Path], None]:
    """Damage that leaves a sound safetensors file."""

    def damage(path: Path) -> None:
        tensors: dict[str, Tensor] = load(path.read_bytes())
        description = read_description(path)
        about = description["about"]
        for name, value in changes.items():
            if name in tensors:
                if value is None:
                    del tensors[name]
                else:
                    tensors[name] = value(tensors[name])
            elif name in description:
                description[name] = value
            else:
                about[name] = value
        save_file(tensors, path, described(tensors, **description))

    return damage


def with_nan(tensor: Tensor) -> Tensor:
    tensor[0, 0, 0, 0] = torch.nan
    return tensor


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-9]),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_text("no recording\n" * 50),
        lambda path: torch.save({"grams": torch.ones(3)}, path),
        Path.unlink,
        rewritten(format="fedimmune-recording-9"),
        rewritten(about="{"),
        rewritten(about="{}"),
        rewritten(layers={"one": [3]}),
        rewritten(references=["anchor"]),
        rewritten(grams=None),
        rewritten(grams=with_nan),
        rewritten(grams=lambda grams: grams[:, :, :5, :5].contiguous()),
        rewritten(grams=lambda grams: grams.flatten()),
        rewritten(attackers=lambda labels: labels[:2]),
        rewritten(attackers=lambda labels: labels.flatten()),
        rewritten(median_distances=lambda values: values[:1]),
        rewritten(sampled={"layer": "fc.weight", "indices": [0, 1]}),
        lambda path: save_file({"a": torch.ones(2)}, path),
    ],
    ids=[
        *("cut off", "empty", "text", "pickle", "gone", "other version", "half an about"),
        *("empty about", "other layers", "no anchor there"),
        *("no grams", "NaN", "grams too small", "flat grams"),
        *("attackers of other rounds", "flat attackers", "medians of other rounds"),
        *("a sample that is not there", "other file"),
    ],
)
def test_damage_is_named_with_the_file(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    path = tmp_path / "broken.recording"
    recording().save(path)
    damage(path)
    with pytest.raises(InputError, match=r"broken\.recording"):
        Recording.load(path)
    with pytest.raises(InputError, match=r"broken\.recording"):
        read_recordings([path])


@pytest.mark.parametrize(
    "damage",
    [
        rewritten(values=None),
        rewritten(values=lambda values: values[:, :, :3].contiguous()),
        rewritten(values=lambda values: values[:2].contiguous()),
        rewritten(values=torch.Tensor.double),
        rewritten(values=lambda values: values / 0),
        rewritten(sampled=None),
        rewritten(sampled={"layer": "nowhere", "indices": [0, 1, 2, 3, 4]}),
        rewritten(sampled={"layer": "fc.weight", "indices": [0, 1, 2, 3, 30]}),
        rewritten(sampled={"layer": "fc.weight", "indices": [0, 1, 2, 4, 3]}),
        rewritten(sampled={"layer": "fc.weight", "indices": [-1, 1, 2, 3, 4]}),
        rewritten(sampled={"layer": "fc.weight", "indices": []}),
    ],
)
def test_damaged_samples_are_named_with_the_file(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    path = tmp_path / "broken.recording"
    recording(save_updates=5).save(path)
    assert Recording.load(path).values is not None
    damage(path)
    with pytest.raises(InputError, match=r"broken\.recording"):
        Recording.load(path)


def test_sampled_values_survive_and_others_are_as_before(tmp_path: Path) -> None:
    made = recording(2, save_updates=5)
    made.save(tmp_path / "a.recording")
    again = Recording.load(tmp_path / "a.recording")
    assert again.about == made.about
    assert again.about.sampled == Sampled.of(LAYERS, 5)
    assert made.values is not None
    assert torch.equal(again.values, made.values)  # type: ignore[arg-type]
    assert digest_of([made]) != digest_of([recording(2)])
    made.values[0, 0, 0] += 1
    assert digest_of([again]) != digest_of([made])
    recording(2).save(tmp_path / "plain.recording")
    assert "sampled" not in read_description(tmp_path / "plain.recording")["about"]
    assert made.take(slice(2)).about == recording(2).about


def test_what_is_sampled() -> None:
    assert Sampled.of(LAYERS, 1000) == Sampled(layer="fc.weight", indices=tuple(range(30)))
    some = Sampled.of(LAYERS, 6)
    assert len(set(some.indices)) == 6
    assert some.indices != tuple(range(6))
    assert Sampled.of({"a": (3,), "b": (4,)}, 9).layer == "b"


def test_recordings_of_another_model_or_without_the_anchor_do_not_mix(tmp_path: Path) -> None:
    kinds: dict[str, dict[str, Any]] = {
        "model": {"layers": {"other": (3, 3)}},
        "anchor": {"anchor": True},
    }
    for name, options in kinds.items():
        folder = tmp_path / name
        folder.mkdir()
        recording(0).save(folder / "a.recording")
        recording(1, **options).save(folder / "b.recording")
        with pytest.raises(InputError, match=r"b\.recording"):
            read_recordings([folder])
    with pytest.raises(InputError, match="no recordings"):
        read_recordings([tmp_path])


def test_folders_and_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    for run in (2, 0, 1):
        recording(run).save(tmp_path / f"run{run}.recording")
    (tmp_path / "notes.txt").write_text("not a recording")
    found = read_recordings([tmp_path])
    assert [each.about.run for each in found] == [0, 1, 2]
    again = read_recordings([tmp_path / "run2.recording", tmp_path / "run0.recording"])
    assert [each.about.run for each in again] == [2, 0]


def test_the_digest_goes_by_content_and_not_by_order() -> None:
    one, two, three = recording(0), recording(1), recording(2)
    assert digest_of([one, two, three]) == digest_of([three, one, two])
    assert digest_of([one, two]) != digest_of([one, three])
    assert digest_of([one]) != digest_of([one, one])
    changed = recording(0)
    changed.grams[0, 0, 0, 0] *= 1 + 1e-15
    assert digest_of([changed]) != digest_of([one])


def test_attacks_are_chosen_with_the_quiet_rounds() -> None:
    found = [recording(0, attackers=0), recording(0), recording(0, attack="backdoor")]
    kept = of_attacks(found, ["backdoor"])
    assert [each.about.attack for each in kept] == ["none", "backdoor"]
    with pytest.raises(ParameterError, match="there are backdoor, none, omniscient"):
        of_attacks(found, ["flip"])


@pytest.mark.parametrize("anchor", [True, False])
def test_a_round_from_memory_from_files_and_from_a_recording_weighs_the_same(
    tmp_path: Path, trained: Path, anchored: Path, anchor: bool
) -> None:
    path = anchored if anchor else trained
    rule, defense = rules.get("adaptive", defense=path), Defense.load(path)
    random = torch.Generator().manual_seed(31)
    sent = honest_round(8, random)
    sent[2], sent[5] = negated(sent[2]), negated(sent[5])
    clients, own = sent[:7], sent[7]
    in_memory = Updates.from_states(clients)
    files = []
    for number, state in enumerate(clients):
        files.append(tmp_path / f"{number}.safetensors")
        save_file(dict(reversed(state.items())), files[-1])
    on_disk = Updates.from_files(files, are_updates=True)
    base = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in LAYERS.items()}
    of_models = Updates.from_models(clients, base)
    rows = torch.stack([torch.cat([s[name].flatten() for name in LAYERS]) for s in clients])
    of_vectors = Updates.from_vectors(rows, layers=LAYERS)
    whole = recording(rounds=1, n=7, anchor=anchor)
    kept = grams_of(sent if anchor else clients, list(LAYERS))[None]
    Recording(whole.about, kept, whole.attackers, whole.median_distances).save(tmp_path / "r")
    expected, _ = defense.weigh(Recording.load(tmp_path / "r").grams[0])
    for updates in (in_memory, on_disk, of_models, of_vectors):
        given = updates.with_anchor(own) if anchor else updates
        weights = rule.aggregate(given).weights
        assert weights is not None
        found = torch.tensor(list(weights.values()), dtype=torch.float64)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    assert float(expected[[2, 5]].sum()) < (1 if anchor else 0.05)
