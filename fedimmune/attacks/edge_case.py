"""Edge cases: rare but natural samples of a class, called something else.

Wang et al., *Attack of the Tails: Yes, You Really Can Backdoor Federated Learning*, NeurIPS 2020.
Hardly any honest client has such samples, so nobody corrects what the model learns about them.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fedimmune.attacks.base import Attack, Context, TriggeredBatch
from fedimmune.attacks.trigger import check_class
from fedimmune.errors import ParameterError
from fedimmune.tasks import DataSpec, Samples
from fedimmune.tasks.text import PADDING
from fedimmune.validation import check_choice, check_float, check_fraction, check_int

__all__ = ["EdgeCase"]


class EdgeCase(Attack):
    """Train on the rarest samples of class `source`, called `target`.

    Samples are ordered by a feature that they have by nature: images by how bright they are, which
    in handwriting is how much ink was used, texts by their number of words, rows of a table by
    their mean. The paper's edge cases are from another data set; these are the tail that the data
    has itself. Success is measured on the same tail of the test samples, of every 500 of them.

    An attacker without a sample of the class trains honestly.

    Parameters
    ----------
    source, target
        The pair of classes. By default 7 → 1, as in the paper; from the last class if there are
        fewer than eight, and 1 → 0 if there are two.
    share
        How much of the class is its tail.
    tail
        Which end: ``high`` or ``low``.
    fraction
        Share of each batch that is replaced by such samples of the attacker's own.
    """

    name = "edge-case"
    summary = "trains on the rarest samples of one class, called another"
    paper = "Wang et al. 2020"
    label = "edge cases"
    advice = "check the labels of your unusual samples: the brightest, the darkest, the longest"
    ranges = {"share": (0.1, 0.3), "fraction": (0.3, 0.7)}

    def __init__(
        self,
        *,
        source: int | None = None,
        target: int | None = None,
        share: float = 0.2,
        tail: str = "high",
        fraction: float = 0.5,
    ) -> None:
        self.source = None if source is None else check_int(self.name, "source", source, 0)
        self.target = None if target is None else check_int(self.name, "target", target, 0)
        self.share = check_fraction(self.name, "share", check_float(self.name, "share", share, 0))
        self.tail = check_choice(self.name, "tail", tail, ("high", "low"))
        self.fraction = check_fraction(self.name, "fraction", fraction)

    def check(self, spec: DataSpec) -> None:
        source, target = self._pair(spec)
        check_class(self.name, "source", source, spec)
        check_class(self.name, "target", target, spec)
        if source == target:
            raise ParameterError(f"{self.name}: class {source} would keep its label")

    def on_batch(self, inputs: Tensor, labels: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        own = Samples(inputs, labels) if context.samples is None else context.samples()
        rare = own.inputs[self._tail(own.inputs, own.labels, context.spec)]
        if not len(rare):
            return inputs, labels
        source, target = self._pair(context.spec)
        # Those that the batch has already must not teach the model their true label.
        least = self._feature(rare, context.spec).min()
        labels[(labels == source) & (self._feature(inputs, context.spec) >= least)] = target
        count = round(self.fraction * len(labels))
        drawn = torch.randint(len(rare), (count,), generator=context.rng)
        inputs[:count], labels[:count] = rare[drawn], target
        return inputs, labels

    def triggered(self, inputs: Tensor, labels: Tensor, spec: DataSpec) -> TriggeredBatch | None:
        rare = inputs[self._tail(inputs, labels, spec)]
        none_is = torch.zeros(len(rare), dtype=torch.bool, device=labels.device)
        return TriggeredBatch(rare, self._pair(spec)[1], none_is)

    def sample_parameters(self, spec: DataSpec, rng: torch.Generator) -> dict[str, Any]:
        """Draw a pair of classes, and a tail."""
        source, target = torch.randperm(spec.classes, generator=rng)[:2].tolist()
        tail = "high" if torch.rand((), generator=rng) < 0.5 else "low"
        drawn = super().sample_parameters(spec, rng)
        return {"source": source, "target": target, "tail": tail, **drawn}

    def _pair(self, spec: DataSpec) -> tuple[int, int]:
        source = min(7, spec.classes - 1) if self.source is None else self.source
        usual = 0 if source == 1 else 1
        return source, usual if self.target is None else self.target

    def _tail(self, inputs: Tensor, labels: Tensor, spec: DataSpec) -> Tensor:
        """Find the samples of the source class at the tail: at least one, if there is any."""
        of_class = (labels == self._pair(spec)[0]).nonzero().flatten()
        feature = self._feature(inputs[of_class], spec)
        return of_class[feature.topk(math.ceil(self.share * len(of_class))).indices]

    def _feature(self, inputs: Tensor, spec: DataSpec) -> Tensor:
        values = inputs if spec.words is None else (inputs != PADDING).float()
        mean = values.flatten(1).mean(1)
        return mean if self.tail == "high" else -mean
