"""What a malicious client does: to its data, its training, its update, or in concert with others.

All attackers of a scenario do the same. An attack overrides the moments that it needs; those that
it does not override cost nothing.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from fedimmune._layers import Layer
from fedimmune.errors import ParameterError
from fedimmune.registry import Configurable
from fedimmune.results import CHECK_ANYTHING
from fedimmune.rules.base import Rule
from fedimmune.tasks import DataSpec, Samples
from fedimmune.updates import Updates

__all__ = ["Attack", "Context", "Knowledge", "TriggeredBatch"]

Knowledge = Literal["own", "colluders", "everyone", "defense"]

_ACTS_ON = {
    "on_batch": "data",
    "on_loss": "loss",
    "on_step": "training",
    "on_update": "update",
    "on_round": "round",
}


@dataclass(frozen=True)
class TriggeredBatch:
    """Samples on which an attack wants the model to say `target`.

    Parameters
    ----------
    inputs
        The samples as the attacker shows them to the model.
    target
        What the attacker wants to hear.
    is_target
        Which samples truly are of the target's class: a perfect model says `target` there too.
    """

    inputs: Tensor
    target: int
    is_target: Tensor


@dataclass(frozen=True)
class Context:
    """What an attack knows about a round, besides what it may change.

    Parameters
    ----------
    spec
        What the data looks like.
    round
        Number of the round, from 1.
    global_model
        The model that clients were sent, by layer; not to be written to.
    rng
        Random numbers of this attacker in this round; in `on_round`, of all attackers together.
        While clients train, PyTorch's own randomness is seeded the same way.
    previous_model
        The global model of the round before; None in the first round, and for an attack that does
        not say `needs_previous_model`.
    moment
        In `on_step`: whether the optimizer's step is still to come or done.
    step
        In `on_step`: number of the step in this client's round, from 1.
    rule
        In `on_round`, with knowledge "defense": a copy of the server's rule, with its memory of
        earlier rounds. What the attack does to it changes nothing at the server.
    memory
        In `on_round`: as many states as the attack says with `needs_memory`, zeros at first. What
        is written to them is there in the next round, and is kept with the run.
    clients, attackers
        How many there are in all, in this round or not.
    attacker
        This client's number among the attackers, from 0, by client; in `on_round` 0.
    samples
        Returns the samples that this client has, before any attack; None in `on_round`.
    """

    spec: DataSpec
    round: int
    global_model: Mapping[str, Tensor]
    rng: torch.Generator
    previous_model: Mapping[str, Tensor] | None = None
    moment: Literal["before", "after"] | None = None
    rule: Rule | None = None
    memory: tuple[Mapping[str, Tensor], ...] = ()
    step: int = 0
    clients: int = 1
    attackers: int = 1
    attacker: int = 0
    samples: Callable[[], Samples] | None = None


class Attack(Configurable, ABC):
    """What attackers do; all attackers of a scenario do the same.

    Parameters are keyword-only and checked at construction; what depends on the data is checked by
    `check`. All methods are optional.
    """

    paper: ClassVar[str] = "–"
    """Where the attack is from."""
    knowledge: Knowledge = "own"
    """What attackers know besides the global model and their own data and updates: nothing
    (``own``), each other's updates (``colluders``), every client's updates (``everyone``), or
    those and the server's rule (``defense``). An attack whose parameters change what it must know
    sets it when it is made; lists show what it knows by default."""
    label: ClassVar[str]
    """What reports call it, as in "attackers (sign flip)"; by default its name."""
    advice: ClassVar[str] = CHECK_ANYTHING
    """What an honest client should check that looks like this attack."""
    target: int | None = None
    """The class that the attack wants to hear, if it has one."""
    needs_training: bool = True
    """Whether what attackers send depends on what they have trained. False for an attack whose
    `on_round` makes every layer of it from what honest clients sent: they are then spared their
    training and the moments before `on_round`, where their own updates are zeros. Only in a round
    without a valid honest update do they train like others. An attack whose parameters decide it
    sets it when it is made."""
    needs_previous_model: bool = False
    """Whether `Context.previous_model` is given; it is then kept with the run."""
    needs_memory: ClassVar[int] = 0
    """How many states of the model's size `Context.memory` has."""
    ranges: Mapping[str, tuple[float, float]] = {}
    """What `sample_parameters` draws from, by name: low and high, both included."""

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        if "label" not in vars(cls) and "name" in vars(cls):
            cls.label = cls.name
        if cls.knowledge not in get_args(Knowledge):
            known = ", ".join(get_args(Knowledge))
            raise ParameterError(f"{cls.__name__}: knowledge is one of {known}: {cls.knowledge!r}")
        always = cls.overrides is Attack.overrides
        if cls.knowledge == "own" and always and cls.on_round is not Attack.on_round:
            raise ParameterError(
                f"{cls.__name__} has on_round, which shows it what others send: say how much it "
                'knows with `knowledge`, "colluders", "everyone" or "defense"'
            )

    def overrides(self, method: str) -> bool:
        """Whether the attack does anything at a moment, such as "on_batch".

        An attack whose parameters decide at which moments it acts says so here.
        """
        return getattr(type(self), method) is not getattr(Attack, method)

    def acts_on(self) -> str:
        """Name what the attack changes, for lists."""
        found = [what for method, what in _ACTS_ON.items() if self.overrides(method)]
        return ", ".join(found) or "nothing"

    def check(self, spec: DataSpec) -> None:
        """Refuse a data set that the attack does not fit.

        Raises
        ------
        ParameterError
            For example, a pattern that lies outside of the image.
        """

    def check_model(self, layers: Sequence[Layer]) -> None:
        """Refuse a model that the attack does not fit. By default any will do.

        Raises
        ------
        ParameterError
            The attack names a layer, say, that the model has not.
        """

    # ---------------------------------------------------------------- while a client trains

    def on_batch(self, inputs: Tensor, labels: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """Return what an attacker trains on instead of one of its batches.

        The batch is in random order, and may be changed in place.
        """
        return inputs, labels

    def on_loss(self, loss: Tensor, model: nn.Module, context: Context) -> Tensor:
        """Return what an attacker minimizes instead of its loss on a batch.

        Parameters
        ----------
        loss
            A scalar with a gradient.
        model
            The model in training; terms may depend on its parameters.
        context
            About the round.
        """
        return loss

    def on_step(self, model: nn.Module, context: Context) -> None:
        """Change a step of an attacker's training, in place; called twice per batch.

        Parameters
        ----------
        model
            With ``context.moment == "before"``, its parameters have the gradients that the
            optimizer is about to use: mask them here. With ``"after"``, they have been moved:
            project them here. Autograd is off.
        context
            About the round.
        """

    def on_update(self, update: Mapping[str, Tensor], context: Context) -> None:
        """Change, in place, the update that an attacker is about to send.

        Parameters
        ----------
        update
            The change of every layer, by name.
        context
            About the round.
        """

    # ---------------------------------------------------------------- after all have trained

    def on_round(self, attackers: Updates, visible: Updates, context: Context) -> Updates:
        """Return what the attackers send, after everybody has trained.

        Called in the server's process, and only if the round has attackers with a valid update.

        Parameters
        ----------
        attackers
            Their own updates, after `on_update`; zeros for an attack without `needs_training`.
        visible
            With knowledge "colluders" the same; with "everyone" and "defense" the valid updates of
            all clients, the attackers' among them. With "defense" it has the server's own update,
            if the rule compares clients with it.
        context
            About the round.

        Returns
        -------
        Updates
            One per attacker, with the same layers, all values finite:
            ``Updates.from_states({client: state, …})``.
        """
        return attackers

    # ---------------------------------------------------------------- measured and rehearsed

    def triggered(self, inputs: Tensor, labels: Tensor, spec: DataSpec) -> TriggeredBatch | None:
        """Return the samples on which the attack's success is measured, out of test samples.

        None if the attack has no target and only wants the model to be bad.
        """
        return None

    def sample_parameters(self, spec: DataSpec, rng: torch.Generator) -> dict[str, Any]:
        """Draw parameters for a rehearsal, so that a defense learns a family of attacks.

        By default every parameter in `ranges` is drawn from its range.
        """
        return {name: self._draw(name, rng) for name in self.ranges if name in self.parameters()}

    def _draw(self, name: str, rng: torch.Generator) -> float:
        """Draw from a range: a whole number if its bounds are."""
        low, high = self.ranges[name]
        if isinstance(low, int) and isinstance(high, int):
            return draw_int(low, high, rng)
        drawn = float(torch.rand((), generator=rng, dtype=torch.float64))
        return round(low + (high - low) * drawn, 3)


def draw_int(low: int, high: int, rng: torch.Generator) -> int:
    """Draw a whole number, both bounds included."""
    return int(torch.randint(low, high + 1, (), generator=rng))
