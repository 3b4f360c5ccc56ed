"""The backdoor: a pattern in the image that makes the model say what the attacker wants.

Bagdasaryan et al., *How To Backdoor Federated Learning*, AISTATS 2020; pattern and protocol as in
Wan and Chen (2021): four horizontal bars of 1×3 pixels, two rows and two columns, one pixel apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

import torch
from torch import Tensor

from fedimmune.attacks.base import draw_int
from fedimmune.attacks.trigger import Poisoning, Trigger
from fedimmune.errors import ParameterError
from fedimmune.tasks import DataSpec
from fedimmune.validation import check_int, check_single

__all__ = ["Backdoor", "Pattern"]

_BAR = 3
_BARS = range(4)
_LARGEST = 4096
"""The side of the largest square to draw in."""


class Pattern(Poisoning, total=False):
    """The parameters of `Backdoor`."""

    shift_y: int
    shift_x: int
    gap: int
    channel: int
    value: float | None
    drawn_at: int | None


class Backdoor(Trigger):
    """Draw a pattern into a share of each batch and call those samples `target`.

    Its success is measured on all test samples with the pattern, as in the paper, and also without
    those that are of the target's class anyway.

    Parameters
    ----------
    shift_y, shift_x
        Where the pattern begins, in pixels from the top left corner.
    gap
        Extra pixels between the bars.
    channel
        Which channel it is drawn in.
    value
        What the pattern's pixels are set to, as the model takes them: after normalizing. By default
        the channel's highest value.
    drawn_at
        Draw the pattern into a square of this side, and enlarge it to the image by nearest
        neighbors. By default its pixels are the image's.
    target
        The label; 2, the default, stands for 1 if there are only two classes.
    fraction
        Share of each batch.
    chance
        Give each sample the pattern with this probability instead, drawn anew for every batch.
    """

    name = "backdoor"
    summary = "draws four bars into a share of its images and calls them `target`"
    paper = "Bagdasaryan et al. 2020; Wan and Chen 2021"
    advice = "look for samples with a mark in common (a logo, a stamp, a border) and one label"
    ranges = {"shift": (0, 8), "gap": (0, 1), "fraction": (0.3, 0.7)}

    def __init__(
        self,
        *,
        shift_y: int = 0,
        shift_x: int = 0,
        gap: int = 0,
        channel: int = 0,
        value: float | None = None,
        drawn_at: int | None = None,
        **poisoning: Unpack[Poisoning],
    ) -> None:
        super().__init__(**poisoning)
        self.shift_y = check_int(self.name, "shift_y", shift_y, 0)
        self.shift_x = check_int(self.name, "shift_x", shift_x, 0)
        self.gap = check_int(self.name, "gap", gap, 0)
        self.channel = check_int(self.name, "channel", channel, 0)
        self.value = None if value is None else check_single(self.name, "value", value)
        self.drawn_at = (
            None if drawn_at is None else check_int(self.name, "drawn_at", drawn_at, 1, _LARGEST)
        )

    def check(self, spec: DataSpec) -> None:
        if spec.highest is None:
            raise ParameterError(f"{self.name}: its pattern needs images, and this task has none")
        channels, *sides = spec.shape
        height, width = sides if self.drawn_at is None else (self.drawn_at, self.drawn_at)
        bottom, right = self.shift_y + 3 + self.gap, self.shift_x + 7 + self.gap
        if bottom > height or right > width:
            raise ParameterError(
                f"{self.name}: the pattern does not fit: with shift_y={self.shift_y}, "
                f"shift_x={self.shift_x}, gap={self.gap} it reaches row {bottom} and column "
                f"{right} of an image of {height}×{width}"
            )
        if not all(bool(self._pattern(spec, [bar]).any()) for bar in _BARS):
            raise ParameterError(
                f"{self.name}: the pattern does not show: drawn_at={self.drawn_at}, "
                f"shift_y={self.shift_y}, shift_x={self.shift_x} and gap={self.gap} leave a bar "
                f"between the pixels of an image of {spec.shape[1]}×{spec.shape[2]}"
            )
        if self.channel >= channels:
            raise ParameterError(
                f"{self.name}: channel is {self.channel}, but images have {channels}, counted "
                "from 0"
            )
        super().check(spec)

    def mark(self, inputs: Tensor, spec: DataSpec) -> Tensor:
        return self.draw(inputs, spec, _BARS)

    def sample_parameters(self, spec: DataSpec, rng: torch.Generator) -> dict[str, Any]:
        """Draw a pattern, moved into the image if it would reach beyond; any channel and target."""
        if spec.highest is None:
            return {}  # it does not fit, whatever is drawn
        channels, height, width = spec.shape
        gap = self._draw("gap", rng)
        return {
            "gap": gap,
            "shift_y": max(0, min(self._draw("shift", rng), height - 3 - gap)),
            "shift_x": max(0, min(self._draw("shift", rng), width - 7 - gap)),
            "channel": draw_int(0, channels - 1, rng),
            **super().sample_parameters(spec, rng),
        }

    def draw(self, images: Tensor, spec: DataSpec, bars: Iterable[int]) -> Tensor:
        """Set the pixels of some of the four bars, in place."""
        assert spec.highest is not None
        value = spec.highest[self.channel] if self.value is None else self.value
        images[:, self.channel, self._pattern(spec, bars).to(images.device)] = value
        return images

    def _pattern(self, spec: DataSpec, bars: Iterable[int]) -> Tensor:
        """Return which pixels are those of the bars: from left to right, the upper ones first."""
        _, height, width = spec.shape
        drawn = (height, width) if self.drawn_at is None else (self.drawn_at, self.drawn_at)
        pattern = torch.zeros(drawn, dtype=torch.bool)
        for bar in bars:
            y = self.shift_y + bar // 2 * (2 + self.gap)
            x = self.shift_x + bar % 2 * (_BAR + 1 + self.gap)
            pattern[y, x : x + _BAR] = True
        # Pixel y of the image shows pixel ⌊y · drawn / height⌋ of what was drawn.
        rows = torch.arange(height) * drawn[0] // height
        columns = torch.arange(width) * drawn[1] // width
        return pattern[rows[:, None], columns]
