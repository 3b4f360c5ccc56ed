"""Notices: what each client is told, and that errors accuse nobody."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedimmune import Updates, rules
from fedimmune.notices import notice_of, notice_of_record
from fedimmune.records import ClientRecord
from fedimmune.verdicts import UNKNOWN, Judgement, Suspicion, Verdict, fields_of


def suspected(kind: str, since: int | None = 3, confidence: float = 0.87) -> Judgement:
    suspicion = Suspicion(kind, confidence, since, "label-flip", 0.11)
    return Judgement("clinic-4", Verdict.SUSPECTED, 0.0, -0.9, "taken for it", suspicion)


def test_a_suspect_is_told_of_what_since_when_how_sure_and_what_to_check() -> None:
    notice = notice_of(suspected("backdoor"), rule="adaptive")
    assert "backdoor" in notice.text
    assert "looks most like backdoor (87%), then label-flip (11%)" in notice.text
    assert "since round 3" in notice.text
    assert "mark" in notice.check
    told = notice.to_json()
    assert json.loads(json.dumps(told)) == told
    assert (told["kind"], told["confidence"], told["since"]) == ("backdoor", 0.87, 3)
    assert (told["runner_up"], told["runner_up_confidence"]) == ("label-flip", 0.11)


def test_advice_differs_by_kind_and_there_is_some_for_any() -> None:
    checks = {k: notice_of(suspected(k), rule="adaptive").check for k in ("backdoor", "omniscient")}
    checks["label-flip"] = notice_of(suspected("label-flip"), rule="adaptive").check
    assert len(set(checks.values())) == 3
    own, unknown = (notice_of(suspected(k), rule="adaptive").check for k in ("my-own", UNKNOWN))
    assert own == unknown
    assert own


def test_of_an_unknown_kind_only_the_nearest_is_told() -> None:
    text = notice_of(suspected(UNKNOWN), rule="adaptive").text
    assert "looks like no kind that was rehearsed, nearest label-flip (11%)" in text
    assert "87%" not in text


def test_who_is_reduced_is_told_that_it_is_no_accusation() -> None:
    judgement = Judgement(
        7, Verdict.REDUCED, 0.02, None, "residual gave it 20.0% of an equal share"
    )
    text = notice_of(judgement, rule="residual").text
    assert text.startswith("Your update is part of the new model, but counts for little: residual")
    assert "no accusation" in text


@pytest.mark.parametrize(("weight", "is_used"), [(0.0, False), (0.0001, True)])
def test_a_suspect_is_told_whether_it_was_used(weight: float, is_used: bool) -> None:
    judgement = Judgement(7, Verdict.SUSPECTED, weight, None, "geometric-median gave it little")
    text = notice_of(judgement, rule="geometric-median").text
    assert ("not used" in text) != is_used
    assert "geometric-median gave it little" in text


def test_a_rule_without_kinds_says_which_rule_it_was() -> None:
    judgement = Judgement(7, Verdict.SUSPECTED, 0.0, None, "foolsgold gave it no weight")
    assert "foolsgold" in notice_of(judgement, rule="foolsgold").text


@pytest.mark.parametrize("verdict", ["failed", "late", "rejected", "unused", "trusted"])
def test_nobody_else_is_accused(verdict: str) -> None:
    record = ClientRecord(id=3, verdict=verdict, reason="timed out after 60 s")
    notice = notice_of_record(record, rule="adaptive")
    innocent = notice.text.replace("nobody takes it for an attack", "")
    assert "attack" not in innocent
    assert notice.verdict == verdict
    if verdict in {"failed", "late"}:
        assert "timed out" in notice.text
        assert "no accusation" in notice.text


@given(
    st.sampled_from([*Verdict]),
    st.sampled_from(["backdoor", UNKNOWN, "x"]),
    st.floats(0, 1),
    st.one_of(st.none(), st.integers(1, 99)),
)
def test_a_record_gives_the_same_notice_as_the_judgement(
    verdict: Verdict, kind: str, confidence: float, since: int | None
) -> None:
    suspicion = (
        Suspicion(kind, confidence, since, "y", 0.1) if verdict is Verdict.SUSPECTED else None
    )
    judgement = Judgement("5", verdict, 0.25, 0.5, "why", suspicion)
    record = ClientRecord(
        id=5,
        verdict=verdict,
        weight=0.25,
        score=0.5,
        reason="why",
        **fields_of(suspicion),
    )
    assert notice_of_record(record, rule="r") == notice_of(judgement, rule="r")


def test_every_client_of_an_aggregation_has_a_notice() -> None:
    honest = [{"w": torch.ones(3) + 0.1 * i} for i in range(4)]
    sent = {**dict(enumerate(honest)), 9: {"w": torch.full((3,), torch.nan)}}
    notices = rules.get("multi-krum").aggregate(sent).notices()
    assert notices.keys() == {0, 1, 2, 3, 9}
    assert notices[9].verdict == "rejected"
    assert "no accusation" in " ".join(n.text for n in notices.values()) or all(
        n.verdict != "unused" for n in notices.values()
    )


def test_who_was_there_twice_is_told_of_what_counted() -> None:
    rule = rules.get("mean")
    twice = Updates.of([{"w": torch.ones(2)}, {"w": torch.zeros(2)}], clients=["a", "a"])
    assert rule.aggregate(twice).notices()["a"].verdict == "trusted"
