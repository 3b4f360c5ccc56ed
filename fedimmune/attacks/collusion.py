"""What attacks share whose attackers see the honest clients' updates and send one of their making.

Rules measure the trained layers alone, so these are what is forged. Floating-point buffers are sent
as the honest mean: odd ones would give attackers away (`fedimmune.buffers`). Counters are sent as
the honest clients' lower median.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor

from fedimmune._layers import Kind, Layer
from fedimmune._sources import Rows
from fedimmune.attacks.base import Attack, Context, Knowledge
from fedimmune.kernels import combine, weighted_sum
from fedimmune.updates import ClientId, Updates

__all__ = ["Collusion", "Seen", "State"]

State = Mapping[str, Tensor]

_AT_ONCE = 8192
"""So many columns are multiplied at a time: they stay in the cache."""


class Seen:
    """What attackers see of a round: the honest clients' updates besides their own.

    Parameters
    ----------
    attackers, visible
        As `Attack.on_round` is given them.
    """

    def __init__(self, attackers: Updates, visible: Updates) -> None:
        self.attackers, self.visible = attackers, visible
        self.honest = visible.only(set(visible.clients) - set(attackers.clients))

    @property
    def clients(self) -> list[ClientId]:
        """The attackers' ids, in an order that does not depend on that of the updates."""
        return sorted(self.attackers.clients, key=str)

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The trained layers, which are forged."""
        return self.honest.of_kind(Kind.PARAMETER)

    @cached_property
    def mean(self) -> State:
        """The honest mean; of counters, which no rule averages, the lower median."""
        return _mean(self.honest)

    @cached_property
    def deviation(self) -> State:
        """The honest updates' standard deviation by coordinate, divided by their number."""
        # `Tensor.std` of columns takes ten times as long.
        return self._of_honest(lambda rows: (rows - rows.mean(0)).square_().mean(0).sqrt_())

    @cached_property
    def own(self) -> State:
        """The mean of what attackers have trained."""
        return _mean(self.attackers)

    def extremes(self) -> tuple[State, State]:
        """Return the honest updates' lowest and highest values by coordinate."""
        return self._of_honest(lambda rows: rows.amin(0)), self._of_honest(
            lambda rows: rows.amax(0)
        )

    def _of_honest(self, function: Callable[[Tensor], Tensor]) -> State:
        """Compute something of the honest updates, (m, columns), column by column."""

        def fill(rows: Rows, out: Tensor) -> None:
            out.copy_(function(rows if isinstance(rows, Tensor) else torch.stack(list(rows))))

        found: State = combine(self.honest, fill)
        return found

    def products(self, *others: State) -> Tensor:
        """Inner products of the honest updates and others, by layer, (layers, rows, rows).

        Float64; the honest clients' rows come first, in their order.
        """
        rows = len(self.honest) + len(others)
        found = torch.zeros(len(self.layers), rows, rows, dtype=torch.float64)
        for place, layer in enumerate(self.layers):
            for _, values in self._columns(layer, others):
                for part in values.split(_AT_ONCE, dim=1):
                    wide = part.cpu().to(torch.float64)
                    found[place] += wide @ wide.T
        return found

    def sample(self, *others: State, most: int) -> tuple[Tensor, Tensor]:
        """Return an even sample of the trained columns, and how many columns each stands for.

        Parameters
        ----------
        *others
            Whose rows follow those of the honest updates.
        most
            How many columns, roughly: if there are no more, all are taken. Small layers are taken
            whole, because single columns of theirs weigh most.
        """
        every = -(-sum(layer.size for layer in self.layers) // most)
        parts, counts = [], []
        for layer in self.layers:
            step = 1 if layer.size <= most // 4 else every
            for start, values in self._columns(layer, others):
                part = values[:, -start % step :: step].cpu()
                parts.append(part)
                counts.append(torch.full((part.shape[1],), float(step), dtype=torch.float64))
        return torch.cat(parts, dim=1), torch.cat(counts)

    def _columns(self, layer: Layer, others: Sequence[State]) -> Iterator[tuple[int, Tensor]]:
        """Read a layer of the honest updates and others in blocks, each with its first column."""
        further = [self.honest.source.flatten(layer, each[layer.name]) for each in others]
        for block in self.honest.blocks([layer], check=False):
            rows = [each[block.start : block.stop].to(block.rows[0]) for each in further]
            yield block.start, torch.stack([*block.rows, *rows])

    def trained(self, state: State, factor: float = 1.0) -> State:
        """Return a state's trained layers, times a factor."""
        return {layer.name: factor * state[layer.name] for layer in self.layers}

    def along(self, base: State, factor: float, direction: State) -> State:
        """Return base + factor · direction, of the trained layers."""
        return {
            layer.name: base[layer.name] + factor * direction[layer.name] for layer in self.layers
        }

    def send(self, *hostile: State) -> Updates:
        """Return what attackers send: all the same, or one for each of `clients`."""
        trained = {layer.name for layer in self.layers}
        states = [
            {name: each[name] if name in trained else kept for name, kept in self.mean.items()}
            for each in hostile
        ]
        return Updates.from_states(
            {client: states[place % len(states)] for place, client in enumerate(self.clients)}
        )


class Collusion(Attack):
    """An attack whose attackers look at the honest updates before they send theirs.

    Nobody honest, nothing to look at: then attackers send what they have trained.
    """

    knowledge: Knowledge = "everyone"

    def on_round(self, attackers: Updates, visible: Updates, context: Context) -> Updates:
        seen = Seen(attackers, visible)
        return self.collude(seen, context) if len(seen.honest) else attackers

    @abstractmethod
    def collude(self, seen: Seen, context: Context) -> Updates:
        """Return what attackers send; somebody is honest."""


def _mean(updates: Updates) -> State:
    equal = torch.full((len(updates),), 1 / len(updates), dtype=torch.float64)
    found: State = combine(updates, weighted_sum(equal))
    return found
