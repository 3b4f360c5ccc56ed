"""What a scenario names: components with parameters of their own, and the clients' optimizer."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from fedimmune.errors import FedimmuneError, ParameterError
from fedimmune.registry import Configurable, make, names_code
from fedimmune.simulation.seeding import generator
from fedimmune.tasks import TrainingConfig

__all__ = [
    "ComponentConfig",
    "Oddity",
    "Optimizer",
    "ResolvedOptimizer",
    "Variation",
    "Work",
    "chosen_as",
    "resolved",
]

_Rate = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
_Momentum = Annotated[float, Field(ge=0, lt=1, strict=True)]
_Decay = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
_Factor = Annotated[float, Field(ge=1, allow_inf_nan=False)]
_ADAM_LR = 0.001

Oddity = Literal["one-class", "inverted", "brighter", "noisy"]


class ComponentConfig(BaseModel):
    """Something chosen by name, with parameters of its own.

    As ``"krum"`` or ``{"name": "krum", "attackers": 3}``. Parameters that are None are left out.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str

    @property
    def label(self) -> str:
        """The name, without the module of a user's own class."""
        return self.name.rpartition(":")[2]

    @property
    def parameters(self) -> dict[str, Any]:
        """All but its name."""
        return dict(self.model_extra or {})


def chosen_as(usual: str) -> Any:
    """Return a validator that completes what users write for a `ComponentConfig`."""

    def complete(given: object) -> dict[str, Any]:
        if isinstance(given, ComponentConfig):
            given = given.model_dump()
        if isinstance(given, str):
            given = {"name": given}
        if isinstance(given, Mapping):
            given = {"name": usual, **given}
        if not isinstance(given, Mapping) or not isinstance(given["name"], str):
            raise ValueError(  # noqa: TRY004 (pydantic takes no TypeError)
                f"expected a name, or a table with a name: {given!r}"
            )
        return {
            name: _plain(given["name"], name, value)
            for name, value in given.items()
            if value is not None
        }

    return BeforeValidator(complete)


def _plain(owner: str, parameter: str, value: Any) -> Any:
    """Return a parameter as something that TOML can hold."""
    if isinstance(value, tuple | list):
        return [_plain(owner, parameter, each) for each in value]
    if isinstance(value, os.PathLike):
        return str(value)
    if not isinstance(value, bool | int | float | str):
        raise ValueError(  # noqa: TRY004 (pydantic takes no TypeError)
            f"{owner}: {parameter} must be a number, text, true or false, or a list: {value!r}"
        )
    return value


def resolved(
    field: str, chosen: ComponentConfig, find: Callable[[str], type[Configurable]]
) -> ComponentConfig:
    """Look a component up, make it, and read back all its parameters."""
    try:
        member = find(chosen.name)
        made = make(member, chosen.parameters)
        # As the member stores them: 2.0 for 2 must not make another scenario.
        filled = {name: _kept(made, name) for name in made.told()}
    except (FedimmuneError, ValueError) as error:
        raise ParameterError(f"scenario: {field}: {error}") from None
    except Exception as error:  # a class of the user's own
        problem = f"{chosen.name} cannot be made: {type(error).__name__}: {error}"
        raise ParameterError(f"scenario: {field}: {problem}") from error
    # Nor must an alias; a user's own class is only found by its module.
    name = chosen.name if names_code(chosen.name) else member.name
    return ComponentConfig(name=name, **{name: v for name, v in filled.items() if v is not None})


def _kept(made: Configurable, parameter: str) -> Any:
    if not hasattr(made, parameter):
        raise ValueError(f"{made.name} has to store its parameter {parameter!r} as an attribute")
    value = getattr(made, parameter)
    return None if value is None else _plain(made.name, parameter, value)


class Optimizer(BaseModel):
    """How each client minimizes its loss.

    Parameters
    ----------
    name
        ``sgd`` or ``adam``.
    lr
        Learning rate; by default the task's, or 0.001 for ``adam``.
    momentum
        Of ``sgd``, by default the task's; ``adam`` has none to set.
    weight_decay
        By default the task's.
    carried
        Whether each client resumes with the momentum of its last round; by default it starts
        afresh.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Literal["sgd", "adam"] = "sgd"
    lr: _Rate | None = None
    momentum: _Momentum | None = None
    weight_decay: _Decay | None = None
    carried: Annotated[bool, Field(strict=True)] = False

    @model_validator(mode="after")
    def _momentum_is_for_sgd(self) -> Self:
        if self.name == "adam" and self.momentum:
            raise ValueError("adam has no momentum to set; leave it out or set it to 0")
        if self.carried and self.momentum == 0:
            raise ValueError("there is no momentum to be carried from round to round")
        return self

    @model_serializer(mode="wrap")
    def _without_default(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave `carried` out if it is false, so that older scenarios keep their digests."""
        fields: dict[str, Any] = dump(self)
        return fields if self.carried else {n: v for n, v in fields.items() if n != "carried"}

    def resolve(self, recipe: TrainingConfig) -> ResolvedOptimizer:
        """Fill in what was left out."""
        usual = {"lr": recipe.lr, "momentum": recipe.momentum, "weight_decay": recipe.weight_decay}
        if self.name == "adam":
            usual |= {"lr": _ADAM_LR, "momentum": 0.0}
        return ResolvedOptimizer(**{**usual, **self.model_dump(exclude_none=True)})


class ResolvedOptimizer(Optimizer):
    """An optimizer in full."""

    lr: _Rate
    momentum: _Momentum
    weight_decay: _Decay

    def make(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        """Make one for a model's trainable parameters."""
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        # Fused, one call per step: small models spend much of their time in the optimizer.
        common: dict[str, Any] = {"lr": self.lr, "weight_decay": self.weight_decay, "fused": True}
        if self.name == "adam":
            return torch.optim.Adam(trained, **common)
        return torch.optim.SGD(trained, momentum=self.momentum, **common)


@dataclass(frozen=True)
class Work:
    """What one client does otherwise than the scenario says for all.

    Parameters
    ----------
    epochs, lr, samples
        Factors of its local epochs or steps, of its learning rate, and of its number of samples.
    odd
        What is odd about its data, if anything.
    """

    epochs: float = 1.0
    lr: float = 1.0
    samples: float = 1.0
    odd: Oddity | None = None


class Variation(BaseModel):
    """How clients differ in what they do; all honest, unless they attack.

    Factors are drawn once per client, on a logarithmic scale.

    Parameters
    ----------
    share
        Share of the clients to draw factors for; the others do as the scenario says.
    epochs
        They train up to so many times as many epochs, or steps.
    lr
        Their learning rate is up to so many times as high, or as low.
    samples
        They have down to this fraction, 1/`samples`, of their samples.
    odd
        What is odd about some honest clients' data: they have samples of one of their classes alone
        (``one-class``), or what they train on is ``inverted`` (text: read backwards), ``brighter``,
        or ``noisy`` (text: words are replaced).
    odd_clients
        How many those are.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    share: float = Field(1.0, gt=0, le=1)
    epochs: _Factor = 1.0
    lr: _Factor = 1.0
    samples: _Factor = 1.0
    odd: Oddity | None = None
    odd_clients: int = Field(1, ge=1, strict=True)

    def draw(self, seed: int, clients: int, honest: Collection[int]) -> list[Work]:
        """Draw what each client does.

        Parameters
        ----------
        seed
            The scenario's.
        clients
            How many.
        honest
            Who may have odd data, in the order in which they get it.
        """
        random = generator(seed, "variation")
        varied = set(
            torch.randperm(clients, generator=random)[: round(self.share * clients)].tolist()
        )
        drawn = torch.rand((clients, 3), generator=random, dtype=torch.float64).tolist()
        odd = set(list(honest)[: self.odd_clients]) if self.odd else set()
        works = [
            Work(self.epochs**up, self.lr ** (2 * either - 1), self.samples**-down)
            if client in varied
            else Work()
            for client, (up, either, down) in enumerate(drawn)
        ]
        return [
            replace(work, odd=self.odd) if client in odd else work
            for client, work in enumerate(works)
        ]
