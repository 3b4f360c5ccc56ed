"""A defense: the trained network, and the file with everything there is to know about it.

One safetensors file: weights as tensors, the rest as JSON in its metadata. No pickle anywhere.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedimmune.adaptive.attack_kinds import Kinds
from fedimmune.adaptive.description import Ancestor, DefenseAbout, Epoch
from fedimmune.adaptive.models.base import AttentionModel, Inputs, with_tensors
from fedimmune.adaptive.models.paper import Perceptron, Principal, PrincipalSettings
from fedimmune.adaptive.models.relational import Relational, RelationalSettings
from fedimmune.adaptive.models.universal import Universal, UniversalSettings
from fedimmune.adaptive.replay import PREFIX, pack, unpack
from fedimmune.adaptive.split import Split
from fedimmune.errors import InputError
from fedimmune.io import read_described, write_described, write_text_atomically
from fedimmune.landmarks import Landmarks
from fedimmune.untrusted import naming

__all__ = [
    "UNIVERSAL_FILE",
    "Ancestor",
    "Defense",
    "DefenseAbout",
    "Judged",
    "make_form",
    "universal",
]

UNIVERSAL_FILE = Path(__file__).with_name("universal.safetensors")
"""What ships with the package."""
_FORMAT = "fedimmune-defense-3"
_KINDS = "kinds/"
"""Prefix of the names of the classifier's tensors."""


@dataclass(frozen=True)
class Judged:
    """How a defense judges the clients of one round.

    Parameters
    ----------
    weights
        (n,), float64, summing to one.
    scores
        Of the last pass, (n,).
    logits
        What the weights follow from, (n,): c times the score, and evidence.
    familiar
        Whether the round looks like those that the defense was trained on.
    kinds
        Logarithms of the probabilities of the defense's kinds of attack, the last being that of
        unknown, (n, kinds + 1); None if it knows no kinds or nobody is suspected.
    """

    weights: Tensor
    scores: Tensor
    logits: Tensor
    familiar: bool = True
    kinds: Tensor | None = None


class Defense:
    """A trained form, and what it was made for.

    Parameters
    ----------
    form
        The network.
    about
        What it was made for and from.
    digest
        Of its file; empty if it has none yet.
    replay
        A sample of what it was made from, to be trained on again in a patch.
    kinds
        Tells kinds of attack apart; None if it knows none.
    curve
        The learning curve of a training that has just ended; empty for a defense from a file.
    """

    def __init__(
        self,
        form: AttentionModel,
        about: DefenseAbout,
        digest: str = "",
        *,
        replay: Split | None = None,
        kinds: Kinds | None = None,
        curve: Sequence[Epoch] = (),
    ) -> None:
        # In float64 the order of the clients does not matter, and the network is small enough.
        self.form, self.about, self.digest = form.double().eval(), about, digest
        self.replay = replay or Split()
        self.kinds, self.curve = kinds, tuple(curve)

    @property
    def references(self) -> tuple[str, ...]:
        """What it compares clients with besides each other: ``anchor``, or nothing."""
        return self.form.references

    @property
    def is_universal(self) -> bool:
        """Whether it weighs clients of any model, with an anchor and without."""
        return self.about.form == Universal.name

    def describe(self) -> list[tuple[str, str]]:
        """Return what there is to know about it, as names and values for people."""
        facts = self.about.describe()
        if self.replay.every:
            rounds = sum(len(recording) for recording in self.replay.every)
            facts.append(("kept to learn again", f"{rounds} rehearsed rounds"))
        if self.kinds is not None:
            facts.append(("tells apart", ", ".join(self.kinds.names)))
        return facts

    def check_layers(self, layers: Mapping[str, Sequence[int]], *, any_shape: bool = False) -> None:
        """Refuse a model with other layers than the defense was trained for; universal takes all.

        Parameters
        ----------
        layers
            Shapes by name.
        any_shape
            Whether other shapes will do, such as those of another head.

        Raises
        ------
        InputError
            The message names the first layer that differs.
        """
        if self.is_universal:
            return
        wanted = self.about.layers
        missing = [name for name in wanted if name not in layers]
        extra = [name for name in layers if name not in wanted]
        other = [] if any_shape or missing else [n for n in wanted if wanted[n] != (*layers[n],)]
        advice = "Train a defense for it"
        if missing:
            what = f"lacks {missing[0]!r}"
        elif extra:
            what = f"has {extra[0]!r} besides"
        elif other:
            name = other[0]
            what = f"has {name!r} of shape {(*layers[name],)}, not {wanted[name]}"
            advice += ", or allow other shapes (any_shape=True, --set any_shape=true)"
        else:
            return
        raise InputError(
            f"the defense was trained for another model ({self.about.task}, {len(wanted)} layers): "
            f"this one {what}. {advice}"
        )

    @torch.no_grad()
    def judge(
        self,
        grams: Tensor,
        evidence: Tensor | None = None,
        *,
        shapes: Sequence[Sequence[int]] = (),
        anchored: bool = False,
        threshold: float = 0.0,
    ) -> Judged:
        """Weigh the clients of one round, and classify suspects.

        Parameters
        ----------
        grams
            Inner products by layer, (layers, rows, rows): of the clients, then of `references`.
        evidence
            From earlier rounds, (n,).
        shapes
            Of the layers, in order; a universal defense needs them.
        anchored
            Whether the last row is the anchor's, if the defense is universal.
        threshold
            Of a universal defense: whoever's logit is below it gets no weight.
        """
        inputs = self.form.prepare(grams[None], shapes, anchored=anchored)
        return self._judge(inputs, evidence, threshold)

    @torch.no_grad()
    def judge_many(
        self,
        marks: Landmarks,
        evidence: Tensor | None = None,
        *,
        anchored: bool = False,
        threshold: float = 0.0,
    ) -> Judged:
        """Do the same for a round of many clients that were compared with landmarks.

        Every estimate of the robust mean takes a read of the round. For a universal defense.
        """
        assert isinstance(self.form, Universal)
        inputs = self.form.prepare_many(marks, anchored=anchored)
        return self._judge(inputs, evidence, threshold)

    def _judge(self, inputs: Inputs, evidence: Tensor | None, threshold: float) -> Judged:
        moved = None if evidence is None else evidence[None]
        if threshold:
            moved = (0.0 if moved is None else moved) - torch.tensor([threshold]).double()
        weighed = self.form(inputs, moved)
        weights, scores = weighed.shares[0], weighed.scores[-1, 0]
        logits, familiar = weighed.logits[0] + threshold, bool(self.form.familiar(inputs))
        if self.kinds is None or bool((weights > 0).all()):
            return Judged(weights, scores, logits, familiar)
        estimate = self.form.estimate(inputs, weighed.shares)
        seen = self.form.describe(inputs, estimate)
        return Judged(weights, scores, logits, familiar, self.kinds(seen)[0])

    def weigh(
        self, grams: Tensor, evidence: Tensor | None = None, **about: Any
    ) -> tuple[Tensor, Tensor]:
        """Return only the weights and scores of `judge`, which takes what else is there."""
        judged = self.judge(grams, evidence, **about)
        return judged.weights, judged.scores

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file; it is replaced whole or not at all.

        After training, the learning curve is written to FILE.curve.csv first.
        """
        if self.curve:
            lines = [f"{e.number},{e.training:.6g},{e.validation:.6g}" for e in self.curve]
            text = "\n".join(["epoch,training,validation", *lines]) + "\n"
            write_text_atomically(text, f"{os.fspath(path)}.curve.csv")
        # A shared encoder has two names, and the format has no shared tensors.
        tensors = {name: tensor.clone() for name, tensor in self.form.state_dict().items()}
        about = self.about.model_dump(mode="json")
        replayed, replay = pack(self.replay, self.about.layers)
        kinds, classifier = self.kinds, {}
        if kinds is not None:
            classifier = {f"{_KINDS}{n}": t.clone() for n, t in kinds.state_dict().items()}
        names = None if kinds is None else kinds.names[:-1]
        every = tensors | classifier | replayed
        write_described(every, path, format=_FORMAT, about=about, replay=replay, kinds=names)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Defense:
        """Read what `save` wrote.

        Raises
        ------
        InputError
            There is no such file, or it is damaged, not a defense, or of an unknown version.
        """
        tensors, description = read_described(path, _FORMAT, made_by="fedimmune train")
        parts: dict[str, dict[str, Tensor]] = {PREFIX: {}, _KINDS: {}, "": {}}
        for name, tensor in tensors.items():
            parts[next(prefix for prefix in parts if name.startswith(prefix))][name] = tensor
        with naming(f"the defense {path}"):
            about = DefenseAbout.model_validate(description.get("about"))
            form = with_tensors(lambda: make_form(about.form, about.settings), parts[""])
            # As they were parsed: true may have been written as text.
            about = about.model_copy(update={"settings": form.settings.model_dump()})
            if about.settings["layers"] != len(about.layers) and about.form != Universal.name:
                raise InputError(
                    f"it is for {about.settings['layers']} layers and names {len(about.layers)}"
                )
            replay = unpack(parts[PREFIX], description.get("replay"), about.layers)
            kinds = _read_kinds(description.get("kinds"), parts[_KINDS], form)
        digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]
        return cls(form, about, digest, replay=replay, kinds=kinds)


def _read_kinds(names: object, tensors: dict[str, Tensor], form: AttentionModel) -> Kinds | None:
    if names is None and not tensors:
        return None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError("it does not say which kinds of attack it tells apart")
    plain = {name.removeprefix(_KINDS): tensor for name, tensor in tensors.items()}
    kinds = Kinds.from_tensors(names, plain)
    if len(kinds.mean) != form.described_by:
        raise InputError(
            f"it tells kinds of attack apart by {len(kinds.mean)} numbers, and its network has "
            f"{form.described_by}"
        )
    return kinds


def make_form(name: str, settings: dict[str, Any]) -> AttentionModel:
    """Make an untrained form."""
    if name == Relational.name:
        return Relational(RelationalSettings(**settings))
    if name == Universal.name:
        return Universal(UniversalSettings(**settings))
    chosen = PrincipalSettings(**settings)
    return Principal(chosen) if chosen.attention else Perceptron(chosen)


@cache
def universal() -> Defense:
    """Return the defense that ships with the package: for any model, without rehearsals."""
    return Defense.load(UNIVERSAL_FILE)
