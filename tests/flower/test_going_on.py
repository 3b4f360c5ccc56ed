"""Run folders of federations: read by the report, and gone on with after a kill."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, MetricRecord
from torch import Tensor

from fedimmune.errors import InputError
from fedimmune.flower import RobustStrategy, verdict_of
from fedimmune.report import write_report
from fedimmune.runs.folder import RunFolder
from tests.flower.federation import (
    FakeGrid,
    altering,
    arrays_of,
    failing,
    first_model,
    group,
    is_same,
    robust,
    silent,
)

pytestmark = pytest.mark.flower


class KilledError(Exception):
    """Stands for a process that is no more."""


def attack(state: dict[str, Tensor]) -> None:
    for tensor in state.values():
        if tensor.is_floating_point():
            tensor.mul_(-2)


def federation() -> FakeGrid:
    return FakeGrid(group(6, attacker=altering(attack), broken=failing(), dead=silent))


def strategy_in(runs: Path, **options: Any) -> RobustStrategy:
    given = {"rule": "foolsgold", "rule_parameters": {"history": True}, "runs": runs, "name": "a"}
    return robust(**{**given, "timeout": 0.01, **options})


def play(strategy: RobustStrategy, rounds: int, die_in: int | None = None) -> ArrayRecord:
    def test(number: int, _: ArrayRecord) -> MetricRecord:
        if number == die_in:
            raise KilledError
        return MetricRecord({"accuracy": number / 10, "asr": 0.5, "loss": float("nan")})

    start = arrays_of(first_model())
    return strategy.start(federation(), start, num_rounds=rounds, evaluate_fn=test).arrays


def without_times(folder: RunFolder) -> list[str]:
    """Give all that does not depend on how busy the machine was."""
    records = [record.model_dump_json(exclude={"seconds"}) for record in folder.records()]
    return [re.sub(r"no reply within \d+ s", "no reply", record) for record in records]


@pytest.mark.parametrize("die_in", [1, 2, 4])
def test_a_killed_server_goes_on_as_if_nothing_had_happened(tmp_path: Path, die_in: int) -> None:
    whole = play(strategy_in(tmp_path / "whole"), 4)
    with pytest.raises(KilledError):
        play(strategy_in(tmp_path / "cut"), 4, die_in)
    after = play(strategy_in(tmp_path / "cut"), 4)
    assert is_same(after, whole)
    cut, uncut = RunFolder(tmp_path / "cut" / "a"), RunFolder(tmp_path / "whole" / "a")
    assert without_times(cut) == without_times(uncut)
    assert cut.is_finished
    assert {name: t.tolist() for name, t in cut.model().items()} == {
        name: t.tolist() for name, t in uncut.model().items()
    }


def test_resume_says_where_the_run_stands(tmp_path: Path) -> None:
    strategy = strategy_in(tmp_path)
    assert strategy.resume() is None
    assert RobustStrategy(rule="median").resume() is None
    with pytest.raises(KilledError):
        play(strategy, 4, die_in=3)
    found = strategy_in(tmp_path).resume()
    assert found is not None
    done, arrays = found
    assert done == 2
    assert list(arrays) == list(first_model())  # the file has another order


def test_clients_are_told_after_a_restart_too(tmp_path: Path) -> None:
    with pytest.raises(KilledError):
        play(strategy_in(tmp_path), 4, die_in=2)
    grid = federation()
    strategy_in(tmp_path).start(grid, arrays_of(first_model()), num_rounds=2)
    told = {m.metadata.dst_node_id: verdict_of(m) for m in grid.sent}
    broken = told[107]
    assert broken is not None
    assert (broken["verdict"], broken["round"]) == ("failed", 1)
    assert {config["server-round"] for config in grid.told(100)} == {2}


def test_a_folder_has_one_server(tmp_path: Path) -> None:
    first = strategy_in(tmp_path)
    first.resume()
    with pytest.raises(InputError, match="another process"):
        strategy_in(tmp_path).resume()


def test_a_finished_run_is_not_written_over(tmp_path: Path) -> None:
    play(strategy_in(tmp_path), 2)
    with pytest.raises(InputError, match="finished"):
        play(strategy_in(tmp_path), 2)
    assert len(RunFolder(tmp_path / "a").records()) == 2


def test_another_rule_or_model_does_not_go_on(tmp_path: Path) -> None:
    with pytest.raises(KilledError):
        play(strategy_in(tmp_path), 4, die_in=3)
    with pytest.raises(InputError, match="another rule"):
        play(strategy_in(tmp_path, rule="median", rule_parameters=None), 4)
    with pytest.raises(InputError, match="other layers"):
        strategy_in(tmp_path).start(federation(), arrays_of({"w": torch.ones(2)}), num_rounds=4)
    assert len(RunFolder(tmp_path / "a").records()) == 2


def test_a_round_whose_test_failed_is_played_again_by_the_same_strategy(tmp_path: Path) -> None:
    strategy = strategy_in(tmp_path)
    with pytest.raises(KilledError):
        play(strategy, 3, die_in=2)
    again = play(strategy, 3)
    assert [record.round for record in RunFolder(tmp_path / "a").records()] == [1, 2, 3]
    assert is_same(again, play(strategy_in(tmp_path / "whole"), 3))


def test_without_a_name_every_run_is_a_new_one(tmp_path: Path) -> None:
    strategy_in(tmp_path, name=None).start(federation(), arrays_of(first_model()), num_rounds=1)
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("foolsgold-")


def test_records_say_what_became_of_everybody(tmp_path: Path) -> None:
    play(strategy_in(tmp_path), 2)
    records = RunFolder(tmp_path / "a").records()
    assert [record.accuracy for record in records] == [0.1, 0.2]
    assert records[1].accuracy_without_success == pytest.approx(0.1)
    assert records[1].loss is None
    by_id = {client.client: client for client in records[1].clients}
    assert by_id["107"].verdict == by_id["108"].verdict == "failed"
    assert all(client.is_attacker is None for client in by_id.values())


@pytest.mark.parametrize("is_tested", [True, False])
def test_the_report_reads_it(tmp_path: Path, is_tested: bool) -> None:
    for rule in ("median", "mean"):
        strategy = strategy_in(tmp_path / "runs", rule=rule, rule_parameters=None, name=rule)
        if is_tested:
            play(strategy, 3)
        else:
            strategy.start(federation(), arrays_of(first_model()), num_rounds=3)
    page = tmp_path / "report.html"
    write_report([tmp_path / "runs"], page)
    text = page.read_text(encoding="utf-8")
    assert "Whom each rule trusted" in text
    assert "107" in text


def test_a_skipped_round_is_recorded_and_the_model_kept(tmp_path: Path) -> None:
    grid = FakeGrid(group(1, a=failing(), b=failing(), c=silent))
    strategy = strategy_in(tmp_path)
    result = strategy.start(grid, arrays_of(first_model()), num_rounds=2)
    assert is_same(result.arrays, arrays_of(first_model()))
    records = RunFolder(tmp_path / "a").records()
    assert all("fewer than the 3 needed" in (record.error or "") for record in records)
    assert [c.verdict for c in records[0].clients] == ["unused", "failed", "failed", "failed"]
