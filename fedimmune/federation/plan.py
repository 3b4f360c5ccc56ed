"""What to rehearse: which attacks, by how many, how often, along which trajectories."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, field_validator

from fedimmune import attacks as known_attacks
from fedimmune.adaptive.recordings import Recording, read_recordings
from fedimmune.errors import ParameterError
from fedimmune.federation.pool import usable_cores
from fedimmune.federation.protocols import PROTOCOLS, with_protocol
from fedimmune.federation.rehearsal import Rehearsal, record
from fedimmune.federation.scenario import Scenario, changed
from fedimmune.federation.seeds import generator, seed_for
from fedimmune.tasks import Data, Facts, data_folder, load_data

__all__ = ["Family", "plan", "rehearse", "usual_attacks"]

_MOST_EPOCHS = 6
_PAPER_TRAJECTORIES = ("mean", "geometric-median", "median", "multi-krum")


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


def rehearse(
    task: str = "digits",
    attacks: Sequence[str] | None = None,
    *,
    output: str | os.PathLike[str] | None = None,
    attackers: Sequence[int] = range(5),
    runs: int = 3,
    trajectory: Sequence[str] | None = None,
    rounds: int | None = None,
    local_epochs: Sequence[int] | None = None,
    on: Literal["server", "clients"] = "server",
    preset: Literal["paper", "authors"] | None = None,
    randomize: Family | None = None,
    seed: int = 1,
    settings: Mapping[str, Any] | None = None,
    data: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    on_start: Callable[[Sequence[Rehearsal]], None] = lambda _: None,
    on_done: Callable[[Rehearsal], None] = lambda _: None,
) -> list[Recording]:
    """Rehearse attacks on the server's own data, and return what a defence learns from.

    Each round is kept as inner products of the updates, layer by layer, and who attacked: no
    update of anyone. What `output` holds already is not rehearsed again, so an interrupted call
    resumes.

    Parameters
    ----------
    task
        What is learned: one of `fedimmune.tasks.names`, or ``package.module:Name``.
    attacks
        Kinds of attack; by default the omniscient attack and the backdoor, or the label flip if
        the task has no images.
    output
        Folder to keep the recordings in; by default nothing is kept.
    attackers
        How many attack; 0 is rehearsed once, whatever the attacks.
    runs
        Number of repetitions, with other data, other attackers and another first model. `train`
        holds the last one out.
    trajectory
        Rules whose global model is followed; by default the oracle.
    rounds
        How many; by default the task's.
    local_epochs
        How often clients go over their samples in a round: each is rehearsed, with fewer rounds by
        that factor. By default once, and as often as makes up for real clients having more
        samples, 6 times at most.
    on
        Whose data rehearsal clients have: the ``server``'s test samples, or the ``clients``' own,
        which a real server does not have.
    preset
        ``paper``: three runs, four trajectories, all rounds, as in the paper. ``authors``: the
        same, and attacks and clients as in the authors' program.
    randomize
        What the attacks' parameters are drawn from, anew for every rehearsal; by default they
        are fixed.
    seed
        Random seed.
    settings
        Further fields of the scenarios, such as ``{"clients": 20, "optimiser.lr": 0.05}``.
    data
        Folder of data sets; by default ``FEDIMMUNE_DATA``, else a cache of the user's.
    workers
        How many processes, each carrying out one rehearsal at a time; by default one per core.
    on_start, on_done
        Called with all rehearsals before the first, and with each that has been carried out, from
        several threads.

    Returns
    -------
    list of Recording
        One per rehearsal, for `train`.

    Raises
    ------
    ParameterError, InputError
        An attack, a rule or a setting does not exist or does not fit. Nothing has been rehearsed.

    Examples
    --------
    >>> from fedimmune import adaptive
    >>> adaptive.rehearse("digits", ["omniscient"], attackers=[3], runs=1, rounds=2)
    [Recording(digits, omniscient by 3 of 10, run 0, following oracle: 2 rounds)]
    """
    if on not in {"server", "clients"}:
        raise ParameterError(f"on takes server or clients, not {on!r}")
    if preset not in {None, *PROTOCOLS}:
        raise ParameterError(f"there is no preset {preset!r}; there are {', '.join(PROTOCOLS)}")
    given: dict[str, Any] = {"task": task} | ({} if rounds is None else {"rounds": rounds})
    base = with_protocol(preset or "paper", changed(given, dict(settings or {})))
    # Says what is wrong before anything is loaded.
    first = Scenario(**{name: base[name] for name in base if name != "attack"})
    made = first.make_task()
    loaded = load_data(made, data_folder(data))
    if local_epochs is None:
        as_they_are = preset is not None or on == "clients"
        local_epochs = _usual_epochs(first, loaded, as_they_are=as_they_are)
    rehearsals = plan(
        base,
        loaded.facts,
        attacks=usual_attacks(loaded.facts) if attacks is None else attacks,
        attackers=attackers,
        runs=3 if preset else runs,
        follow=trajectory or (_PAPER_TRAJECTORIES if preset else ("oracle",)),
        local_epochs=local_epochs,
        family=randomize,
        on=on,
        protocol=preset or "paper",
        seed=seed,
    )
    on_start(rehearsals)
    with TemporaryDirectory() as spare:
        folder = Path(spare if output is None else output)
        crew = workers or usable_cores()
        record(rehearsals, folder, made, loaded, workers=crew, on_done=on_done)
        return read_recordings([folder / each.file_name for each in rehearsals])


def _usual_epochs(scenario: Scenario, data: Data, *, as_they_are: bool) -> Sequence[int]:
    """Return the scenario's local epochs, and more to make up for fewer samples.

    The server has fewer samples than real clients, whose updates are longer and differ more. A
    defence that has seen short training alone suspects honest clients who train longer.
    """
    if as_they_are or scenario.local_epochs != 1:
        return (scenario.local_epochs,)
    more = round(len(data.clients) / max(1, len(data.server) - scenario.anchor))
    return (1, min(more, _MOST_EPOCHS)) if more > 1 else (1,)


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
