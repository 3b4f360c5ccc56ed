"""The server's own update as a reference: measured with the clients', never aggregated."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from safetensors.torch import save_file
from torch import Tensor

from fedimmune import Updates, rules
from fedimmune.aggregation import aggregate_files
from fedimmune.errors import FedimmuneError, InputError
from fedimmune.geometry import measure
from tests.adaptive.rehearsed import LAYERS, honest_round
from tests.rounds import SHAPES, as_files, as_states, in_blocks, matrices


def rows_of(updates: Updates) -> dict[str, Tensor]:
    found: dict[str, list[Tensor]] = {}
    blocks = updates.blocks(updates.layers, check=False, stacked=True, references=["anchor"])
    for block in blocks:
        rows = torch.cat([block.values, *(other[None] for other in block.references)])
        found.setdefault(block.layer.name, []).append(rows)
    return {name: torch.cat(parts, 1) for name, parts in found.items()}


@given(matrix=matrices(least=2))
def test_it_is_the_last_row_of_every_kind_of_round(matrix: Tensor) -> None:
    *clients, own = as_states(matrix)
    base = {name: torch.full(shape, 0.5, dtype=torch.float64) for name, shape in SHAPES.items()}
    models = [{name: base[name] + state[name] for name in SHAPES} for state in clients]
    kinds = [
        Updates.from_states(clients),
        Updates.from_models(models, base),
        Updates.from_vectors(matrix[:-1], layers=SHAPES),
    ]
    expected = {n: torch.stack([s[n].flatten() for s in (*clients, own)]) for n in SHAPES}
    for updates in kinds:
        anchored = updates.with_anchor(own)
        assert anchored.clients == updates.clients
        found = rows_of(anchored)
        for name in SHAPES:
            torch.testing.assert_close(found[name], expected[name])
        geometry = measure(anchored, ["anchor"]).of(list(SHAPES))
        assert geometry.clients == updates.clients
        anchor = geometry.reference("anchor")
        for number, name in enumerate(SHAPES):
            gram = expected[name] @ expected[name].T
            torch.testing.assert_close(geometry.grams("anchor")[number], gram)
            torch.testing.assert_close(geometry.grams()[number], gram[:-1, :-1])
            torch.testing.assert_close(anchor.products[number], gram[-1, :-1])
            torch.testing.assert_close(anchor.square[number], gram[-1, -1])


@given(matrix=matrices(least=3))
def test_what_is_said_of_the_clients_does_not_depend_on_it(matrix: Tensor) -> None:
    plain = measure(Updates.of(matrix[:-1]))
    beside = measure(Updates.of(matrix[:-1]).with_anchor(matrix[-1]), ["anchor"])
    for name in ("gram", "squared_distances", "norms", "cosines"):
        torch.testing.assert_close(getattr(beside, name)(), getattr(plain, name)())
    some = beside.only([1])
    assert some.references == ("anchor",)
    torch.testing.assert_close(some.reference("anchor").products, matrix[-1:] @ matrix[1:2].T)


def test_a_reference_that_was_not_measured_is_named() -> None:
    updates = Updates.of(torch.eye(4))
    with pytest.raises(InputError, match="'anchor'"):
        measure(updates, ["anchor"])
    with pytest.raises(InputError, match="'anchor'"):
        measure(updates.with_anchor(torch.ones(4))).reference("anchor")
    with pytest.raises(InputError, match="no reference 'mine'; there are anchor, model, memory"):
        updates.with_reference("mine", torch.ones(4))


def test_bare_vectors_have_a_vector_for_an_anchor() -> None:
    matrix = torch.randn(6, 5000, generator=torch.Generator().manual_seed(1))
    for given_ones in (matrix[:5], list(matrix[:5])):
        updates = Updates.of(given_ones).with_anchor(matrix[5])
        for columns in (512, 1024, 100_000):
            assert torch.equal(rows_of(in_blocks(updates, columns))["update"], matrix)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_other_widths_and_memory_formats(dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(2)
    wide = [torch.randn(4, 3, 5, 5, generator=random).to(dtype) for _ in range(5)]
    last = [{"w": t.to(memory_format=torch.channels_last)} for t in wide[:4]]
    plain = measure(Updates.from_states([{"w": t} for t in wide])).grams()
    mixed = measure(Updates.from_states(last).with_anchor({"w": wide[4]}), ["anchor"])
    torch.testing.assert_close(mixed.grams("anchor"), plain, rtol=1e-5, atol=1e-4)


def test_rules_that_do_not_need_it_do_not_look() -> None:
    states = honest_round(6, torch.Generator().manual_seed(3))
    updates = Updates.from_states(states[:5])
    with_it = updates.with_anchor(states[5])
    for name in ("mean", "median", "krum", "foolsgold"):
        plain, other = rules.get(name).aggregate(updates), rules.get(name).aggregate(with_it)
        assert all(torch.equal(plain.update[key], other.update[key]) for key in LAYERS)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"fc.bias": torch.full((6,), torch.nan)}, "NaN"),
        ({"fc.bias": torch.full((6,), torch.inf)}, "infinite"),
        ({"fc.bias": torch.ones(7)}, r"fc\.bias"),
        ({"more": torch.ones(7)}, "more"),
        ({"fc.bias": torch.ones(6, dtype=torch.int64)}, r"fc\.bias"),
    ],
)
def test_an_anchor_that_does_not_fit_is_refused(change: Mapping[str, Tensor], said: str) -> None:
    states = honest_round(6, torch.Generator().manual_seed(3))
    updates = Updates.from_states(states[:5])
    with pytest.raises(InputError, match=f"the anchor.*{said}"):
        updates.with_anchor({**states[5], **change})
    with pytest.raises(InputError, match="the anchor"):
        updates.with_anchor({})
    with pytest.raises(InputError, match="the anchor"):
        updates.with_anchor(torch.ones(3))


def test_bad_clients_are_rejected_beside_an_anchor(anchored: Path) -> None:
    states = honest_round(8, torch.Generator().manual_seed(4))
    rule: Any = rules.get("adaptive", defense=anchored)
    expected = rule.aggregate(
        Updates.from_states(dict(enumerate(states[1:7], 1))).with_anchor(states[7])
    )
    states[0]["fc.bias"][0] = torch.nan
    answer = rule.aggregate(Updates.from_states(states[:7]).with_anchor(states[7]))
    assert set(answer.rejected) == {0}
    assert answer.weights == expected.weights


def test_an_anchor_too_large_to_be_measured_is_an_error_and_no_endless_loop(
    anchored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = honest_round(6, torch.Generator().manual_seed(4))
    huge = {name: tensor * 1e200 for name, tensor in states[5].items()}
    calls, reject = [], Updates.reject

    def counted(self: Updates, reasons: Mapping[Any, str]) -> Updates:
        calls.append(reasons)
        assert len(calls) < 20, "it goes round and round"
        return reject(self, reasons)

    monkeypatch.setattr(Updates, "reject", counted)
    with pytest.raises(FedimmuneError, match="anchor"):
        rules.get("adaptive", defense=anchored).aggregate(
            Updates.from_states(states[:5]).with_anchor(huge)
        )


def test_files_with_an_anchor(tmp_path: Path, anchored: Path) -> None:
    rule = rules.get("adaptive", defense=anchored)
    base, *models = honest_round(7, torch.Generator().manual_seed(6))
    *paths, own = as_files(models, tmp_path)
    differences = [{name: model[name] - base[name] for name in base} for model in models]
    updates = Updates.from_states(dict(zip([p.stem for p in paths], differences[:5], strict=True)))
    expected = rule.aggregate(updates.with_anchor(differences[5])).weights
    place = tmp_path / "base.safetensors"
    save_file(base, place)
    found = aggregate_files(rule, paths, global_file=place, anchor=own)
    assert found.weights == pytest.approx(expected, abs=1e-9)
    with pytest.raises(FedimmuneError, match="--anchor"):
        aggregate_files(rule, paths, global_file=place)
    with pytest.raises(InputError, match="the anchor"):
        aggregate_files(rule, paths, global_file=place, anchor=tmp_path / "nowhere")
