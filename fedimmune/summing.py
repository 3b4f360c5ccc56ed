"""Sums that come out the same, bit for bit, however the terms are handed in."""

from __future__ import annotations

import torch
from torch import Tensor

from fedimmune.updates import CHUNK

__all__ = ["add_in_order", "by_chunk"]


def add_in_order(total: Tensor, terms: Tensor) -> None:
    """Add terms to a total one after the other, the first first.

    A plain sum is free to group its terms by how many there are, and then two halves of a block
    add up to other bits than the whole.

    Parameters
    ----------
    total
        Changed in place; float64, on the CPU.
    terms
        (k, *shape of total*), k > 0, float64; used up.
    """
    terms[0] += total
    total.copy_(terms.cumsum_(0)[-1])


def by_chunk(values: Tensor) -> Tensor:
    """Sum every 512 columns of (n, columns): (chunks, n), the same chunks whatever the blocks."""
    missing = -values.shape[1] % CHUNK
    chunks: Tensor = torch.nn.functional.pad(values, (0, missing)).unflatten(1, (-1, CHUNK))
    return chunks.sum(dim=2).T.cpu().to(torch.float64).contiguous()
