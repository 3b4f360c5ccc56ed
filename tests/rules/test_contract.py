"""What the contract promises: needs are checked, inner products are enough."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedimmune import Updates, rules
from fedimmune.errors import InputError, NotEnoughClientsError, ParameterError
from fedimmune.geometry import Geometry
from fedimmune.rules import ClientWeights, GeometryRule, Rule
from fedimmune.rules.base import NEEDS


class Needing(GeometryRule):
    """Takes the client that is most like the server's own update."""

    name = "needing"
    summary = "the client nearest in direction to the anchor"
    paper = "–"
    needs = frozenset({"anchor"})

    def weigh_geometry(self, geometry: Geometry) -> ClientWeights:
        likeness = geometry.reference("anchor").products.sum(0) / geometry.norms()
        chosen = torch.nn.functional.one_hot(likeness.argmax(), len(geometry))
        return ClientWeights(chosen.double(), likeness)


ROWS = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
OWN = torch.tensor([0.1, 1.0])


def test_what_a_rule_needs_is_measured_with_the_clients() -> None:
    answer = Needing().aggregate(Updates.of(ROWS).with_anchor(OWN))
    assert answer.weights == {0: 0.0, 1: 1.0, 2: 0.0}
    joint = torch.cat([ROWS, OWN[None]])
    found = Needing().weights_from_gram(joint @ joint.T, references=["anchor"])
    assert found.weight.tolist() == [0, 1, 0]


@pytest.mark.parametrize("need", NEEDS)
def test_what_nobody_supplies_is_refused_by_name(need: str) -> None:
    rule = Needing()
    rule.needs = frozenset({need})
    for refused in (lambda: rule.aggregate(ROWS), lambda: rule.weights_from_gram(ROWS @ ROWS.T)):
        with pytest.raises(ParameterError, match=f"needing needs {NEEDS[need][:12]}"):
            refused()
    rule.check_needs({need, "anchor"})


@pytest.mark.parametrize(
    ("grams", "options", "said"),
    [
        (np.ones((2, 3)), {}, "shape"),
        (np.ones((2, 2, 2, 2)), {}, "shape"),
        (np.full((5, 5), np.nan), {}, "NaN"),
        (np.triu(np.ones((5, 5))), {}, "symmetric"),
        (np.eye(5), {"clients": ["a", "b"]}, "2 client ids for 5"),
        (np.eye(2), {}, "krum needs at least 3 valid clients; there were 2"),
    ],
)
def test_what_are_no_inner_products_is_refused(
    grams: Any, options: dict[str, Any], said: str
) -> None:
    rule: Rule = rules.get("krum")
    assert isinstance(rule, GeometryRule)
    with pytest.raises((InputError, NotEnoughClientsError), match=said):
        rule.weights_from_gram(grams, **options)


def test_layers_add_up_and_ids_are_kept() -> None:
    rule = rules.get("multi-krum", keep=2)
    assert isinstance(rule, GeometryRule)
    random = torch.Generator().manual_seed(1)
    layers = torch.randn(3, 6, 10, generator=random, dtype=torch.float64)
    grams = layers @ layers.mT
    by_layer, whole = rule.weights_from_gram(grams), rule.weights_from_gram(grams.sum(0))
    assert torch.equal(by_layer.weight, whole.weight)
    geometry = Geometry.from_grams(grams, list("abcdef"), layers=["x", "y", "z"])
    assert geometry.clients == tuple("abcdef")
    torch.testing.assert_close(geometry.of("y").gram(), grams[1])
