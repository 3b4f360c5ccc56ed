"""A client that overwrites its file while the round is being read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save
from torch import Tensor

from fedimmune import Rule, rules
from fedimmune.aggregation import aggregate_files
from fedimmune.results import Verdict
from tests.rounds import rule_for

LAYERS = ("fc.weight", "fc.bias")
CLIENTS = [f"c{i}" for i in range(7)]
CHANGED = "c2"

Change = Callable[[Tensor], Tensor]
CHANGES: dict[str, Change] = {
    "NaN": lambda tensor: torch.full_like(tensor, torch.nan),
    "longer": lambda tensor: 1000 * tensor,
    "same sum and length": lambda tensor: tensor.flatten().flip(0).reshape(tensor.shape),
    "one value": lambda tensor: tensor + 1e3 * (torch.arange(tensor.numel()) == 1).view_as(tensor),
}


def written(folder: Path, dtype: torch.dtype = torch.float32) -> list[Path]:
    random = torch.Generator().manual_seed(4)
    paths = []
    for client in CLIENTS:
        state = {
            "fc.weight": 1 + torch.randn(30, 40, generator=random),
            "fc.bias": torch.randn(30, generator=random),
        }
        path = folder / f"{client}.safetensors"
        path.write_bytes(save({name: tensor.to(dtype) for name, tensor in state.items()}))
        paths.append(path)
    return paths


def needed(rule: Rule, folder: Path) -> dict[str, Any]:
    """Write what a rule needs besides the clients' files."""
    own = {"fc.weight": torch.ones(30, 40), "fc.bias": torch.zeros(30)}
    (folder / "own").write_bytes(save(own))
    (folder / "global").write_bytes(save({name: 0 * tensor for name, tensor in own.items()}))

    def loss(update: dict[str, Tensor]) -> float:
        return sum(float((update[name] - own[name]).square().sum()) for name in own)

    there = {"anchor": folder / "own", "model": folder / "global", "server_loss": loss}
    words = {"model": "global_file"}
    return {words.get(name, name): there[name] for name in rule.needs}


def overwrite(path: Path, change: Change) -> None:
    """Write another content of the same length into the same file."""
    content = save({name: change(tensor) for name, tensor in load_file(path).items()})
    with path.open("r+b") as file:
        file.write(content)


@pytest.mark.parametrize("name", rules.available())
@pytest.mark.parametrize("kind", CHANGES)
def test_who_changes_its_file_between_two_reads_is_rejected(
    tmp_path: Path, name: str, kind: str
) -> None:
    paths = written(tmp_path)
    rule = rule_for(name, CLIENTS, layers=LAYERS)
    own = needed(rule, tmp_path)
    quiet = aggregate_files(rule, paths, are_updates=True, **own)
    rest = [path for path in paths if path.stem != CHANGED]
    without = aggregate_files(rule, rest, are_updates=True, **own)
    done = 0

    def after_the_first_read(count: int) -> None:
        nonlocal done
        before, done = done, done + count
        if before < len(paths) * 4 * 1230 <= done:
            overwrite(tmp_path / f"{CHANGED}.safetensors", CHANGES[kind])

    out = tmp_path / "next.safetensors"
    found = aggregate_files(
        rule, paths, are_updates=True, output=out, on_read=after_the_first_read, **own
    )
    model = load_file(out)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in model.values())
    if found.rejected:
        assert dict(found.rejected) == {CHANGED: "its file changed while it was being read"}
        assert found.verdicts[CHANGED] is Verdict.REJECTED
        expected = without
    else:  # it was not read a second time
        assert rule.reads == 1 or not (quiet.weights or {})[CHANGED]
        expected = quiet
    for layer in LAYERS:
        torch.testing.assert_close(model[layer], expected.update[layer])


@pytest.mark.parametrize("name", ["krum", "multi-krum"])
def test_who_is_picked_and_then_changes_its_file_is_rejected(tmp_path: Path, name: str) -> None:
    paths = written(tmp_path)
    rule = rule_for(name, CLIENTS, layers=LAYERS)
    weights = aggregate_files(rule, paths, are_updates=True).weights
    assert weights is not None
    picked = max(weights, key=weights.__getitem__)
    done = 0

    def after_the_first_read(count: int) -> None:
        nonlocal done
        before, done = done, done + count
        if before < len(paths) * 4 * 1230 <= done:
            overwrite(tmp_path / f"{picked}.safetensors", CHANGES["longer"])

    found = aggregate_files(rule, paths, are_updates=True, on_read=after_the_first_read)
    assert set(found.rejected) == {picked}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", rules.available())
def test_nobody_is_blamed_whose_file_stays_as_it_is(
    tmp_path: Path, name: str, dtype: torch.dtype
) -> None:
    paths = written(tmp_path, dtype)
    rule = rule_for(name, CLIENTS, layers=LAYERS)
    answer = aggregate_files(rule, paths, are_updates=True, **needed(rule, tmp_path))
    assert not answer.rejected
