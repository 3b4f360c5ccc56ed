"""What a scenario names: components with parameters of their own, and the clients' optimizer."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
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
from fedimmune.tasks import TrainingConfig

__all__ = ["ComponentConfig", "Optimizer", "ResolvedOptimizer", "chosen_as", "resolved"]

_Rate = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
_Momentum = Annotated[float, Field(ge=0, lt=1, strict=True)]
_Decay = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
_ADAM_LR = 0.001


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
