"""A recurrent net (Cho et al., 2014) over word vectors that are given and not trained.

The vectors are data, not weights: clients have them already, so they are not in the state dict and
are neither trained nor sent.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

__all__ = ["WordGRU"]

_STRETCH = 25
_NOTHING = 1e-26
_LOWEST = -1.0
"""No part of a state is lower."""


class WordGRU(nn.Module):
    """Words to vectors, a gated recurrent unit over them, and a linear layer on its states.

    Each part of the state is taken where it is highest along the text: its beginning counts as much
    as its end, and is learned as quickly.

    Parameters
    ----------
    vectors
        One per word, (words, size); word 0 pads short texts and is skipped.
    hidden
        Size of the state.
    classes
        Number of classes.
    """

    vectors: Tensor

    def __init__(self, vectors: Tensor, hidden: int = 256, classes: int = 2) -> None:
        super().__init__()
        self.register_buffer("vectors", vectors, persistent=False)
        self.gru = nn.GRU(vectors.shape[1], hidden, batch_first=True)
        self.fc = nn.Linear(hidden, classes)

    def forward(self, words: Tensor) -> Tensor:
        """Map word ids (n, length) to logits."""
        states: list[Tensor] = []
        last: Tensor | None = None
        for stretch in words.split(_STRETCH, dim=1):
            along, last = self.gru(embedding(stretch, self.vectors), last)
            states.append(along)
            if last.requires_grad:
                last.register_hook(_without_traces)
        found = torch.cat(states, 1).masked_fill((words == 0)[..., None], _LOWEST)
        out: Tensor = self.fc(found.amax(1))
        return out


def _without_traces(gradient: Tensor) -> Tensor:
    """Set tiny gradients to zero.

    In a net that forgets, the gradient shrinks with every word that it goes back, to numbers so
    small that processors take ten times as long over them, to no effect.
    """
    return torch.where(gradient.abs() < _NOTHING, 0.0, gradient)
