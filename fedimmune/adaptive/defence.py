"""A defence: the trained network in its file, with everything there is to know about it.

One safetensors file: weights as tensors, the rest as JSON in its metadata. No pickle anywhere.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from fedimmune import __version__
from fedimmune.adaptive.forms import Form
from fedimmune.adaptive.principal import Perceptron, Principal, PrincipalSettings
from fedimmune.adaptive.relational import Relational, RelationalSettings
from fedimmune.errors import InputError
from fedimmune.files import described, load_mapped, read_description, write_atomically

__all__ = ["Defence", "DefenceAbout", "make_form"]

_FORMAT = "fedimmune-defence-1"


class DefenceAbout(BaseModel):
    """What a defence was made for and from.

    Parameters
    ----------
    task
        What was rehearsed.
    layers
        Shapes of the layers that it looks at by name, in its order.
    form, settings
        The network.
    memory
        How much evidence of earlier rounds counts; 0 for none.
    attacks
        The kinds that it has seen.
    training
        How it was trained.
    validation
        Figures on rehearsals kept apart, one table row each.
    recordings
        Digest of the recordings.
    version
        Of the product that made it.
    """

    model_config = ConfigDict(frozen=True)

    task: str
    layers: dict[str, tuple[int, ...]]
    form: Literal["relational", "paper"]
    settings: dict[str, Any]
    memory: float = 0.0
    attacks: tuple[str, ...] = ()
    training: dict[str, Any] = {}
    validation: tuple[dict[str, Any], ...] = ()
    recordings: str = ""
    version: str = __version__


class Defence:
    """A form that has learned, and what it was made for.

    Parameters
    ----------
    form
        The network.
    about
        What it was made for and from.
    digest
        Of its file; empty where it has none yet.
    """

    def __init__(self, form: Form, about: DefenceAbout, digest: str = "") -> None:
        # The network is tiny: at use it can afford to be exact in the order of the clients.
        self.form, self.about, self.digest = form.double().eval(), about, digest

    @property
    def needs_anchor(self) -> bool:
        """Whether it compares clients with the server's own update."""
        return bool(self.about.settings.get("anchor", False))

    def check_layers(self, names: Sequence[str]) -> None:
        """Refuse a model with other layers; their shapes may differ, as another head's do.

        Raises
        ------
        InputError
            The message names the first layer that differs.
        """
        wanted = list(self.about.layers)
        missing = [name for name in wanted if name not in names]
        extra = [name for name in names if name not in wanted]
        if not missing and not extra:
            return
        what = f"lacks {missing[0]!r}" if missing else f"has {extra[0]!r} besides"
        raise InputError(
            f"the defence was trained for another model ({self.about.task}, {len(wanted)} layers): "
            f"this one {what}. Train a defence for it"
        )

    @torch.no_grad()
    def weigh(self, grams: Tensor, evidence: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Weigh the clients of one round.

        Parameters
        ----------
        grams
            Inner products by layer, (layers, n, n), the anchor last where it is needed.
        evidence
            From earlier rounds, (n,).

        Returns
        -------
        weights
            (n,), float64, summing to one.
        scores
            Of the last pass, (n,).
        """
        given = None if evidence is None else evidence[None]
        weighed = self.form(self.form.prepare(grams[None]), given)
        return weighed.shares[0], weighed.scores[-1, 0]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file; it is replaced whole or not at all."""
        # A shared encoder is there twice by name, and the format has no shared tensors.
        tensors = {name: tensor.clone() for name, tensor in self.form.state_dict().items()}
        about = self.about.model_dump(mode="json")
        write_atomically(tensors, path, described(format=_FORMAT, about=about))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Defence:
        """Read what `save` wrote.

        Raises
        ------
        InputError
            There is no such file, it is damaged, no defence, or of an unknown version.
        """
        try:
            tensors = load_mapped(path)
        except InputError as error:
            raise InputError(f"the defence {error}") from error
        description = read_description(path)
        found = str(description.get("format", ""))
        if not found.startswith("fedimmune-defence-"):
            raise InputError(f"{path} is no defence: `fedimmune train` makes one")
        if found != _FORMAT:
            raise InputError(
                f"{path} is a defence of an unknown version ({found}); this product "
                f"({__version__}) reads {_FORMAT}"
            )
        try:
            about = DefenceAbout.model_validate(description["about"])
            form = make_form(about.form, about.settings)
            form.load_state_dict({name: tensor.clone() for name, tensor in tensors.items()})
        except (KeyError, ValidationError, RuntimeError) as error:
            first = str(error).strip().splitlines()[0]
            raise InputError(f"the defence {path} is damaged: {first}") from error
        if about.settings["layers"] != len(about.layers):
            raise InputError(
                f"the defence {path} is damaged: it is for {about.settings['layers']} layers and "
                f"names {len(about.layers)}"
            )
        if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values()):
            raise InputError(f"the defence {path} is damaged: it holds values that are not finite")
        return cls(form, about, hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16])


def make_form(name: str, settings: dict[str, Any]) -> Form:
    """Make an untrained form."""
    if name == "relational":
        return Relational(RelationalSettings(**settings))
    chosen = PrincipalSettings(**settings)
    return Principal(chosen) if chosen.attention else Perceptron(chosen)
