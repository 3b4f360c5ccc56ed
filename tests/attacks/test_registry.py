"""The attacks by name; all of them describe themselves, and do what they say they act on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from fedimmune import Updates, attacks, rules
from fedimmune.attacks import Attack
from fedimmune.errors import ParameterError
from fedimmune.results import CHECK_ANYTHING
from fedimmune.tasks import Samples
from tests.attacks.contexts import IMAGES, context, fitting

FACTS = IMAGES
every_attack = pytest.mark.parametrize("name", attacks.available())


def test_the_papers_attacks_are_there() -> None:
    assert {"none", "sign-flip", "label-flip", "backdoor"} <= set(attacks.available())
    assert attacks.find("omniscient") is attacks.find("sign-flip") is attacks.SignFlip


@every_attack
def test_it_describes_itself(name: str) -> None:
    attack = attacks.find(name)
    assert attack.name == name
    assert attack.summary
    assert attack.paper
    assert attack.label
    assert (attack.advice == CHECK_ANYTHING) == (name == "none")
    made = attacks.get(name)
    assert all(hasattr(made, parameter) for parameter in attack.parameters())


@every_attack
def test_it_acts_on_what_it_says(name: str) -> None:
    attack, spec = attacks.get(name), fitting(name)
    inputs, labels = torch.randn(20, *spec.shape), torch.arange(20) % spec.classes
    inputs = inputs if spec.words is None else torch.ones_like(inputs).int()
    told = context(spec, clients=4, attackers=2, samples=lambda: Samples(inputs, labels))
    poisoned = attack.on_batch(inputs.clone(), labels.clone(), told)
    changed = []
    if not (torch.equal(poisoned[0], inputs) and torch.equal(poisoned[1], labels)):
        changed.append("data")
    loss = torch.tensor(2.0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(inputs[0].numel(), spec.classes))
    start = {name: tensor + 9 for name, tensor in model.state_dict().items()}
    told = replace(told, global_model=start)
    if attack.on_loss(loss, model, told) != loss:
        changed.append("loss")
    model(inputs.float()).sum().backward()
    before = values(model)
    with torch.no_grad():
        attack.on_step(model, replace(told, moment="before", step=1))
        attack.on_step(model, replace(told, moment="after", step=10))
    if values(model) != before:
        changed.append("training")
    told = replace(
        told,
        rule=rules.get("mean"),
        global_model={"weight": torch.full((3,), 3.0)},
        previous_model={"weight": torch.ones(3)},
        memory=tuple({"weight": torch.zeros(3)} for _ in range(attack.needs_memory)),
    )
    update = {"weight": torch.full((3,), 9.0)}
    attack.on_update(update, told)
    if not torch.equal(update["weight"], torch.full((3,), 9.0)):
        changed.append("update")
    visible = Updates.from_states([{"weight": torch.randn(3)} for _ in range(4)])
    mine = visible.only([2, 3])
    if not torch.equal(
        attack.on_round(mine, visible, told).state(2)["weight"], mine.state(2)["weight"]
    ):
        changed.append("round")
    assert ", ".join(changed) == attack.acts_on().replace("nothing", "")


def values(model: nn.Module) -> list[list[float]]:
    """Return its weights and their gradients."""
    kept = [tensor for p in model.parameters() for tensor in (p, p.grad) if tensor is not None]
    return [tensor.flatten().tolist() for tensor in kept]


@every_attack
def test_what_is_rehearsed_fits_the_data_and_is_in_its_ranges(name: str) -> None:
    rng, spec = torch.Generator().manual_seed(1), fitting(name)
    for _ in range(50):
        drawn = attacks.get(name).sample_parameters(spec, rng)
        attacks.get(name, **drawn).check(spec)
        for parameter, (low, high) in attacks.find(name).ranges.items():
            assert low <= drawn.get(parameter, low) <= high


def test_none_does_nothing_and_measures_nothing() -> None:
    shown = attacks.get("none").triggered(torch.randn(3, 1, 8, 8), torch.arange(3), FACTS)
    assert shown is None


def test_unknown_names_are_answered_with_those_there_are() -> None:
    with pytest.raises(ParameterError) as caught:
        attacks.get("front-door")
    assert all(name in str(caught.value) for name in ("front-door", *attacks.available()))


def test_unknown_parameters_are_answered_with_those_there_are() -> None:
    with pytest.raises(ParameterError, match=r"sign-flip has no parameter 'size'.*scale"):
        attacks.get("sign-flip", size=3)


def test_a_second_attack_of_the_same_name_is_refused() -> None:
    class Impostor(Attack):
        name = "backdoor"
        summary = "another one"

    with pytest.raises(ParameterError, match="backdoor"):
        attacks.register(Impostor)
    assert attacks.find("backdoor") is not Impostor


def test_advice_is_looked_up_by_kind_and_imports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert attacks.advice("omniscient") == attacks.advice("sign-flip") == attacks.SignFlip.advice
    for kind in ("unknown", "no.such.module:Attack", "torch:Tensor"):
        assert attacks.advice(kind) == CHECK_ANYTHING
    assert attacks.advice("fedimmune.attacks.backdoor:Backdoor") == attacks.Backdoor.advice

    def never(*_: Any) -> None:
        raise AssertionError("something was imported")

    monkeypatch.setattr("importlib.import_module", never)
    assert attacks.advice("this:That") == attacks.advice("antigravity:Attack") == CHECK_ANYTHING


@pytest.mark.parametrize(
    ("parameters", "knowledge"),
    [
        ({"name": "alie"}, "everyone"),
        ({"name": "alie", "z": 1}, "everyone"),
        ({"name": "alie", "z": "search"}, "defense"),
        ({"name": "ipm", "scale": "search"}, "defense"),
        ({"name": "gaussian"}, "everyone"),
        ({"name": "gaussian", "deviation": 1}, "own"),
        ({"name": "sign-flip"}, "own"),
        ({"name": "sign-flip", "flip": "training"}, "own"),
        ({"name": "sign-flip", "flip": "mean"}, "everyone"),
        ({"name": "search"}, "defense"),
        ({"name": "poisoned-fl"}, "colluders"),
    ],
)
def test_knowledge_follows_from_the_parameters(parameters: Any, knowledge: str) -> None:
    attack = attacks.get(**parameters)
    assert attack.knowledge == knowledge
    assert attack.overrides("on_round") == (knowledge != "own")
    assert attacks.find(attack.name)().knowledge == attacks.find(attack.name).knowledge


@pytest.mark.parametrize(
    ("knowledge", "words"), [("own", "on_round.*knowledge"), ("all", "own, colluders, everyone")]
)
def test_who_looks_at_others_says_what_it_knows(knowledge: Any, words: str) -> None:
    with pytest.raises(ParameterError, match=f"Spy.*{words}"):
        type("Spy", (Attack,), {"knowledge": knowledge, "on_round": lambda *_: None})
