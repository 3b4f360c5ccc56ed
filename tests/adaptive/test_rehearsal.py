"""Rehearsals: on the server's data alone, the same whoever plays them, gone on with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load
from torch import Tensor

import fedimmune.simulation.rehearsal as rehearsal_module
import fedimmune.simulation.workers as workbench
from fedimmune import Scenario, adaptive, attacks, simulate
from fedimmune.adaptive.recordings import digest_of, read_recordings
from fedimmune.errors import InputError, ParameterError
from fedimmune.simulation.federation import Federation
from fedimmune.simulation.rehearsal import Rehearsal, carry_out, plan, record, usual_attacks
from fedimmune.tasks import Data, DataSpec, Task, data_folder
from fedimmune.updates import NonFiniteError
from tests.simulation.processes import fork_killed_at
from tests.simulation.test_client import BLOBS, WOBBLY

FACTS = DataSpec(classes=10, shape=(1, 32, 32), highest=(1.0,))
BASE: dict[str, Any] = {"task": BLOBS, "rounds": 2, "clients": 4, "partition": "iid"}


def set_up(**fields: Any) -> tuple[Rehearsal, Task, Data]:
    scenario = Scenario(
        **{**BASE, "attack": "sign-flip", "attackers": 1, "rule": "oracle", **fields}
    ).resolve()
    task = scenario.make_task()
    return Rehearsal(scenario, 0), task, task.load(data_folder())


def several(folder_runs: int = 2) -> tuple[list[Rehearsal], Task, Data]:
    _, task, data = set_up()
    rehearsals = plan(
        BASE,
        data.spec,
        attacks=["sign-flip"],
        attackers=[0, 1],
        runs=folder_runs,
        follow=["mean"],
    )
    return rehearsals, task, data


class Spy:
    """Notes which samples are trained on, by whom."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: dict[int, set[bytes]] = {}
        original: Any = vars(workbench)["train_client"]

        def train_client(
            model: Any, task: Any, samples: Any, indices: Tensor, *rest: Any, **named: Any
        ) -> None:
            own = self.seen.setdefault(named["client"], set())
            own |= as_set(samples.inputs[indices])
            original(model, task, samples, indices, *rest, **named)

        monkeypatch.setattr(workbench, "train_client", train_client)

    def of_clients(self) -> set[bytes]:
        return set().union(*(s for c, s in self.seen.items() if c != workbench.SERVER))


def as_set(inputs: Iterable[Tensor]) -> set[bytes]:
    return {each.numpy().tobytes() for each in inputs}


# -------------------------------------------------------------------- whose samples


def test_only_the_servers_samples_and_the_anchors_apart(
    monkeypatch: pytest.MonkeyPatch, trained_on_blobs: Path
) -> None:
    spy = Spy(monkeypatch)
    rehearsal, task, data = set_up()
    carry_out(rehearsal, task, data)
    server, clients = as_set(data.server.inputs), as_set(data.clients.inputs)
    assert len(server) == len(data.server), "samples can be told apart"
    anchor = spy.seen[workbench.SERVER]
    assert len(anchor) == rehearsal.scenario.anchor == 20
    assert spy.of_clients() == server - anchor
    assert not spy.of_clients() & clients

    other = Spy(monkeypatch)
    rule = {"name": "adaptive", "defense": str(trained_on_blobs)}
    scenario = Scenario(**{**BASE, "rule": rule, "rounds": 1, "seed": 9})
    list(simulate(scenario, workers=1))
    assert other.seen[workbench.SERVER] == anchor, "the same samples in every scenario"
    assert other.of_clients() == clients
    with Federation(scenario, task, data, workers=1) as federation:
        assert as_set(data.server.inputs[federation.tested]) == server - anchor


def test_on_the_clients_own_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """For research: as large as what is rehearsed for, the server's anchor its own as ever."""
    spy = Spy(monkeypatch)
    rehearsal, task, data = set_up()
    own = replace(rehearsal, on="clients")
    made = carry_out(own, task, data)
    assert spy.of_clients() == as_set(data.clients.inputs)
    assert spy.seen[workbench.SERVER] <= as_set(data.server.inputs)
    assert made.about.on == "clients"
    assert carry_out(rehearsal, task, data).about.on == "server"
    assert own.file_name != rehearsal.file_name
    listed = plan(
        BASE,
        data.spec,
        attacks=["sign-flip"],
        attackers=[1],
        runs=1,
        follow=["mean"],
        on="clients",
    )
    assert [each.on for each in listed] == ["clients"]


@pytest.fixture(scope="module")
def trained_on_blobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rehearsals, task, data = several()
    made = adaptive.train([carry_out(each, task, data) for each in rehearsals], epochs=2)
    assert made.references
    path = tmp_path_factory.mktemp("blobs") / "blobs.defense"
    made.save(path)
    return path


def test_what_is_recorded() -> None:
    rehearsal, task, data = set_up(task=WOBBLY, rounds=3)
    made = carry_out(rehearsal, task, data)
    assert len(made) == 3
    trained = [name for name, _ in task.model(data).named_parameters()]
    assert sorted(made.about.layers) == sorted(trained), "no buffers"
    assert made.grams.shape == (3, len(trained), 5, 5)
    assert made.grams.dtype == torch.float64
    assert made.attackers.sum(1).tolist() == [1, 1, 1]
    assert (made.about.attack, made.about.attackers, made.about.clients) == ("sign-flip", 1, 4)
    assert made.about.references
    assert Scenario(**made.about.scenario).resolve() == rehearsal.scenario
    assert bool((made.median_distances > 0).all())


def test_the_grams_are_those_of_the_rounds_as_they_were_played() -> None:
    """Played again by hand with the oracle, whose model is followed."""
    rehearsal, task, data = set_up(rounds=2)
    made = carry_out(rehearsal, task, data)
    from fedimmune.simulation.rehearsal import _server_as_clients  # noqa: PLC0415

    scenario = rehearsal.scenario
    with Federation(scenario, task, _server_as_clients(data, scenario.anchor), 1) as federation:
        for number in (1, 2):
            sent = federation.train(number, lambda *_: None, needs={"anchor"}).updates
            assert sent.references["anchor"] is not None
            states = [
                {k: v.double() for k, v in state.items()}
                for state in (*federation._executor.arena.updates[:4], sent.references["anchor"])
            ]
            for place, layer in enumerate(made.about.layers):
                rows = torch.stack([state[layer].flatten() for state in states])
                torch.testing.assert_close(
                    made.grams[number - 1, place], rows @ rows.T, rtol=1e-4, atol=1e-7
                )
            honest = [c for c in range(4) if c not in federation.attackers]
            mean = {
                k: torch.stack([states[c][k] for c in honest]).mean(0) for k in made.about.layers
            }
            federation.set_global_model(
                {k: v + mean[k].float() for k, v in federation.global_model.items()}
            )
            assert made.attackers[number - 1].tolist() == [c not in honest for c in range(4)]


def test_without_an_anchor() -> None:
    made = carry_out(*set_up(anchor=0))
    assert not made.about.references
    assert made.grams.shape[-1] == 4


def test_no_tensor_is_as_large_as_an_update(tmp_path: Path) -> None:
    rehearsal, task, data = set_up(task="digits", rounds=2, local_epochs=1)
    record([rehearsal], tmp_path, task, data)
    (file,) = tmp_path.iterdir()
    size = sum(p.numel() for p in task.model(data).parameters())
    assert all(tensor.numel() < size / 2 for tensor in load(file.read_bytes()).values())
    assert file.stat().st_size < 4 * size


# -------------------------------------------------------------------- many


def test_what_is_there_is_left_alone_and_the_rest_is_made(tmp_path: Path) -> None:
    rehearsals, task, data = several()
    done: list[str] = []
    record(rehearsals, tmp_path, task, data, on_done=lambda each: done.append(each.file_name))
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == sorted(done)
    assert len(files) == 4
    lost = files[1].read_bytes()
    files[1].unlink()
    before = {
        file: (file.stat().st_mtime_ns, file.stat().st_ino) for file in files if file.exists()
    }
    done.clear()
    record(rehearsals, tmp_path, task, data, on_done=lambda each: done.append(each.file_name))
    assert done == [files[1].name]
    assert files[1].read_bytes() == lost
    assert {f: (f.stat().st_mtime_ns, f.stat().st_ino) for f in before} == before
    assert len(read_recordings([tmp_path])) == 4


def test_killed_before_each_touch_of_a_file_it_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    rehearsals, task, data = several(1)
    record(rehearsals, tmp_path / "whole", task, data)
    whole = {file.name: file.read_bytes() for file in (tmp_path / "whole").iterdir()}
    moments = 0
    while fork_killed_at(
        moments + 1,
        tmp_path / str(moments + 1),
        partial(record, rehearsals, tmp_path / str(moments + 1), task, data),
    ):
        moments += 1
        folder = tmp_path / str(moments)
        if folder.is_dir():
            there = {file.name: file.read_bytes() for file in folder.glob("*.recording")}
            assert there.items() <= whole.items(), f"killed at touch {moments}"
        record(rehearsals, folder, task, data)
        assert len(read_recordings([folder])) == len(whole)
        there = {file.name: file.read_bytes() for file in folder.glob("*.recording")}
        assert there == whole, f"killed at touch {moments}"
    assert moments >= 5


def test_one_worker_and_two_give_the_same_bytes(tmp_path: Path) -> None:
    rehearsals, task, data = several()
    for workers in (1, 2):
        record(rehearsals, tmp_path / str(workers), task, data, workers=workers)
    one, two = (
        {file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in "12"
    )
    assert one == two


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    rehearsals, task, data = several()
    with pytest.raises(InputError, match="cannot write recordings"):
        record(rehearsals, tmp_path / "file" / "in it", task, data)


def test_a_model_beyond_numbers_ends_the_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, measure = [], vars(rehearsal_module)["measure"]

    def until_the_third(updates: Any, references: Any) -> Any:
        calls.append(updates)
        if len(calls) == 3:
            raise NonFiniteError
        return measure(updates, references)

    expected = carry_out(*set_up(rounds=2))
    monkeypatch.setattr(rehearsal_module, "measure", until_the_third)
    made = carry_out(*set_up(rounds=6))
    assert torch.equal(made.grams, expected.grams)
    assert len(made.attackers) == len(made.median_distances) == 2
    calls[:] = [None, None]
    with pytest.raises(InputError, match="no valid round"):
        carry_out(*set_up(rounds=6))


def test_updates_that_are_large_but_finite_are_recorded() -> None:
    """1e25 is finite in float32 and its square is not: rules can measure that, and so can we."""
    attack = {"name": "sign-flip", "scale": 1e25}
    made = carry_out(*set_up(attack=attack, rounds=2))
    assert len(made) == 2
    assert float(made.grams.max()) > 1e45


# -------------------------------------------------------------------- in one call


def test_rehearsing_in_one_call_is_a_plan_carried_out(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "attackers": [0, 1],
        "runs": 2,
        "trajectory": ["mean"],
        "rounds": 2,
        "local_epochs": [1],
        "settings": {"clients": 4, "partition": "iid"},
        "workers": 1,
    }
    planned: list[Any] = []
    done: list[Any] = []
    watched: dict[str, Any] = {"on_start": planned.extend, "on_done": done.append}
    found = adaptive.rehearse(BLOBS, ["omniscient"], output=tmp_path, **watched, **options)
    expected, task, data = several()
    assert planned == done == expected
    for made, rehearsal in zip(found, expected, strict=True):
        assert torch.equal(made.grams, carry_out(rehearsal, task, data).grams)
    assert sorted(f.name for f in tmp_path.iterdir()) == sorted(e.file_name for e in expected)
    again = adaptive.rehearse(BLOBS, ["omniscient"], output=tmp_path, **watched, **options)
    assert len(done) == len(expected), "what is there is not rehearsed again"
    nowhere = adaptive.rehearse(BLOBS, ["omniscient"], **options)
    for others in (again, nowhere):
        assert digest_of(others) == digest_of(found)
    assert adaptive.train(found, epochs=1).references == ("anchor",)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"on": "moon"}, "on takes server or clients"),
        ({"preset": "mine"}, "no preset 'mine'"),
        ({"attacks": ["tickle"]}, "no attack 'tickle'"),
        ({"attackers": []}, "numbers of attackers"),
        ({"settings": {"color": 1}}, "no field 'color'"),
    ],
)
def test_what_cannot_be_rehearsed_is_refused(
    options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ParameterError, match=said):
        adaptive.rehearse(BLOBS, **{"output": tmp_path / "out", "workers": 1, **options})
    assert not (tmp_path / "out").exists()


# -------------------------------------------------------------------- what to rehearse


@given(
    seed=st.integers(0, 10**6),
    shape=st.tuples(st.integers(1, 3), st.integers(8, 40), st.integers(8, 40)),
    classes=st.integers(2, 20),
)
def test_families_stay_in_their_ranges_and_in_the_image(
    seed: int, shape: tuple[int, int, int], classes: int
) -> None:
    facts = DataSpec(classes=classes, shape=shape, highest=(1.0,) * shape[0])
    random = torch.Generator().manual_seed(seed)
    drawn = attacks.get("backdoor").sample_parameters(facts, random)
    attacks.get("backdoor", **drawn).check(facts)
    assert 0 <= drawn["shift_y"] <= 8
    assert 0 <= drawn["shift_x"] <= 8
    assert 0 <= drawn["gap"] <= 1
    assert 0.3 <= drawn["fraction"] <= 0.7
    assert (drawn["shift_y"], drawn["shift_x"], drawn["gap"]) != (20, 20, 3)
    assert 0.5 <= attacks.get("sign-flip").sample_parameters(facts, random)["scale"] <= 2
    flip = attacks.get("label-flip").sample_parameters(facts, random)
    attacks.get("label-flip", **flip).check(facts)
    assert flip["source"] != flip["target"]
    assert attacks.get("none").sample_parameters(facts, random) == {}


def test_a_family_reaches_all_of_its_range() -> None:
    random = torch.Generator().manual_seed(1)
    drawn = [attacks.get("backdoor").sample_parameters(FACTS, random) for _ in range(400)]
    for name, every in {"shift_y": range(9), "gap": range(2), "target": range(10)}.items():
        assert {each[name] for each in drawn} == set(every)


@pytest.mark.parametrize("classes", [2, 3, 5, 10])
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 4, 4), (200,)])
def test_usual_attacks_fit_the_data(shape: tuple[int, ...], classes: int) -> None:
    facts = DataSpec(classes, shape, (1.0,) * shape[0] if len(shape) == 3 else None)
    for attack in usual_attacks(facts):
        attacks.get(attack).check(facts)
    has_room = facts.highest is not None and shape[1] >= 8
    assert ("backdoor" in usual_attacks(facts)) == has_room


def test_an_alias_is_rehearsed_as_what_it_stands_for() -> None:
    assert planned(attacks=["sign-flip", "omniscient"]) == planned(attacks=["sign-flip"])


@pytest.mark.parametrize(
    "span", [{"shift": (3, 1)}, {"scale": (-1, 2)}, {"size": (1, 2)}, {"gap": (0, 0.5)}]
)
def test_ranges_that_make_no_sense(span: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=next(iter(span))):
        planned(family=span)


def test_ranges_that_are_given_replace_the_attacks_own() -> None:
    found = planned(family={"scale": (7, 7), "gap": (3.0, 3.0)}, runs=1)
    drawn = {r.scenario.attack.name: r.scenario.attack.parameters for r in found}
    assert drawn["sign-flip"]["scale"] == 7
    assert drawn["backdoor"]["gap"] == 3
    assert 0.3 <= drawn["backdoor"]["fraction"] <= 0.7


def planned(**options: Any) -> list[Rehearsal]:
    usual: dict[str, Any] = {
        "attacks": ["backdoor", "sign-flip"],
        "attackers": [0, 1, 2],
        "runs": 3,
        "follow": ["oracle"],
    }
    base = {"task": "digits", "rounds": 2, **options.pop("base", {})}
    return plan(base, FACTS, **{**usual, **options})


def test_nobody_attacking_once_a_run_and_every_attack_with_every_number() -> None:
    kinds = [(r.run, r.scenario.attack.name, r.scenario.attackers) for r in planned()]
    expected = [(run, "none", 0) for run in range(3)]
    expected += list(product(range(3), ["backdoor", "sign-flip"], [1, 2]))
    assert sorted(kinds) == sorted(expected)
    assert len({r.file_name for r in planned(follow=["mean", "median"])}) == 30


def test_seeds_differ_by_run_and_kind_and_are_the_same_again() -> None:
    seeds = [r.scenario.seed for r in planned()]
    assert len(set(seeds)) == len(seeds)
    assert [r.scenario.seed for r in planned()] == seeds
    assert not set(seeds) & {r.scenario.seed for r in planned(seed=2)}


def test_a_family_is_drawn_anew_for_every_rehearsal() -> None:
    drawn = [
        tuple(sorted(r.scenario.attack.parameters.items()))
        for r in planned(family={}, runs=5)
        if r.scenario.attack.name == "backdoor"
    ]
    assert len(set(drawn)) == len(drawn) == 10
    fixed = [
        r.scenario.attack.parameters for r in planned() if r.scenario.attack.name == "backdoor"
    ]
    assert all(each == fixed[0] for each in fixed)


@pytest.mark.parametrize("family", [None, {}])
def test_parameters_of_attacks_can_be_set_for_all(family: dict[str, Any] | None) -> None:
    base = {"attack": {"shift_y": 3, "gap": 2}}
    found = planned(base=base, attacks=["backdoor"], family=family)
    for rehearsal in found:
        chosen = rehearsal.scenario.attack
        if chosen.name == "none":
            assert not chosen.parameters
        else:
            assert (chosen.parameters["shift_y"], chosen.parameters["gap"]) == (3, 2)
    with pytest.raises(ParameterError, match="shift_y"):
        planned(base=base, attacks=["sign-flip"])


@pytest.mark.parametrize("nothing", ["attacks", "attackers", "follow"])
def test_there_has_to_be_something_to_rehearse(nothing: str) -> None:
    with pytest.raises(ParameterError):
        planned(**{nothing: []})
