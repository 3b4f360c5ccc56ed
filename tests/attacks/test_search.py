"""The search with the rule in the loop: it keeps its weight, and no factor does more harm."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedimmune import Updates, attacks, rules
from fedimmune.attacks import line_search
from fedimmune.attacks.collusion import Seen
from fedimmune.attacks.line_search import (
    _harm_by_aggregating,
    _harm_by_columns,
    _harm_by_products,
    _maximize,
)
from fedimmune.errors import ParameterError
from fedimmune.rules import GeometryRule
from tests.attacks.contexts import a_round, context, trained, vector

CLIENTS, HOSTILE = 10, 3
HONEST = CLIENTS - HOSTILE
RULES = [
    "krum",
    "multi-krum",
    "geometric-median",
    {"name": "krum", "before": "nnm"},
    {"name": "multi-krum", "before": "nnm"},
    {"name": "foolsgold", "history": True},
    "median",
    "trimmed-mean",
    {"name": "trimmed-mean", "before": "clip"},
    "adaptive",
]


def made(given: Any) -> Any:
    return rules.get(given) if isinstance(given, str) else rules.get(**given)


def a_visible_round(seed: int) -> Updates:
    return Updates.from_states(a_round(seed, CLIENTS))


def harm(rule: Any, honest: Any, row: Any) -> tuple[float, float | None]:
    """Return the distance from the honest mean and the attackers' weight, by the whole vectors."""
    rows = np.concatenate([honest, np.repeat(row[None], HOSTILE, axis=0)])
    found = made(rule).aggregate(Updates.from_vectors(rows))
    weights = None if found.weights is None else sum(found.weights[c] for c in range(HONEST, 10))
    return float(np.linalg.norm(found.update - honest.mean(0))), weights


def found_factor(row: Any, base: Any, direction: Any) -> float:
    factor = float((row - base) @ direction / (direction @ direction))
    np.testing.assert_allclose(row, base + factor * direction, atol=1e-8)
    return factor


@settings(max_examples=8)
@given(
    seed=st.integers(0, 999),
    direction=st.sampled_from(["mean", "std", "own"]),
    shift=st.floats(0, 1),
)
@example(seed=33, direction="mean", shift=0.825)  # Krum behind NNM: the best is beyond a fall
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_it_keeps_its_weight_and_beats_a_fine_grid(
    rule: Any, seed: int, direction: str, shift: float
) -> None:
    """Six factors to the octave, wherever they begin, and a little beyond each.

    Rules that choose may do more harm at factors within less than a sixteenth of an octave, which
    a search may miss: so what counts is the harm that both of two neighbors do.
    """
    visible = a_visible_round(seed)
    mine = visible.only(range(HONEST, CLIENTS))
    attack = attacks.get("search", direction=direction)
    answer = attack.on_round(mine, visible, context(rule=made(rule)))
    honest, own = trained(visible)[:HONEST], trained(mine).mean(0)
    line = -{"mean": honest.mean(0), "std": honest.std(0), "own": own}[direction]
    factor = found_factor(trained(answer)[0], honest.mean(0), line)
    most, weight = harm(rule, honest, honest.mean(0) + factor * line)
    least = 0.5 * HOSTILE / CLIENTS

    def unnoticed(other: float) -> float:
        done, kept = harm(rule, honest, honest.mean(0) + other * line)
        return done if kept is None or kept >= least - 1e-9 else -np.inf

    grid = 2 ** ((np.arange(54) + shift) / 6 - 4)
    pairs = [min(unnoticed(other), unnoticed(1.045 * other)) for other in grid]
    best = max(*pairs, unnoticed(1.03 * factor), unnoticed(0.97 * factor))
    if best > -np.inf:
        assert weight is None or weight >= least - 1e-9
        assert most >= 0.95 * best


@pytest.mark.parametrize(("attack", "factor"), [("alie", "z"), ("ipm", "scale")])
@pytest.mark.parametrize("rule", ["krum", "median", "geometric-median"])
@pytest.mark.parametrize("seed", range(4))
def test_searched_factors_do_more_harm_than_given_ones(
    attack: str, factor: str, rule: str, seed: int
) -> None:
    visible = a_visible_round(seed)
    mine, told = visible.only(range(HONEST, CLIENTS)), context(rule=made(rule))
    honest = trained(visible)[:HONEST]

    def harm_of(value: object) -> float:
        answer = attacks.get(attack, **{factor: value}).on_round(mine, visible, told)
        return harm(rule, honest, trained(answer)[0])[0]

    assert harm_of("search") >= 0.999 * max(map(harm_of, [0.1, 0.5, 1, 1.5, 4]))


def test_a_rule_of_inner_products_is_tried_without_reading_the_updates_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    visible, krum = a_visible_round(2), rules.get("krum")
    reads = 0
    plain = Updates.blocks

    def counted(self: Updates, *given: Any, **options: Any) -> Any:
        nonlocal reads
        reads += 1
        return plain(self, *given, **options)

    monkeypatch.setattr(Updates, "blocks", counted)
    mine = visible.only(range(HONEST, CLIENTS))
    attacks.get("search").on_round(mine, visible, context(rule=krum))
    assert reads < 10


@settings(max_examples=15)
@given(seed=st.integers(0, 999), factor=st.floats(0, 32))
@pytest.mark.parametrize("name", ["adaptive", "krum", "caf"])
def test_products_say_what_the_rule_would_do_and_leave_no_trace(
    name: str, seed: int, factor: float
) -> None:
    """Also for a rule that remembers earlier rounds, if all that it remembers are numbers."""
    rule, visible = rules.get(name), a_visible_round(seed)
    assert isinstance(rule, GeometryRule)
    for earlier in range(2):
        rule.aggregate(a_visible_round(1000 + seed + earlier))
    seen = Seen(visible.only([1, 4, 8]), visible)
    line = seen.trained(seen.deviation, -1)
    by_products = _harm_by_products(rule, seen, seen.mean, line, 0.0)
    by_rule = _harm_by_aggregating(rule, seen, seen.mean, line, 0.0)
    before = by_rule(factor)
    assert by_products(factor) == pytest.approx(before, rel=1e-6, abs=1e-9)
    assert by_rule(factor) == before


COORDINATES = [
    {"name": "trimmed-mean"},
    {"name": "trimmed-mean", "trim": 0.3, "before": "clip(at=0.9),nnm"},
    {"name": "median", "before": "nnm"},
    {"name": "median", "before": "bucketing"},
    {"name": "meamed", "attackers": 3},
    {"name": "rlr"},
]


@settings(max_examples=10)
@given(seed=st.integers(0, 999), factor=st.floats(0, 32))
@pytest.mark.parametrize("rule", COORDINATES, ids=str)
def test_a_rule_of_coordinates_is_tried_on_sums_of_the_rows(
    rule: Any, seed: int, factor: float
) -> None:
    """The harm is that of the rule itself, given the whole round."""
    visible = a_visible_round(seed)
    seen = Seen(visible.only([1, 4, 8]), visible)
    line = seen.trained(seen.deviation, -1)
    by_columns = _harm_by_columns(made(rule), seen, seen.mean, line)
    by_rule = _harm_by_aggregating(made(rule), seen, seen.mean, line, 0.0)
    assert by_columns(factor) == pytest.approx(by_rule(factor), rel=1e-9, abs=1e-12)


@settings(max_examples=10)
@given(seed=st.integers(0, 999))
@pytest.mark.parametrize("rule", COORDINATES[:4], ids=str)
def test_a_sample_of_the_coordinates_is_enough(rule: Any, seed: int) -> None:
    random = np.random.default_rng(seed)
    spread = {"small": (0.1, 50), "large": (1.0, 40_000), "odd": (3.0, 9_001)}
    states = [
        {name: torch.from_numpy(d * (1 + random.normal(size=n))) for name, (d, n) in spread.items()}
        for _ in range(CLIENTS)
    ]
    visible = Updates.from_states(states)
    seen = Seen(visible.only(range(HONEST, CLIENTS)), visible)
    line = seen.trained(seen.deviation, -1)
    sampled = _harm_by_columns(made(rule), seen, seen.mean, line)
    values, counts = seen.sample(line, most=line_search._COLUMNS)
    assert values.shape == (HONEST + 1, len(counts))
    assert len(counts) < 30_000
    assert float(counts.sum()) == pytest.approx(49_051, abs=1)
    whole = _harm_by_aggregating(made(rule), seen, seen.mean, line, 0.0)
    assert whole(_maximize(sampled)) >= 0.99 * whole(_maximize(whole))


def test_the_servers_own_update_is_seen_by_the_rule_that_is_tried() -> None:
    from fedimmune.rules.base import ClientWeights, GeometryRule  # noqa: PLC0415

    class Near(GeometryRule):
        """Weigh clients by their inner product with the anchor, if that is positive."""

        name, needs = "near", frozenset({"anchor"})

        def weigh_geometry(self, geometry: Any) -> ClientWeights:
            products = geometry.reference("anchor").products.sum(0).clamp(min=0)
            return ClientWeights(products / products.sum())

    visible = a_visible_round(3)
    anchor = visible.state(0)
    with_anchor = visible.with_anchor(anchor)
    mine = visible.only(range(HONEST, CLIENTS))
    answer = attacks.get("search").on_round(mine, with_anchor, context(rule=Near()))
    assert float(trained(answer)[0] @ vector(anchor)) > 0, "or it would have no weight"


@pytest.mark.parametrize("keep", [0, 0.5])
def test_against_a_rule_that_cannot_be_fooled_the_factor_is_1(keep: float) -> None:
    """Rehearsals follow the oracle: attackers that gave up there would look honest."""
    visible = a_visible_round(1)
    mine, honest = visible.only(range(HONEST, CLIENTS)), trained(visible)[:HONEST]
    oracle = rules.get("oracle", attackers=range(HONEST, CLIENTS))
    attack = attacks.get("search", direction="std", keep=keep)
    answer = attack.on_round(mine, visible, context(rule=oracle))
    np.testing.assert_allclose(trained(answer)[0], honest.mean(0) - honest.std(0), atol=1e-9)


def test_nothing_is_searched_without_a_rule() -> None:
    visible = a_visible_round(1)
    for attack in (attacks.get("search"), attacks.get("alie", z="search")):
        with pytest.raises(ParameterError, match="rule"):
            attack.on_round(visible.only([0]), visible, context())


@given(peak=st.floats(0.05, 30), width=st.floats(0.05, 2))
def test_a_single_peak_is_found(peak: float, width: float) -> None:
    best = _maximize(lambda factor: -abs(np.log(factor / peak)) / width)
    assert best == pytest.approx(peak, rel=0.05)


@given(edge=st.floats(0.07, 30))
def test_the_last_factor_before_a_fall_is_found(edge: float) -> None:
    best = _maximize(lambda factor: factor if factor <= edge else 0.0)
    assert 0.95 * edge <= best <= edge


def test_the_backdoor_direction_trains_on_marked_samples_and_has_a_target() -> None:
    attack = attacks.get("search", direction="backdoor")
    inputs, labels = torch.zeros(10, 1, 8, 8), torch.zeros(10, dtype=torch.int64)
    marked = attacks.get("backdoor").on_batch(inputs.clone(), labels.clone(), context())
    found = attack.on_batch(inputs.clone(), labels.clone(), context())
    assert all(torch.equal(a, b) for a, b in zip(found, marked, strict=True))
    assert attack.overrides("on_batch")
    assert attack.target == 2
    shown = attack.triggered(inputs, labels, context().spec)
    assert shown is not None
    assert shown.target == 2
    visible = a_visible_round(4)
    mine = visible.only(range(HONEST, CLIENTS))
    answer = attack.on_round(mine, visible, context(rule=rules.get("median")))
    honest = trained(visible)[:HONEST]
    line = trained(mine).mean(0) - honest.mean(0)
    assert found_factor(trained(answer)[0], honest.mean(0), line) > 0
