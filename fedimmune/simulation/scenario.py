"""A scenario: everything that a simulation's outcome depends on.

A `Scenario` is inert: building one, or reading one from a file, loads nothing and imports nobody's
code. `Scenario.resolve` looks names up, makes all components once, and fills in what was left out.
Two resolved scenarios are the same if and only if their `digest` is: it covers every field and
parameter, defaults included, but not where files are.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import tomli_w
import torch
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from fedimmune import attacks, rules, tasks, untrusted
from fedimmune.attacks import Attack
from fedimmune.errors import InputError, ParameterError
from fedimmune.registry import meant, names_code, never_import_from
from fedimmune.rules import Rule
from fedimmune.simulation import partition as partitions
from fedimmune.simulation.components import (
    ComponentConfig,
    Optimizer,
    ResolvedOptimizer,
    Variation,
    Work,
    chosen_as,
    resolved,
)
from fedimmune.simulation.partition import Partition
from fedimmune.simulation.protocols import with_protocol
from fedimmune.tasks import Task

__all__ = ["ResolvedScenario", "Scenario", "changed", "read_toml"]


_Count = Annotated[int, Field(ge=1, strict=True)]
_Number = Annotated[int, Field(ge=0, strict=True)]


class Scenario(BaseModel):
    """Federated training under attack.

    Inert data: names are looked up and components made when it is run, or by `resolve`.

    Parameters
    ----------
    task, rule, attack, partition
        By name, or as tables of a name and parameters; see ``fedimmune tasks | rules | attacks``.
        The partition is ``dirichlet`` (alpha), ``iid`` or ``by-label`` (shards).
    clients
        Their number.
    attackers
        How many of them attack; the seed decides who. By default 4 in 10 if an attack is named, the
        most that the paper tries, and otherwise none.
    attacker_data
        Attackers have a share of the data of their ``own``, or the data is divided among the honest
        clients alone, and each attacker has that of one of them, ``copied``.
    participation
        Share of the clients that takes part in a round; the seed decides who.
    rounds, local_epochs, batch, optimizer
        The recipe; by default the task's own (`Task.recipe`), which for the paper's tasks is the
        paper's.
    local_steps
        Number of batches that a client trains on in a round, instead of whole epochs: 1 is
        distributed SGD.
    test_every
        Test the global model after every so many rounds, and after the last; in between records
        have no accuracy.
    anchor
        How many of the server's samples are set aside for an update of its own, the anchor, which
        rules may compare clients with; by default the task's. Models are tested on the others,
        whatever the rule, so that all are measured on the same ones.
    variation
        How clients differ in what they do, as a table: see `Variation`. By default they do not.
    seed
        Random seed. Scenarios with the same seed have the same data, attackers and first model,
        whatever their rule and attack.
    device
        Where clients train, as PyTorch names it.

    Raises
    ------
    ParameterError
        A field is unknown or has a value that makes no sense; the message names it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: Annotated[ComponentConfig, chosen_as("digits")] = Field("digits", validate_default=True)
    rule: Annotated[ComponentConfig, chosen_as("mean")] = Field("mean", validate_default=True)
    attack: Annotated[ComponentConfig, chosen_as("none")] = Field("none", validate_default=True)
    clients: _Count = 10
    attackers: _Number | None = None
    attacker_data: Literal["own", "copied"] = "own"
    participation: float = Field(1.0, gt=0, le=1, strict=True)
    partition: Annotated[ComponentConfig, chosen_as("dirichlet")] = Field(
        "dirichlet", validate_default=True
    )
    rounds: _Count | None = None
    local_epochs: _Count | None = None
    batch: _Count | None = None
    local_steps: _Count | None = None
    test_every: _Count = 1
    anchor: _Number | None = None
    optimizer: Optimizer = Optimizer()
    variation: Variation | None = None
    seed: int = Field(1, ge=0, lt=2**63, strict=True)
    device: str = "cpu"

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise ParameterError(_in_words(error)) from None

    @model_validator(mode="after")
    def _attackers_are_clients(self) -> Self:
        if self.attackers is not None and self.attackers > self.clients:
            raise ValueError(f"attackers: {self.attackers} attackers among {self.clients} clients")
        return self

    @field_validator("optimizer", mode="before")
    @classmethod
    def _optimizer_by_name(cls, given: object) -> object:
        if not isinstance(given, str | Mapping | Optimizer):
            raise ValueError(  # noqa: TRY004 (pydantic takes no TypeError)
                f"expected a name, or a table with a name and lr: {given!r}"
            )
        return {"name": given} if isinstance(given, str) else given

    @field_validator("device")
    @classmethod
    def _device_exists(cls, device: str) -> str:
        try:
            return str(torch.device(device))
        except RuntimeError as error:
            first = str(error).strip().splitlines()[0]
            raise ValueError(f"PyTorch knows no such device: {device!r} ({first})") from None

    # ---------------------------------------------------------------- resolved

    def resolve(self) -> ResolvedScenario:
        """Look all names up, make all components once, and fill in what was left out.

        Imports code that the scenario names as ``module:Class``, and reads a defense.

        Raises
        ------
        ParameterError
            A name is unknown, or a component cannot be made as it is set; the message says which.
        """
        task = resolved("task", self.task, tasks.find)
        rule = resolved("rule", self.rule, rules.find)
        attack = resolved("attack", self.attack, attacks.find)
        partition = resolved("partition", self.partition, partitions.find)
        if rules.find(rule.name).is_told_attackers and rule.parameters:
            raise ParameterError(
                f"scenario: rule: {rule.name} is told by the simulation who attacks: leave it out"
            )
        recipe = tasks.find(task.name).recipe
        usual = {
            name: getattr(recipe, name) for name in ("rounds", "local_epochs", "batch", "anchor")
        }
        usual["attackers"] = max(1, math.floor(_USUAL_SHARE * self.clients))
        given = {name: getattr(self, name) for name in Scenario.model_fields}
        filled = {name: usual[name] for name in usual if given[name] is None}
        if attack.name == "none":
            filled["attackers"] = 0
        try:
            filled["optimizer"] = self.optimizer.resolve(recipe)
        except ValidationError as error:
            raise ParameterError(_in_words(error, "optimizer")) from None
        chosen = {"task": task, "rule": rule, "attack": attack, "partition": partition}
        return ResolvedScenario(**{**given, **filled, **chosen})

    def make_task(self) -> Task:
        """Make the task."""
        return tasks.get(self.task.name, **self.task.parameters)

    def make_attack(self) -> Attack:
        """Make the attack."""
        return attacks.get(self.attack.name, **self.attack.parameters)

    def make_partition(self) -> Partition:
        """Make the partition."""
        return partitions.get(self.partition.name, **self.partition.parameters)

    def make_rule(self, attackers: Iterable[int]) -> Rule:
        """Make the rule; the oracle is told who attacks."""
        told = {"attackers": attackers} if rules.find(self.rule.name).is_told_attackers else {}
        return rules.get(self.rule.name, **self.rule.parameters, **told)

    # ---------------------------------------------------------------- as text

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits of the resolved scenario, file locations excluded."""
        return self.resolve().digest

    @property
    def title(self) -> str:
        """A name for people; not unique, unlike `digest`."""
        return self.resolve().title

    def to_toml(self) -> str:
        """Write it as TOML; `from_toml` reads it back."""
        return tomli_w.dumps(self.model_dump(exclude_none=True))

    @classmethod
    def from_toml(
        cls,
        source: str | os.PathLike[str],
        changes: Mapping[str, Any] = {},
        *,
        trust_code: bool = False,
        protocol: str = "paper",
    ) -> Scenario:
        """Read a TOML file; nothing that it names is imported or looked up.

        Parameters
        ----------
        source
            The file, or a run's folder.
        changes
            Fields to override, by name; ``attack.shift_x`` reaches into a table.
        trust_code
            Whether the file may name code, as ``module:Class``, which is imported when the scenario
            is run. `changes` always may.
        protocol
            Fills in what both leave open: see `fedimmune.simulation.protocols`.

        Raises
        ------
        InputError
            There is no such file, it is not a scenario, or it names code that is not trusted.
        """
        written = read_toml(source)
        fields = with_protocol(protocol, changed(written, changes))
        if not trust_code:
            _refuse_code(written, fields, source)
        if os.path.isdir(source):
            never_import_from(source)
        return Scenario(**fields)


class ResolvedScenario(Scenario):
    """A scenario in full: every name is known, and every field and parameter has a value."""

    attackers: _Number
    rounds: _Count
    local_epochs: _Count
    batch: _Count
    anchor: _Number
    optimizer: ResolvedOptimizer

    def resolve(self) -> ResolvedScenario:
        return self

    def as_done_by(self, work: Work) -> ResolvedScenario:
        """Return what one client is told to do."""
        if (work.epochs, work.lr) == (1.0, 1.0):
            return self
        steps = self.local_steps and max(1, round(work.epochs * self.local_steps))
        return self.model_copy(
            update={
                "local_epochs": max(1, round(work.epochs * self.local_epochs)),
                "local_steps": steps,
                "optimizer": self.optimizer.model_copy(update={"lr": work.lr * self.optimizer.lr}),
            }
        )

    @property
    def digest(self) -> str:
        dumped = self.model_dump()
        for place in rules.find(self.rule.name).places:
            dumped["rule"].pop(place, None)  # a moved defense is the same defense
        for name in _LATER:
            if dumped[name] == Scenario.model_fields[name].default:
                del dumped[name]
        text = json.dumps(dumped, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def title(self) -> str:
        who = f"{self.attack.label}-{self.attackers}of{self.clients}"
        happens = who if self.attackers else "none"
        return f"{self.task.label}-{self.rule.label}-{happens}-seed{self.seed}"


def read_toml(source: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a TOML file, or the scenario in a run's folder, without checking its fields."""
    path = Path(source)
    path = path / "scenario.toml" if path.is_dir() else path
    return untrusted.read_toml(path)


def _refuse_code(
    written: Mapping[str, Any], fields: Mapping[str, Any], source: str | os.PathLike[str]
) -> None:
    """Refuse a file that names code: importing it would run it."""
    for field in _TABLES:
        name = _name_of(fields.get(field))
        if names_code(name) and name == _name_of(written.get(field)):
            raise InputError(
                f"{source} names code: {field} {name!r} would import the module "
                f"{name.partition(':')[0]!r}. If you trust it: --trust-code, or "
                "trust_code=True in Python"
            )


def changed(given: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a scenario that is not checked yet, with changes.

    A new name in a table drops the old one's parameters; another task drops the old one's recipe,
    and another attack the number of attackers.
    """
    fields = {name: dict(v) if isinstance(v, Mapping) else v for name, v in given.items()}
    for name, followers in _FOLLOWERS.items():
        new = changes.get(name, changes.get(f"{name}.name"))
        if new is not None and new != _name_of(fields.get(name)):
            fields = {field: v for field, v in fields.items() if field not in followers}
    # Names first: parameters of a new rule must not be dropped with the old one's.
    for path in sorted(changes, key=lambda path: "." in path and not path.endswith(".name")):
        value = changes[path]
        name, _, rest = path.partition(".")
        if not rest:
            fields[name] = value
            continue
        inner, _, deeper = rest.partition(".")
        if deeper or name not in _TABLES:
            raise ParameterError(_no_field(path))
        table = fields.get(name) or {}
        if isinstance(table, str):
            table = {"name": table}
        if inner == "name":
            fields[name] = {"name": value}
        elif isinstance(table, dict):
            fields[name] = {**table, inner: value}
    return fields


_USUAL_SHARE = 0.4
_LATER = ("local_steps", "test_every", "attacker_data", "variation")
"""Fields that were not always there: at their defaults they leave older digests as they were."""
_FOLLOWERS = {
    "task": ("rounds", "local_epochs", "batch", "anchor", "optimizer"),
    "attack": ("attackers",),
}
"""Fields whose default depends on another's value."""
_TABLES = ("task", "rule", "attack", "partition", "optimizer", "variation")


def _name_of(given: object) -> object:
    return given.get("name") if isinstance(given, Mapping) else given


def _no_field(path: str) -> str:
    """Word that a scenario, or its optimizer, has no such field, and what may have been meant."""
    name, _, rest = path.partition(".")
    owner, known = "a scenario", list(Scenario.model_fields)
    inner: dict[str, type[BaseModel]] = {"optimizer": Optimizer, "variation": Variation}
    if name in inner and rest:
        owner, path, known = f"the {name}", rest, list(inner[name].model_fields)
        name = rest
    there_are = f"there are {', '.join(known)}"
    return f"{owner} has no field {path!r}; {meant(name, known, there_are)}"


def _in_words(error: ValidationError, *outer: str) -> str:
    """Word what is wrong in one line, for people who have never heard of pydantic."""
    problems = []
    for found in error.errors():
        kind, place = found["type"], ".".join(map(str, (*outer, *found["loc"])))
        if kind == "extra_forbidden":
            problems.append(_no_field(place))
            continue
        message = found["msg"].removeprefix("Value error, ").replace("Input should", "it should")
        shown = "" if kind == "value_error" else f" (it is {found['input']!r})"
        problems.append(f"{place}: {message}{shown}" if place else message)
    return "scenario: " + "; ".join(problems)
