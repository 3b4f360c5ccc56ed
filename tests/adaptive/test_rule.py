"""What becomes of a network's answer: odd rounds, unfamiliar ones, probabilities, false alarms."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedimmune import Scenario, Updates, rules, simulate
from fedimmune.adaptive import Defense, universal
from fedimmune.adaptive.rule import Adaptive
from fedimmune.aggregation import aggregate_safely
from fedimmune.errors import InputError, ParameterError
from fedimmune.results import Verdict
from fedimmune.runs import RoundRecord, Seconds
from fedimmune.runs.folder import Checkpoint, RunFolder, finish_round
from tests.adaptive.judging import CALIBRATION, dictated, untrained_file

GOOD, BAD = 4.0, -4.0
ODD = [BAD] * 6 + [GOOD] * 4
ORDINARY = [BAD] * 2 + [GOOD] * 8


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return untrained_file(tmp_path_factory.mktemp("universal") / "universal.defense")


def a_round(n: int = 10, seed: int = 1) -> Updates:
    """Clients that agree, with a buffer and a counter besides what is trained."""
    random = torch.Generator().manual_seed(seed)
    start = {
        "fc.weight": torch.zeros(4, 3),
        "norm.running_mean": torch.zeros(4),
        "norm.num_batches_tracked": torch.tensor(7),
    }
    models = {}
    for client in "abcdefghijklmnopqrst"[:n]:
        moved = {k: v + 1 for k, v in start.items()}
        moved["fc.weight"] = 1 + 0.1 * torch.randn(4, 3, generator=random)
        models[client] = moved
    return Updates.from_models(models, start)


MODEL = {
    "fc.weight": torch.zeros(4, 3),
    "norm.running_mean": torch.zeros(4),
    "norm.num_batches_tracked": torch.tensor(7),
}


# -------------------------------------------------------------------- odd rounds


def test_a_round_with_most_suspected_is_skipped(file: Path) -> None:
    rule = dictated(file, ODD)
    answer = rule.aggregate(a_round())
    assert "6 of 10 clients would be suspected" in answer.skipped
    assert "on_majority=skip" in answer.skipped
    assert answer.warnings == (answer.skipped,)
    assert all(not bool(tensor.any()) for tensor in answer.update.values()), "buffers stay too"
    assert set(answer.weights.values()) == {0.0}
    verdicts = [one.verdict for one in answer.clients]
    assert verdicts == [Verdict.SUSPECTED] * 6 + [Verdict.UNUSED] * 4
    assert all("skipped" in one.reason for one in answer.clients)
    assert answer.to_json()["skipped"] == answer.skipped
    for notice in answer.notices().values():
        assert "the round was skipped" in str(notice)
        assert "6 of 10" not in str(notice), "nobody learns anything about another"


@pytest.mark.parametrize("memory", [True, False])
def test_nobody_stands_worse_after_it(file: Path, memory: bool) -> None:
    rule = dictated(file, ODD, memory=memory)
    rule.aggregate(a_round())
    assert not any(rule.known.means.values())
    assert not rule.known.cases
    again = dictated(file, ORDINARY, memory=memory)
    again.known = rule.known
    assert all(one.suspicion is None for one in again.aggregate(a_round()).clients)


def test_engines_keep_the_old_model_and_the_record_says_why(file: Path, tmp_path: Path) -> None:
    rule, sent = dictated(file, ODD), a_round()
    outcome = aggregate_safely(rule, sent, MODEL)
    assert outcome.model is None
    assert outcome.aggregation is not None
    assert outcome.error == outcome.aggregation.skipped
    folder = RunFolder(tmp_path)
    seconds = Seconds(training=0, aggregating=0, testing=0)
    record = finish_round(
        folder, rule, sent, outcome, Checkpoint(1, MODEL, "x"), last=False, seconds=seconds
    )
    assert record.error == outcome.error
    assert not record.warnings, "it is said once"
    assert [one.verdict for one in record.clients] == [Verdict.SUSPECTED] * 6 + [Verdict.UNUSED] * 4
    (read,) = folder.records()
    assert read == record
    assert read.clients[0].probability == pytest.approx(float(torch.sigmoid(torch.tensor(3.0))))


def test_one_client_with_most_of_the_weight_is_odd_too(file: Path) -> None:
    uneven = dictated(file, [3.0, 0.0, -1.0])
    assert uneven.aggregate(a_round(3)).skipped == "", "of three, one may have most of it"
    answer = dictated(file, [9.0, 0.0, -1.0, -1.0]).aggregate(a_round(4))
    assert "client a would have 66.7% of the weight" in answer.skipped
    assert [one.verdict for one in answer.clients[:2]] == [Verdict.UNUSED] * 2
    assert all("client a" not in str(notice) for notice in answer.notices().values())


def test_half_is_not_most(file: Path) -> None:
    answer = dictated(file, [BAD] * 5 + [GOOD] * 5).aggregate(a_round())
    assert answer.skipped == ""
    assert sum(one.verdict is Verdict.SUSPECTED for one in answer.clients) == 5


def test_weights_can_be_used_all_the_same(file: Path) -> None:
    answer = dictated(file, ODD, on_majority="keep").aggregate(a_round())
    assert answer.skipped == ""
    (said,) = answer.warnings
    assert "6 of 10 clients would be suspected" in said
    assert "on_majority=keep" in said
    assert [answer.weights[c] for c in "abcdef"] == [0.0] * 6
    assert sum(answer.weights.values()) == pytest.approx(1)
    nobody = dictated(file, [BAD, BAD - 1, BAD - 1], on_majority="keep").aggregate(a_round(3))
    assert nobody.weights["a"] > nobody.weights["b"] > 0, "the least unlikely lead"
    assert nobody.verdicts["a"] is Verdict.TRUSTED


def test_or_by_the_geometric_median(file: Path) -> None:
    rule = dictated(file, ODD, on_majority="geometric-median", clip=False)
    answer, plain = rule.aggregate(a_round()), rules.get("geometric-median").aggregate(a_round())
    assert answer.weights == pytest.approx(plain.weights)
    torch.testing.assert_close(answer.update["fc.weight"], plain.update["fc.weight"])
    assert Verdict.SUSPECTED not in answer.verdicts.values()
    (said,) = answer.warnings
    assert "6 of 10" in said
    assert "geometric median" in said
    assert all("geometric median" in one.reason for one in answer.clients)
    assert not any(rule.known.means.values()), "nor does anybody stand worse"


def test_no_more_than_two_of_ten_rounds_are_skipped(file: Path, tmp_path: Path) -> None:
    rule, skipped = dictated(file, ODD), []
    for number in range(30):
        answer = rule.aggregate(a_round(seed=number))
        skipped.append(bool(answer.skipped))
        if not answer.skipped:
            assert "enough rounds were skipped" in answer.warnings[0]
            assert all(answer.weights.values()), "nobody is left out"
        if number == 10:  # a server that restarts has not forgotten
            rule.save(tmp_path / "memory")
            rule = dictated(file, ODD)
            rule.restore(tmp_path / "memory")
    assert all(sum(skipped[i : i + 10]) <= 2 for i in range(21))
    assert sum(skipped) == 6
    forgetful = dictated(file, ODD, memory=False)
    assert all(forgetful.aggregate(a_round(seed=number)).skipped for number in range(5))


def test_who_is_caught_on_purpose_makes_no_round_odd_for_long(file: Path) -> None:
    """Four attackers of ten let themselves be caught; two honest clients look odd by chance."""
    rule = dictated(file, [BAD] * 4 + [GOOD] * 6)
    for _ in range(2):
        assert not rule.aggregate(a_round()).skipped
    two_more = dictated(file, [BAD] * 6 + [GOOD] * 4)
    two_more.known = rule.known
    answer = two_more.aggregate(a_round())
    assert not answer.skipped, "2 of the 6 that are judged"
    assert answer.weights["a"] == 0


def test_who_is_too_long_does_not_count(file: Path) -> None:
    sent = a_round()
    states = {c: sent.state(c) for c in sent.clients}
    for client in "abcd":
        states[client]["fc.weight"] *= 100
    answer = dictated(file, [BAD] * 2 + [GOOD] * 4).aggregate(states)
    assert not answer.skipped
    verdicts = [one.verdict for one in answer.clients]
    assert verdicts == [Verdict.SUSPECTED] * 6 + [Verdict.TRUSTED] * 4
    assert all("as long as the median" in one.reason for one in answer.clients[:4])
    assert all(one.probability is None for one in answer.clients[:4])


@pytest.mark.parametrize("policy", ["skip", "keep", "geometric-median"])
@given(logits=st.lists(st.floats(-20, 20), min_size=1, max_size=12), familiar=st.booleans())
def test_whatever_the_network_says_there_is_an_answer(
    file: Path, policy: str, logits: list[float], familiar: bool
) -> None:
    rule = dictated(file, logits, familiar=familiar, on_majority=policy)
    n = len(logits)
    for number in range(3):
        known = rule.known
        answer = rule.aggregate(a_round(n, number))
        suspects = [one for one in answer.clients if one.verdict is Verdict.SUSPECTED]
        assert all(one.weight == 0 for one in suspects)
        assert all(one.reason for one in answer.clients if one.verdict is not Verdict.TRUSTED)
        if answer.skipped:
            assert policy == "skip"
            assert not any(answer.weights.values())
            continue
        assert sum(answer.weights.values()) == pytest.approx(1)
        if policy != "keep" and not answer.warnings:
            held = [one for one in suspects if float(known.log_odds([one.client])) < -1]
            assert 2 * len(suspects) <= n + len(held)


def test_the_policy_is_one_of_three(file: Path) -> None:
    with pytest.raises(ParameterError, match="on_majority must be skip or keep or geometric-med"):
        rules.get("adaptive", defense=file, on_majority="panic")


# -------------------------------------------------------------------- unfamiliar rounds


def test_an_unfamiliar_round_is_weighed_without_learning(file: Path) -> None:
    rule = dictated(file, ODD, familiar=False, clip=False)
    answer, plain = rule.aggregate(a_round()), rules.get("geometric-median").aggregate(a_round())
    assert answer.weights == pytest.approx(plain.weights)
    assert Verdict.SUSPECTED not in answer.verdicts.values()
    assert all("unlike all that the defense was trained on" in one.reason for one in answer.clients)
    assert all(one.probability is None for one in answer.clients)
    assert "unlike all" in answer.warnings[0]
    assert "unlike all" in str(answer.notices()["a"])


def test_in_one_too_updates_may_be_too_long(file: Path) -> None:
    sent = a_round()
    states = {c: sent.state(c) for c in sent.clients}
    states["c"]["fc.weight"] *= 1000
    answer = dictated(file, [BAD] * 9, familiar=False).aggregate(states)
    suspects = [c for c, verdict in answer.verdicts.items() if verdict is Verdict.SUSPECTED]
    assert suspects == ["c"]


def test_whom_memory_holds_out_stays_out_but_not_for_ever(file: Path) -> None:
    """Else a known attacker would have a weight in every round that is odd for other reasons."""
    rule = dictated(file, ORDINARY)
    for _ in range(6):
        rule.aggregate(a_round())
    rule.is_familiar = False
    weights = [rule.aggregate(a_round()).weights["a"] for _ in range(4)]
    assert weights[:3] == [0, 0, 0]
    assert weights[3] > 0, "what nobody can judge is not held against it for ever"


def test_an_honest_client_is_soon_forgiven_and_an_attacker_stays_out(file: Path) -> None:
    """Client a has one bad round; client b is caught in two of three."""
    said = itertools.cycle(
        [(GOOD, BAD), (GOOD, BAD), (BAD, GOOD), *[(GOOD, BAD)] * 2, (GOOD, GOOD)]
    )
    rule = dictated(file, lambda n: torch.tensor([*next(said), *[GOOD] * (n - 2)]).double())
    weights = [rule.aggregate(a_round(seed=number)).weights for number in range(12)]
    assert [each["a"] > 0 for each in weights] == [n % 6 != 2 for n in range(12)]
    assert not any(each["b"] for each in weights), "not even in rounds that do not catch it"


# -------------------------------------------------------------------- probabilities


def test_probabilities_are_the_calibrations(file: Path) -> None:
    logits = torch.linspace(-4, 6, 10, dtype=torch.float64)
    answer = dictated(file, logits.tolist()).aggregate(a_round())
    found = [one.probability for one in answer.clients]
    assert found == pytest.approx(CALIBRATION.probability(logits).tolist())
    assert json.loads(json.dumps(answer.to_json()))["clients"][0]["probability"] == found[0]
    assert answer.notices()["a"]["probability"] == round(found[0] or 0, 2)


def test_who_is_held_out_is_not_judged_by_this_round(file: Path) -> None:
    rule = dictated(file, ORDINARY)
    for _ in range(4):
        rule.aggregate(a_round())
    well = dictated(file, [GOOD] * 10)
    well.known = rule.known
    answer = well.aggregate(a_round())
    assert answer.verdicts["a"] is Verdict.SUSPECTED
    assert answer.clients[0].probability is None
    assert "earlier rounds" in answer.clients[0].reason
    caught = rule.aggregate(a_round()).clients[0]
    assert caught.probability == pytest.approx(float(CALIBRATION.probability(torch.tensor(BAD))))


def test_an_older_defense_has_none(trained: Path) -> None:
    from tests.adaptive.rehearsed import honest_round  # noqa: PLC0415

    rule: Any = rules.get("adaptive", defense=trained)
    sent = honest_round(6, torch.Generator().manual_seed(1))
    assert all(one.probability is None for one in rule.aggregate(sent).clients)


# -------------------------------------------------------------------- false alarms


def test_a_knob_moves_the_threshold(file: Path) -> None:
    logits = [-4.0, -2.0, -0.5, *[GOOD] * 7]

    def suspects(**parameters: Any) -> int:
        answer = dictated(file, logits, **parameters).aggregate(a_round())
        return sum(one.verdict is Verdict.SUSPECTED for one in answer.clients)

    assert suspects() == 3
    assert suspects(max_false_alarms=0.05) == 1
    assert suspects(max_false_alarms=0.01) == 0
    assert suspects(max_false_alarms=0.4) == 3, "it never makes more alarms"
    assert dictated(file, logits, max_false_alarms=0.05).max_false_alarms == 0.05


@pytest.mark.parametrize("wrong", [0, 0.5, 1, -0.1, float("nan"), True, "few"])
def test_a_knob_has_its_range(file: Path, wrong: Any) -> None:
    with pytest.raises(ParameterError, match="max_false_alarms must be"):
        rules.get("adaptive", defense=file, max_false_alarms=wrong)


def test_a_knob_needs_a_calibration(trained: Path, tmp_path: Path) -> None:
    bare = untrained_file(tmp_path / "bare.defense", calibration=None)
    for defense in (trained, bare):
        with pytest.raises(ParameterError, match=r"needs a calibrated defense, and .*\.defense"):
            rules.get("adaptive", defense=defense, max_false_alarms=0.01)


def test_a_scenario_has_the_knobs(file: Path) -> None:
    rule = {"name": "adaptive", "defense": str(file), "max_false_alarms": 0.01, "anchor": True}
    scenario = Scenario(rule=rule).resolve()
    again = Scenario(**json.loads(scenario.model_dump_json(exclude_none=True))).resolve()
    assert again.digest == scenario.digest
    made: Any = scenario.make_rule([])
    assert (made.max_false_alarms, made.on_majority, made.needs) == (0.01, "skip", {"anchor"})
    plain = Scenario(rule={"name": "adaptive", "defense": str(file)}).resolve()
    assert "max_false_alarms" not in plain.rule.parameters
    assert plain.rule.parameters["on_majority"] == "skip"
    assert plain.digest != scenario.digest


# -------------------------------------------------------------------- the shipped defense


def test_the_shipped_one_is_used_by_default(shipped: Path) -> None:
    defense = universal()
    assert defense.digest == Defense.load(shipped).digest
    for rule in (rules.get("adaptive"), rules.get("adaptive", defense="universal")):
        assert isinstance(rule, Adaptive)
        assert rule.loaded is defense
        assert rule.has_history
        assert not rule.needs
    label = f"universal {defense.about.version} ({defense.digest})"
    assert rule.defense_label == label
    assert "defense='universal'" in repr(rule)
    assert f"version={defense.about.version!r}" in repr(rule)
    answer = rule.aggregate(a_round())
    assert answer.defense == label
    assert repr(answer).startswith(f"Aggregation(adaptive, {label}: 10 clients")
    assert answer.to_json()["defense"] == label
    scenario = Scenario(rule="adaptive").resolve()
    assert scenario.rule.parameters["defense"] == "universal"
    assert scenario.rule.parameters["digest"] == defense.digest
    untrained_file(shipped, seed=2)
    universal.cache_clear()
    with pytest.raises(ParameterError, match=r"the universal defense of fedimmune .* is another"):
        scenario.make_rule([])


def test_suspects_learn_who_suspects_them(file: Path) -> None:
    rule = dictated(file, ORDINARY)
    one = rule.aggregate(a_round()).clients[0]
    assert one.reason == f"taken for an attack by universal.defense ({rule.digest})"


def test_if_it_is_not_there_that_is_said(shipped: Path) -> None:
    shipped.unlink()
    with pytest.raises(
        ParameterError, match=r"no such file.*install that again, or name a defense"
    ):
        rules.get("adaptive")


def test_any_model_will_do_with_an_anchor_and_without(file: Path) -> None:
    sent = a_round(6)
    own = {k: torch.ones_like(v) for k, v in MODEL.items()}
    without, with_anchor = (rules.get("adaptive", defense=file, anchor=a) for a in (None, True))
    assert with_anchor.needs == {"anchor"}
    with pytest.raises(ParameterError, match="needs the server's own update"):
        with_anchor.aggregate(sent)
    plain, anchored = without.aggregate(sent), with_anchor.aggregate(sent.with_anchor(own))
    assert plain.scores is not None
    assert anchored.scores is not None
    assert plain.scores != anchored.scores
    again = rules.get("adaptive", defense=file, memory=False)
    assert again.aggregate(sent.with_anchor(own)).scores == plain.scores, "it was not asked for"
    assert set(without.aggregate(torch.randn(5, 3)).verdicts) == set(range(5))


def test_other_defenses_leave_no_choice_of_the_anchor(trained: Path, anchored: Path) -> None:
    for defense, has in ((trained, False), (anchored, True)):
        assert rules.get("adaptive", defense=defense, anchor=has).needs == (
            {"anchor"} if has else frozenset()
        )
        with pytest.raises(ParameterError, match=f"trained {'with' if has else 'without'} an anch"):
            rules.get("adaptive", defense=defense, anchor=not has)


def test_inner_products_and_shapes_are_enough(file: Path) -> None:
    rule: Any = rules.get("adaptive", defense=file, memory=False)
    rows = torch.randn(6, 5, generator=torch.Generator().manual_seed(4)).double()
    found = rule.weights_from_gram(rows @ rows.T, shapes=[(5,)])
    assert found.weight.tolist() == pytest.approx(list(rule.aggregate(rows).weights.values()))
    with pytest.raises(InputError, match="what each layer is"):
        rule.weights_from_gram(rows @ rows.T)
    with pytest.raises(InputError, match="2 shapes of layers for 1 Gram"):
        rule.weights_from_gram(rows @ rows.T, shapes=[(5,), (5,)])


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_few_clients_will_do(file: Path, n: int) -> None:
    answer = rules.get("adaptive", defense=file).aggregate(a_round(n))
    assert len(answer.clients) == n


def test_simulated_with_it(file: Path, tmp_path: Path) -> None:
    rule = {"name": "adaptive", "defense": str(file), "anchor": True, "max_false_alarms": 0.05}
    scenario = Scenario(rule=rule, attack="sign-flip", attackers=2, clients=6, rounds=2)
    records = list(simulate(scenario, runs=tmp_path, workers=1))
    for record in records:
        assert record.defense is not None
        assert record.defense.startswith("universal.defense (")
        judged = [one for one in record.clients if one.verdict is not Verdict.REJECTED]
        assert all(0 <= (one.probability or 0) <= 1 for one in judged)
        assert RoundRecord.model_validate_json(record.model_dump_json()) == record


def test_who_goes_against_the_others_is_held_out_after_some_rounds(tmp_path: Path) -> None:
    """By what ships: a sign flip by four of ten, which no single round gives away."""
    scenario = Scenario(rule="adaptive", attack="sign-flip", attackers=4, rounds=14, seed=11)
    records = list(simulate(scenario, runs=tmp_path, workers=1))
    for record in records[-3:]:
        attackers = [one for one in record.clients if one.is_attacker]
        assert all(one.weight == 0 for one in attackers)
        assert any("against most others" in (one.reason or "") for one in attackers)
        assert all(one.weight for one in record.clients if not one.is_attacker)


# -------------------------------------------------------------------- bounded damage


@st.composite
def attacked(draw: st.DrawFn) -> tuple[list[dict[str, Tensor]], set[int]]:
    """Honest clients of any lengths, and fewer attackers, who see them and send anything."""
    n = draw(st.integers(3, 11))
    f = draw(st.integers(0, (n - 1) // 2))
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    lengths = [draw(st.sampled_from([0.0, 1e-20, 0.01, 1.0, 3.0, 1e6])) for _ in range(n)]
    common = draw(st.sampled_from([0.0, 1.0, 100.0])) * torch.randn(13, generator=random).double()
    rows = torch.randn(n, 13, generator=random).double()
    rows = (common + rows) * torch.tensor(lengths, dtype=torch.float64)[:, None]
    longest = rows[: n - f].norm(dim=1).max()
    away = -rows[: n - f].mean(0)
    for row in range(n - f, n):
        match draw(st.sampled_from(["away", "long", "noise", "copy", "nothing", "as it is"])):
            case "away":  # as far from the honest mean as is not clipped
                rows[row] = away / away.norm().clamp(min=1e-300) * longest
            case "long":
                rows[row] *= 10.0 ** draw(st.integers(-30, 30))
            case "noise":
                rows[row] = torch.randn(13, generator=random).double() * longest
            case "copy":
                rows[row] = -3 * rows[draw(st.integers(0, n - f - 1))]
            case "nothing":
                rows[row] = 0
    states = [{"a": row[:12].reshape(4, 3).clone(), "b": row[12:].clone()} for row in rows]
    order = torch.randperm(n, generator=random).tolist()
    return [states[i] for i in order], {place for place, i in enumerate(order) if i < n - f}


@pytest.mark.parametrize("policy", ["skip", "keep", "geometric-median"])
@given(data=st.data())
def test_no_round_ends_far_from_the_robust_mean(
    file: Path, policy: str, data: st.DataObject
) -> None:
    """The network is the attackers': it says whatever makes things worst, or anything at all."""
    states, places = data.draw(attacked())
    honest = [states[place] for place in places]
    flat = torch.stack([torch.cat([s["a"].flatten(), s["b"]]) for s in honest])
    seed = data.draw(st.integers(0, 2**32 - 1))
    random = torch.Generator().manual_seed(seed)

    def says(n: int) -> Tensor:
        return 20 * torch.randn(n, generator=random, dtype=torch.float64)

    clip = data.draw(st.sampled_from([None, True, 0.5, 3.0]))
    rule = dictated(file, says, familiar=data.draw(st.booleans()), on_majority=policy, clip=clip)
    longest = float(flat.norm(dim=1).max())
    for _ in range(3):  # what is remembered does not matter either
        update = rule.aggregate(states).update
        found = torch.cat([update["a"].flatten(), update["b"]])
        away = float((found - flat.mean(0)).norm())
        assert away <= (1 + rule.clip) * longest * (1 + 1e-6)


@pytest.mark.parametrize(("clip", "lengths"), [(None, 3), (True, 2), (1.5, 2.5)])
def test_as_many_lengths_are_reached(file: Path, clip: float | None, lengths: float) -> None:
    """No smaller factor would hold: the network trusts four attackers who all send the opposite."""
    rows = torch.tensor([[1.0, 0.0]] * 6 + [[-4.0, 0.0]] * 4, dtype=torch.float64)
    update = dictated(file, [BAD] * 6 + [GOOD] * 4, on_majority="keep", clip=clip)(rows)
    assert float((update - rows[0]).norm()) == pytest.approx(lengths)


@pytest.mark.parametrize("wrong", [0, -1.0, "median", float("nan")])
def test_a_limit_of_lengths_is_a_number_or_none(file: Path, wrong: object) -> None:
    with pytest.raises(ParameterError, match="clip must be"):
        rules.get("adaptive", defense=file, clip=wrong)
