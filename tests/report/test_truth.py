"""Truth that comes after the run: records judged by it say what a simulation's own would."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedimmune.federation import Scenario, run_folder, simulate
from fedimmune.records import ClientData, RoundRecord, Seconds
from fedimmune.report.reading import read_run
from fedimmune.report.truth import with_truth
from fedimmune.results import ClientResult, Verdict

NO_TIME = Seconds(training=0, aggregating=0, testing=0)
VERDICTS = ("trusted", "unused", "suspected", "rejected", "failed", "late")


def told(attacks: list[bool]) -> tuple[ClientData, ...]:
    return tuple(ClientData(client=i, is_attacker=a, samples=()) for i, a in enumerate(attacks))


@pytest.mark.parametrize("rule", ["krum", "median", "mean"])
def test_a_simulation_that_forgot_who_attacks_is_told_again(tmp_path: Path, rule: str) -> None:
    scenario = Scenario(rule=rule, attack="omniscient", attackers=2, clients=7, rounds=2)
    known = list(simulate(scenario, runs=tmp_path))
    partition = read_run(run_folder(scenario, tmp_path).path).partition
    unknown = dict.fromkeys(("precision", "recall", "attacker_weight"))
    forgotten = [
        record.model_copy(
            update={
                **unknown,
                "clients": tuple(replace(c, is_attacker=None) for c in record.clients),
            }
        )
        for record in known
    ]
    for again, record in zip(with_truth(forgotten, partition), known, strict=True):
        assert again.clients == record.clients
        assert (again.precision, again.recall) == (record.precision, record.recall)
        assert again.attacker_weight == pytest.approx(record.attacker_weight)


@given(
    st.lists(
        st.tuples(st.sampled_from(VERDICTS), st.booleans(), st.floats(0, 1)),
        min_size=1,
        max_size=8,
    )
)
def test_figures_by_their_definition(drawn: list[tuple[str, bool, float]]) -> None:
    sent = [verdict in VERDICTS[:3] for verdict, _, _ in drawn]
    clients = tuple(
        ClientResult(str(i), Verdict(verdict), weight if sent[i] else None)
        for i, (verdict, _, weight) in enumerate(drawn)
    )
    record = RoundRecord(round=1, clients=clients, seconds=NO_TIME)
    (judged,) = with_truth([record], told([attacks for _, attacks, _ in drawn]))
    assert [client.is_attacker for client in judged.clients] == [attacks for _, attacks, _ in drawn]
    there = [each for each in drawn if each[0] not in {"failed", "late"}]
    accused = [attacks for verdict, attacks, _ in there if verdict in {"suspected", "rejected"}]
    bad = [verdict for verdict, attacks, _ in there if attacks]
    if accused:
        assert judged.precision == pytest.approx(accused.count(True) / len(accused))
    else:
        assert judged.precision is None
    if bad and (accused or any(sent)):
        assert judged.recall == pytest.approx(accused.count(True) / len(bad))
    if bad and any(sent):
        theirs = sum(w for (_, attacks, w), s in zip(drawn, sent, strict=True) if attacks and s)
        assert judged.attacker_weight == pytest.approx(theirs)


def test_what_records_say_themselves_stays() -> None:
    client = ClientResult("0", Verdict.TRUSTED, 1.0, is_attacker=False)
    record = RoundRecord(round=1, clients=(client,), attacker_weight=0.0, seconds=NO_TIME)
    assert with_truth([record], told([True])) == (record,)
    assert with_truth([record], None) == (record,)


def test_a_skipped_round_has_no_figures() -> None:
    client = ClientResult("0", Verdict.REJECTED)
    record = RoundRecord(round=1, clients=(client,), error="too few", seconds=NO_TIME)
    (judged,) = with_truth([record], told([True]))
    assert judged.clients[0].is_attacker is True
    assert judged.precision is None
