"""Rounds to test with: as hypothesis strategies, and in every form that users have."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from fedimmune import Aggregation, Rule, Updates, rules
from fedimmune.adaptive.defense import Defense, DefenseAbout
from fedimmune.adaptive.detector import Autoencoder, Detector, DetectorAbout, DetectorSettings
from fedimmune.adaptive.models.relational import Relational, RelationalSettings
from fedimmune.adaptive.recordings import Sampled
from fedimmune.adaptive.spectral import Spectral
from fedimmune.updates import ClientId

SHAPES = {"conv.weight": (3, 2, 2), "conv.bias": (3,), "fc.weight": (4, 5), "scale": ()}
COLUMNS = 12 + 3 + 20 + 1
VECTOR = ("update",)
"""What the one layer of a round of bare vectors is called."""


@st.composite
def matrices(draw: st.DrawFn, least: int = 5, most: int = 12, columns: int = COLUMNS) -> Tensor:
    """Rounds without ties or symmetries: a common direction, noise, and some far-off clients."""
    n = draw(st.integers(least, most))
    seed = draw(st.integers(0, 2**32 - 1))
    random = np.random.default_rng(seed)
    common = draw(st.sampled_from([0.0, 1.0, 5.0])) * random.standard_normal(columns)
    rows = common + random.standard_normal((n, columns))
    odd = draw(st.integers(0, max(0, (n - 3) // 2)))
    rows[:odd] *= draw(st.sampled_from([-1.0, -4.0, 20.0]))
    return torch.from_numpy(random.permutation(rows))


def rule_for(
    name: str, clients: Sequence[ClientId], layers: Collection[str] = VECTOR, **parameters: Any
) -> Rule:
    """Make any registered rule.

    The oracle is told that the last of the clients attacks. The learned rule gets a defense for
    the model at hand, which is why `layers` are named wherever clients do not send bare vectors.
    """
    if name == "oracle":
        parameters.setdefault("attackers", [clients[-1]])
    if "noise" in rules.find(name).parameters():
        parameters.setdefault("noise", 0)
    rule = rules.get(name, **parameters, **needs_of(name, layers))
    if isinstance(rule, Spectral):
        return fitted(rule)
    if rule.has_history:
        rule = forgetful(rule)
    return supplied(rule) if rule.needs else rule


def forgetful(rule: Rule) -> Rule:
    """Let every round be a rule's first."""
    fresh = deepcopy(rule)
    rule.aggregate = lambda updates: deepcopy(fresh).aggregate(updates)  # type: ignore[method-assign]
    return rule


def fitted(rule: Spectral) -> Rule:
    """Let a rule have an untrained detector for the model of whatever round it is given."""
    plain = rule.aggregate

    def aggregate(updates: Any) -> Aggregation:
        given = Updates.of(updates)
        rule.loaded = detector_for({layer.name: layer.shape for layer in given.layers})
        return plain(given)

    rule.aggregate = aggregate  # type: ignore[method-assign]
    return rule


def supplied(rule: Rule) -> Rule:
    """Let a rule find what it needs with every round, if it is not there: made of the clients'."""
    plain = rule.aggregate

    def aggregate(updates: Any) -> Aggregation:
        return plain(complete(rule, Updates.of(updates)))

    rule.aggregate = aggregate  # type: ignore[method-assign]
    return rule


def complete(rule: Rule, updates: Updates) -> Updates:
    """Add what a rule needs to a round that comes without it."""
    missing = rule.needs - updates.supplied
    if not missing:
        return updates
    valid = updates.checked()
    states = [valid.state(client) for client in valid.clients]
    nothing = {layer.name: torch.zeros(layer.shape, dtype=layer.dtype) for layer in updates.layers}
    return with_needs(updates, missing, states or [nothing])


def with_needs(
    updates: Updates, needs: Collection[str], states: Sequence[Mapping[str, Tensor]]
) -> Updates:
    """Supply a round: the anchor is the median of the updates, the global model thrice that."""
    anchor = {
        name: torch.stack([state[name].double() for state in states]).quantile(0.5, dim=0)
        for name in states[0]
    }
    like = states[0]
    if "anchor" in needs:
        updates = updates.with_anchor({k: v.to(like[k].dtype) for k, v in anchor.items()})
    if "model" in needs:
        model = {k: (3 * v).to(like[k].dtype) for k, v in anchor.items()}
        updates = updates.with_reference("model", model)
    if "server_loss" in needs:

        def loss(update: Any) -> float:
            moved = update if isinstance(update, Mapping) else dict.fromkeys(VECTOR, update)
            here, there = (torch.cat([t.reshape(-1) for t in s.values()]) for s in (moved, anchor))
            return float((here.double() - there).square().sum())

        updates = updates.with_server_loss(loss)
    return updates


def needs_of(name: str, layers: Collection[str] = VECTOR) -> dict[str, Any]:
    """Give what a rule cannot be made without."""
    if name == "spectral":
        shapes = layers if isinstance(layers, Mapping) else dict.fromkeys(layers, (2, 3))
        return {"detector": str(detector_file(tuple(shapes.items())))}
    if name != "adaptive":
        return {}
    # What a network says by chance may be odd: a rule that skipped such rounds would show nothing.
    keep = {"any_shape": True, "on_majority": "keep"}
    return {"defense": str(defense_file(tuple(layers))), **keep}


@cache
def defense_file(layers: tuple[str, ...]) -> Path:
    """Write a defense that has learned nothing, once a session: what it says is by chance alone.

    Its weights are thrice as large as a fresh network's, so that it does leave some clients out:
    all that a rule has to do must hold for whatever a network says.
    """
    folder = Path(tempfile.mkdtemp(prefix="fedimmune-defense-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    settings = RelationalSettings(layers=len(layers), anchor=False)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        form = Relational(settings)
    for parameter in form.parameters():
        parameter.data *= 3
    about = DefenseAbout(
        task="of a test",
        layers=dict.fromkeys(layers, (1,)),
        form="relational",
        settings=settings.model_dump(),
    )
    Defense(form, about).save(folder / "untrained.defense")
    return folder / "untrained.defense"


def detector_for(shapes: Mapping[str, tuple[int, ...]]) -> Detector:
    """Make a detector that has learned nothing, of at most seven values of the last layer."""
    # A file may have the layers in another order.
    sampled = Sampled.of(dict(sorted(shapes.items())), 7)
    settings = DetectorSettings(hidden=(6,), latent=2)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        network = Autoencoder(len(sampled.indices), settings)
    shape = tuple(shapes[sampled.layer])
    about = DetectorAbout(task="of a test", shape=shape, sampled=sampled, settings=settings)
    return Detector(network, about)


@cache
def detector_file(shapes: tuple[tuple[str, tuple[int, ...]], ...]) -> Path:
    """Write such a detector, once a session."""
    folder = Path(tempfile.mkdtemp(prefix="fedimmune-detector-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    detector_for({name: tuple(shape) for name, shape in shapes}).save(folder / "untrained.detector")
    return folder / "untrained.detector"


def as_states(matrix: Tensor) -> list[dict[str, Tensor]]:
    """Cut each row into the layers of a small model."""
    states = []
    for row in matrix:
        parts = row.split([int(np.prod(shape)) for shape in SHAPES.values()])
        states.append(
            {
                name: part.reshape(shape).clone()
                for (name, shape), part in zip(SHAPES.items(), parts, strict=True)
            }
        )
    return states


def as_vector(state: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([state[name].reshape(-1) for name in SHAPES])


def as_files(states: Sequence[Mapping[str, Tensor]], folder: Path) -> list[Path]:
    paths = [folder / f"client-{index:02}.safetensors" for index in range(len(states))]
    for state, path in zip(states, paths, strict=True):
        save_file(dict(state), path)
    return paths


def in_blocks(updates: Updates, columns: int) -> Updates:
    return replace(updates, block_columns=columns)
