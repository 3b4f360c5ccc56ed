from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedimmune.kernels import Sorter


@given(n=st.integers(1, 70), data=st.data())
def test_finds_any_ranks_and_leaves_the_rows_alone(n: int, data: st.DataObject) -> None:
    seed = data.draw(st.integers(0, 9999))
    wanted = sorted(data.draw(st.sets(st.integers(0, n - 1), min_size=1)))
    rows = torch.randint(-9, 9, (n, 50), generator=torch.Generator().manual_seed(seed)).float()
    before = rows.clone()
    sorter = Sorter(n, wanted)
    for _ in range(2):  # its memory is used again
        assert torch.equal(torch.stack(sorter(rows)), before.sort(dim=0).values[wanted])
    assert torch.equal(rows, before)


@given(n=st.integers(1, 40), seed=st.integers(0, 9999))
def test_zero_one_principle(n: int, seed: int) -> None:
    """A network that sorts all rows of zeros and ones sorts everything."""
    random = torch.Generator().manual_seed(seed)
    rows = torch.randint(0, 2, (n, 2000), generator=random).float()
    assert torch.equal(torch.stack(Sorter(n)(rows)), rows.sort(dim=0).values)


@given(n=st.integers(2, 40), data=st.data())
def test_interchangeable_ranks_come_in_any_order(n: int, data: st.DataObject) -> None:
    low = data.draw(st.integers(0, n - 2))
    pair = [low, low + 1]
    rows = torch.randn(n, 64, generator=torch.Generator().manual_seed(n))
    found = torch.stack(Sorter(n, pair, interchangeable=pair)(rows)).sort(dim=0).values
    assert torch.equal(found, rows.sort(dim=0).values[pair])
