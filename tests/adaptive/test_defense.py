"""The defense's file, and what the rule says when it does not fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save_file
from torch import Tensor

from fedimmune import Scenario, Updates, rules
from fedimmune.adaptive import train
from fedimmune.adaptive.defense import Defense
from fedimmune.errors import InputError, ParameterError
from fedimmune.io import described, read_description
from tests.adaptive.rehearsed import LAYERS, honest_round, negated, recordings


def a_round(n: int = 7, seed: int = 5, layers: Any = LAYERS) -> list[dict[str, Tensor]]:
    return honest_round(n, torch.Generator().manual_seed(seed), layers)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"form": "paper"},
        {"form": "paper", "preset": "authors"},
        {"form": "paper", "settings": {"attention": False}},
    ],
    ids=str,
)
def test_round_trip(tmp_path: Path, options: dict[str, Any]) -> None:
    made = train(recordings(2, rounds=2), epochs=1, **options)
    made.save(tmp_path / "a.defense")
    again = Defense.load(tmp_path / "a.defense")
    assert again.about == made.about
    assert len(again.digest) == 16
    for name, tensor in made.form.state_dict().items():
        assert torch.equal(again.form.state_dict()[name], tensor)
    grams = recordings(2, rounds=1)[1].grams[0]
    for one, other in zip(made.weigh(grams), again.weigh(grams), strict=True):
        assert torch.equal(one, other)
    metadata = read_description(tmp_path / "a.defense")["about"]
    assert metadata.keys() >= {"task", "layers", "form", "settings", "attacks", "validation"}
    assert metadata.keys() >= {"recordings", "version", "training", "memory"}


def damaged(**changes: Any) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        tensors: dict[str, Tensor] = load(path.read_bytes())
        description = read_description(path)
        about = description["about"]
        for name, value in changes.items():
            if name == "tensors":
                tensors = {key: value(tensor) for key, tensor in tensors.items()}
            elif name in description:
                description[name] = value
            else:
                about[name] = value
        save_file(tensors, path, described(tensors, **description))

    return damage


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "cannot be read as safetensors"),
        (lambda path: path.write_text("never a defense\n" * 50), "cannot be read as safetensors"),
        (lambda path: torch.save({}, path), "cannot be read as safetensors"),
        (Path.unlink, "no such file"),
        (lambda path: save_file({"w": torch.ones(3)}, path), "is not a defense"),
        (recordings(1, rounds=1)[0].save, "is not a defense"),
        (damaged(format="fedimmune-defense-1"), "unknown version"),
        (damaged(about="{"), "is damaged"),
        (damaged(about="{}"), "is damaged"),
        (damaged(form="oval"), "is damaged"),
        (damaged(settings={"layers": 3, "color": 1}), "is damaged"),
        (damaged(settings={"layers": 5, "anchor": False, "hidden": 32}), "is damaged"),
        (damaged(layers={"conv.weight": [4, 5]}), "is damaged"),
        (damaged(tensors=lambda tensor: tensor.flatten()[:1].clone()), "is damaged"),
        (damaged(tensors=lambda tensor: tensor * torch.nan), "is damaged"),
    ],
)
def test_every_damage_has_its_own_words(
    tmp_path: Path, trained: Path, damage: Callable[[Path], None], said: str
) -> None:
    path = tmp_path / "broken.defense"
    path.write_bytes(trained.read_bytes())
    damage(path)
    with pytest.raises(ParameterError, match=said) as caught:
        rules.get("adaptive", defense=path)
    assert "broken.defense" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_another_models_layers_are_named(trained: Path) -> None:
    rule = rules.get("adaptive", defense=trained)
    lacking = a_round(layers={"conv.weight": (4, 5), "fc.weight": (6, 5)})
    with pytest.raises(InputError, match=r"trained for another model .*lacks 'fc\.bias'"):
        rule.aggregate(lacking)
    besides = a_round(layers={**LAYERS, "extra": (3,)})
    with pytest.raises(InputError, match="has 'extra' besides"):
        rule.aggregate(besides)
    with pytest.raises(InputError, match="another model"):
        rule(torch.ones(5, 3))


def test_another_width_is_refused_unless_any_shape_will_do(trained: Path) -> None:
    wider = {**LAYERS, "fc.weight": (60, 5)}
    with pytest.raises(InputError, match=r"'fc\.weight' of shape \(60, 5\), not .*any_shape"):
        rules.get("adaptive", defense=trained).aggregate(a_round(layers=wider))
    rules.get("adaptive", defense=trained, any_shape=True).aggregate(a_round(layers=wider))


def test_another_head_and_any_number_of_clients_will_do(trained: Path) -> None:
    rule = rules.get("adaptive", defense=trained, any_shape=True)
    wider = {**LAYERS, "fc.weight": (60, 5), "fc.bias": (60,)}
    for n in (3, 7, 20):
        sent = a_round(n, layers=wider)
        sent[1] = negated(sent[1])
        weights = rule.aggregate(sent).weights
        assert weights is not None
        assert len(weights) == n
        assert weights[1] < 0.05


def test_the_order_of_the_layers_does_not_matter(trained: Path) -> None:
    rule, sent = rules.get("adaptive", defense=trained), a_round()
    expected = rule.aggregate(sent).weights
    turned = [dict(reversed(state.items())) for state in sent]
    assert rule.aggregate(turned).weights == pytest.approx(expected, abs=1e-12)


def test_the_anchor_is_asked_for_by_name(anchored: Path, trained: Path) -> None:
    rule, sent = rules.get("adaptive", defense=anchored), a_round()
    assert rule.needs == {"anchor"}
    with pytest.raises(ParameterError, match="needs the server's own update"):
        rule.aggregate(sent[:6])
    answer = rule.aggregate(Updates.from_states(sent[:6]).with_anchor(sent[6]))
    assert set(answer.verdicts) == set(range(6)), "the server is no client"
    without = rules.get("adaptive", defense=trained)
    assert not without.needs
    plain = without.aggregate(sent[:6]).weights
    assert without.aggregate(Updates.from_states(sent[:6]).with_anchor(sent[6])).weights == plain


def test_the_digest_says_which_defense_is_meant(tmp_path: Path, trained: Path) -> None:
    rule: Any = rules.get("adaptive", defense=trained)
    assert rules.get("adaptive", defense=trained, digest=rule.digest) is not None
    with pytest.raises(ParameterError, match="another defense"):
        rules.get("adaptive", defense=trained, digest="0" * 16)
    file = tmp_path / "mine.defense"
    file.write_bytes(trained.read_bytes())
    scenario = Scenario(rule={"name": "adaptive", "defense": str(file)}).resolve()
    assert scenario.rule.parameters["digest"] == rule.digest
    there = Scenario(rule={"name": "adaptive", "defense": str(trained)}).resolve()
    assert there.digest == scenario.digest, "wherever it is"
    assert there != scenario
    made = train(recordings(2, rounds=2), epochs=1)
    made.save(file)
    with pytest.raises(ParameterError, match="another defense"):
        scenario.make_rule([])
    other = Scenario(rule={"name": "adaptive", "defense": str(file)})
    assert other.digest != scenario.digest


def test_scores_and_verdicts_are_told(trained: Path) -> None:
    sent = a_round()
    sent[3] = negated(sent[3])
    answer = rules.get("adaptive", defense=trained).aggregate(sent)
    assert answer.scores is not None
    assert all(-1 <= score <= 1 for score in answer.scores.values())
    assert min(answer.scores.items(), key=lambda each: each[1])[0] == 3
    assert answer.verdicts[3] == "suspected"
