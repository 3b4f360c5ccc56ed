"""What to rehearse: which attacks, by how many, how often, along which trajectories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, field_validator

from fedimmune import attacks as known_attacks
from fedimmune.errors import ParameterError
from fedimmune.federation.protocols import with_protocol
from fedimmune.federation.rehearsal import Rehearsal
from fedimmune.federation.scenario import Scenario
from fedimmune.federation.seeds import generator, seed_for
from fedimmune.tasks import Facts

__all__ = ["Family", "plan", "usual_attacks"]


class Family(BaseModel):
    """Ranges that an attack's parameters are drawn from, anew for every rehearsal.

    So the defence learns a family of attacks, not one pattern. Channel and target are drawn from
    all that there are; a pattern is moved into the image where it would reach beyond.

    Parameters
    ----------
    shift, gap
        Of the backdoor's pattern, in pixels.
    fraction
        Of each batch that gets it.
    scale
        Of the omniscient attack.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    shift: tuple[int, int] = (0, 8)
    gap: tuple[int, int] = (0, 1)
    fraction: tuple[float, float] = (0.3, 0.7)
    scale: tuple[float, float] = (0.5, 2.0)

    @field_validator("*")
    @classmethod
    def _low_comes_first(cls, span: tuple[float, float]) -> tuple[float, float]:
        if not 0 <= span[0] <= span[1]:
            raise ValueError(f"a range goes from low to high, from 0 on: {span}")
        return span

    def draw(self, attack: str, facts: Facts, random: torch.Generator) -> dict[str, Any]:
        """Draw an attack's parameters."""
        if attack == "omniscient":
            return {"scale": _real(self.scale, random)}
        if attack == "label-flip":
            source, target = torch.randperm(facts.classes, generator=random)[:2].tolist()
            return {"kind": "map", "source": source, "target": target}
        if attack != "backdoor":
            return {}
        if facts.highest is None:
            return {}  # it does not fit, whatever is drawn
        channels, height, width = facts.shape
        gap = _whole(self.gap, random)
        return {
            "gap": gap,
            "shift_y": max(0, min(_whole(self.shift, random), height - 3 - gap)),
            "shift_x": max(0, min(_whole(self.shift, random), width - 7 - gap)),
            "channel": _whole((0, channels - 1), random),
            "target": _whole((0, facts.classes - 1), random),
            "fraction": _real(self.fraction, random),
        }


def plan(
    base: Mapping[str, Any],
    facts: Facts,
    *,
    attacks: Sequence[str],
    attackers: Sequence[int],
    runs: int,
    follow: Sequence[str],
    local_epochs: Sequence[int] = (1,),
    family: Family | None = None,
    on: Literal["server", "clients"] = "server",
    protocol: str = "paper",
    seed: int = 1,
) -> list[Rehearsal]:
    """List rehearsals: nobody attacking, and each attack with each number of attackers.

    Parameters
    ----------
    base
        Fields of all scenarios: task, rounds, clients, …; an attack's parameters, without its
        name, are those of all attacks.
    facts
        Of the task's data.
    attacks
        Kinds of attack.
    attackers
        How many attack; 0 is rehearsed once, whatever the attacks.
    runs
        How often each is repeated, with other data, other attackers and another first model.
    follow
        Rules whose global model is followed.
    local_epochs
        How often clients go over their samples in a round; each is rehearsed. With more there are
        so many fewer rounds, so that the whole takes as long.
    family
        Where the attacks' parameters are drawn from; None for fixed ones.
    on
        Whose data the simulated clients have.
    protocol
        How attacks are where nothing else is said: one of `protocols.PROTOCOLS`.
    seed
        Where all chance is from; far from those of scenarios, whose data it does not share.
    """
    if not attacks or not attackers or not follow or not local_epochs:
        raise ParameterError(
            "there have to be attacks, numbers of attackers, rules to follow and local epochs"
        )
    kinds: list[tuple[str, int]] = [("none", 0)] if 0 in attackers else []
    # An alias must not be rehearsed beside what it stands for, nor with another seed.
    names = dict.fromkeys(known_attacks.resolve(attack) for attack in attacks)
    kinds += [(attack, count) for attack in names for count in attackers if count]
    fixed = dict(base.get("attack", {}))
    rehearsals = []
    for run in range(runs):
        for rule, epochs in product(follow, local_epochs):
            for attack, count in kinds:
                own_seed = seed_for(seed, f"rehearsal of {attack}", run, count)
                drawn = {} if attack == "none" else dict(fixed)
                if family is not None:
                    drawn = family.draw(attack, facts, generator(own_seed, "family")) | drawn
                fields = {
                    **base,
                    "attack": {"name": attack, **drawn},
                    "attackers": count,
                    "rule": rule,
                    "local_epochs": epochs,
                    "seed": own_seed,
                }
                fields = with_protocol(protocol, fields)
                whole = Scenario(**fields)
                rounds = max(1, round(whole.rounds / epochs))
                rehearsals.append(Rehearsal(Scenario(**{**fields, "rounds": rounds}), run, on))
    return rehearsals


def usual_attacks(facts: Facts) -> tuple[str, ...]:
    """Give the attacks to rehearse if none is named: one that has a target, and one that has none.

    The first is the backdoor, or, on data that it does not fit, such as text or tables, the label
    flip.
    """
    try:
        known_attacks.create("backdoor").check(facts)
    except ParameterError:
        return ("label-flip", "omniscient")
    return ("backdoor", "omniscient")


def _whole(span: tuple[int, int], random: torch.Generator) -> int:
    return int(torch.randint(span[0], span[1] + 1, (), generator=random))


def _real(span: tuple[float, float], random: torch.Generator) -> float:
    drawn = float(torch.rand((), generator=random, dtype=torch.float64))
    return round(span[0] + (span[1] - span[0]) * drawn, 3)
