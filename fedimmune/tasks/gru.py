"""A recurrent net over words (Cho et al., 2014), whose word vectors are given and stay as they are.

The vectors are data, not weights: clients have them already, so they are no part of the state
dict and are neither trained nor sent.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

__all__ = ["WordGRU"]

_STRETCH = 25
_NOTHING = 1e-26


class WordGRU(nn.Module):
    """Words to vectors, a gated recurrent unit over them, and a linear layer on its last state.

    Parameters
    ----------
    vectors
        One a word, (words, size).
    hidden
        Size of the state.
    classes
        How many there are.
    memory
        Over how many words the untrained net remembers.
    """

    vectors: Tensor

    def __init__(
        self, vectors: Tensor, hidden: int = 256, classes: int = 2, memory: int = 200
    ) -> None:
        super().__init__()
        self.register_buffer("vectors", vectors, persistent=False)
        self.gru = nn.GRU(vectors.shape[1], hidden, batch_first=True)
        self.fc = nn.Linear(hidden, classes)
        self._remember(memory)

    def forward(self, words: Tensor) -> Tensor:
        """Map word ids (n, length) to logits."""
        state: Tensor | None = None
        for stretch in words.split(_STRETCH, dim=1):
            _, state = self.gru(embedding(stretch, self.vectors), state)
            if state.requires_grad:
                state.register_hook(_without_traces)
        assert state is not None
        out: Tensor = self.fc(state[0])
        return out

    def _remember(self, memory: int) -> None:
        """Let each part of the state last for a while of its own, up to `memory` words.

        As PyTorch makes it, the net forgets half of its state with every word, and learns little
        in the few steps that a federation has. This beginning is that of Tallec and Ollivier
        (2018), "Can recurrent neural networks warp time?".
        """
        gate = slice(self.gru.hidden_size, 2 * self.gru.hidden_size)
        biases = dict(self.gru.named_parameters())
        with torch.no_grad():
            biases["bias_ih_l0"][gate] = 0
            biases["bias_hh_l0"][gate].uniform_(1, memory - 1).log_()


def _without_traces(gradient: Tensor) -> Tensor:
    """Set what is next to nothing to zero.

    In a net that forgets, the gradient shrinks with every word that it goes back, into numbers so
    small that processors take ten times as long over them, to no effect.
    """
    return torch.where(gradient.abs() < _NOTHING, 0.0, gradient)
