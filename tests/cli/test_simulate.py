"""`fedimmune simulate` as people use it; the engine itself is tested in tests/federation."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from fedimmune.cli import app
from fedimmune.runs.folder import RunFolder
from fedimmune.simulation import Scenario, simulate
from fedimmune.tasks.digits import Digits

QUICK = ("simulate", "--rounds", "2", "--set", "local_epochs=1")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDIMMUNE_DATA", raising=False)
    return tmp_path


def call(*arguments: str) -> Result:
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def only_run(folder: Path) -> Path:
    runs = list((folder / "runs").iterdir())
    assert len(runs) == 1
    return runs[0]


def test_a_line_a_round_and_the_run_is_kept(folder: Path) -> None:
    result = call(*QUICK, "--rule", "krum", "--attack", "backdoor", "--attackers", "3")
    assert result.exit_code == 0
    assert "digits · krum · backdoor by 3 of 10 · seed 1" in result.stdout
    assert re.search(r"^ +1/2 +\d+\.\d%", result.stdout, re.MULTILINE)
    assert re.search(r"^ +2/2 +\d+\.\d%", result.stdout, re.MULTILINE)
    run = only_run(folder)
    assert run.name in result.stderr.replace("\n", "")
    assert Scenario.from_toml(run).attackers == 3
    assert len((run / "rounds.jsonl").read_text().splitlines()) == 2


def test_json_is_what_is_on_disk(folder: Path) -> None:
    result = call(*QUICK, "--json")
    assert result.stdout == (only_run(folder) / "rounds.jsonl").read_text()
    assert [json.loads(line)["round"] for line in result.stdout.splitlines()] == [1, 2]


def test_a_finished_run_is_shown_again_unless_forced() -> None:
    first = call(*QUICK, "--json").stdout
    again = call(*QUICK, "--json")
    assert again.stdout == first, "even the seconds: nothing was run"
    assert "finished earlier" in again.stderr
    forced = call(*QUICK, "--json", "--force")
    assert "finished earlier" not in forced.stderr

    def bare(text: str) -> list[dict[str, Any]]:
        return [{**json.loads(line), "seconds": None} for line in text.splitlines()]

    assert bare(forced.stdout) == bare(first)


def test_any_field_can_be_set_and_a_run_can_be_varied(folder: Path) -> None:
    call(
        *QUICK,
        *("--attack", "backdoor", "--set", "attack.shift_x=5", "--set", "optimizer.lr=0.05"),
        *("--set", "partition.name=iid", "--set", "participation=0.5", "--set", "rule.name=krum"),
        *("--set", "rule.attackers=1"),
    )
    run = only_run(folder)
    scenario = Scenario.from_toml(run)
    assert scenario.attack.parameters["shift_x"] == 5
    assert scenario.optimizer.lr == 0.05
    assert scenario.partition.name == "iid"
    assert scenario.rule.parameters == {"attackers": 1}
    call("simulate", str(run), "--seed", "9", "--runs", "others")
    varied = Scenario.from_toml(next((folder / "others").iterdir()))
    assert varied == scenario.model_copy(update={"seed": 9})


def test_the_authors_protocol(folder: Path, refused: Callable[..., str]) -> None:
    words = ("simulate", "--rounds", "1", "--attack", "backdoor", "--workers", "1")
    result = call(*words, "--protocol", "authors", "--set", "attack.value=0.5")
    assert result.exit_code == 0, result.output
    (run,) = (folder / "runs").iterdir()
    played = Scenario.from_toml(run)
    assert played.optimizer.carried
    assert played.attack.parameters["chance"] == 0.5
    assert played.attack.parameters["value"] == 0.5, "what is said stays"
    assert "no protocol 'mine'" in refused(*words, "--protocol", "mine")


def test_a_scenario_file(folder: Path) -> None:
    (folder / "mine.toml").write_text('rounds = 1\nrule = "median"\n[task]\nname = "digits"\n')
    result = call("simulate", "mine.toml")
    assert "digits · median · no attack · seed 1" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--task", "mnits"), "no task 'mnits'; did you mean 'mnist'?"),
        (("--rule", "krumm"), "no rule 'krumm'"),
        (("--attack", "backdoor", "--set", "attack.shift_y=14"), "does not fit"),
        (("--attackers", "11", "--attack", "backdoor"), "11 attackers among 10"),
        (("--set", "attack.color=3", "--attack", "backdoor"), "no parameter 'color'"),
        (("--set", "color=3"), "no field 'color'; there are task"),
        (("--set", "optimizer.speed=3"), "no field 'speed'"),
        (("--set", "rounds.deep=3"), "no field 'rounds.deep'"),
        (("--set", "rounds"), "--set takes NAME=VALUE"),
        (("--rounds", "0"), "rounds: it should be greater than or equal to 1"),
        (("nowhere.toml",), "cannot read nowhere.toml"),
        (("--task", "nowhere:Thing"), "cannot import 'nowhere'"),
        (("--task", "json:JSONDecoder"), "not a subclass of fedimmune.tasks.Task"),
        (("--rule", "krum", "--clients", "2"), "krum needs at least 3 valid clients"),
        (("--set", "device=cuda:99"), "cannot compute on device 'cuda:99'"),
        (("--set", "anchor=899"), "none would be left to test on"),
    ],
)
def test_bad_input_is_one_line_that_helps(
    refused: Callable[..., str], arguments: tuple[str, ...], said: str
) -> None:
    assert said in refused("simulate", *arguments)


def test_a_broken_scenario_file(refused: Callable[..., str], folder: Path) -> None:
    (folder / "broken.toml").write_text("rounds = = 1")
    assert "broken.toml is not TOML" in refused("simulate", "broken.toml")


def test_runs_that_cannot_be_written(refused: Callable[..., str], folder: Path) -> None:
    (folder / "runs").write_text("in the way")
    assert "cannot write the run" in refused(*QUICK)


def test_missing_data_says_what_is_expected_where(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    said = refused("simulate", "--task", "mnist", "--data", "empty")
    assert "train-images-idx3-ubyte.gz" in said
    assert "--data DIR or FEDIMMUNE_DATA" in said


def test_tensorboard_gets_the_usual_scalars(folder: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import (  # noqa: PLC0415
        EventAccumulator,
    )

    for _ in range(2):  # a second call must not double anything
        call(*QUICK, "--attack", "backdoor", "--tensorboard", "boards")
    events = EventAccumulator(str(next((folder / "boards").iterdir())))
    events.Reload()
    record = json.loads((only_run(folder) / "rounds.jsonl").read_text().splitlines()[-1])
    for tag in ("accuracy", "asr", "detection/attacker_weight", "weight/3"):
        assert [event.step for event in events.Scalars(tag)] == [1, 2]
    assert events.Scalars("accuracy")[-1].value == pytest.approx(record["accuracy"])


# ---------------------------------------------------------------- lists and data


@pytest.mark.parametrize("what", ["rules", "attacks", "tasks"])
def test_lists_name_everything(what: str) -> None:
    listed = json.loads(call(what, "--json").stdout)
    shown = call(what).stdout
    assert len(listed) >= 4
    for each in listed:
        assert each["name"] in shown
        assert each["summary"]


def test_data_is_counted() -> None:
    found = json.loads(call("data", "digits", "--json").stdout)
    assert found["classes"] == 10
    assert sum(found["parts"]["clients"]["by_class"]) == 898
    assert found["parts"]["server"]["samples"] == 899
    assert "898" in call("data", "digits").stdout


# ---------------------------------------------------------------- a task of one's own


PAGE = Path(__file__).parents[2] / "docs" / "guides" / "own-task.md"


def test_the_example_of_an_own_task_runs_from_the_command_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = re.search(r"```python[^\n]*\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    command = re.search(r"^fedimmune (simulate --task blobs.*)$", PAGE.read_text(), re.MULTILINE)
    assert example
    assert command
    (folder / "blobs.py").write_text(example[1])
    monkeypatch.syspath_prepend(str(folder))
    result = call(*command[1].split(), "--set", "task.spread=0.8", "--json", "--workers", "2")
    records = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(records) == 5
    assert records[-1]["accuracy"] > 0.5


PAGES = Path(__file__).parents[2] / "docs"


def test_the_scenario_in_the_guide_is_a_scenario() -> None:
    text = (PAGES / "simulation.md").read_text(encoding="utf-8")
    block = re.search(r"```toml[^\n]*\n(.*?)```", text, re.DOTALL)
    assert block
    scenario = Scenario(**tomllib.loads(block[1]))
    assert scenario.make_rule([]).clients_needed <= scenario.clients


def test_help_tells_the_defaults() -> None:
    text = " ".join(call("simulate", "--help").stdout.replace("│", " ").split())
    for said in ("digits", "4 in 10", "FEDIMMUNE_DATA", "SCENARIO is a TOML file"):
        assert said in text


TASK = """
import torch
from torch import nn
from fedimmune import Data, TrainingConfig, Samples, Task

def samples(count):
    return Samples(torch.randn(count, 2), torch.arange(count) % 3)

class Sound(Task):
    name = "sound"
    summary = "nothing"
    recipe = TrainingConfig(rounds=1, lr=0.1, batch=10)
    def load(self, place):
        return Data(samples(60), samples(30), classes=3)
    def model(self, data):
        return nn.Linear(2, 3)

class NoRecipe(Sound):
    recipe = dict(rounds=1)
class NoDefault(Sound):
    def __init__(self, *, size):
        self.size = size
class Forgetful(Sound):
    def __init__(self, *, size=1):
        pass
class Complicated(Sound):
    def __init__(self, *, size=object()):
        self.size = size
class Raising(Sound):
    def __init__(self):
        raise RuntimeError("not today")
class NoData(Sound):
    def load(self, place):
        return None
class BadData(Sound):
    def load(self, place):
        raise OSError("the disk is gone")
class ArrayData(Sound):
    def load(self, place):
        return Data(Samples(torch.randn(6, 2), torch.zeros(6).long().numpy()), samples(3), 3)
class NoModel(Sound):
    def model(self, data):
        return None
class BadModel(Sound):
    def model(self, data):
        raise KeyError("layers")
class WrongInputs(Sound):
    def model(self, data):
        return nn.Linear(5, 3)
class TooManyOutputs(Sound):
    def model(self, data):
        return nn.Linear(2, 7)
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("NoRecipe", "needs a `recipe`, a fedimmune.TrainingConfig"),
        ("NoDefault", "parameter 'size' needs a default"),
        ("Forgetful", "has to store its parameter 'size'"),
        ("Complicated", "size must be a number"),
        ("Raising", "cannot be made: RuntimeError: not today"),
        ("NoData", "load must return fedimmune.Data, not NoneType"),
        ("BadData", "load failed: OSError: the disk is gone"),
        ("ArrayData", "must be PyTorch tensors, not Tensor and ndarray"),
        ("NoModel", "model must return a torch.nn.Module, not NoneType"),
        ("BadModel", "model failed: KeyError: 'layers'"),
        ("WrongInputs", "the model, given two samples, failed: RuntimeError"),
        ("TooManyOutputs", "one number per class; it returns (2, 7)"),
    ],
)
def test_a_faulty_task_is_named_and_nothing_is_written(
    refused: Callable[..., str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    said: str,
) -> None:
    (folder / "faulty.py").write_text(TASK)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "faulty", raising=False)
    assert said in refused("simulate", "--task", f"faulty:{name}")
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    "arguments",
    [("--attack", "backdoor", "--set", "attack.shift_x=50"), ("--rule", "krum", "--clients", "2")],
)
def test_what_is_refused_leaves_nothing_behind(
    refused: Callable[..., str], folder: Path, arguments: tuple[str, ...]
) -> None:
    refused("simulate", *arguments)
    assert not (folder / "runs").exists()


def test_force_keeps_the_old_run_until_the_new_one_begins(
    refused: Callable[..., str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call(*QUICK)
    before = {file.name: file.read_bytes() for file in only_run(folder).iterdir()}
    monkeypatch.setattr(Digits, "load", lambda *_: None)
    refused(*QUICK, "--force")
    assert {file.name: file.read_bytes() for file in only_run(folder).iterdir()} == before


def test_with_few_taking_part_columns_stay_where_they_are() -> None:
    shown = call(
        *("simulate", "--rounds", "4", "--seed", "3", "--attack", "backdoor", "--rule", "mean"),
        *("--set", "participation=0.2"),
    ).stdout.splitlines()
    assert re.fullmatch(r"attackers: \d( \d){3}", shown[1])
    where = shown[2].index("weight by client")
    for line in shown[3:7]:
        cells = line[where:].ljust(20)
        assert [cell for cell in cells[::2] if cell != " "] == ["█", "█"]


def test_given_twice_and_attackers_without_an_attack(refused: Callable[..., str]) -> None:
    assert "rounds is given twice: 2 and 1" in refused(*QUICK, "--set", "rounds=1")
    assert "nobody attacks" in call(*QUICK, "--attackers", "3").stderr


def test_odd_rounds_are_announced_once_and_written_down(folder: Path) -> None:
    words = (*QUICK, "--rule", "oracle", "--attack", "omniscient", "--attackers", "7")
    result = call(*words)
    said = "7 of 10 valid clients are suspected"
    assert result.stdout.count(f"warning: {said}") == 2
    assert said not in result.stderr, "the log would say it once more"
    records = RunFolder(only_run(folder)).records()
    assert all(said in record.warnings[0] for record in records)
    assert call(*words).stdout.count(said) == 2, "and when it is shown again"
    assert said in call("inspect", str(only_run(folder)), "--round", "1").stdout


def test_a_run_that_goes_on_has_the_same_ids(folder: Path) -> None:
    scenario = Scenario(rounds=3, rule={"name": "foolsgold", "history": True}, attack="backdoor")
    whole = list(simulate(scenario, workers=1))
    begun = simulate(scenario, runs=folder, workers=1)
    next(begun)
    begun.close()
    resumed = list(simulate(scenario, runs=folder, workers=1))
    assert [r.clients for r in resumed] == [r.clients for r in whole], "read back, or just played"
    ids = {
        client["client"] for r in resumed for client in json.loads(r.model_dump_json())["clients"]
    }
    assert ids == {str(n) for n in range(10)}
