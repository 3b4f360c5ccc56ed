"""Late layers: only the layers next to the output are negated.

Who negates a few numbers of many hardly moves lengths and cosines of the whole update, on which
most rules look, and still turns what the model says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from torch import Tensor

from fedimmune._layers import Kind, Layer, layers_of
from fedimmune.attacks.base import Attack, Context
from fedimmune.errors import ParameterError
from fedimmune.validation import check_float, check_int

__all__ = ["LateLayers"]


class LateLayers(Attack):
    """Send the last layers' update times −`scale`, and the others' as trained.

    Parameters
    ----------
    layers
        How many of the last layers; a weight and its bias are one. Or names, with ``*`` and ``?``:
        ``["fc2", "conv*.bias"]``.
    scale
        How many times the update; 1 leaves its length as it is.
    """

    name = "late-layers"
    summary = "sends its last layers' update times −scale"
    label = "late layers"
    advice = (
        "check the last layers of what you send: are labels in another order, or the sign turned?"
    )
    ranges = {"layers": (1, 2), "scale": (1.0, 3.0)}

    def __init__(self, *, layers: int | Sequence[str] = 1, scale: float = 1.0) -> None:
        if isinstance(layers, int | float):
            self.layers: int | tuple[str, ...] = check_int(self.name, "layers", layers, 1)
        elif isinstance(layers, str) or not layers or not all(isinstance(n, str) for n in layers):
            raise ParameterError(
                f"late-layers: layers must be a number of layers or a list of names: {layers!r}"
            )
        else:
            self.layers = tuple(layers)
        self.scale = check_float(self.name, "scale", scale, 0)

    def check_model(self, layers: Sequence[Layer]) -> None:
        known = dict.fromkeys(_modules(layers).values())
        if isinstance(self.layers, int):
            if self.layers > len(known):
                raise ParameterError(
                    f"late-layers: layers is {self.layers}, but the model has {len(known)} that "
                    "are trained"
                )
            return
        for pattern in self.layers:
            if not any(_named(pattern, *pair) for pair in _modules(layers).items()):
                raise ParameterError(
                    f"late-layers: the model has no trained layer {pattern!r}; it has "
                    f"{', '.join(known)}"
                )

    def on_update(self, update: Mapping[str, Tensor], context: Context) -> None:
        modules = _modules(layers_of(update))
        last = list(dict.fromkeys(modules.values()))
        for name, module in modules.items():
            if isinstance(self.layers, int):
                negated = module in last[-self.layers :]
            else:
                negated = any(_named(pattern, name, module) for pattern in self.layers)
            if negated:
                update[name].mul_(-self.scale)


def _modules(layers: Sequence[Layer]) -> dict[str, str]:
    """Return what each trained tensor belongs to, in the model's order: "fc2" for "fc2.weight"."""
    names = [layer.name for layer in layers if layer.kind is Kind.PARAMETER]
    return {name: name.rpartition(".")[0] or name for name in names}


def _named(pattern: str, name: str, module: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(module, pattern)
