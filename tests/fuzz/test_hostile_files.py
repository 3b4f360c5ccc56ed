"""Every kind of file, changed at random: it is read and used, or refused in one line.

Anything else (a traceback, a hang, a warning that somebody ignores) is a fault. `make fuzz` tries
thousands, and prints how many of each kind were accepted and refused.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import tomllib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from fedimmune import Updates, rules
from fedimmune.adaptive import train
from fedimmune.adaptive.defense import Defense
from fedimmune.adaptive.detector import Detector
from fedimmune.adaptive.recordings import Recording
from fedimmune.adaptive.reputation import Case, Memory
from fedimmune.adaptive.sweep import Outcome, described_search
from fedimmune.cli import _inspection
from fedimmune.cli._ui import remarks, say
from fedimmune.errors import FedimmuneError
from fedimmune.report import write_report
from fedimmune.results import ClientResult, Verdict
from fedimmune.rules.history import History
from fedimmune.runs.folder import Checkpoint, RunFolder
from fedimmune.runs.records import RoundRecord, Seconds
from fedimmune.runs.traces import Trace
from fedimmune.simulation import Scenario
from tests.adaptive.rehearsed import LAYERS, grams_of, honest_round, negated, recording, recordings
from tests.fuzz.conftest import COUNTS
from tests.fuzz.mutating import changed_bytes, changed_json, changed_tensors, changed_text
from tests.report.making import make_run

EXAMPLES = int(os.environ.get("FEDIMMUNE_EXAMPLES", "60"))
_SETTINGS = settings(
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
CLIENTS = ("a", "b", "c", "d", "e", "f", "g", 8)


def fuzzed(kind: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a test of a function that is given the means to draw, and uses a changed file."""

    def decorate(use: Callable[..., None]) -> Callable[..., None]:
        def test(data: st.DataObject, tmp_path: Path, valid: Path) -> None:
            counts = COUNTS.setdefault(kind, Counter())
            try:
                use(data.draw, tmp_path, valid)
            except FedimmuneError as error:
                counts["refused"] += 1
                say(remarks(), f"fedimmune: {error}")
            except BaseException as error:
                stops = type(error).__module__.startswith("hypothesis")  # its own, to stop early
                counts["crashed"] += not stops
                raise
            else:
                counts["accepted"] += 1

        test.__name__ = test.__qualname__ = use.__name__
        return _SETTINGS(given(data=st.data())(test))

    return decorate


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one valid file of each kind."""
    folder = tmp_path_factory.mktemp("valid")
    made = train(recordings(2, rounds=2), epochs=1, settings={"hidden": 4})
    figures: dict[str, Any] = {"accuracy": 0.5, "exact": 0.5, "benign_kept": 1.0}
    points = [Outcome(settings={"c": c}, attacker_weight=None, epoch=1, **figures) for c in (5, 10)]
    searched = described_search({"c": [5, 10]}, points)
    made.about = made.about.model_copy(update={"searched": searched})
    made.save(folder / "a.defense")
    recording(rounds=2, n=4).save(folder / "a.recording")
    recording(rounds=2, n=4, save_updates=3).save(folder / "sampled.recording")
    sampled = recordings(2, rounds=2, save_updates=3)
    small = {"hidden": [4], "latent": 2}
    train(sampled, form="spectral", epochs=1, settings=small).save(folder / "a.detector")
    sent = dict(zip("abcdef", honest_round(6, torch.Generator().manual_seed(1)), strict=True))
    cases = {c: Case(since=1, evidence=(-0.1, -2.0), rounds=1.0) for c in ("a", "z")}
    Memory({**dict.fromkeys("abcdef", -0.1), "z": -1.0}, cases, 2).save(folder / "memory")
    seen: Any = rules.get("foolsgold", history=True)
    seen.aggregate(sent)
    seen.save(folder / "history")
    save_file(sent["a"], folder / "client.safetensors")
    save_file(sent["b"], folder / "global.safetensors")
    make_run(folder / "run")
    folder.joinpath("scenario.toml").write_text(
        Scenario(rule="krum", attack="backdoor", rounds=2).to_toml()
    )
    _explained_run(folder / "explained", folder / "a.defense")
    return folder


def _explained_run(place: Path, defense: Path) -> None:
    folder = RunFolder(place)
    place.mkdir()
    text = f'rounds = 2\n[rule]\nname = "adaptive"\ndefense = "{defense}"\n'
    (place / "scenario.toml").write_text(text)
    grams = grams_of(honest_round(8, torch.Generator().manual_seed(1)), list(LAYERS))
    evidence = torch.zeros(8, dtype=torch.float64)
    kept = {"fc.bias": torch.rand(8, 6)}
    folder.traces.write(Trace(1, CLIENTS, tuple(LAYERS), grams, evidence, CLIENTS, kept))
    records = tuple(ClientResult(c, Verdict.SUSPECTED, 0.0) for c in CLIENTS)
    seconds = Seconds(training=1, aggregating=1, testing=1)
    folder.append(RoundRecord(round=1, accuracy=0.5, clients=records, seconds=seconds))
    rule: Any = rules.get("foolsgold", history=True)
    folder.save(Checkpoint(1, {"w": torch.zeros(3)}, "fingerprint"), rule, last=False)


def test_the_unchanged_files_are_good(valid: Path) -> None:
    Defense.load(valid / "a.defense")
    Recording.load(valid / "a.recording")
    assert Recording.load(valid / "sampled.recording").values is not None
    Detector.load(valid / "a.detector")
    assert Memory.load(valid / "memory").cases
    assert History.load(valid / "history").sums
    Scenario.from_toml(valid / "scenario.toml")
    _inspection.look_at_run(valid / "explained", 1, "a", None).show()
    assert RunFolder(valid / "run").partition()


# -------------------------------------------------------------------- one kind of file each


@fuzzed("defense")
def test_a_defense(draw: Any, tmp_path: Path, valid: Path) -> None:
    path = tmp_path / "changed.defense"
    path.write_bytes(changed_tensors(draw, (valid / "a.defense").read_bytes()))
    loaded = Defense.load(path)
    _inspection.look_at_defense(path).show()
    layers = len(loaded.about.layers)
    grams = torch.eye(5, dtype=torch.float64).expand(layers, 5, 5)
    weights, scores = loaded.weigh(grams - 0.1)
    assert bool(torch.isfinite(weights).all() & torch.isfinite(scores).all())
    rule: Any = rules.get("adaptive", defense=path)
    sent = honest_round(6, torch.Generator().manual_seed(1))
    repr(rule.aggregate([negated(sent[0]), *sent[1:]]))


@fuzzed("recording")
def test_a_recording(draw: Any, tmp_path: Path, valid: Path) -> None:
    path = tmp_path / "changed.recording"
    path.write_bytes(changed_tensors(draw, (valid / "a.recording").read_bytes()))
    found = Recording.load(path)
    other = recording(run=1, rounds=1, n=4)
    made = train([found, other], epochs=1, settings={"hidden": 2})
    made.save(tmp_path / "made.defense")
    Defense.load(tmp_path / "made.defense")


@fuzzed("sampled recording")
def test_a_recording_with_values(draw: Any, tmp_path: Path, valid: Path) -> None:
    path = tmp_path / "changed.recording"
    path.write_bytes(changed_tensors(draw, (valid / "sampled.recording").read_bytes()))
    other = recording(run=1, rounds=1, n=4, save_updates=3)
    small = {"hidden": [2], "latent": 1}
    made = train([Recording.load(path), other], form="spectral", epochs=1, settings=small)
    made.save(tmp_path / "made.detector")
    Detector.load(tmp_path / "made.detector")


@fuzzed("detector")
def test_a_detector(draw: Any, tmp_path: Path, valid: Path) -> None:
    path = tmp_path / "changed.detector"
    path.write_bytes(changed_tensors(draw, (valid / "a.detector").read_bytes()))
    rule: Any = rules.get("spectral", detector=path)
    sent = honest_round(6, torch.Generator().manual_seed(1))
    answer = rule.aggregate([negated(sent[0]), *sent[1:]])
    assert sum(answer.weights.values()) == pytest.approx(1)
    assert all(math.isfinite(score) for score in answer.scores.values())


@fuzzed("memory")
def test_a_memory(draw: Any, tmp_path: Path, valid: Path) -> None:
    path = tmp_path / "changed.memory"
    path.write_bytes(changed_tensors(draw, (valid / "memory").read_bytes()))
    rule: Any = rules.get("adaptive", defense=valid / "a.defense", memory=True)
    rule.restore(path)
    sent = honest_round(6, torch.Generator().manual_seed(1))
    repr(rule.aggregate(dict(zip("abcdef", sent, strict=True))))
    rule.save(path)
    Memory.load(path)


@fuzzed("history")
def test_a_history(draw: Any, tmp_path: Path, valid: Path) -> None:
    path = tmp_path / "changed.history"
    path.write_bytes(changed_tensors(draw, (valid / "history").read_bytes()))
    rule: Any = rules.get("foolsgold", history=True)
    rule.restore(path)
    sent = honest_round(6, torch.Generator().manual_seed(1))
    repr(rule.aggregate(dict(zip("abcdef", sent, strict=True))))
    rule.save(path)
    History.load(path)


@fuzzed("update")
def test_a_clients_update(draw: Any, tmp_path: Path, valid: Path) -> None:
    path = tmp_path / "hostile.safetensors"
    path.write_bytes(changed_tensors(draw, (valid / "client.safetensors").read_bytes()))
    honest = valid / "client.safetensors"
    updates = Updates.from_files([honest, path], global_file=valid / "global.safetensors")
    found = rules.get("mean").aggregate(updates)
    assert "client" not in found.rejected
    repr(found)


@fuzzed("trace")
def test_a_trace(draw: Any, tmp_path: Path, valid: Path) -> None:
    folder = _copied(valid / "explained", tmp_path)
    path = folder / "traces" / "round-0001.safetensors"
    path.write_bytes(changed_tensors(draw, path.read_bytes()))
    _inspection.look_at_run(folder, None, None, None).show()
    _inspection.look_at_run(folder, 1, "a", None).show()


@fuzzed("checkpoint")
def test_a_checkpoint(draw: Any, tmp_path: Path, valid: Path) -> None:
    folder = _copied(valid / "explained", tmp_path)
    which = draw(st.sampled_from(["checkpoint.safetensors", "history-1.safetensors"]))
    path = folder / which
    path.write_bytes(changed_tensors(draw, path.read_bytes()))
    RunFolder(folder).resume(rules.get("foolsgold", history=True))


@fuzzed("scenario")
def test_a_scenario(draw: Any, tmp_path: Path, valid: Path) -> None:
    text = (valid / "scenario.toml").read_text()
    path = tmp_path / "scenario.toml"
    if draw(st.booleans()):
        path.write_bytes(changed_bytes(draw, text.encode()))
    else:
        changed = _without_nothing(changed_json(draw, tomllib.loads(text)))
        path.write_text(tomli_w.dumps(changed if isinstance(changed, dict) else {"a": changed}))
    Scenario.from_toml(path)


@fuzzed("rounds")
def test_rounds(draw: Any, tmp_path: Path, valid: Path) -> None:
    folder = _copied(valid / "run", tmp_path)
    path = folder / "rounds.jsonl"
    lines = path.read_bytes().splitlines()
    if draw(st.integers(0, 3)) == 0:
        path.write_bytes(changed_bytes(draw, path.read_bytes()))
    else:
        at = draw(st.integers(0, len(lines) - 1))
        lines[at] = changed_text(draw, json.loads(lines[at]))
        path.write_bytes(b"\n".join([*lines, b""]))
    _read(folder, tmp_path)


@fuzzed("partition")
def test_a_partition(draw: Any, tmp_path: Path, valid: Path) -> None:
    folder = _copied(valid / "run", tmp_path)
    path = folder / "partition.json"
    if draw(st.integers(0, 3)) == 0:
        path.write_bytes(changed_bytes(draw, path.read_bytes()))
    else:
        path.write_bytes(changed_text(draw, json.loads(path.read_bytes())))
    _read(folder, tmp_path)


@fuzzed("run folder")
def test_the_scenario_of_a_run(draw: Any, tmp_path: Path, valid: Path) -> None:
    folder = _copied(valid / "run", tmp_path)
    path = folder / "scenario.toml"
    changed = _without_nothing(changed_json(draw, tomllib.loads(path.read_text())))
    path.write_text(tomli_w.dumps(changed if isinstance(changed, dict) else {"a": changed}))
    _read(folder, tmp_path)


def _read(folder: Path, tmp_path: Path) -> None:
    _inspection.look_at_run(folder, None, None, None).show()
    _inspection.look_at_run(folder, 1, None, None).show()
    write_report([folder], tmp_path / "report.html")


def _copied(folder: Path, tmp_path: Path) -> Path:
    place = tmp_path / folder.name
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(folder, place)
    return place


def _without_nothing(value: Any) -> Any:
    """Give what TOML can hold: it has no null, and text is Unicode."""
    if isinstance(value, dict):
        return {_unicode(name): _without_nothing(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_without_nothing(each) for each in value]
    return "none" if value is None else _unicode(value) if isinstance(value, str) else value


def _unicode(text: str) -> str:
    return text.encode(errors="replace").decode()
