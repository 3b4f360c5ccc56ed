"""Verdicts fit weights, odd rounds are announced, JSON is read with care, notices accuse nobody."""

from __future__ import annotations

import json
import logging
import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedimmune import Updates, attacks, rules
from fedimmune.aggregation import Aggregation
from fedimmune.errors import InputError
from fedimmune.results import UNKNOWN, ClientResult, Suspicion, Verdict
from fedimmune.rules.base import ClientWeights, WeightRule
from fedimmune.runs import RoundRecord, Seconds

weights_of = st.lists(
    st.sampled_from([0.0, 1e-6, 1e-3, 0.01, 0.04, 0.06, 0.4, 0.6, 1.0, 3.0]) | st.floats(1e-200, 1),
    min_size=1,
    max_size=12,
).filter(lambda weights: sum(weights) > 0)


class Fixed(WeightRule):
    """Gives the weights that it was told."""

    name = "fixed"
    summary = "of a test"
    paper = "–"

    def __init__(self, weights: list[float]) -> None:
        self.weights = torch.tensor(weights, dtype=torch.float64)

    def weigh(self, updates: Updates) -> ClientWeights:
        return ClientWeights(self.weights / self.weights.sum())


class Picking(Fixed):
    """Picks some, and accuses nobody."""

    unweighted_means = Verdict.UNUSED


class Sure(Fixed):
    """Gives whom it suspects no weight."""

    suspects_below = 0.0


def judged(rule: WeightRule, n: int) -> Aggregation:
    return rule.aggregate(np.ones((n, 2)))


# -------------------------------------------------------------------- verdicts fit weights


@given(weights_of)
def test_verdicts_fit_weights(weights: list[float]) -> None:
    n = len(weights)
    shares = [weight / sum(weights) * n for weight in weights]
    usual = float(np.median(shares))
    for share, found in zip(shares, judged(Fixed(weights), n).clients, strict=True):
        if share == 0 or share < 0.1 * min(1, usual) * (1 - 1e-9):
            assert found.verdict is Verdict.SUSPECTED
        elif share < 0.5 * (1 - 1e-9):
            assert found.verdict in {Verdict.REDUCED, Verdict.SUSPECTED}
            assert (found.verdict is Verdict.REDUCED) or share < 0.1 * (1 + 1e-9)
        elif share > 0.5 * (1 + 1e-9):
            assert found.verdict is Verdict.TRUSTED
        assert bool(found.reason) == (found.verdict is not Verdict.TRUSTED)
        if found.verdict is not Verdict.TRUSTED and share > 0.001:
            assert f"fixed gave it {share:.1%} of an equal share" == found.reason


@given(weights_of)
def test_rules_that_pick_or_give_suspects_nothing_suspect_nobody_for_little_weight(
    weights: list[float],
) -> None:
    n = len(weights)
    picked = judged(Picking(weights), n).clients
    assert [j.verdict is Verdict.UNUSED for j in picked] == [weight == 0 for weight in weights]
    assert {j.verdict for j in picked} <= {Verdict.TRUSTED, Verdict.UNUSED}
    sure = judged(Sure(weights), n).clients
    assert [j.verdict is Verdict.SUSPECTED for j in sure] == [weight == 0 for weight in weights]


def gaussian(seed: int, n: int = 9, d: int = 20) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("rule", ["geometric-median", "residual"])
@given(seed=st.integers(0, 999), size=st.floats(200, 1e6))
def test_who_is_far_away_is_suspected_and_honest_clients_are_trusted(
    rule: str, seed: int, size: float
) -> None:
    honest = gaussian(seed)
    assert {j.verdict for j in rules.get(rule).aggregate(honest).clients} == {Verdict.TRUSTED}
    attacked = torch.cat([honest, honest[:1] - size])
    verdicts = rules.get(rule).aggregate(attacked).verdicts
    assert verdicts[9] is Verdict.SUSPECTED
    assert {verdicts[client] for client in range(9)} == {Verdict.TRUSTED}


@given(st.integers(0, 999))
def test_who_is_in_the_middle_makes_no_suspects_of_the_rest(seed: int) -> None:
    around = gaussian(seed, n=4)
    round_ = torch.cat([around, -around, torch.zeros(1, 20)])  # the last is the geometric median
    found = rules.get("geometric-median").aggregate(round_)
    assert found.weights is not None
    assert found.weights[8] > 0.99
    assert {found.verdicts[client] for client in range(8)} == {Verdict.REDUCED}
    assert any("client 8 has" in warning for warning in found.warnings)


@given(st.lists(st.integers(0, 10_000), min_size=3, max_size=9))
def test_few_samples_are_no_accusation(samples: list[int]) -> None:
    updates = Updates.from_vectors(np.ones((len(samples), 2)), samples=samples)
    found = rules.get("mean", by_samples=True).aggregate(updates)
    assert set(found.verdicts.values()) <= {Verdict.TRUSTED, Verdict.UNUSED}


# -------------------------------------------------------------------- odd rounds


def reference(verdicts: list[str], weights: list[float]) -> tuple[bool, bool]:
    valid = [(v, w) for v, w in zip(verdicts, weights, strict=True) if v != "rejected"]
    if len(valid) < 3:
        return False, False
    suspected = sum(v == "suspected" for v, _ in valid) > len(valid) / 2
    takes_all = max(w for _, w in valid) > 0.5 and "unused" not in verdicts
    return suspected, takes_all


@given(st.lists(st.tuples(st.sampled_from([*Verdict]), st.floats(0, 1)), max_size=9))
def test_warnings_are_of_most_suspected_and_of_most_weight(
    given_: list[tuple[Verdict, float]],
) -> None:
    total = sum(weight for _, weight in given_) or 1.0
    weights = [weight / total for _, weight in given_]
    clients = tuple(
        ClientResult(n, verdict, None if verdict is Verdict.REJECTED else weight)
        for n, ((verdict, _), weight) in enumerate(zip(given_, weights, strict=True))
    )
    found = Aggregation("r", None, {}, None, {}, clients)
    wanted = reference([str(verdict) for verdict, _ in given_], weights)
    said = " ".join(found.warnings)
    assert ("are suspected" in said, "of the weight" in said) == wanted
    assert found.to_json()["warnings"] == list(found.warnings)


def test_an_odd_round_is_logged_and_shown(caplog: pytest.LogCaptureFixture) -> None:
    agreeing = gaussian(1, n=1).repeat(9, 1)
    with caplog.at_level(logging.WARNING, logger="fedimmune"):
        found = rules.get("foolsgold").aggregate(torch.cat([agreeing, -agreeing[:1]]))
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "foolsgold: 9 of 10 valid clients are suspected" in caplog.text
    assert "foolsgold: client 9 has 100.0% of the weight" in caplog.text
    assert "warning: client 9 has 100.0% of the weight" in repr(found)


@pytest.mark.parametrize(("rule", "n"), [("krum", 7), ("mean", 2), ("geometric-median", 1)])
def test_nothing_is_said_of_picks_and_of_few_clients(
    rule: str, n: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert rules.get(rule).aggregate(gaussian(3, n=n)).warnings == ()
    assert not caplog.records


# -------------------------------------------------------------------- JSON


shares = st.floats(0, 1)
suspicions = st.builds(
    Suspicion,
    kind=st.sampled_from(["backdoor", "omniscient", UNKNOWN, "my-own"]),
    confidence=shares,
    since=st.none() | st.integers(1, 99),
    runner_up=st.none() | st.text(),
    runner_up_confidence=st.none() | shares,
)
results = st.builds(
    ClientResult,
    client=st.text(),
    verdict=st.sampled_from(Verdict),
    weight=st.none() | shares,
    score=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    reason=st.text(),
    suspicion=st.none() | suspicions,
    is_attacker=st.none() | st.booleans(),
    probability=st.none() | shares,
)
KEYS = (
    *("client", "is_attacker", "verdict", "weight", "score", "probability", "reason"),
    *("kind", "confidence", "since", "runner_up", "runner_up_confidence"),
)


@given(results)
def test_json_is_read_without_loss(result: ClientResult) -> None:
    written = result.to_json()
    assert tuple(written) == KEYS
    assert ClientResult.from_json(json.loads(json.dumps(written))) == result


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=4,
)


@given(results, st.dictionaries(st.sampled_from([*KEYS, "id", "more"]), anything) | anything)
def test_whatever_stands_there_is_a_result_or_one_line(result: ClientResult, odd: Any) -> None:
    value = {**result.to_json(), **odd} if isinstance(odd, dict) else odd
    said = ""
    try:
        found = ClientResult.from_json(value)
    except InputError as error:
        said = str(error)
    assert said.isprintable()
    assert len(said) < 200
    if said:
        return
    assert isinstance(found.client, str)
    assert isinstance(found.verdict, Verdict)
    assert found.weight is None or 0 <= found.weight <= 1 + 1e-6
    assert found.score is None or math.isfinite(found.score)
    json.dumps(found.to_json(), allow_nan=False)


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ({"client": None}, "no id"),
        ({"client": 7}, "client must be text, not 7"),
        ({"verdict": "guilty"}, "not 'guilty'"),
        ({"verdict": None}, "one of trusted, reduced"),
        ({"weight": 1.5}, "weight must be from 0 to 1"),
        ({"weight": -0.1}, "weight must be from 0 to 1"),
        ({"weight": True}, "weight must be a number, not True"),
        ({"score": 10**400}, "score must be finite"),
        ({"score": float("nan")}, "score must be finite"),
        ({"probability": 1.01}, "probability must be from 0 to 1"),
        ({"probability": "high"}, "probability must be a number"),
        ({"reason": ["x"]}, "reason must be text"),
        ({"is_attacker": 1}, "is_attacker must be true or false"),
        ({"kind": "backdoor"}, "needs its confidence"),
        ({"confidence": 0.5}, "confidence needs a kind"),
        ({"kind": "backdoor", "confidence": 2}, "confidence must be from 0 to 1"),
        ({"kind": "backdoor", "confidence": 0.5, "since": 0}, "since must be a round"),
        ({"kind": "backdoor", "confidence": 0.5, "since": 1.0}, "since must be a round"),
        ({"mood": "good"}, "unknown field 'mood'"),
    ],
)
def test_what_is_wrong_is_said(odd: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        ClientResult.from_json({"client": "a", "verdict": "trusted", **odd})


def test_what_was_written_without_a_probability_is_read() -> None:
    written = ClientResult("a", Verdict.TRUSTED, 0.5).to_json()
    del written["probability"]
    assert ClientResult.from_json(written) == ClientResult("a", Verdict.TRUSTED, 0.5)


def test_a_client_is_told_a_probability_in_whole_percent() -> None:
    one = ClientResult("a", Verdict.SUSPECTED, 0.0, -0.9, "odd", probability=0.98765)
    told = one.notice()
    assert told["probability"] == 0.99, "digits would help an attacker to feel its way"
    assert "(99% likely)" in str(told)
    assert "likely" not in str(ClientResult("a", Verdict.SUSPECTED, 0.0, -0.9, "odd").notice())


def test_an_older_format_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="of an older format"):
        ClientResult.from_json({"id": "4", "attacks": True, "verdict": "trusted"})


def in_javascript(number: str) -> Any:
    """Read a number as JavaScript and jq do."""
    return float(number)


@given(st.sets(st.integers(0, 2**64 - 1), min_size=3, max_size=5))
def test_ids_survive_programs_that_round_numbers(ids: set[int]) -> None:
    clients = sorted(ids)
    found = rules.get("median").aggregate(
        Updates.from_vectors(np.ones((len(ids), 2)), clients=clients)
    )
    facts = json.loads(json.dumps(found.to_json()), parse_int=in_javascript)
    assert [client["client"] for client in facts["clients"]] == [str(client) for client in clients]
    told = [notice["client"] for notice in found.notices().values()]
    assert sorted(told) == sorted(str(client) for client in clients)


def test_a_kind_is_a_guess_with_a_runner_up() -> None:
    assert str(Suspicion("omniscient", 0.71, 2, "backdoor", 0.2)) == (
        "looks most like omniscient (71%), then backdoor (20%)"
    )
    assert str(Suspicion("omniscient", 0.71)) == "looks most like omniscient (71%)"
    assert str(Suspicion("unknown", 0.3, None, "backdoor", 0.45)) == (
        "looks like no kind that was rehearsed, nearest backdoor (45%)"
    )


# -------------------------------------------------------------------- notices


def suspected(kind: str) -> ClientResult:
    suspicion = Suspicion(kind, 0.87, 3, "label-flip", 0.11, attacks.advice(kind))
    return ClientResult("clinic-4", Verdict.SUSPECTED, 0.0, -0.9, "taken for it", suspicion)


def test_a_suspect_is_told_of_what_since_when_how_sure_and_what_to_check() -> None:
    told = suspected("backdoor").notice("adaptive")
    assert "looks most like backdoor (87%), then label-flip (11%)" in str(told)
    assert "since round 3" in str(told)
    assert "mark" in str(told)
    assert str(told) == told["text"]
    assert json.loads(json.dumps(told)) == told
    assert (told["kind"], told["confidence"], told["since"]) == ("backdoor", 0.87, 3)
    assert (told["runner_up"], told["runner_up_confidence"]) == ("label-flip", 0.11)


def test_advice_is_that_of_the_attack_and_there_is_some_for_any() -> None:
    kinds = ("backdoor", "sign-flip", "label-flip", "my-own")
    told = [str(suspected(kind).notice()) for kind in kinds]
    ends = [text.partition("If you mean no harm, ")[2].removesuffix(".") for text in told]
    assert ends[:3] == [attacks.find(kind).advice for kind in kinds[:3]]
    assert len(set(ends)) == 4
    assert str(suspected(UNKNOWN).notice()).endswith(f"If you mean no harm, {ends[3]}.")


def test_advice_is_not_written_down_and_looked_up_again() -> None:
    seconds = Seconds(training=0, aggregating=0, testing=0)
    record = RoundRecord(round=1, clients=(suspected("label-flip"),), seconds=seconds)
    text = record.model_dump_json()
    assert attacks.LabelFlip.advice not in text
    (read,) = RoundRecord.model_validate_json(text).clients
    assert read.notice() == record.clients[0].notice()


def test_of_an_unknown_kind_only_the_nearest_is_told() -> None:
    text = str(suspected(UNKNOWN).notice())
    assert "looks like no kind that was rehearsed, nearest label-flip (11%)" in text
    assert "87%" not in text


def test_who_is_reduced_is_told_that_it_is_not_an_accusation() -> None:
    little = "residual gave it 20.0% of an equal share"
    text = str(ClientResult(7, Verdict.REDUCED, 0.02, None, little).notice("residual"))
    assert text.startswith("Your update is part of the new model, but counts for little: residual")
    assert "not an accusation" in text


@pytest.mark.parametrize(("weight", "is_used"), [(0.0, False), (0.0001, True)])
def test_a_suspect_is_told_whether_it_was_used(weight: float, is_used: bool) -> None:
    little = "geometric-median gave it little"
    text = str(ClientResult(7, Verdict.SUSPECTED, weight, None, little).notice())
    assert ("not used" in text) != is_used
    assert little in text


@pytest.mark.parametrize("verdict", [each for each in Verdict if each is not Verdict.SUSPECTED])
def test_nobody_else_is_accused(verdict: Verdict) -> None:
    notice = ClientResult(3, verdict, reason="timed out after 60 s").notice("adaptive")
    assert "attack" not in str(notice).replace("nobody takes it for an attack", "")
    assert notice["verdict"] == verdict
    if verdict in {"failed", "late"}:
        assert "timed out" in str(notice)
        assert "not an accusation" in str(notice)


def test_every_client_of_an_aggregation_has_a_notice() -> None:
    honest = [{"w": torch.ones(3) + 0.1 * i} for i in range(5)]
    sent = {**dict(enumerate(honest)), 9: {"w": torch.full((3,), torch.nan)}}
    notices = rules.get("multi-krum", attackers=1, keep=2).aggregate(sent).notices()
    assert notices.keys() == {0, 1, 2, 3, 4, 9}
    assert notices[9]["verdict"] == "rejected"
    unused = [str(one) for one in notices.values() if one["verdict"] == "unused"]
    assert len(unused) == 3
    assert all("not an accusation: multi-krum" in text for text in unused)


def test_who_was_there_twice_is_told_of_what_counted() -> None:
    twice = Updates.of([{"w": torch.ones(2)}, {"w": torch.zeros(2)}], clients=["a", "a"])
    assert rules.get("mean").aggregate(twice).notices()["a"]["verdict"] == "trusted"
