"""Spectral anomaly detection: clients whose update a detector reconstructs badly have no weight.

A detector (`fedimmune.adaptive.detector`) gives each client the error of reconstructing some values
of its update's last layer. The threshold is the mean of the round's errors: clients above it are
left out, and the rest averaged.

References
----------
Li, Cheng, Wang, Liu, Chen: *Learning to Detect Malicious Clients for Robust Federated Learning*,
arXiv:2002.00211. The threshold and the choice were checked against the authors' program, which
weighs those who are left by their numbers of samples: clients' own word, so here equally. The
paper's own text on how the sample is drawn and how the network is trained was not at hand.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

from fedimmune._layers import Kind, Layer
from fedimmune.adaptive.detector import Detector
from fedimmune.errors import InputError, ParameterError
from fedimmune.kernels import values_at
from fedimmune.rules.base import ClientWeights, Common, WeightRule
from fedimmune.rules.selection import mean_of
from fedimmune.updates import Updates

__all__ = ["Spectral"]


class Spectral(WeightRule):
    """The mean of the updates that an autoencoder of honest ones reconstructs better than most.

    In every round whose errors differ somebody is above their mean: honest clients are suspected
    too, above all if nobody attacks. One huge error raises the mean above all smaller ones.

    Parameters
    ----------
    detector
        The file that ``fedimmune train --form spectral`` wrote.
    digest
        Refuse a file with another digest; by default any will do.
    """

    name = "spectral"
    summary = "the mean of updates that a rehearsed autoencoder reconstructs; needs a detector"
    paper = "Li et al. 2020"
    places = frozenset({"detector"})  # `digest` says which it is
    looks_at_layers = True
    squares = False
    is_translation_equivariant = False
    is_scale_equivariant = False
    reads = 2

    def __init__(
        self,
        *,
        detector: str | os.PathLike[str] | None = None,
        digest: str | None = None,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        if detector is None:
            raise ParameterError(
                "spectral: give it a detector, the file that `fedimmune train --form spectral` "
                "wrote"
            )
        self.detector = str(Path(detector))
        try:
            self.loaded = Detector.load(detector)
        except InputError as error:
            raise ParameterError(f"spectral: {error}") from error
        if digest is not None and digest != self.loaded.digest:
            raise ParameterError(
                f"spectral: {detector} is another detector ({self.loaded.digest}) than was asked "
                f"for ({digest})"
            )
        self.digest = self.loaded.digest

    def check_model(self, layers: Sequence[Layer]) -> None:
        self.loaded.check_layers({layer.name: layer.shape for layer in layers})

    def weigh(self, updates: Updates) -> ClientWeights:
        layers = updates.of_kind(Kind.PARAMETER)
        self.check_model(layers)
        sampled = self.loaded.about.sampled
        layer = next(layer for layer in layers if layer.name == sampled.layer)
        kept, errors = self.loaded.judge(values_at(updates, layer, sampled.indices))
        usual = float(errors.mean())
        reasons = {
            client: f"its reconstruction error is {error / usual:.3g} times the round's mean"
            for client, error, is_kept in zip(
                updates.clients, errors.tolist(), kept.tolist(), strict=True
            )
            if not is_kept
        }
        return mean_of(kept, score=errors, reasons=reasons if usual else {})
