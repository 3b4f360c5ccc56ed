"""Compiled loops against PyTorch's operations, and both against plain definitions in float64."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedimmune import Aggregation, Updates, measure, rules
from fedimmune import _fused as fused
from fedimmune.errors import ParameterError
from fedimmune.kernels import (
    NearMedian,
    Ranks,
    add_noise,
    combine,
    kernels_used,
    num_threads,
    survival,
)
from fedimmune.kernels import weighted_sum as sum_of

pytest.importorskip("numba")

HALVES = (torch.float16, torch.bfloat16)
DTYPES = (*HALVES, torch.float32, torch.float64)
PRECISION = {torch.float16: 1e-3, torch.bfloat16: 1e-2, torch.float32: 1e-6, torch.float64: 1e-14}
"""How far forms may be apart, as a share of the largest value."""


@contextmanager
def form(name: str) -> Iterator[None]:
    before = os.environ.get(fused.SWITCH)
    os.environ[fused.SWITCH] = name
    try:
        yield
    finally:
        if before is None:
            del os.environ[fused.SWITCH]
        else:
            os.environ[fused.SWITCH] = before


@st.composite
def rounds(draw: st.DrawFn, least: int = 2, most: int = 70) -> Updates:
    """Rounds of all kinds: precisions, strides, bases, ties, signed zeros, odd and empty layers."""
    n = draw(st.integers(least, most))
    sizes = draw(st.lists(st.sampled_from([0, 1, 7, 128, 129, 513, 700]), min_size=1, max_size=3))
    sizes = sizes if any(sizes) else [3]
    dtype = draw(st.sampled_from(DTYPES))
    random = torch.Generator().manual_seed(draw(st.integers(0, 9999)))
    columns = sum(sizes)
    values = torch.randn(n, columns, generator=random, dtype=torch.float64)
    if draw(st.booleans()):  # ties, and zeros of both signs
        values = values.mul(2).round().div(2)
    values[0].clamp_(max=-0.0)
    layout = draw(st.sampled_from(["matrix", "rows", "columns", "chosen", "states", "models"]))
    names = {f"layer{place}": (size,) for place, size in enumerate(sizes)}
    if layout in ("states", "models"):
        parts = [dict(zip(names, row.to(dtype).split(sizes), strict=True)) for row in values]
        if layout == "states":
            return Updates.from_states(parts)
        base = torch.randn(columns, generator=random).to(dtype)
        return Updates.from_models(parts, dict(zip(names, base.split(sizes), strict=True)))
    matrix = values.to(dtype)
    if layout == "rows":
        matrix = matrix.repeat(1, 2)[:, :columns]
    elif layout == "columns":
        matrix = matrix.T.contiguous().T
    made = Updates.from_vectors(matrix, layers=names)
    return made.only(range(1, n)) if layout == "chosen" and n > least else made


def in_float64(updates: Updates) -> Tensor:
    """All clients' updates side by side, (n, columns), as rules compute with them."""
    states = [updates.state(client) for client in updates.clients]
    rows = [torch.cat([part.flatten() for part in state.values()]) for state in states]
    return torch.stack(rows).double()


def flat(update: Any) -> Tensor:
    parts = update.values() if isinstance(update, dict) else [update]
    return torch.cat([part.flatten() for part in parts]).double()


def assert_close(found: Tensor, expected: Tensor, updates: Updates, terms: int = 1) -> None:
    largest = float(in_float64(updates).abs().max()) + 1e-30
    exact = PRECISION[updates.layers[0].dtype]
    assert float((found - expected).abs().max()) <= exact * largest * (3 + terms**0.5)


def _median(values: Tensor) -> Tensor:
    n, ordered = len(values), values.sort(0).values
    return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2


def _trimmed(values: Tensor) -> Tensor:
    n = len(values)
    return values.sort(0).values[n // 3 : n - n // 3].mean(0)


COLUMNS: dict[str, tuple[Callable[[int], Any], Callable[[Tensor], Tensor]]] = {
    "median": (Ranks.median, _median),
    "trimmed": (lambda n: Ranks(n, range(n // 3, n - n // 3), 1 / (n - 2 * (n // 3))), _trimmed),
    "highest": (lambda n: Ranks(n, [n - 1], 1.0), lambda values: values.max(0).values),
    "mean": (
        lambda n: sum_of(torch.full((n,), 1 / n, dtype=torch.float64)),
        lambda values: values.mean(0),
    ),
}


@pytest.mark.parametrize("name", COLUMNS)
@given(updates=rounds())
def test_columns_are_what_their_definition_says(name: str, updates: Updates) -> None:
    make, definition = COLUMNS[name]
    expected = definition(in_float64(updates))
    for each in ("plain", "fused"):
        with form(each):
            found = flat(combine(updates, make(len(updates))))
        assert_close(found, expected, updates)


@given(updates=rounds(), data=st.data())
def test_means_around_the_median_agree(updates: Updates, data: st.DataObject) -> None:
    n = len(updates)
    function = NearMedian(n, data.draw(st.integers(1, n)))
    with form("plain"):
        plain = flat(combine(updates, function)), survival(updates, function.used, function)
    with form("fused"):
        found = flat(combine(updates, function)), survival(updates, function.used, function)
    assert_close(found[0], plain[0], updates)
    assert found[1] is not None
    assert plain[1] is not None
    assert torch.equal(found[1], plain[1])


@given(
    near=st.integers(0, 1000),
    far=st.integers(0, 1000),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_of_two_equally_near_the_median_the_lower_is_taken(
    near: int, far: int, dtype: torch.dtype
) -> None:
    """Whatever bits the numbers have: seen before with a median that had to be rounded."""
    most = 2.0 ** (24 if dtype == torch.float32 else 53)
    values = most - 1 - torch.tensor([near + 2 * far + 1, near + far + 1, far, 0]).double()
    updates = Updates.from_vectors(values[:, None].to(dtype).expand(4, 40))
    function = NearMedian(4, 3)
    for each in ("plain", "fused"):
        with form(each):
            used = survival(updates, function.used, function)
        assert used is not None
        assert used[0] == 1


@given(updates=rounds())
def test_survivors_agree(updates: Updates) -> None:
    for function in (Ranks.median(len(updates)), Ranks(len(updates), range(len(updates)), 0.1)):
        with form("plain"):
            plain = survival(updates, function.used, function)
        with form("fused"):
            found = survival(updates, function.used, function)
        assert found is not None
        assert plain is not None
        assert torch.equal(found, plain)


@given(updates=rounds(), anchored=st.booleans(), pairs=st.booleans())
def test_inner_products_are_exact(updates: Updates, anchored: bool, pairs: bool) -> None:
    values, names = in_float64(updates), []
    if anchored:
        own = updates.state(updates.clients[0])
        vector = torch.cat([part.flatten() for part in own.values()]) * 0.5
        sizes = [layer.size for layer in updates.layers]
        state = {
            layer.name: part
            for layer, part in zip(updates.layers, vector.split(sizes), strict=True)
        }
        updates, names = replace(updates, references={"anchor": state}), ["anchor"]
        values = torch.cat([values, vector.double()[None]])
    with form("fused"):
        found = measure(updates, names, pairs=pairs)
        if anchored:
            # Many clients and references are measured in one product: to rounding, and with pairs.
            alone, beside = measure(updates, pairs=pairs).grams(), found.grams()
            apart = (alone - beside)[~alone.isnan()].abs().max()
            assert float(apart) <= 1e-6 * float(values.square().sum() + 1e-30), "references"
    grams, exact = found.grams(*names).sum(0), values @ values.T
    known = ~grams.isnan()
    assert bool((known if pairs else known.diagonal()).all())
    dtype = updates.layers[0].dtype  # to which `state` rounds differences from a base
    if not updates.source.has_base:
        dtype = torch.promote_types(dtype, torch.float32)
    error = PRECISION[dtype] * values.shape[1] * float(values.square().max() + 1e-30)
    assert float((grams - exact)[known].abs().max()) <= 10 * error


@given(updates=rounds(least=3, most=20))
def test_residuals_agree(updates: Updates) -> None:
    rule = rules.get("residual")
    with form("plain"):
        plain = rule.aggregate(updates)
    with form("fused"):
        found = rule.aggregate(updates)
    assert plain.weights is not None
    assert found.weights is not None
    assert found.weights == pytest.approx(plain.weights, rel=1e-3, abs=1e-5)
    # Weights differ by the rounding of summed confidences, and the result by that of the weights.
    largest = float(in_float64(updates).abs().max())
    exact = max(PRECISION[updates.layers[0].dtype], 1e-4)
    assert float((flat(found.update) - flat(plain.update)).abs().max()) <= exact * largest + 1e-12


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", ["mean", "median", "meamed", "krum", "fltrust", "residual"])
@given(data=st.data())
def test_who_sent_values_that_are_not_finite_is_named(
    name: str, bad: float, data: st.DataObject
) -> None:
    dtype = data.draw(st.sampled_from(DTYPES))
    n, row = data.draw(st.integers(5, 12)), data.draw(st.integers(0, 4))
    sizes = [3, 0, 700]
    layer = data.draw(st.sampled_from([0, 2]))
    column = data.draw(st.integers(0, sizes[layer] - 1))
    states = [
        {str(place): torch.randn(size).to(dtype) for place, size in enumerate(sizes)}
        for _ in range(n)
    ]
    states[row][str(layer)][column] = bad

    def aggregate(given: list[dict[str, Tensor]]) -> Aggregation:
        rule, updates = rules.get(name), Updates.from_states(given)
        if "anchor" in rule.needs:
            updates = updates.with_anchor(states[(row + 1) % n])
        return rule.aggregate(updates)

    with form("fused"):
        answer = aggregate(states)
        rest = aggregate([state for place, state in enumerate(states) if place != row])
    assert dict(answer.rejected) == {row: f"layer '{layer}' holds NaN or infinite values"}
    assert torch.equal(flat(answer.update), flat(rest.update))


@pytest.mark.parametrize("name", ["mean", "median", "trimmed-mean", "krum", "dnc", "residual"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_neither_blocks_nor_threads_change_a_bit(name: str, dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(3)
    matrix = torch.randn(9, 120_001, generator=random).to(dtype)
    updates = Updates.from_vectors(matrix)
    with form("fused"), num_threads(1):
        expected = rules.get(name).aggregate(updates)
    seen: list[int] = []
    for threads in (1, 2, 3):
        changed = replace(updates, block_columns=512 * threads, on_read=seen.append)
        with form("fused"), num_threads(threads):
            found = rules.get(name).aggregate(changed)
        assert torch.equal(found.update, expected.update)
        assert found.weights == expected.weights
    assert sum(seen) >= 3 * matrix.nbytes, "progress is reported"


@given(n=st.integers(2, 40), seed=st.integers(0, 999))
def test_the_order_of_clients_changes_no_bit_of_order_statistics(n: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    matrix = torch.randn(n, 300, generator=random).mul(4).round().mul(-0.25)
    turned = matrix[torch.randperm(n, generator=random)]
    for function in (Ranks.median(n), Ranks(n, range(n // 3, n - n // 3), 0.2)):
        with form("fused"):
            one, other = (combine(Updates.of(each), function) for each in (matrix, turned))
        assert torch.equal(one.view(torch.int32), other.view(torch.int32))


def test_layers_in_another_order_in_memory_are_read_alike() -> None:
    states = [{"w": torch.randn(8, 3, 5, 5), "b": torch.randn(8)} for _ in range(6)]
    last = [
        {"w": state["w"].to(memory_format=torch.channels_last), "b": state["b"]} for state in states
    ]
    mixed = [last[0], *states[1:]]
    for name in ("mean", "median", "krum"):
        with form("fused"):
            expected = flat(rules.get(name)(states))
            for each in (last, mixed):
                torch.testing.assert_close(flat(rules.get(name)(each)), expected)


def test_numbers_near_the_ends_of_float16_stay_finite() -> None:
    states = [{"w": torch.full((4,), value, dtype=torch.float16)} for value in (6e4, 6.2e4, 6.5e4)]
    base = {"w": torch.full((4,), -6e4, dtype=torch.float16)}
    for each in ("plain", "fused"):
        with form(each):
            answer = rules.get("mean").aggregate(Updates.from_models(states, base))
        assert not answer.rejected
        assert float(answer.update["w"][0]) == torch.finfo(torch.float16).max


# -------------------------------------------------------------------- which form


def test_the_form_is_chosen_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("plain", "fused"):
        monkeypatch.setenv(fused.SWITCH, name)
        assert kernels_used() == name
    monkeypatch.setenv(fused.SWITCH, "quick")
    with pytest.raises(ParameterError, match="FEDIMMUNE_KERNELS is auto, fused or plain"):
        kernels_used()


def test_without_numba_the_plain_form_does(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.delitem(sys.modules, "fedimmune._compiled", raising=False)
    monkeypatch.delenv(fused.SWITCH, raising=False)
    fused._problem.cache_clear()
    request.addfinalizer(fused._problem.cache_clear)
    assert kernels_used() == "plain"
    matrix = torch.randn(5, 40)
    torch.testing.assert_close(rules.get("mean")(matrix), matrix.mean(0))
    monkeypatch.setenv(fused.SWITCH, "fused")
    with pytest.raises(ParameterError, match=r"pip install fedimmune\[fast\]"):
        kernels_used()


def test_nothing_is_cached_where_nothing_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedimmune import _compiled  # noqa: PLC0415

    def njit(*, cache: bool = False, **_: object) -> Callable[[Any], Any]:
        def decorate(function: Any) -> Any:
            if cache:
                raise RuntimeError("cannot cache function: no locator available")
            return function

        return decorate

    monkeypatch.setattr(_compiled, "njit", njit)
    assert _compiled._compiled()(abs) is abs


@settings(max_examples=20)
@given(
    sizes=st.lists(st.sampled_from([0, 1, 511, 512, 513, 1025, 40_000]), min_size=1, max_size=4),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 2**63 - 1),
    threads=st.integers(1, 2),
)
def test_noise_is_the_same_in_both_forms(
    sizes: list[int], dtype: torch.dtype, seed: int, threads: int
) -> None:
    sizes = [*sizes, 3]
    zeros = {f"layer{place}": torch.zeros(size, dtype=dtype) for place, size in enumerate(sizes)}
    updates = Updates.from_states([zeros] * 2)
    found = {}
    for name in ("fused", "plain"):
        found[name] = {layer: values.clone() for layer, values in zeros.items()}
        with form(name), num_threads(threads):
            add_noise(found[name], updates, 0.5, seed)
    for layer, values in found["plain"].items():
        torch.testing.assert_close(found["fused"][layer], values, rtol=1e-4, atol=1e-5)
    every = torch.cat(list(found["fused"].values()))
    assert len(every.unique()) > 0.999 * len(every), "no draw is used twice"


def test_noise_is_normal_and_neighbors_are_independent() -> None:
    zeros = torch.zeros(2, 1 << 20)
    noise = torch.zeros(1 << 20)
    with form("fused"):
        add_noise(noise, Updates.from_vectors(zeros), 1.0, 7)
    values = noise.double()
    normal = torch.distributions.Normal(torch.tensor(0.0).double(), torch.tensor(1.0).double())
    shares = normal.cdf(values.sort().values)
    steps = torch.arange(len(shares)).double() / len(shares)
    assert float((shares - steps).abs().max()) * 1024 < 1.95, "Kolmogorov and Smirnov, at 0.001"
    # In standard errors of a million independent draws.
    assert abs(float(values.mean())) * 1024 < 4
    assert abs(float(values.square().mean()) - 1) * 1024 < 4 * 2**0.5
    assert abs(float(values.pow(4).mean()) - 3) * 1024 < 4 * 96**0.5
    for bound in (3.0, 4.0):
        beyond = int((values.abs() > bound).sum())
        expected = 2 * len(values) * float(normal.cdf(torch.tensor(-bound).double()))
        assert abs(beyond - expected) < 4 * expected**0.5
    for lag in (1, 2, 256, 512, 1024):  # 512: the other number of a pair
        for part in (values, values.square() - 1):
            related = float((part[lag:] * part[:-lag]).mean() / part.square().mean())
            assert abs(related) < 4 / 1024
