"""Every attack that trains a backdoor has it in the model when the server takes the mean."""

from __future__ import annotations

import pytest

from tests.attacks.training import REVIEWS, effect

ROWS = "tests.simulation.own_task:Rows"
SLOW = {"dba": {"rounds": 4, "local_epochs": 4}, "pgd": {"rounds": 6}}
"""A part of the pattern, and updates that are kept short, take longer."""


@pytest.mark.parametrize(
    "attack",
    [
        "backdoor",
        "dba",
        "scaling",
        {"name": "scaling", "bound": 2.0},
        "constrain-and-scale",
        {"name": "constrain-and-scale", "metric": "cosine"},
        "pgd",
        "neurotoxin",
        "edge-case",
        {"name": "edge-case", "tail": "low"},
    ],
    ids=str,
)
def test_on_digits_success_rises_against_the_mean(attack: object) -> None:
    found = effect(attack, "digits", **SLOW.get(str(attack), {}))
    assert found.before.accuracy > 0.8
    assert found.before.asr_others is not None
    assert found.after.asr_others is not None
    assert found.before.asr_others < 0.2
    assert found.after.asr_others > found.before.asr_others + 0.3


@pytest.mark.parametrize(
    "attack",
    [
        "text-backdoor",
        {"name": "text-backdoor", "place": "start"},
        {"name": "scaling", "scale": 1.5},
    ],
    ids=str,
)
def test_on_text(attack: object) -> None:
    found = effect(attack, REVIEWS, rounds=4, local_epochs=2)
    assert found.before.accuracy > 0.9
    assert found.before.asr_others is not None
    assert found.after.asr_others is not None
    assert found.after.asr_others > found.before.asr_others + 0.3


@pytest.mark.parametrize("attack", ["tabular-backdoor", "scaling", "pgd", "neurotoxin"])
def test_on_a_table(attack: str) -> None:
    found = effect(attack, ROWS)
    assert found.before.asr_others is not None
    assert found.after.asr_others is not None
    assert found.after.asr_others > found.before.asr_others + 0.3


@pytest.mark.parametrize("attack", ["scaling", "constrain-and-scale", "pgd", "neurotoxin"])
def test_what_trains_a_backdoor_takes_the_one_that_fits(attack: str) -> None:
    for task, trigger in ((REVIEWS, "text-backdoor"), (ROWS, "tabular-backdoor")):
        own, plain = (effect(name, task, rounds=0).before for name in (attack, trigger))
        assert own == plain
        assert own.tried
