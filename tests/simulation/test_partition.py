"""Every sample goes to exactly one client, by the seed; each partition has the form it promises."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedimmune.errors import ParameterError
from fedimmune.simulation.client import batches
from fedimmune.simulation.partition import available, get

every_partition = pytest.mark.parametrize("name", available())

all_labels = st.lists(st.integers(0, 5), min_size=1, max_size=80).map(torch.tensor)


def divided(
    name: str, labels: Tensor, clients: int, seed: int, **parameters: float
) -> list[Tensor]:
    random = torch.Generator().manual_seed(seed)
    return get(name, **parameters).divide(labels, clients, random)


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@every_partition
@given(labels=all_labels, clients=st.integers(1, 120), seed=st.integers(0, 2**62))
def test_disjoint_and_complete(name: str, labels: Tensor, clients: int, seed: int) -> None:
    parts = divided(name, labels, clients, seed)
    assert len(parts) == clients
    assert all(part.dtype == torch.int64 and part.ndim == 1 for part in parts)
    assert sorted(i for part in parts for i in part.tolist()) == list(range(len(labels)))
    assert all(part.tolist() == sorted(part.tolist()) for part in parts)


@every_partition
@given(labels=all_labels, clients=st.integers(1, 30), seed=st.integers(0, 2**62))
def test_the_same_for_the_same_seed(name: str, labels: Tensor, clients: int, seed: int) -> None:
    before = labels.clone()
    torch.manual_seed(seed % 1000)  # nobody else's randomness matters
    np.random.seed(seed % 1000)
    one = divided(name, labels, clients, seed)
    torch.manual_seed(0)
    np.random.seed(0)
    assert same(one, divided(name, labels, clients, seed))
    assert torch.equal(labels, before)


@every_partition
@given(labels=all_labels, clients=st.integers(1, 30), seed=st.integers(0, 99), data=st.data())
def test_only_some_samples(
    name: str, labels: Tensor, clients: int, seed: int, data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, len(labels)))
    dealt = [i for part in divided(name, labels, clients, seed, samples=count) for i in part]
    assert len(dealt) == len(set(map(int, dealt))) == count
    with pytest.raises(ParameterError, match="samples"):
        divided(name, labels, clients, seed, samples=len(labels) + 1)


def test_some_samples_are_drawn_blindly() -> None:
    labels = torch.arange(20_000) // 2_000  # in order, as folders by class are
    dealt = torch.cat(divided("dirichlet", labels, 10, 1, samples=5_000))
    shares = labels[dealt].bincount() / 5_000
    assert shares.tolist() == pytest.approx([0.1] * 10, abs=0.02)


seeds = st.integers(0, 2**32 - 1)  # PyTorch looks at no more than 32 bits


@every_partition
@given(seed=seeds, other=seeds, clients=st.integers(8, 30))
def test_another_for_another_seed(name: str, seed: int, other: int, clients: int) -> None:
    labels = torch.arange(617) % 10
    is_same = same(divided(name, labels, clients, seed), divided(name, labels, clients, other))
    assert is_same == (seed == other)


@given(labels=all_labels, clients=st.integers(1, 120), seed=st.integers(0, 99))
def test_iid_sizes_differ_by_one_at_most(labels: Tensor, clients: int, seed: int) -> None:
    sizes = [len(part) for part in divided("iid", labels, clients, seed)]
    assert max(sizes) - min(sizes) <= 1


@given(seed=st.integers(0, 999))
def test_iid_clients_see_all_classes_about_equally(seed: int) -> None:
    labels = torch.arange(4000) % 4
    for part in divided("iid", labels, 5, seed):
        counts = labels[part].bincount(minlength=4)
        assert 120 < int(counts.min()) <= int(counts.max()) < 280  # 200 ± 6.5 standard deviations


@given(
    seed=st.integers(0, 999),
    clients=st.integers(1, 20),
    shards=st.integers(1, 4),
    size=st.integers(40, 300),
    classes=st.integers(2, 10),
)
def test_by_label_clients_see_few_classes(
    seed: int, clients: int, shards: int, size: int, classes: int
) -> None:
    labels = torch.arange(size) % classes
    parts = divided("by-label", labels, clients, seed, shards=shards)
    # A shard that is no longer than a class lies in two of them at most.
    longest = -(-size // (clients * shards))
    touched = 2 if longest <= size // classes else 2 + -(-longest * classes // size)
    assert all(len(labels[part].unique()) <= shards * touched for part in parts)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= shards


def test_by_label_one_class_a_client_where_they_come_out_even() -> None:
    labels = torch.arange(400) % 10
    parts = divided("by-label", labels, 10, 3, shards=1)
    assert sorted(int(labels[part].unique()) for part in parts) == list(range(10))
    assert [len(part) for part in parts] == [40] * 10


@given(alpha=st.sampled_from([1e6, 1e9, 1e100, 1e300, 1e308]), seed=st.integers(0, 999))
def test_dirichlet_shares_are_even_for_a_huge_alpha(alpha: float, seed: int) -> None:
    labels = torch.arange(2000) % 4
    for part in divided("dirichlet", labels, 8, seed, alpha=alpha):
        counts = labels[part].bincount(minlength=4)
        assert 59 <= int(counts.min()) <= int(counts.max()) <= 66  # 500 / 8, cut at whole samples


@given(alpha=st.sampled_from([1e-6, 1e-12, 1e-100, 1e-300, 5e-324]), seed=st.integers(0, 999))
def test_dirichlet_gives_a_class_to_one_client_for_a_tiny_alpha(alpha: float, seed: int) -> None:
    labels = torch.arange(2000) % 4
    parts = divided("dirichlet", labels, 8, seed, alpha=alpha)
    held = torch.stack([labels[part].bincount(minlength=4) for part in parts])
    assert held.max(dim=0).values.tolist() == [500] * 4


def test_dirichlet_shares_have_the_spread_of_the_distribution() -> None:
    alpha, clients, seeds = 0.9, 10, 300
    labels = torch.zeros(1000, dtype=torch.int64)
    first = [len(divided("dirichlet", labels, clients, s, alpha=alpha)[0]) for s in range(seeds)]
    last = [len(divided("dirichlet", labels, clients, s, alpha=alpha)[-1]) for s in range(seeds)]
    for sizes in (first, last):
        shares = np.array(sizes) / 1000
        expected = np.sqrt((1 / clients) * (1 - 1 / clients) / (clients * alpha + 1))
        assert shares.mean() == pytest.approx(1 / clients, abs=0.03)
        assert shares.std() == pytest.approx(expected, rel=0.25)


@every_partition
def test_tiny_cases(name: str) -> None:
    assert [p.tolist() for p in divided(name, torch.tensor([7]), 1, 0)] == [[0]]
    assert sorted(len(p) for p in divided(name, torch.tensor([7]), 5, 0)) == [0, 0, 0, 0, 1]


@pytest.mark.parametrize(
    ("name", "parameters", "named"),
    [
        ("dirichlet", {"alpha": 0}, "alpha"),
        ("dirichlet", {"alpha": -1}, "alpha"),
        ("dirichlet", {"alpha": float("nan")}, "alpha"),
        ("dirichlet", {"alpha": float("inf")}, "alpha"),
        ("dirichlet", {"alpha": "much"}, "alpha"),
        ("dirichlet", {"alpha": True}, "alpha"),
        ("dirichlet", {"beta": 1}, "beta"),
        ("by-label", {"shards": 0}, "shards"),
        ("by-label", {"shards": 1.5}, "shards"),
        ("by-label", {"shards": True}, "shards"),
        ("iid", {"alpha": 1}, "alpha"),
        ("by-color", {}, "by-color"),
    ],
)
def test_bad_parameters_are_refused(name: str, parameters: dict[str, float], named: str) -> None:
    with pytest.raises(ParameterError, match=named):
        get(name, **parameters)


# -------------------------------------------------------------------- batches


@given(count=st.integers(1, 60), size=st.integers(1, 70), seed=st.integers(0, 999))
def test_batches_are_whole_or_all_there_is(count: int, size: int, seed: int) -> None:
    indices = torch.arange(count) * 3 + 1
    found = [
        batch.tolist() for batch in batches(indices, size, torch.Generator().manual_seed(seed))
    ]
    used = [i for batch in found for i in batch]
    assert len(set(used)) == len(used)
    assert set(used) <= set(indices.tolist())
    if count < size:
        assert len(found) == 1
        assert len(used) == count
    else:
        assert [len(batch) for batch in found] == [size] * (count // size)


def test_each_epoch_shuffles_and_drops_others() -> None:
    random = torch.Generator().manual_seed(1)
    indices = torch.arange(50)
    epochs = [torch.cat(list(batches(indices, 16, random))).tolist() for _ in range(20)]
    assert len({tuple(epoch) for epoch in epochs}) == 20
    dropped = [set(range(50)) - set(epoch) for epoch in epochs]
    assert all(len(left) == 2 for left in dropped)
    assert len(set().union(*dropped)) > 10  # not always the same ones
    again = torch.Generator().manual_seed(1)
    assert [torch.cat(list(batches(indices, 16, again))).tolist() for _ in range(20)] == epochs
    assert torch.equal(indices, torch.arange(50))


@pytest.mark.parametrize("gamma", [0.0, 0.4, 1.0])
def test_gamma_similarity_sorts_all_but_a_share(gamma: float) -> None:
    labels = torch.arange(1000) % 10
    parts = get("gamma-similarity", gamma=gamma).divide(
        labels, 10, torch.Generator().manual_seed(3)
    )
    assert sorted(torch.cat(parts).tolist()) == list(range(1000))
    assert {len(part) for part in parts} == {100}
    # A piece of the sorted rest may end within a class: the two commonest are looked at.
    own = [labels[part].bincount(minlength=10).topk(2).values.sum().item() for part in parts]
    assert min(own) >= (1 - gamma) * 100
    assert (max(own) == 100) == (gamma == 0)
