"""Attacks of a test's own, each at one moment; in a module, so that workers find them too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedimmune import Updates
from fedimmune.attacks import Attack, Context

__all__ = ["Clipped", "Drifting", "Lazy", "Masked", "Noisy", "Rogue", "Spy", "Telling"]


class Masked(Attack):
    """Train the bias alone: the weights' gradients are set to 0."""

    name = "masked"
    summary = "trains one layer"

    def on_step(self, model: nn.Module, context: Context) -> None:
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            if context.moment == "before" and name.endswith("weight"):
                parameter.grad.zero_()


class Clipped(Attack):
    """Stay within a ball around the global model."""

    name = "clipped"
    summary = "projects after every step"

    def __init__(self, *, radius: float = 0.01) -> None:
        self.radius = radius

    def on_step(self, model: nn.Module, context: Context) -> None:
        if context.moment == "after":
            for name, parameter in model.named_parameters():
                moved = parameter - context.global_model[name]
                shorter = (self.radius / moved.norm()).clamp(max=1)
                parameter.copy_(context.global_model[name] + shorter * moved)


class Lazy(Attack):
    """Minimize the distance to the global model alone: nothing is learned."""

    name = "lazy"
    summary = "adds a distance to its loss"

    def on_loss(self, loss: Tensor, model: nn.Module, context: Context) -> Tensor:
        start = context.global_model
        away = [(p - start[name]).square().sum() for name, p in model.named_parameters()]
        return 0 * loss + torch.stack(away).sum()


class Noisy(Attack):
    """Send noise from the context's randomness."""

    name = "noisy"
    summary = "sends noise"

    def on_update(self, update: Mapping[str, Tensor], context: Context) -> None:
        for tensor in update.values():
            tensor.copy_(torch.randn(tensor.shape, generator=context.rng))


class Telling(Attack):
    """Send what it is told, as numbers, and how many samples of each class it has."""

    name = "telling"
    summary = "sends what it knows"

    def __init__(self) -> None:
        self.steps = 0

    def on_step(self, model: nn.Module, context: Context) -> None:
        self.steps = 0 if context.step == 1 and context.moment == "before" else self.steps
        assert context.step == self.steps // 2 + 1
        self.steps += 1

    def on_update(self, update: Mapping[str, Tensor], context: Context) -> None:
        assert context.samples is not None
        told = [context.attacker, context.attackers, context.clients, self.steps // 2]
        update["fc.weight"].zero_()[0, :4] = torch.tensor(told, dtype=torch.float32)
        update["fc.bias"].copy_(context.samples().labels.bincount(minlength=4))


class Drifting(Attack):
    """Send what the global model moved by in the round before."""

    name = "drifting"
    summary = "repeats the last step"
    needs_previous_model = True

    def on_update(self, update: Mapping[str, Tensor], context: Context) -> None:
        assert (context.previous_model is None) == (context.round == 1)
        for name, tensor in update.items():
            before = context.previous_model or context.global_model
            tensor.copy_(context.global_model[name] - before[name])


class Spy(Attack):
    """Note what it is shown."""

    name = "spy"
    summary = "looks at others"
    knowledge = "everyone"
    seen: list[tuple[Updates, Updates, Context]]

    def __init__(self, *, knowledge: str = "everyone") -> None:
        self.knowledge = knowledge  # type: ignore[assignment]
        self.seen = []

    def on_round(self, attackers: Updates, visible: Updates, context: Context) -> Updates:
        self.seen.append((attackers, visible, context))
        if context.rule is not None:
            context.rule.aggregate(visible)
        return attackers


class Rogue(Attack):
    """Answer with what no attack may send."""

    name = "rogue"
    summary = "breaks the contract"
    knowledge = "colluders"

    def __init__(self, *, how: str = "none") -> None:
        self.how = how

    def on_round(self, attackers: Updates, visible: Updates, context: Context) -> Any:
        sent = states(attackers)
        first, *others = sent
        if self.how == "raise":
            raise ZeroDivisionError("by nothing")
        if self.how == "few":
            return Updates.from_states({client: sent[client] for client in others})
        if self.how == "more":
            return Updates.from_states({**sent, "x": sent[first]})
        if self.how == "nan":
            sent[first]["fc.bias"][0] = torch.nan
        if self.how == "layer":
            sent = {client: {"fc.weight": sent[client]["fc.weight"]} for client in sent}
        if self.how == "shape":
            sent = {c: {n: t.flatten() for n, t in sent[c].items()} for c in sent}
        return None if self.how == "none" else Updates.from_states(sent)


def states(updates: Updates) -> dict[Any, dict[str, Tensor]]:
    return {client: updates.state(client) for client in updates.clients}
