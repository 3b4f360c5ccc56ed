"""Label flipping: an attacker trains on wrong labels.

Fung et al., *The Limitations of Federated Learning in Sybil Settings*, RAID 2020, flip one class to
another; Wan and Chen (2021) swap the two classes of IMDb.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedimmune.attacks.base import Attack, Context, TriggeredBatch
from fedimmune.errors import ParameterError
from fedimmune.tasks import DataSpec
from fedimmune.validation import check_choice, check_int

__all__ = ["LabelFlip"]

_KINDS = ("swap", "map", "reverse", "permutation")


class LabelFlip(Attack):
    """Train on wrong labels.

    Its success is measured on the test samples of class `source`: the share of them that the
    model takes for what attackers call them.

    Parameters
    ----------
    kind
        ``map``: `source` is called `target`. ``swap``: and `target` is called `source`.
        ``reverse``: the first class is called the last, and so on. ``permutation``: as in
        `permutation`. By default ``swap`` if there are two classes, else ``map``.
    source, target
        The pair of classes; by default 1 → 7 as in the paper, 1 → the last class if there are fewer
        than eight, or 0 → 1 if there are two; if the source is that target, the other way round.
        With ``reverse`` and ``permutation`` the target follows from the source, by default the
        class 1, or the first that moves if it does not.
    permutation
        The new label of each class, in order.
    """

    name = "label-flip"
    summary = "trains on wrong labels: one class as another, two swapped, or all permuted"
    paper = "Fung et al. 2020"
    label = "label flip"
    advice = "check your labels: are classes swapped, shifted by one, or in another order?"

    def __init__(
        self,
        *,
        kind: str | None = None,
        source: int | None = None,
        target: int | None = None,
        permutation: Sequence[int] | None = None,
    ) -> None:
        if permutation is not None and kind is None:
            kind = "permutation"
        self.kind = None if kind is None else check_choice(self.name, "kind", kind, _KINDS)
        self.source = None if source is None else check_int(self.name, "source", source, 0)
        self.target = None if target is None else check_int(self.name, "target", target, 0)
        self.permutation = _permutation(permutation)
        if (self.kind == "permutation") != (self.permutation is not None):
            raise ParameterError(
                "label-flip: `permutation` lists the new label of each class, and goes with "
                "kind=permutation"
            )
        if self.kind in {"reverse", "permutation"} and target is not None:
            raise ParameterError(f"label-flip: the target follows from kind={self.kind}")

    def check(self, spec: DataSpec) -> None:
        source, target = self._pair(spec)
        for name, label in (("source", source), ("target", target)):
            if label >= spec.classes:
                raise ParameterError(
                    f"label-flip: {name} is {label}, but the classes run from 0 to "
                    f"{spec.classes - 1}"
                )
        if self.permutation is not None and len(self.permutation) != spec.classes:
            raise ParameterError(
                f"label-flip: the permutation has {len(self.permutation)} labels for "
                f"{spec.classes} classes"
            )
        if source == target:
            raise ParameterError(f"label-flip: class {source} would keep its label")

    def on_batch(self, inputs: Tensor, labels: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        return inputs, self._new_labels(context.spec).to(labels.device)[labels]

    def triggered(self, inputs: Tensor, labels: Tensor, spec: DataSpec) -> TriggeredBatch | None:
        source, target = self._pair(spec)
        chosen = inputs[labels == source]
        none_is = torch.zeros(len(chosen), dtype=torch.bool, device=labels.device)
        return TriggeredBatch(chosen, target, none_is)

    def sample_parameters(self, spec: DataSpec, rng: torch.Generator) -> dict[str, Any]:
        """Draw a pair of classes."""
        source, target = torch.randperm(spec.classes, generator=rng)[:2].tolist()
        return {"kind": "map", "source": source, "target": target}

    def _pair(self, spec: DataSpec) -> tuple[int, int]:
        if self.kind in {"reverse", "permutation"}:
            new = self._all_new(spec)
            moving = [label for label in (1, *range(len(new))) if new[label : label + 1] != [label]]
            source = self.source if self.source is not None else (moving or [0])[0]
            return source, new[source] if source < len(new) else source
        usual = (0, 1) if spec.classes == 2 else (1, min(7, spec.classes - 1))
        source = usual[0] if self.source is None else self.source
        other = usual[0] if source == usual[1] else usual[1]
        return source, other if self.target is None else self.target

    def _all_new(self, spec: DataSpec) -> list[int]:
        """Return the new label of every class, of the kinds that move all of them."""
        return list(self.permutation or range(spec.classes - 1, -1, -1))

    def _new_labels(self, spec: DataSpec) -> Tensor:
        if self.kind in {"reverse", "permutation"}:
            return torch.tensor(self._all_new(spec))
        labels = torch.arange(spec.classes)
        source, target = self._pair(spec)
        kind = self.kind or ("swap" if spec.classes == 2 else "map")
        labels[source] = target
        if kind == "swap":
            labels[target] = source
        return labels


def _permutation(given: Sequence[int] | None) -> tuple[int, ...] | None:
    if given is None:
        return None
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise ParameterError(f"label-flip: permutation must be a list of labels: {given!r}")
    labels = tuple(check_int("label-flip", "a label of permutation", label, 0) for label in given)
    if sorted(labels) != list(range(len(labels))):
        raise ParameterError(
            f"label-flip: a permutation names every class from 0 once, as [1, 0, 2] does: {given!r}"
        )
    return labels
