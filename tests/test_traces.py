"""Traces: what a run keeps of its rounds, whatever happens to it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from fedimmune import Scenario, simulate
from fedimmune.adaptive.defense import Defense, DefenseAbout
from fedimmune.adaptive.models.relational import Relational, RelationalSettings
from fedimmune.adaptive.rule import Adaptive
from fedimmune.errors import InputError, ParameterError
from fedimmune.geometry import Geometry
from fedimmune.rules.base import ClientWeights
from fedimmune.runs.traces import Trace, Traces
from fedimmune.simulation import engine, run_folder
from tests.rounds import needs_of
from tests.simulation.processes import fork_killed_at

BLOBS = "tests.simulation.own_task:Blobs"
LAYERS = {"fc.weight": (4, 64), "fc.bias": (4,)}


@pytest.fixture(scope="module")
def defense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a network that has learned nothing, with all that can be: an anchor and memory."""
    path = tmp_path_factory.mktemp("defense") / "blobs.defense"
    settings = RelationalSettings(layers=2, anchor=True, hidden=8)
    torch.manual_seed(3)
    form = Relational(settings)
    for parameter in form.parameters():
        parameter.data *= 3
    about = DefenseAbout(
        task="blobs",
        layers=LAYERS,
        form="relational",
        settings=settings.model_dump(),
        memory=10.0,
    )
    Defense(form, about).save(path)
    return path


@pytest.fixture(scope="module")
def learned(defense: Path) -> Scenario:
    chosen = {"name": "adaptive", "defense": str(defense), "on_majority": "keep"}
    return Scenario(task=BLOBS, clients=5, rounds=3, attack="omniscient", attackers=2, rule=chosen)


PLAIN = Scenario(task=BLOBS, clients=4, rounds=3, attack="omniscient", attackers=1)


def run(scenario: Scenario, runs: Path, **options: Any) -> Traces:
    list(simulate(scenario, runs=runs, **{"workers": 1, **options}))
    return run_folder(scenario, runs).traces


def contents(traces: Traces) -> dict[str, bytes]:
    """Every file, whatever it is called."""
    if not traces.path.exists():
        return {}
    return {file.name: file.read_bytes() for file in traces.path.iterdir()}


# -------------------------------------------------------------------- what is kept


def test_the_learned_rules_weights_follow_from_the_trace(
    learned: Scenario, defense: Path, tmp_path: Path
) -> None:
    traces = run(learned, tmp_path)
    assert traces.rounds() == [1, 2, 3]
    loaded = Defense.load(defense)
    held = []
    for record in run_folder(learned, tmp_path).records():
        trace = traces.read(record.round)
        assert trace.grams is not None
        assert trace.evidence is not None
        assert trace.layers == tuple(LAYERS)
        assert trace.grams.shape == (2, 6, 6), "the server's own update is the last row"
        weights, scores = loaded.weigh(trace.grams, trace.evidence)
        found = {client.client: client for client in record.clients}
        assert weights.tolist() == [found[client].weight for client in trace.clients]
        assert scores.tolist() == [found[client].score for client in trace.clients]
        held.append(float(trace.evidence.abs().sum()))
    assert held[0] == 0 < held[2], "memory begins empty"


def test_what_is_kept_is_what_was_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_SAVE_EVERY", 0.0)
    begun = simulate(PLAIN, runs=tmp_path, workers=1, save_updates=["fc.bias", "fc.weight"])
    next(begun)
    folder = run_folder(PLAIN, tmp_path)
    before = load_file(folder.path / "checkpoint.safetensors")
    next(begun)
    after = load_file(folder.path / "checkpoint.safetensors")
    begun.close()
    trace = folder.traces.read(2)
    assert trace.grams is None, "the mean measures nothing"
    assert trace.senders == ("0", "1", "2", "3")
    assert list(trace.kept) == ["fc.bias", "fc.weight"]
    for name, kept in trace.kept.items():
        assert kept.shape == (4, *LAYERS[name])
        torch.testing.assert_close(kept.mean(0), after[name] - before[name], atol=1e-6, rtol=1e-4)


def test_kept_updates_have_the_inner_products_of_the_trace(
    learned: Scenario, tmp_path: Path
) -> None:
    trace = run(learned, tmp_path, save_updates=["fc.weight"]).read(2)
    assert trace.grams is not None
    rows = trace.kept["fc.weight"].double().flatten(1)
    torch.testing.assert_close(trace.grams[0, :5, :5], rows @ rows.T, rtol=1e-5, atol=1e-8)


def test_keeping_changes_nothing_else(learned: Scenario, tmp_path: Path) -> None:
    outcomes = []
    for number, keep in enumerate(([], ["fc.weight"])):
        run(learned, tmp_path / str(number), save_updates=keep)
        folder = run_folder(learned, tmp_path / str(number))
        model = (folder.path / "model.safetensors").read_bytes()
        outcomes.append(([r.model_dump(exclude={"seconds"}) for r in folder.records()], model))
    assert outcomes[0] == outcomes[1]


def test_a_run_that_keeps_nothing_has_no_folder_for_it(tmp_path: Path) -> None:
    assert not run(PLAIN, tmp_path).path.exists()


def test_a_client_whose_values_are_not_finite_is_kept_and_not_measured(tmp_path: Path) -> None:
    broken = Scenario(
        task={"name": BLOBS, "breaks": [0], "how": "nan"},
        clients=4,
        rounds=1,
        partition={"name": "by-label", "shards": 1},
        rule={"name": "adaptive", **needs_of("adaptive", LAYERS)},
    )
    trace = run(broken, tmp_path, save_updates=["fc.bias"]).read(1)
    verdicts = {c.client: c.verdict for c in run_folder(broken, tmp_path).records()[0].clients}
    rejected = {client for client, verdict in verdicts.items() if verdict == "rejected"}
    assert rejected
    assert set(trace.clients) == set(verdicts) - rejected
    assert set(trace.senders) == set(verdicts)
    finite = torch.isfinite(trace.kept["fc.bias"]).all(1).tolist()
    assert {c for c, fine in zip(trace.senders, finite, strict=True) if not fine} == rejected


def test_a_round_that_the_rule_did_not_answer_has_no_inner_products(
    learned: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, rounds = Adaptive.weigh_geometry, 0

    def failing(self: Adaptive, geometry: Geometry) -> ClientWeights:
        nonlocal rounds
        rounds += 1
        if rounds == 2:
            raise InputError("not today")
        return usual(self, geometry)

    monkeypatch.setattr(Adaptive, "weigh_geometry", failing)
    traces = run(learned, tmp_path)
    assert traces.rounds() == [1, 3], "what was looked at in round 1 is not passed off as round 2"
    kept = run(learned.model_copy(update={"seed": 2}), tmp_path, save_updates=["fc.bias"])
    assert kept.rounds() == [1, 2, 3]


# -------------------------------------------------------------------- killed, gone on with, forced


def test_killed_at_any_touch_of_a_file_the_traces_come_out_the_same(
    learned: Scenario, tmp_path: Path
) -> None:
    short = learned.model_copy(update={"rounds": 2})
    expected = contents(run(short, tmp_path / "whole", save_updates=["fc.bias"]))
    assert len(expected) == 2
    moment = 1
    while True:
        runs = tmp_path / str(moment)

        def act(runs: Path = runs) -> object:
            return run(short, runs, save_updates=["fc.bias"])

        if not fork_killed_at(moment, runs, act):
            break
        assert contents(run(short, runs, save_updates=["fc.bias"])) == expected, (
            f"killed at {moment}"
        )
        moment += 3  # every third one: they take a while
    assert moment > 20


def test_what_follows_the_checkpoint_is_replaced(learned: Scenario, tmp_path: Path) -> None:
    begun = simulate(learned, runs=tmp_path, workers=1)
    next(begun)
    begun.close()
    traces = run_folder(learned, tmp_path).traces
    traces.write(Trace(2, kept={"fc.bias": torch.zeros(1, 4)}, senders=("nobody",)))
    traces.write(Trace(9, kept={"fc.bias": torch.zeros(1, 4)}, senders=("nobody",)))
    (traces.path / ".round-0002.safetensors.0123abcd").write_bytes(b"half")
    run(learned, tmp_path)
    assert traces.rounds() == [1, 2, 3]
    assert len(contents(traces)) == 3
    assert traces.read(2).senders == ()


def test_force_forgets_what_was_kept(tmp_path: Path) -> None:
    traces = run(PLAIN, tmp_path, save_updates=["fc.bias"])
    assert traces.kept_layers() == ["fc.bias"]
    run(PLAIN, tmp_path)  # a finished run is not run again
    assert traces.kept_layers() == ["fc.bias"]
    run(PLAIN, tmp_path, force=True)
    assert not traces.path.exists()


def test_rounds_that_did_not_keep_a_layer_are_known(tmp_path: Path) -> None:
    begun = simulate(PLAIN, runs=tmp_path, workers=1, save_updates=["fc.bias"])
    next(begun)
    begun.close()
    traces = run(PLAIN, tmp_path, save_updates=["fc.weight"])
    assert traces.lacking("fc.weight", 3) == [1]
    assert traces.lacking("fc.bias", 3) == [2, 3]
    assert traces.kept_layers() == ["fc.bias", "fc.weight"]


def test_unknown_layers_are_refused_before_anything_is_given_up(tmp_path: Path) -> None:
    run(PLAIN, tmp_path)
    before = run_folder(PLAIN, tmp_path).records()
    with pytest.raises(ParameterError, match=r"no trained layer 'fc'.*fc\.weight, fc\.bias"):
        run(PLAIN, tmp_path, save_updates=["fc.bias", "fc"], force=True)
    assert run_folder(PLAIN, tmp_path).records() == before
    with pytest.raises(ParameterError, match="folder for runs"):
        simulate(PLAIN, save_updates=["fc.bias"])


# -------------------------------------------------------------------- files

# Ids are text once they are written.
ids = st.lists(st.integers(0, 99) | st.text(max_size=5), min_size=1, max_size=4, unique_by=str)
names = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=3, unique=True)


@given(clients=ids, layers=names, senders=ids, kept=names, extra=st.booleans(), data=st.data())
def test_traces_are_written_and_read_without_loss(
    clients: list[Any],
    layers: list[str],
    senders: list[Any],
    kept: list[str],
    extra: bool,
    data: st.DataObject,
) -> None:
    rows = len(clients) + extra
    random = torch.Generator().manual_seed(data.draw(st.integers(0, 999)))
    grams = torch.randn(len(layers), rows, rows, generator=random, dtype=torch.float64)
    evidence = data.draw(st.none() | st.just(grams[0, 0, : len(clients)].clone()))
    updates = {name: torch.randn(len(senders), 2, 3, generator=random) for name in kept}
    number = data.draw(st.integers(1, 20_000))
    given_ = Trace(
        number,
        tuple(clients),
        tuple(layers),
        grams,
        evidence,
        tuple(senders),
        updates,
        ("anchor",) if extra else (),
    )
    with tempfile.TemporaryDirectory() as place:
        traces = Traces(Path(place) / "traces")
        traces.write(given_)
        found = traces.read(number)
        assert traces.rounds() == [number]
    assert (found.round, found.layers) == (number, given_.layers)
    assert found.clients == tuple(map(str, clients)), "ids are text once they are written"
    assert found.senders == tuple(map(str, senders))
    assert found.references == given_.references
    assert found.grams is not None
    assert torch.equal(found.grams, grams)
    assert (found.evidence is None) == (evidence is None)
    assert list(found.kept) == kept
    assert all(torch.equal(found.kept[name], updates[name]) for name in kept)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-5])


def foreign(file: Path) -> None:
    save_file({"grams": torch.zeros(1, 2, 2)}, file)


def of_another_round(file: Path) -> None:
    file.write_bytes(file.with_name("round-0002.safetensors").read_bytes())


def not_finite(file: Path) -> None:
    broken = torch.full((1, 1, 1), torch.nan, dtype=torch.float64)
    Traces(file.parent).write(Trace(1, ("a",), ("fc",), broken))


def without_a_client(file: Path) -> None:
    Traces(file.parent).write(Trace(1, (), ("fc",), torch.zeros(1, 3, 3).double()))


@pytest.mark.parametrize(
    "damage", [cut, foreign, of_another_round, not_finite, without_a_client, Path.unlink]
)
def test_a_damaged_trace_is_refused_by_name(damage: Callable[[Path], None], tmp_path: Path) -> None:
    traces = Traces(tmp_path)
    for number in (1, 2):
        traces.write(Trace(number, ("a",), ("fc",), torch.ones(1, 1, 1).double()))
    traces.read(1)
    damage(tmp_path / "round-0001.safetensors")
    with pytest.raises(InputError, match=r"round-0001\.safetensors"):
        traces.read(1)
    traces.read(2)
