"""Importance: by the paper's definition, and columns that are what their names say."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedimmune.adaptive.defense import Defense, DefenseAbout, make_form
from fedimmune.adaptive.explanation import importance_of
from fedimmune.adaptive.models.base import AttentionModel, Feature
from tests.adaptive.naive import robust_start
from tests.adaptive.rehearsed import LAYERS, grams_of, honest_round

N = 7
SETTINGS = [
    ("relational", {"layers": 3, "anchor": True}),
    ("relational", {"layers": 3, "anchor": False, "relative": False}),
    ("paper", {"layers": 3, "components": 4}),
    ("paper", {"layers": 3, "components": 4, "shared": True, "bias": False}),
    ("paper", {"layers": 3, "components": 4, "attention": False, "clients": N}),
]


def made(name: str, chosen: dict[str, object]) -> Defense:
    torch.manual_seed(5)
    form = make_form(name, chosen)
    about = DefenseAbout(task="t", layers=LAYERS, form=name, settings=form.settings.model_dump())
    return Defense(form, about)


def a_round(seed: int, n: int = N + 1) -> tuple[list[dict[str, Tensor]], Tensor]:
    states = honest_round(n, torch.Generator().manual_seed(seed))
    return states, grams_of(states, list(LAYERS))


@pytest.mark.parametrize(("name", "chosen"), SETTINGS)
def test_importance_is_the_sum_of_magnitudes_of_the_first_layer(
    name: str, chosen: dict[str, object]
) -> None:
    defense = made(name, chosen)
    found = importance_of(defense)
    assert list(found.by_layer) == list(LAYERS)
    state = defense.form.state_dict()
    first = {
        "relational": ["key.weight", "query.weight"],
        "paper": ["key.0.weight"] if chosen.get("attention", True) else ["perceptron.0.weight"],
    }[name]
    whole = sum(float(state[key].abs().sum()) for key in first)
    assert sum(found.by_layer.values()) == pytest.approx(whole)
    assert sum(found.by_kind.values()) == pytest.approx(whole)
    assert found.most_telling in LAYERS


@pytest.mark.parametrize(("name", "chosen"), SETTINGS)
def test_one_weight_counts_for_its_own_feature_alone(name: str, chosen: dict[str, object]) -> None:
    defense = made(name, chosen)
    for part in defense.form.first_layers():
        assert part.weight.shape[1] == len(part.features)
        for column in range(0, len(part.features), 5):
            for other in defense.form.first_layers():
                other.weight.data.zero_()
            part.weight.data[0, column], part.weight.data[1, column] = -2.0, 0.5
            found, feature = importance_of(defense), part.features[column]
            layer = layer_of(feature)
            assert {k: v for k, v in found.by_layer.items() if v} == {layer: 2.5}
            assert {k: v for k, v in found.by_kind.items() if v} == {feature.kind: 2.5}
            assert found.most_telling == layer


# -------------------------------------------------------------------- what the columns are


def layer_of(feature: Feature) -> str:
    assert feature.layer is not None
    return list(LAYERS)[feature.layer]


def named_values(states: list[dict[str, Tensor]], i: int, feature: Feature) -> float:
    """What a feature's name promises of client i, naively; the last state is the anchor."""
    layer = layer_of(feature)
    rows = [state[layer].flatten().numpy() for state in states]
    clients, anchor = rows[:N], rows[N]

    def cosine(a: np.ndarray, b: np.ndarray) -> float:
        return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))

    def of(k: int, kind: str) -> float:
        others = [cosine(clients[k], clients[j]) for j in range(N) if j != k]
        every = [np.stack([s[name].flatten().numpy() for s in states[:N]]) for name in LAYERS]
        start = robust_start(every)
        mean = sum(weight * row for weight, row in zip(start, clients, strict=True))
        levels = {"least": 0, "lower quartile": 25, "median": 50, "upper quartile": 75}
        match kind.removeprefix("cosine to others, "):
            case "length":
                return float(np.log(np.linalg.norm(clients[k])))
            case "cosine to the server's":
                return cosine(clients[k], anchor)
            case "cosine to the estimate":
                return cosine(clients[k], mean)
            case "length against the estimate's":
                return float(np.log(np.linalg.norm(clients[k]) / np.linalg.norm(mean)))
            case level:
                return float(np.percentile(others, levels.get(level, 100)))

    if feature.kind in {"cosine to the estimate", "length against the estimate's"}:
        return of(i, feature.kind)
    if feature.kind == "length against the median client's":
        return of(i, "length") - float(np.median([of(k, "length") for k in range(N)]))
    plain = feature.kind.removesuffix(", against the median client's")
    middle = np.median([of(k, plain) for k in range(N)]) if plain != feature.kind else 0.0
    return of(i, plain) - float(middle)


class Listening(nn.Module):
    """Stands in for a part of a network and remembers what it was given first."""

    def __init__(self, usual: nn.Module) -> None:
        super().__init__()
        self.usual = usual
        self.heard: Tensor | None = None

    def forward(self, given_: Tensor) -> Tensor:
        self.heard = given_ if self.heard is None else self.heard
        answer: Tensor = self.usual(given_)
        return answer


def heard_by(form: AttentionModel, grams: Tensor, parts: list[str]) -> list[Tensor]:
    """What goes into the first layers, (n, inputs) each."""
    listening = []
    for part in parts:
        listening.append(Listening(form.get_submodule(part)))
        setattr(form, part, listening[-1])
    form(form.prepare(grams[None]))
    return [one.heard[0] for one in listening if one.heard is not None]


@settings(max_examples=12)
@given(seed=st.integers(0, 10_000), anchor=st.booleans(), relative=st.booleans())
def test_relational_columns_are_what_their_names_say(
    seed: int, anchor: bool, relative: bool
) -> None:
    defense = made("relational", {"layers": 3, "anchor": anchor, "relative": relative})
    states, grams = a_round(seed)
    rows = N + anchor
    named = [part.features for part in defense.form.first_layers()]
    found = heard_by(defense.form, grams[:, :rows, :rows], ["key", "query"])
    for features, columns in zip(named, found, strict=True):
        expected = [[named_values(states, i, feature) for feature in features] for i in range(N)]
        np.testing.assert_allclose(columns.detach().numpy(), expected, atol=1e-6)


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000))
def test_principal_columns_are_what_their_names_say(seed: int) -> None:
    defense = made("paper", {"layers": 3, "components": 4})
    states, grams = a_round(seed, N)
    features = defense.form.first_layers()[0].features
    (found,) = heard_by(defense.form, grams, ["key"])
    for column, feature in enumerate(features):
        layer = layer_of(feature)
        rows = torch.stack([state[layer].flatten() for state in states])
        left, sizes, _ = torch.linalg.svd(rows, full_matrices=False)
        component = int(feature.kind.removeprefix("component "))
        expected = (left * sizes)[:, component - 1].abs()
        torch.testing.assert_close(found[:, column].abs(), expected, atol=1e-6, rtol=1e-5)
