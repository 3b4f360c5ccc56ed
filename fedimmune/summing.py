"""Sums that come out the same, bit for bit, however the terms are handed in."""

from __future__ import annotations

from torch import Tensor

__all__ = ["add_in_order"]


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
