from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedimmune import Updates, geometry, measure, rules
from fedimmune import _fused as fused
from fedimmune.kernels import num_threads
from tests.rounds import COLUMNS, SHAPES, as_states, in_blocks, matrices


@given(matrix=matrices())
def test_layers_groups_and_the_whole_model(matrix: Tensor) -> None:
    states = as_states(matrix)
    geometry = measure(Updates.from_states(states))
    for names in (["fc.weight"], ["conv.bias", "scale"], list(SHAPES)):
        rows = np.stack([np.concatenate([s[k].numpy().ravel() for k in names]) for s in states])
        part = geometry.of(names)
        norms = np.linalg.norm(rows, axis=1)
        squared = ((rows[:, None] - rows[None]) ** 2).sum(-1)
        np.testing.assert_allclose(part.gram(), rows @ rows.T, atol=1e-9)
        np.testing.assert_allclose(part.norms(), norms, atol=1e-9)
        np.testing.assert_allclose(part.squared_distances(), squared, atol=1e-9)
        np.testing.assert_allclose(
            part.cosines(), rows @ rows.T / norms[:, None] / norms[None], atol=1e-9
        )
    assert torch.equal(geometry.of("scale").grams()[0], geometry.of("scale").gram())


@given(matrix=matrices(), components=st.integers(1, 15))
def test_principal_coordinates_are_those_of_a_decomposition(
    matrix: Tensor, components: int
) -> None:
    found = measure(Updates.of(matrix)).principal_coordinates(components)
    u, s, _ = np.linalg.svd(matrix.numpy(), full_matrices=False)
    expected = np.zeros((len(matrix), components))
    count = min(components, len(s))
    expected[:, :count] = (u * s)[:, :count]
    np.testing.assert_allclose(found.abs().numpy(), np.abs(expected), atol=1e-6)


@pytest.mark.parametrize("size", [1, 511, 512, 513, 70_000])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_sums_are_accurate(size: int, dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(size)
    matrix = torch.randn(6, size, generator=random, dtype=torch.float64).to(dtype)
    wide = matrix.double()
    torch.testing.assert_close(
        measure(Updates.of(matrix)).gram(), wide @ wide.T, rtol=1e-6, atol=1e-5 * size**0.5
    )


@pytest.mark.parametrize("n", [4, 10, 30, 60])
@pytest.mark.parametrize("common", [1e2, 1e4])
def test_a_large_common_part_does_not_cancel(n: int, common: float) -> None:
    """Raw weights given as updates: norms of 1e4 and more, distances far below 1."""
    random = torch.Generator().manual_seed(n)
    shared = common * torch.randn(20_000, generator=random)
    matrix = shared + common * 1e-5 * torch.randn(n, 20_000, generator=random)
    wide = matrix.double()
    exact = (wide[:, None] - wide[None]).square().sum(-1)
    found = measure(Updates.of(matrix))
    torch.testing.assert_close(found.squared_distances(), exact, rtol=1e-9, atol=0)
    torch.testing.assert_close(found.gram(), wide @ wide.T, rtol=1e-12, atol=0)
    unlike = 1 - found.cosines()
    lengths = wide.norm(dim=1)
    exact_unlike = (exact - (lengths[:, None] - lengths[None]) ** 2) / (
        2 * lengths[:, None] * lengths[None]
    )
    torch.testing.assert_close(unlike, exact_unlike, rtol=1e-3, atol=1e-14)


def test_a_common_part_and_far_attackers_together() -> None:
    random = torch.Generator().manual_seed(3)
    matrix = 50 + 1e-4 * torch.randn(12, 5000, generator=random)
    matrix[0] *= -30
    matrix[7] = 1e6
    wide = matrix.double()
    exact = (wide[:, None] - wide[None]).square().sum(-1)
    torch.testing.assert_close(
        measure(Updates.of(matrix)).squared_distances(), exact, rtol=1e-9, atol=0
    )


def test_zero_updates_have_no_direction() -> None:
    matrix = torch.tensor([[0.0, 0.0], [3.0, 4.0], [6.0, 8.0]])
    cosines = measure(Updates.of(matrix)).cosines()
    torch.testing.assert_close(
        cosines, torch.tensor([[1.0, 0, 0], [0, 1, 1], [0, 1, 1]], dtype=torch.float64)
    )


def test_squares_beyond_float64_are_rejected_by_name() -> None:
    matrix = np.random.default_rng(0).standard_normal((6, 5))
    matrix[2] *= 1e200
    answer = rules.get("krum").aggregate(matrix)
    assert dict(answer.rejected) == {2: "its values are too large to be measured"}
    assert np.array_equal(answer.update, rules.get("krum")(np.delete(matrix, 2, axis=0)))


@pytest.mark.parametrize("size", [1, 511, 512, 513, 5000])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_references_are_measured_beside_the_clients(size: int, dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(size)
    rows = torch.randn(8, size, generator=random, dtype=torch.float64).to(dtype)
    clients, anchor, model = Updates.of(rows[:6]), rows[6], rows[7].double()
    updates = clients.with_reference("anchor", anchor).with_reference("model", model)
    found = measure(updates, ["anchor", "model"])
    wide = rows.double()
    grams = found.grams("anchor", "model")[0]
    torch.testing.assert_close(grams, wide @ wide.T, rtol=1e-6, atol=1e-5 * size**0.5)
    assert torch.equal(found.gram(), measure(clients).gram()), "they change nothing of the clients"
    for columns in (512, 1024, 2048):
        parts = measure(in_blocks(updates, columns), ["anchor", "model"])
        assert torch.equal(parts.about_center, found.about_center)


def test_a_reference_in_a_large_common_part_does_not_cancel() -> None:
    random = torch.Generator().manual_seed(5)
    rows = 1e3 * torch.randn(3001, generator=random) + 1e-2 * torch.randn(7, 3001, generator=random)
    updates = Updates.of(rows[:6]).with_anchor(rows[6])
    exact = (rows[:6].double() - rows[6].double()).square().sum(1)
    found = measure(updates, ["anchor"]).squared_distances_to("anchor")
    torch.testing.assert_close(found, exact, rtol=1e-9, atol=0)
    parts = measure(in_blocks(updates, 512), ["anchor"]).squared_distances_to("anchor")
    assert torch.equal(parts, found)


def test_no_block_is_copied_for_a_reference() -> None:
    matrix = torch.randn(5, 2000)
    updates = in_blocks(Updates.of(matrix).with_anchor(torch.ones(2000)), 512)
    for block in updates.blocks(updates.layers, check=True, stacked=True, references=["anchor"]):
        assert block.values.data_ptr() == matrix[0, block.start :].data_ptr()
        assert torch.equal(block.references[0], torch.ones(block.stop - block.start))


@given(matrix=matrices(least=3), columns=st.sampled_from([36, 600, 1501]))
def test_without_pairs_lengths_and_references_are_the_same(matrix: Tensor, columns: int) -> None:
    wide = matrix.repeat(1, -(-columns // COLUMNS))[:, :columns]
    updates = Updates.of(wide[:-1]).with_anchor(wide[-1])
    whole, found = (measure(updates, ["anchor"], pairs=pairs) for pairs in (True, False))
    torch.testing.assert_close(found.norms(), whole.norms(), rtol=1e-12, atol=0)
    one, other = found.reference("anchor"), whole.reference("anchor")
    assert torch.equal(one.products, other.products)
    assert torch.equal(one.square, other.square)
    distances = found.squared_distances_to("anchor")
    torch.testing.assert_close(distances, whole.squared_distances_to("anchor"))
    apart = ~torch.eye(len(updates), dtype=torch.bool)
    assert bool(found.gram()[apart].isnan().all()), "what was not measured cannot be used unnoticed"
    parts = measure(in_blocks(updates, 512), ["anchor"], pairs=False)
    assert torch.equal(parts.norms(), found.norms())


def test_without_pairs_what_cancels_is_measured_with_them() -> None:
    random = torch.Generator().manual_seed(6)
    rows = 1e3 * torch.randn(2001, generator=random) + 1e-2 * torch.randn(6, 2001, generator=random)
    updates = Updates.of(rows[:5]).with_anchor(rows[5])
    found = measure(updates, ["anchor"], pairs=False).squared_distances_to("anchor")
    assert torch.equal(found, measure(updates, ["anchor"]).squared_distances_to("anchor"))


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e200])
@pytest.mark.parametrize("rule", ["norm-bound", "fltrust", "monna", "centered-clipping"])
def test_without_pairs_nobody_slips_through(rule: str, bad: float) -> None:
    matrix = np.random.default_rng(0).standard_normal((6, 700))
    matrix[2, 600] = bad
    updates = Updates.of(matrix).with_anchor(matrix[0])
    answer = rules.get(rule).aggregate(updates)
    assert list(answer.rejected) == [2]
    rest = Updates.of(np.delete(matrix, 2, axis=0)).with_anchor(matrix[0])
    assert np.array_equal(answer.update, rules.get(rule).aggregate(rest).update)


# -------------------------------------------------------------------- equal rows


def with_copies(seed: int, n: int, copies: int, size: int, common: float) -> Tensor:
    """Return rows of which the last few, and nobody else's, are equal."""
    rows = common + torch.randn(n, size, generator=torch.Generator().manual_seed(seed))
    rows[n - copies :] = rows[n - copies].clone()
    return rows[torch.randperm(n, generator=torch.Generator().manual_seed(seed))]


def apart(rows: Tensor) -> Tensor:
    return (rows.double()[:, None] - rows.double()[None]).square().sum(-1)


@given(
    seed=st.integers(0, 999),
    n=st.integers(3, 20),
    copies=st.integers(2, 6),
    size=st.sampled_from([1, 17, 600, 5000]),
    common=st.sampled_from([0.0, 1.0, 1e3]),
)
def test_equal_rows_have_distance_0_and_others_keep_their_digits(
    seed: int, n: int, copies: int, size: int, common: float
) -> None:
    rows = with_copies(seed, n, min(copies, n), size, common)
    found = measure(Updates.from_vectors(rows))
    squared, exact = found.squared_distances(), apart(rows)
    scale = rows.double().square().sum(1).max()
    torch.testing.assert_close(squared, exact, rtol=1e-2, atol=1e-12 * float(scale))
    equal = (rows[:, None] == rows[None]).all(2)
    assert float(squared[equal].max()) <= 1e-14 * float(scale)
    if common == 0 and size > 17:  # nothing is close to anything but its copies
        assert not bool(squared[equal].any())
        assert not bool(found.of_center.any())


@pytest.mark.parametrize("references", [(), ("anchor",)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_equal_rows_are_not_measured_again(
    references: tuple[str, ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = with_copies(3, 9, 4, 3000, 0.0).to(dtype)
    updates = Updates.from_vectors(rows).with_anchor(torch.randn(3000).to(dtype))
    monkeypatch.setattr(geometry, "_measure_about_center", None)
    gram = measure(updates, references).grams(*references)[0]
    equal = (rows[:, None] == rows[None]).all(2)
    for row, other in equal.nonzero().tolist():
        assert torch.equal(gram[row], gram[other])
        assert torch.equal(gram[:, row], gram[:, other])


@pytest.mark.parametrize("place", [0, 700, 2999])
def test_rows_that_are_almost_equal_are_measured_again(place: int) -> None:
    """Two groups of copies that differ in one bit of one value."""
    rows = with_copies(5, 9, 6, 3000, 0.0)
    equal = (rows[:, None] == rows[None]).all(2).sum(1) > 1
    odd = equal.nonzero().flatten()[-2:]
    moved = torch.nextafter(rows[odd[0], place], torch.tensor(torch.inf))
    rows[odd, place] = moved
    found = measure(Updates.from_vectors(rows))
    assert bool(found.of_center.any()), "it was read again"
    exact = apart(rows)
    torch.testing.assert_close(found.squared_distances(), exact, rtol=1e-6, atol=1e-20)


def test_equality_is_by_layer() -> None:
    """Rows are equal in one layer, and close in another: only that is measured again."""
    rows = with_copies(7, 8, 3, 2000, 0.0)
    rows[:, 1000:] += 1e4 + torch.randn(8, 1000, generator=torch.Generator().manual_seed(1))
    found = measure(Updates.from_vectors(rows, layers={"a": (1000,), "b": (1000,)}))
    assert (found.of_center > 0).tolist() == [False, True]
    exact = apart(rows)
    torch.testing.assert_close(found.squared_distances(), exact, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("form", ["plain", "fused"])
@pytest.mark.parametrize("pairs", [True, False])
def test_one_matrix_of_many_clients(
    form: str, pairs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if there were few: with references, in any blocks, and by any number of threads."""
    if form == "fused":
        pytest.importorskip("numba")
    monkeypatch.setenv(fused.SWITCH, form)
    monkeypatch.setattr(fused, "_MANY", 20)
    monkeypatch.setattr(geometry, "_PART", 100)
    monkeypatch.setattr(geometry, "_MOST_PRODUCTS", 500)
    random = torch.Generator().manual_seed(1)
    rows, own = torch.randn(50, 3001, generator=random), torch.randn(3001, generator=random)
    rows[7], rows[30] = rows[3], rows[3]
    layers = {"a": (1500,), "b": (1501,)}
    updates = Updates.from_vectors(rows, layers=layers)
    updates = replace(
        updates, references={"anchor": dict(zip(layers, own.split([1500, 1501]), strict=True))}
    )
    found = []
    for threads, columns in ((1, 512), (2, 4096)):
        with num_threads(threads):
            some = replace(updates, block_columns=columns)
            found.append(measure(some, ["anchor"], pairs=pairs, by_layer=False))
    assert torch.equal(found[0].about_center.nan_to_num(), found[1].about_center.nan_to_num())
    exact = rows.double() @ torch.cat([rows, own[None]]).double().T
    torch.testing.assert_close(
        found[0].reference("anchor").products[0], exact[:, -1], atol=1e-2, rtol=1e-5
    )
    torch.testing.assert_close(found[0].norms(), rows.double().norm(dim=1))
    if pairs:
        torch.testing.assert_close(found[0].gram(), exact[:, :-1], atol=1e-2, rtol=1e-5)
        assert float(found[0].squared_distances()[7, 30]) == 0
        for of_rows in (found[0].gram, found[0].squared_distances, found[0].cosines):
            parts = torch.cat([of_rows(part) for part in found[0].parts()])
            assert len(found[0].parts()) > 1
            assert torch.equal(parts, of_rows())


@pytest.mark.parametrize("name", ["krum", "multi-krum", "foolsgold", "cosine-clustering"])
@given(matrix=matrices(least=5))
def test_rules_look_at_some_rows_at_a_time(name: str, matrix: Tensor) -> None:
    whole = rules.get(name).aggregate(matrix)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(geometry, "_PART", 2 * len(matrix))
        found = rules.get(name).aggregate(matrix)
    assert found.weights == whole.weights
    assert found.scores == whole.scores


@pytest.mark.parametrize("common", [1e3, 1e5])
def test_a_common_part_of_many_does_not_cancel(
    common: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(geometry, "_PART", 100)
    monkeypatch.setattr(geometry, "_MOST_PRODUCTS", 500)
    rows = common + torch.randn(40, 2000, generator=torch.Generator().manual_seed(4))
    found = measure(Updates.from_vectors(rows, layers={"a": (900,), "b": (1100,)}), by_layer=False)
    assert bool(found.of_center.any())
    torch.testing.assert_close(found.squared_distances(), apart(rows), rtol=1e-9, atol=0)
    torch.testing.assert_close(found.gram(), rows.double() @ rows.double().T)
