"""The attacks by name; all of them describe themselves, and do what they say they act on."""

from __future__ import annotations

import pytest
import torch

from fedimmune.attacks import Attack, create, find, names, register
from fedimmune.errors import ParameterError
from fedimmune.tasks import Facts

FACTS = Facts(classes=10, shape=(1, 8, 8), highest=(1.0,))


def test_the_issues_attacks_are_there() -> None:
    assert {"none", "omniscient", "label-flip", "backdoor"} <= set(names())


@pytest.mark.parametrize("name", names())
def test_it_describes_itself(name: str) -> None:
    attack = find(name)
    assert attack.name == name
    assert attack.summary
    assert attack.paper
    made = create(name)
    assert all(hasattr(made, parameter) for parameter in attack.parameters())


@pytest.mark.parametrize("name", names())
def test_it_acts_on_what_it_says(name: str) -> None:
    attack = create(name)
    attack.check(FACTS)
    inputs, labels = torch.randn(20, 1, 8, 8), torch.arange(20) % 10
    poisoned = attack.poison(inputs.clone(), labels.clone(), FACTS)
    changes_data = not (torch.equal(poisoned[0], inputs) and torch.equal(poisoned[1], labels))
    update = {"weight": torch.ones(3)}
    attack.corrupt(update)
    changes_update = not torch.equal(update["weight"], torch.ones(3))
    assert (changes_data, changes_update) == {
        "nothing": (False, False),
        "data": (True, False),
        "update": (False, True),
    }[attack.acts_on]


def test_none_does_nothing_and_measures_nothing() -> None:
    assert create("none").trial(torch.randn(3, 1, 8, 8), torch.arange(3), FACTS) is None


def test_unknown_names_are_answered_with_those_there_are() -> None:
    with pytest.raises(ParameterError) as caught:
        create("front-door")
    assert all(name in str(caught.value) for name in ("front-door", *names()))


def test_unknown_parameters_are_answered_with_those_there_are() -> None:
    with pytest.raises(ParameterError, match=r"omniscient has no parameter 'size'.*scale"):
        create("omniscient", size=3)


def test_a_second_attack_of_the_same_name_is_refused() -> None:
    class Impostor(Attack):
        name = "backdoor"
        summary = "another one"
        acts_on = "data"
        paper = "–"

    with pytest.raises(ParameterError, match="backdoor"):
        register(Impostor)
    assert find("backdoor") is not Impostor
