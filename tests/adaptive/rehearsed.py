"""Recordings of rounds that nobody trained: honest clients agree, attackers send the negative."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from fedimmune.adaptive.recordings import About, Recording, Sampled

__all__ = ["LAYERS", "grams_of", "honest_round", "recording", "recordings"]

LAYERS: dict[str, tuple[int, ...]] = {"conv.weight": (4, 5), "fc.weight": (6, 5), "fc.bias": (6,)}


def honest_round(
    n: int, random: torch.Generator, layers: Mapping[str, tuple[int, ...]] = LAYERS
) -> list[dict[str, Tensor]]:
    """Updates of n honest clients: a common direction, and as much of each one's own."""
    size = float(torch.rand((), generator=random) + 0.5)
    common = {name: torch.randn(shape, generator=random).double() for name, shape in layers.items()}
    return [
        {
            name: size * (shared + 0.7 * torch.randn(shared.shape, generator=random).double())
            for name, shared in common.items()
        }
        for _ in range(n)
    ]


def negated(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: -tensor for name, tensor in state.items()}


def grams_of(states: Sequence[Mapping[str, Tensor]], layers: Sequence[str]) -> Tensor:
    """Inner products by their definition, (layers, n, n)."""
    found = [
        [[float((a[name] * b[name]).sum()) for a in states] for b in states] for name in layers
    ]
    return torch.tensor(found, dtype=torch.float64)


def recording(
    run: int = 0,
    *,
    attackers: int = 2,
    n: int = 8,
    rounds: int = 6,
    anchor: bool = False,
    attack: str = "omniscient",
    harm: Callable[[Mapping[str, Tensor]], dict[str, Tensor]] = negated,
    layers: Mapping[str, tuple[int, ...]] = LAYERS,
    save_updates: int = 0,
) -> Recording:
    sampled = Sampled.of(layers, save_updates) if save_updates else None
    values = []
    random = torch.Generator().manual_seed(1000 * run + 10 * attackers + n)
    grams, labels = [], []
    for _ in range(rounds):
        sent = honest_round(n + 1, random, layers)
        bad = set(torch.randperm(n, generator=random)[:attackers].tolist())
        rows = [harm(state) if i in bad else state for i, state in enumerate(sent[:n])]
        stacked = {
            name: torch.stack([r[name].flatten() for r in [*rows, sent[n]]]) for name in layers
        }
        every = torch.stack([matrix @ matrix.T for matrix in stacked.values()])
        if sampled is not None:
            values.append(stacked[sampled.layer][:n, list(sampled.indices)].float())
        grams.append(every if anchor else every[:, :n, :n])
        labels.append([i in bad for i in range(n)])
    about = About(
        task="synthetic",
        layers=dict(layers),
        attack=attack if attackers else "none",
        attackers=attackers,
        clients=n,
        run=run,
        trajectory="oracle",
        references=("anchor",) if anchor else (),
        scenario={},
        sampled=sampled,
    )
    medians = torch.linspace(0.1, 0.2, rounds, dtype=torch.float64)
    kept = torch.stack(values) if values else None
    return Recording(about, torch.stack(grams), torch.tensor(labels), medians, kept)


def recordings(
    runs: int = 3, *, anchor: bool = False, rounds: int = 6, save_updates: int = 0
) -> list[Recording]:
    return [
        recording(run, attackers=count, anchor=anchor, rounds=rounds, save_updates=save_updates)
        for run in range(runs)
        for count in (0, 2, 3)
    ]
