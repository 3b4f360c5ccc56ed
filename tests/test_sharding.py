"""Columns of a round read in parts: the same weights, the same model but for rounding."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from typer.testing import CliRunner

from fedimmune import Hierarchy, Updates, aggregate_files, measure, rules
from fedimmune._layers import Layer
from fedimmune.cli import app
from fedimmune.errors import ParameterError
from fedimmune.io import load_mapped
from fedimmune.landmarks import LARGE
from fedimmune.sharding import column_ranges, in_this_process
from tests.rounds import SHAPES, as_files, as_states, as_vector, complete, matrices, rule_for

WIDE = {"a.weight": (40, 50), "b.weight": (3000,), "c.bias": (7,)}


def wide_states(n: int = 9, seed: int = 0) -> list[dict[str, Tensor]]:
    random = torch.Generator().manual_seed(seed)
    states = []
    for number in range(n):
        state = {name: 1 + torch.randn(shape, generator=random) for name, shape in WIDE.items()}
        states.append({name: -9 * t if number == 0 else t for name, t in state.items()})
    return states


@given(count=st.integers(1, 12))
def test_parts_hold_every_column_once(count: int) -> None:
    layers = Updates.from_states(wide_states(2)).layers
    seen = {name: torch.zeros(torch.Size(shape).numel()) for name, shape in WIDE.items()}
    parts = column_ranges(layers, count)
    assert len(parts) == count
    for part in parts:
        for name, (start, stop) in part.items():
            assert start % 512 == 0
            seen[name][start:stop] += 1
    assert all(bool((each == 1).all()) for each in seen.values())


@pytest.mark.parametrize("name", [n for n in rules.available() if n not in {"zeno", "spectral"}])
@given(matrix=matrices(least=8, most=10), count=st.integers(1, 4))
def test_every_rule_gives_the_same_in_parts(name: str, matrix: Tensor, count: int) -> None:
    clients = range(len(matrix))
    updates = complete(rule_for(name, clients, SHAPES), Updates.from_states(as_states(matrix)))
    plain = rule_for(name, clients, SHAPES).aggregate(updates)
    found = rule_for(name, clients, SHAPES).aggregate(in_this_process(updates, count))
    torch.testing.assert_close(as_vector(found.update), as_vector(plain.update))
    assert found.verdicts == plain.verdicts
    assert found.weights == (None if plain.weights is None else pytest.approx(plain.weights))


@pytest.mark.parametrize("common", [0, 1e5])
def test_inner_products_add_up_also_about_centers(common: float) -> None:
    states = [{name: (common + t).float() for name, t in state.items()} for state in wide_states()]
    updates = Updates.from_states(states).with_anchor(states[3])
    for references in ([], ["anchor"]):
        for pairs in (True, False):
            plain = measure(updates, references, pairs=pairs)
            found = measure(in_this_process(updates, 3), references, pairs=pairs)
            torch.testing.assert_close(found.norms(), plain.norms())
            if pairs:
                torch.testing.assert_close(found.squared_distances(), plain.squared_distances())
            if references:
                torch.testing.assert_close(
                    found.squared_distances_to("anchor"), plain.squared_distances_to("anchor")
                )


@pytest.mark.parametrize("name", ["krum", "median", "mean", "adaptive"])
def test_who_is_not_valid_is_named(name: str) -> None:
    states = wide_states()
    states[4]["b.weight"][2900] = torch.nan
    states[5]["a.weight"][0, 0] = torch.inf
    found = rules.get(name).aggregate(in_this_process(Updates.from_states(states), 3))
    assert set(found.rejected) == {4, 5}
    assert "'b.weight'" in found.rejected[4]


def test_groups_are_read_in_parts_too() -> None:
    updates = Updates.from_states(wide_states())
    rule = Hierarchy(rules=["multi-krum", "median"], groups=3)
    found, plain = rule(in_this_process(updates, 2)), rule(updates)
    for name in WIDE:
        torch.testing.assert_close(found[name], plain[name])


def crowd(n: int = LARGE + 4) -> list[dict[str, Tensor]]:
    """So many clients that they are compared with landmarks; some turn everything around."""
    random = torch.Generator().manual_seed(2)
    common = torch.randn(1100, generator=random)
    rows = common + torch.randn(n, 1100, generator=random)
    rows[:40] *= -1
    return [{"a": row[:600].view(20, 30).clone(), "b": row[600:].clone()} for row in rows]


@pytest.mark.parametrize("name", ["adaptive", "geometric-median", "krum"])
def test_many_clients_are_read_by_shards_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    updates, seen = Updates.from_states(crowd()), list[int]()
    plain = rules.get(name).aggregate(updates)
    parts = replace(in_this_process(updates, 3), on_read=seen.append)
    blocks = Updates.blocks

    def refuse(self: Updates, layers: Iterable[Layer], **how: Any) -> Any:
        layers = list(layers)
        assert self.shards is None or not layers, "this is for the shards to read"
        return blocks(self, layers, **how)

    monkeypatch.setattr(Updates, "blocks", refuse)
    found = rules.get(name).aggregate(parts)
    assert found.verdicts == plain.verdicts
    assert found.weights == pytest.approx(plain.weights)
    torch.testing.assert_close(found.update, plain.update)
    assert sum(seen) > updates.nbytes, "progress is reported, of the second read too"


def test_what_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = as_files(wide_states(3), tmp_path)
    import sys  # noqa: PLC0415

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ParameterError, match="needs the package ray"):
        aggregate_files(rules.get("mean"), files, are_updates=True, ray="auto")


@pytest.mark.flower
def test_over_ray(tmp_path: Path) -> None:
    """On a cluster of two workers: the same weights, the same model to rounding."""
    ray = pytest.importorskip("ray")
    with pytest.raises(ParameterError, match=r"no Ray cluster answers at '127\.0\.0\.1:1'"):
        aggregate_files(
            rules.get("mean"),
            as_files(wide_states(3), tmp_path),
            are_updates=True,
            ray="127.0.0.1:1",
        )
    states = wide_states()
    states[4]["b.weight"][2900] = torch.nan
    files = as_files(states, tmp_path)
    ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False)
    try:
        for name in ("krum", "adaptive", "median", "mean"):
            plain = aggregate_files(
                rules.get(name), files, are_updates=True, output=tmp_path / "plain"
            )
            found = aggregate_files(
                rules.get(name), files, are_updates=True, output=tmp_path / "found", ray="auto"
            )
            assert found.verdicts == plain.verdicts
            assert set(found.rejected) == {"client-04"}
            assert found.weights == (
                None if plain.weights is None else pytest.approx(plain.weights)
            )
            models = [load_mapped(tmp_path / each) for each in ("plain", "found")]
            for layer in WIDE:
                torch.testing.assert_close(models[0][layer], models[1][layer])
        many = tmp_path / "many"
        many.mkdir()
        files_of_many = as_files(crowd(), many)
        plain = aggregate_files(rules.get("adaptive"), files_of_many, are_updates=True)
        words = ["aggregate", "--updates", "--rule", "adaptive", "--ray", "auto", "--json"]
        told = CliRunner().invoke(app, [*words, *map(str, files_of_many)])
        assert told.exit_code == 0, told.output
        verdicts = {one["client"]: one["verdict"] for one in json.loads(told.stdout)["clients"]}
        assert verdicts == {client: str(each) for client, each in plain.verdicts.items()}
        words = ["aggregate", "--updates", "--rule", "mean", "--ray", "auto", *map(str, files)]
        assert "8 trusted" in CliRunner().invoke(app, words).output
    finally:
        ray.shutdown()
