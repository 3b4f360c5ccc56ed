"""The server's own update, for defenses that compare clients with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedimmune.validation import check_int

__all__ = ["Anchor", "anchor_for"]

Anchor: TypeAlias = Callable[[dict[str, Tensor]], Mapping[str, Tensor]]
"""Takes the global model and returns the change that the server's own training makes to it."""


def anchor_for(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    lr: float,
    momentum: float = 0.0,
    epochs: int = 1,
) -> Anchor:
    """Make the callable for ``RobustStrategy(anchor=…)`` from a model and a few samples.

    The server should train as the clients do: same optimizer, same number of epochs. A few dozen
    samples that it trusts are enough: a defense that uses an anchor has learned to use so few.

    Parameters
    ----------
    model
        One of the federation's; its values are overwritten.
    loader
        Yields batches (inputs, labels) each time it is iterated over.
    lr, momentum, epochs
        As the clients train: plain SGD on the cross-entropy.

    Examples
    --------
    >>> model, batch = nn.Linear(2, 3), (torch.ones(4, 2), torch.zeros(4, dtype=torch.long))
    >>> update = anchor_for(model, [batch], lr=0.1)(model.state_dict())
    >>> list(update)
    ['weight', 'bias']
    """
    check_int("anchor_for", "epochs", epochs, 1)

    def train(start: dict[str, Tensor]) -> dict[str, Tensor]:
        # Copies, because training writes: the federation's model stays as it is.
        model.load_state_dict({name: tensor.clone() for name, tensor in start.items()})
        model.train()
        place = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
        for _ in range(epochs):
            for inputs, labels in loader:
                optimizer.zero_grad()
                cross_entropy(model(inputs.to(place)), labels.to(place)).backward()
                optimizer.step()
        return {
            name: _change(tensor.detach(), start[name])
            for name, tensor in model.state_dict().items()
        }

    return train


def _change(new: Tensor, old: Tensor) -> Tensor:
    before = old.to(new.device)
    return new ^ before if new.dtype == torch.bool else new - before
