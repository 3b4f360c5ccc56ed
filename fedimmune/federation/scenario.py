"""A scenario: everything that a simulation's outcome depends on, checked and written down.

Two scenarios are the same if and only if their `digest` is: it covers every field and every
parameter, those included that were left at their defaults; but not where files are.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import tomli_w
import torch
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from fedimmune import attacks, rules, tasks, untrusted
from fedimmune.attacks import Attack
from fedimmune.errors import FedimmuneError, InputError, ParameterError
from fedimmune.federation import partition as partitions
from fedimmune.federation.partition import Partition
from fedimmune.federation.protocols import with_protocol
from fedimmune.registry import Named, make, meant, names_code, never_import_from
from fedimmune.rules import Rule
from fedimmune.tasks import Recipe, Task

__all__ = ["Choice", "Optimiser", "Scenario", "changed", "read_toml"]


class Choice(BaseModel):
    """Something chosen by name, with parameters of its own.

    ``"krum"`` and ``{"name": "krum", "attackers": 3}`` will both do. All parameters are filled in;
    those that are None, *not given*, are left out.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str

    @property
    def label(self) -> str:
        """The name, without the module that a user's own is in."""
        return self.name.rpartition(":")[2]

    @property
    def parameters(self) -> dict[str, Any]:
        """What it is made with, besides its name."""
        return dict(self.model_extra or {})


def _chosen(find: Callable[[str], type[Named]], usual: str) -> BeforeValidator:
    """Make a validator that turns what users write into a `Choice` with all its parameters."""

    def complete(given: object) -> dict[str, Any]:
        if isinstance(given, Choice):
            given = given.model_dump()
        if isinstance(given, str):
            given = {"name": given}
        if isinstance(given, Mapping):
            given = {"name": usual, **given}
        if not isinstance(given, Mapping) or not isinstance(given["name"], str):
            raise ValueError(  # noqa: TRY004 (pydantic takes no TypeError)
                f"expected a name, or a table with a name: {given!r}"
            )
        parameters = {name: value for name, value in given.items() if name != "name"}
        member = find(given["name"])
        try:
            made = make(member, parameters)
        except FedimmuneError:
            raise
        except Exception as error:  # a class of the user's own
            kind = type(error).__name__
            raise ValueError(f"{given['name']} cannot be made: {kind}: {error}") from error
        # As the member keeps them: 2.0 for 2 must not make another scenario.
        filled = {name: _kept(made, name) for name in made.told()}
        # Nor must an alias; a class of the user's own is found by its module alone.
        name = given["name"] if ":" in given["name"] else member.name
        return {"name": name} | {name: value for name, value in filled.items() if value is not None}

    return BeforeValidator(complete)


class Optimiser(BaseModel):
    """How each client minimises its loss.

    Parameters
    ----------
    name
        ``sgd`` or ``adam``.
    lr
        Learning rate.
    momentum
        Of ``sgd``; ``adam`` has none to set.
    weight_decay
        Pull of all weights towards 0.
    carried
        Each client goes on with the momentum that it ended its last round with; by default it
        starts afresh every round.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Literal["sgd", "adam"] = "sgd"
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
    momentum: Annotated[float, Field(ge=0, lt=1, strict=True)] = 0.0
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)] = 0.0
    carried: Annotated[bool, Field(strict=True)] = False

    @model_validator(mode="after")
    def _momentum_is_for_sgd(self) -> Self:
        if self.name == "adam" and self.momentum:
            raise ValueError("adam has no momentum to set; leave it out or set it to 0")
        if self.carried and not self.momentum:
            raise ValueError("there is no momentum to be carried from round to round")
        return self

    @model_serializer(mode="wrap")
    def _told_where_carried(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave it out where it is not: what is as it always was has the digest it always had."""
        fields: dict[str, Any] = dump(self)
        return fields if self.carried else {n: v for n, v in fields.items() if n != "carried"}

    def make(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        """Make one for a model's trainable parameters."""
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if self.name == "adam":
            return torch.optim.Adam(trained, lr=self.lr, weight_decay=self.weight_decay, fused=True)
        return torch.optim.SGD(
            trained,
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            fused=True,  # one call a step: small models spend much of their time in the optimiser
        )


class Scenario(BaseModel):
    """Federated training under attack, in full.

    What is not given is the task's own (`Task.recipe`), which for the paper's tasks is the paper's.

    Parameters
    ----------
    task, rule, attack, partition
        By name, or as tables of a name and parameters; see ``fedimmune tasks | rules | attacks``.
        The partition is ``dirichlet`` (alpha), ``iid`` or ``by-label`` (shards).
    clients
        How many there are.
    attackers
        How many of them attack; who, is drawn by the seed. By default 4 in 10 where an attack is
        named, the most that the paper tries, and none where none is.
    participation
        Share of the clients that takes part in a round; who, is drawn by the seed.
    rounds, local_epochs, batch, optimiser
        The recipe.
    anchor
        How many of the server's samples are set aside for an update of its own, the anchor, which
        rules may compare clients with. Models are tested on the others, whatever the rule, so that
        all are measured alike.
    seed
        Where all chance is from. Scenarios with the same seed have the same data, attackers and
        first model, whatever their rule and attack.
    device
        Where clients train, as PyTorch names it.

    Raises
    ------
    ParameterError
        A field is unknown or has a value that makes no sense; the message names it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: Annotated[Choice, _chosen(tasks.find, "digits")] = Field("digits", validate_default=True)
    rule: Annotated[Choice, _chosen(rules.find, "mean")] = Field("mean", validate_default=True)
    attack: Annotated[Choice, _chosen(attacks.find, "none")] = Field("none", validate_default=True)
    clients: int = Field(10, ge=1, strict=True)
    attackers: int = Field(
        default_factory=lambda known: _usual_attackers(**known), ge=0, strict=True
    )
    participation: float = Field(1.0, gt=0, le=1, strict=True)
    partition: Annotated[Choice, _chosen(partitions.find, "dirichlet")] = Field(
        "dirichlet", validate_default=True
    )
    rounds: int = Field(default_factory=lambda known: _recipe(known).rounds, ge=1, strict=True)
    local_epochs: int = Field(
        default_factory=lambda known: _recipe(known).local_epochs, ge=1, strict=True
    )
    batch: int = Field(default_factory=lambda known: _recipe(known).batch, ge=1, strict=True)
    anchor: int = Field(default_factory=lambda known: _recipe(known).anchor, ge=0, strict=True)
    optimiser: Optimiser = Field(default_factory=dict, validate_default=True)
    seed: int = Field(1, ge=0, lt=2**63, strict=True)
    device: str = "cpu"

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise ParameterError(_in_words(error)) from None

    @field_validator("rule")
    @classmethod
    def _oracle_is_told(cls, rule: Choice) -> Choice:
        if rules.find(rule.name).is_told_attackers and rule.parameters:
            raise ValueError(f"{rule.name} is told by the simulation who attacks: leave it out")
        return rule

    @field_validator("attackers")
    @classmethod
    def _attackers_are_clients(cls, attackers: int, info: ValidationInfo) -> int:
        if "clients" in info.data and attackers > info.data["clients"]:
            raise ValueError(f"{attackers} attackers among {info.data['clients']} clients")
        attack = info.data.get("attack")
        return 0 if attack is not None and attack.name == "none" else attackers

    @field_validator("optimiser", mode="before")
    @classmethod
    def _optimiser_of_the_task(cls, given: object, info: ValidationInfo) -> object:
        if isinstance(given, str):
            given = {"name": given}
        if not isinstance(given, Mapping | Optimiser):
            raise ValueError(  # noqa: TRY004 (pydantic takes no TypeError)
                f"expected a name, or a table with a name and lr: {given!r}"
            )
        if isinstance(given, Optimiser) or "task" not in info.data:
            return given
        recipe = _recipe(info.data)
        if given.get("name", "sgd") != "sgd":
            return {"lr": _ADAM_LR, "weight_decay": recipe.weight_decay, **given}
        usual = {"lr": recipe.lr, "momentum": recipe.momentum, "weight_decay": recipe.weight_decay}
        return {**usual, **given}

    @field_validator("device")
    @classmethod
    def _device_exists(cls, device: str) -> str:
        try:
            return str(torch.device(device))
        except RuntimeError as error:
            first = str(error).strip().splitlines()[0]
            raise ValueError(f"PyTorch knows no such device: {device!r} ({first})") from None

    # ---------------------------------------------------------------- what it stands for

    def make_task(self) -> Task:
        """Make the task."""
        return tasks.create(self.task.name, **self.task.parameters)

    def make_attack(self) -> Attack:
        """Make the attack."""
        return attacks.create(self.attack.name, **self.attack.parameters)

    def make_partition(self) -> Partition:
        """Make the partition."""
        return partitions.create(self.partition.name, **self.partition.parameters)

    def make_rule(self, attackers: Iterable[int]) -> Rule:
        """Make the rule; the oracle is told who attacks."""
        told = {"attackers": attackers} if rules.find(self.rule.name).is_told_attackers else {}
        return rules.create(self.rule.name, **self.rule.parameters, **told)

    # ---------------------------------------------------------------- written down

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits that stand for the whole scenario, wherever its files are."""
        dumped = self.model_dump()
        for place in rules.find(self.rule.name).places:
            dumped["rule"].pop(place, None)  # a defence that was moved is the same defence
        text = json.dumps(dumped, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def title(self) -> str:
        """A name for people; `digest` tells scenarios apart, this may not."""
        who = f"{self.attack.label}-{self.attackers}of{self.clients}"
        happens = who if self.attackers else "none"
        return f"{self.task.label}-{self.rule.label}-{happens}-seed{self.seed}"

    def to_toml(self) -> str:
        """Write it as TOML; `from_toml` reads it back."""
        return tomli_w.dumps(self.model_dump())

    @classmethod
    def from_toml(
        cls,
        source: str | os.PathLike[str],
        changes: Mapping[str, Any] = {},
        *,
        trust_code: bool = False,
        protocol: str = "paper",
    ) -> Self:
        """Read a TOML file.

        Parameters
        ----------
        source
            The file, or a run's folder.
        changes
            Fields to be set otherwise, by name; ``attack.shift_x`` reaches into a table.
        trust_code
            Whether code that the file names, as ``module:Class``, may be imported. What `changes`
            name is imported in any case.
        protocol
            What is filled in where neither says anything: `fedimmune.federation.protocols`.

        Raises
        ------
        InputError
            There is no such file, it is no scenario, or it names code that is not trusted.
        """
        written = read_toml(source)
        fields = with_protocol(protocol, changed(written, changes))
        if not trust_code:
            _refuse_code(written, fields, source)
        if os.path.isdir(source):
            never_import_from(source)
        return cls(**fields)


def read_toml(source: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a TOML file, or the scenario of a run's folder, without checking what it says."""
    path = Path(source)
    path = path / "scenario.toml" if path.is_dir() else path
    return untrusted.read_toml(path)


def _refuse_code(
    written: Mapping[str, Any], fields: Mapping[str, Any], source: str | os.PathLike[str]
) -> None:
    """Refuse a file that names code: to import it is to run it."""
    for field in _TABLES:
        name = _name_of(fields.get(field))
        if names_code(name) and name == _name_of(written.get(field)):
            raise InputError(
                f"{source} names code: {field} {name!r} would import the module "
                f"{name.partition(':')[0]!r}. If you trust it, say so: --trust-code, or "
                "trust_code=True in Python"
            )


def changed(given: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Set fields of a scenario that is not checked yet; the given one is left as it is.

    A new name in a table leaves the old one's parameters behind, which are not its own; another
    task leaves the old one's recipe behind, and another attack the number of attackers.
    """
    fields = {name: dict(v) if isinstance(v, Mapping) else v for name, v in given.items()}
    for name, followers in _FOLLOWERS.items():
        new = changes.get(name, changes.get(f"{name}.name"))
        if new is not None and new != _name_of(fields.get(name)):
            fields = {field: v for field, v in fields.items() if field not in followers}
    # Names first: what is set for a new rule must not be lost with the old one's parameters.
    for path in sorted(changes, key=lambda path: "." in path and not path.endswith(".name")):
        value = changes[path]
        name, _, rest = path.partition(".")
        if not rest:
            fields[name] = value
            continue
        inner, _, deeper = rest.partition(".")
        if deeper or name not in _TABLES:
            raise ParameterError(_no_field(path))
        table = fields.get(name, {})
        if isinstance(table, str):
            table = {"name": table}
        if inner == "name":
            fields[name] = {"name": value}
        elif isinstance(table, dict):
            fields[name] = {**table, inner: value}
    return fields


_ADAM_LR = 0.001
_USUAL_SHARE = 0.4
_FOLLOWERS = {
    "task": ("rounds", "local_epochs", "batch", "anchor", "optimiser"),
    "attack": ("attackers",),
}
"""Fields whose usual value depends on another's."""
_TABLES = ("task", "rule", "attack", "partition", "optimiser")


def _name_of(given: object) -> object:
    return given.get("name") if isinstance(given, Mapping) else given


def _usual_attackers(attack: Choice, clients: int, **_: object) -> int:
    return 0 if attack.name == "none" else max(1, math.floor(_USUAL_SHARE * clients))


def _recipe(known: Mapping[str, Any]) -> Recipe:
    return tasks.find(known["task"].name).recipe


def _kept(made: Named, parameter: str) -> Any:
    """Read a parameter back, as something that TOML can hold."""
    if not hasattr(made, parameter):
        raise ValueError(f"{made.name} has to keep its parameter {parameter!r} as an attribute")
    value = _plain(getattr(made, parameter))
    try:
        tomli_w.dumps({parameter: [] if value is None else value})
    except (TypeError, AttributeError):
        raise ValueError(
            f"{made.name}: {parameter} must be a number, text, true or false, or a list: {value!r}"
        ) from None
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, os.PathLike) else value


def _no_field(path: str) -> str:
    """Say that a scenario, or its optimiser, has no such field, and which may have been meant."""
    name, _, rest = path.partition(".")
    owner, known = "a scenario", list(Scenario.model_fields)
    if name == "optimiser" and rest:
        owner, path, name, known = "the optimiser", rest, rest, list(Optimiser.model_fields)
    there_are = f"there are {', '.join(known)}"
    return f"{owner} has no field {path!r}; {meant(name, known, there_are)}"


def _in_words(error: ValidationError) -> str:
    """Say what is wrong in one line, for people who have never heard of pydantic."""
    problems = []
    of_task = any(found["loc"][0] == "task" for found in error.errors())
    for found in error.errors():
        kind, place = found["type"], ".".join(str(part) for part in found["loc"])
        if kind == "default_factory_not_called" or (kind == "missing" and of_task):
            continue  # follows from another problem
        if kind == "extra_forbidden":
            problems.append(_no_field(place))
            continue
        message = found["msg"].removeprefix("Value error, ").replace("Input should", "it should")
        shown = "" if kind == "value_error" else f" (it is {found['input']!r})"
        problems.append(f"{place}: {message}{shown}")
    return "scenario: " + "; ".join(problems)
