"""What to rehearse: which attacks, by how many, how often, along which trajectories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, Literal

from fedimmune import attacks as known_attacks
from fedimmune.attacks import Attack
from fedimmune.errors import ParameterError
from fedimmune.federation.protocols import with_protocol
from fedimmune.federation.rehearsal import Rehearsal
from fedimmune.federation.scenario import Scenario
from fedimmune.federation.seeds import generator, seed_for
from fedimmune.tasks import Facts

__all__ = ["plan", "usual_attacks"]

Ranges = Mapping[str, tuple[float, float]]


def plan(
    base: Mapping[str, Any],
    facts: Facts,
    *,
    attacks: Sequence[str],
    attackers: Sequence[int],
    runs: int,
    follow: Sequence[str],
    local_epochs: Sequence[int] = (1,),
    family: Ranges | None = None,
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
        Number of repetitions, with other data, other attackers and another first model.
    follow
        Rules whose global model is followed.
    local_epochs
        How often clients go over their samples in a round; each is rehearsed. With more there are
        rounds are fewer by that factor, so that the whole takes as long.
    family
        Draw each attack's parameters anew for every rehearsal (`Attack.sample_parameters`), so that
        a defense learns a family of attacks and not one pattern. Ranges given here, by name,
        replace the attack's own. None for fixed parameters.
    on
        Whose data the simulated clients have.
    protocol
        How attacks are where nothing else is said: one of `protocols.PROTOCOLS`.
    seed
        Random seed; far from those of scenarios, whose data it does not share.
    """
    if not attacks or not attackers or not follow or not local_epochs:
        raise ParameterError(
            "there have to be attacks, numbers of attackers, rules to follow and local epochs"
        )
    kinds: list[tuple[str, int]] = [("none", 0)] if 0 in attackers else []
    # An alias must not be rehearsed as well as what it stands for, nor with another seed.
    names = dict.fromkeys(known_attacks.resolve(attack) for attack in attacks)
    kinds += [(attack, count) for attack in names for count in attackers if count]
    drawing = {} if family is None else {name: _drawing(name, family) for name in names}
    for name in family or ():
        known = {each for attack in drawing.values() for each in attack.ranges}
        if name not in known:
            raise ParameterError(
                f"no attack here has a range {name!r}; there are {', '.join(sorted(known))}"
            )
    fixed = dict(base.get("attack", {}))
    rehearsals = []
    for run in range(runs):
        for rule, epochs in product(follow, local_epochs):
            for attack, count in kinds:
                own_seed = seed_for(seed, f"rehearsal of {_stream(attack)}", run, count)
                drawn = {} if attack == "none" else dict(fixed)
                if attack in drawing:
                    rng = generator(own_seed, "family")
                    drawn = drawing[attack].sample_parameters(facts, rng) | drawn
                fields = {
                    **base,
                    "attack": {"name": attack, **drawn},
                    "attackers": count,
                    "rule": rule,
                    "local_epochs": epochs,
                    "seed": own_seed,
                }
                fields = with_protocol(protocol, fields)
                whole = Scenario(**fields).resolve()
                rounds = max(1, round(whole.rounds / epochs))
                shorter = whole.model_copy(update={"rounds": rounds})
                rehearsals.append(Rehearsal(shorter, run, on))
    return rehearsals


def usual_attacks(facts: Facts) -> tuple[str, ...]:
    """Give the attacks to rehearse if none is named: one that has a target, and one that has none.

    The first is the backdoor, or, on data that it does not fit, such as text or tables, the label
    flip.
    """
    try:
        known_attacks.get("backdoor").check(facts)
    except ParameterError:
        return ("label-flip", "sign-flip")
    return ("backdoor", "sign-flip")


def _drawing(name: str, family: Ranges) -> Attack:
    """Make an attack that draws its parameters from these ranges, if they are its own."""
    attack = known_attacks.get(name)
    for given, (low, high) in family.items():
        if not 0 <= low <= high:
            raise ParameterError(
                f"the range {given} goes from low to high, from 0 on: {low}-{high}"
            )
    own = {
        each: _like(each, usual, family[each])
        for each, usual in attack.ranges.items()
        if each in family
    }
    attack.ranges = {**attack.ranges, **own}
    return attack


def _like(name: str, usual: tuple[float, float], given: tuple[float, float]) -> tuple[float, float]:
    """Make bounds whole numbers if the usual ones are."""
    if not all(isinstance(bound, int) for bound in usual):
        return given
    if any(bound != int(bound) for bound in given):
        raise ParameterError(f"the range {name} has whole numbers: {given[0]}-{given[1]}")
    return int(given[0]), int(given[1])


def _stream(attack: str) -> str:
    """Return what an attack's random numbers are drawn by: the older name of one that has two."""
    return (*known_attacks.find(attack).aliases, attack)[0]
