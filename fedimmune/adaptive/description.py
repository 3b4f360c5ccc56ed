"""What a defense's file says about it: what it was made for and from, and how it came out."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator
from torch import Tensor

from fedimmune import __version__
from fedimmune.adaptive.models.base import MOST_VALUE

__all__ = ["FIGURES", "Ancestor", "Calibration", "DefenseAbout", "Epoch", "Outcome"]

FIGURES = ("accuracy", "exact", "benign_kept", "attacker_weight")
"""What is measured of each point of a search; the first decides."""

_TOLD = {
    *("task", "layers", "form", "settings", "memory", "attacks", "training", "recordings"),
    *("version", "lineage", "searched", "validation", "calibration"),
}
"""Fields that `describe` words itself, and the validation, which has its own table."""

_LONGEST = 60


def _check_figures(row: dict[str, Any]) -> dict[str, Any]:
    """Refuse a row of a validation table that cannot be shown; further columns are allowed."""
    for name in ("attackers", "clients", "rounds"):
        if type(row.get(name)) is not int or row[name] < 0:
            raise ValueError(f"{name} must be a number of things: {row.get(name)!r}")
    if not isinstance(row.get("attack"), str):
        raise ValueError(f"the attack must be a name: {row.get('attack')!r}")  # noqa: TRY004
    for name in sorted(_MEASURED | row.keys() - _COUNTED):
        value = row.get(name)
        if value is not None and type(value) not in (int, float):
            raise ValueError(f"{name} must be a number, or nothing: {value!r}")
    return {**dict.fromkeys(_MEASURED), **row}


_COUNTED = {"attack", "attackers", "clients", "rounds"}
_MEASURED = {*FIGURES, "auroc", "distance", "distance_of_mean", "distance_of_median"}
Figures = Annotated[dict[str, Any], AfterValidator(_check_figures)]
"""One row of a validation table, see `fedimmune.adaptive.evaluation`."""


@dataclass(frozen=True)
class Epoch:
    """How training stands.

    Parameters
    ----------
    number
        From 1.
    training, validation
        Mean loss on the rounds to train on (before each step) and, by
        `AttentionModel.choosing_loss`, on those held out.
    """

    number: int
    training: float
    validation: float


class Outcome(BaseModel):
    """How a point came out on the rehearsals held out.

    Parameters
    ----------
    settings
        The point.
    accuracy, exact, benign_kept, attacker_weight
        Of `figures_of`.
    epoch
        The one that was kept.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    settings: dict[str, Any]
    accuracy: float
    exact: float
    benign_kept: float | None
    attacker_weight: float | None
    epoch: int


def _check_search(searched: dict[str, Any]) -> dict[str, Any]:
    """Refuse what no search writes; nothing at all is fine."""
    if searched:
        found = _Searched.model_validate(searched)
        for point in (*(one.settings for one in found.points), found.best):
            if point.keys() != found.grid.keys():
                raise ValueError("a point of the search has other settings than its grid")
    return searched


class _Searched(BaseModel):
    model_config = ConfigDict(extra="forbid")

    grid: dict[str, list[Any]]
    by: str
    best: dict[str, Any]
    points: list[Outcome]


class Ancestor(BaseModel):
    """A defense that was patched into another.

    Parameters
    ----------
    digest
        Of its file.
    attacks
        The kinds that it had seen.
    version
        Of fedimmune that made it.
    """

    model_config = ConfigDict(frozen=True)

    digest: str
    attacks: tuple[str, ...]
    version: str


class Calibration(BaseModel):
    """What a universal defense's logits mean, by how rounds came out that it never learned from.

    Parameters
    ----------
    slope, offset
        P(attack) = sigmoid(offset − slope · logit): Platt, *Probabilistic Outputs for Support
        Vector Machines*, 1999.
    alarms
        Shares of honest clients, and the logit that so many of them were below; both ascending.
    clients, attackers
        How many were measured.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    slope: float = Field(gt=0, le=MOST_VALUE)
    offset: float = Field(ge=-MOST_VALUE, le=MOST_VALUE)
    alarms: tuple[tuple[float, float], ...] = Field(min_length=1, max_length=1000)
    clients: int = Field(ge=1)
    attackers: int = Field(ge=0)

    @field_validator("alarms")
    @classmethod
    def _ascend(cls, alarms: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
        if not all(0 <= share <= 1 and abs(logit) <= MOST_VALUE for share, logit in alarms):
            raise ValueError("alarms are shares from 0 to 1, each with a logit")
        for before, after in itertools.pairwise(alarms):
            if not (before[0] < after[0] and before[1] <= after[1]):
                raise ValueError("shares of false alarms and their logits have to ascend")
        return alarms

    def probability(self, logits: Tensor) -> Tensor:
        """Return how likely clients with these logits attack."""
        return torch.sigmoid(self.offset - self.slope * logits)

    def threshold(self, rate: float) -> float:
        """Return the logit below which to suspect: at most this share of the honest was below it.

        Never above 0, where a client is as likely honest as not: a knob against false alarms does
        not make more of them.
        """
        below = [logit for share, logit in self.alarms if share <= rate]
        return min(0.0, below[-1] if below else self.alarms[0][1])


class DefenseAbout(BaseModel):
    """What a defense was made for and from.

    Parameters
    ----------
    task
        What was rehearsed.
    layers
        Shapes of the layers that it looks at by name, in its order; empty if it reads any model.
    form, settings
        The network.
    memory
        How much evidence of earlier rounds counts; 0 for none.
    attacks
        The kinds that it has seen.
    training
        How it was trained.
    validation
        Figures on rehearsals held out, one table row each.
    recordings
        Digest of the recordings.
    calibration
        What its logits mean, measured on rounds held out; None if it was not measured.
    searched
        What its settings were chosen from, and how each choice came out; empty if nothing was
        searched. See `fedimmune.adaptive.sweep`.
    version
        Of fedimmune that made it.
    lineage
        What it was patched from, oldest first; empty if it was made anew.
    """

    model_config = ConfigDict(frozen=True)

    task: str
    layers: dict[str, tuple[int, ...]]
    form: Literal["universal", "relational", "paper"]
    settings: dict[str, Any]
    memory: float = Field(0.0, ge=0, le=MOST_VALUE)
    attacks: tuple[str, ...] = ()
    training: dict[str, Any] = {}
    validation: tuple[Figures, ...] = ()
    recordings: str = ""
    calibration: Calibration | None = None
    searched: Annotated[dict[str, Any], AfterValidator(_check_search)] = {}
    version: str = __version__
    lineage: tuple[Ancestor, ...] = ()

    def describe(self) -> list[tuple[str, str]]:
        """Return all there is to know, as names and values; unknown fields come last."""
        anchored = "yes" if self.settings.get("anchor") else "no"
        if self.form == "universal":
            anchored = "if there is one"
        facts = [
            (
                "made for",
                f"{self.task} ({len(self.layers)} layers)" if self.layers else "any model",
            ),
            ("form", self.form),
            ("has seen", ", ".join(self.attacks) or "no attack"),
            ("compares with the server's own update", anchored),
            ("memory", f"yes, {self.memory:g} times a score" if self.memory else "no"),
            ("settings", _written(self.settings)),
            ("training", _written(self.training)),
            ("recordings", self.recordings or "–"),
            ("made by", f"fedimmune {self.version}"),
        ]
        if self.calibration is not None:
            measured = self.calibration
            said = f"on {measured.clients} clients in rounds held out, {measured.attackers} attack"
            facts.append(("calibrated", said))
        if self.lineage:
            known = [(one.digest, ", ".join(one.attacks) or "no attack") for one in self.lineage]
            listed = ", then ".join(f"{digest} ({attacks})" for digest, attacks in known)
            facts.append(("patched from", listed))
        if self.searched:
            points, grid = (self.searched.get(name) or () for name in ("points", "grid"))
            facts.append(("settings searched", f"{len(points)}, over {', '.join(grid)}"))
        others = self.model_dump(mode="json", exclude=_TOLD)
        return facts + [
            (name.replace("_", " "), _written(value))
            for name, value in others.items()
            if value not in (None, "", [], {})
        ]


def _written(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} = {_written(each)}" for name, each in value.items()) or "–"
    if isinstance(value, list | tuple):
        return ", ".join(_written(each) for each in value) or "–"
    text = str(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
