"""Training: what is learned, from which runs, and that it is the same every time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from fedimmune.adaptive import train, training
from fedimmune.adaptive.defense import Defense, make_form
from fedimmune.adaptive.evaluation import validate
from fedimmune.adaptive.recordings import Recording, digest_of
from fedimmune.adaptive.training import Epoch, Examples, examples_of, fit, rounds_of
from fedimmune.errors import FedimmuneError, InputError, ParameterError
from tests.adaptive.rehearsed import LAYERS, recording, recordings

SMALL: dict[str, Any] = {"settings": {"hidden": 16}}


def weights_of(defense: Defense) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in defense.form.state_dict().values()]


@pytest.mark.parametrize("form", ["relational", "paper"])
def test_a_seed_gives_the_same_bits_and_another_seed_others(form: str) -> None:
    found = recordings(rounds=3)
    torch.manual_seed(5)
    first = train(found, form=form, epochs=3)
    torch.manual_seed(77)
    before = torch.random.get_rng_state()
    again = train(found, form=form, epochs=3)
    assert torch.equal(torch.random.get_rng_state(), before), "chance of the caller's own is his"
    assert first.curve == again.curve
    assert all(torch.equal(a, b) for a, b in zip(weights_of(first), weights_of(again), strict=True))
    other = train(found, form=form, epochs=3, seed=2)
    assert not all(
        torch.equal(a, b) for a, b in zip(weights_of(first), weights_of(other), strict=True)
    )


def test_the_best_validation_epoch_is_kept() -> None:
    found = [each for each in recordings(rounds=4) if each.about.attackers]
    torch.manual_seed(1)
    form = make_form("relational", {"layers": len(LAYERS), "anchor": False, "hidden": 16})
    to_train = examples_of(form, [r for r in found if r.about.run < 2])
    # What is held out says the opposite, so that best and last differ.
    apart = [
        Examples(group.inputs, ~group.attackers)
        for group in examples_of(form, [r for r in found if r.about.run == 2])
    ]
    told: list[Epoch] = []
    curve = fit(form, to_train, apart, epochs=5, on_epoch=told.append)
    assert told == curve
    assert [epoch.number for epoch in curve] == list(range(1, 6))
    best = min(epoch.validation for epoch in curve)
    assert best < curve[-1].validation
    rounds = sum(len(group) for group in apart)
    with torch.no_grad():
        losses = [float(form.loss(g.inputs, form(g.inputs), g.attackers)) * len(g) for g in apart]
    assert sum(losses) / rounds == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("runs", [2, 3, 4])
def test_no_run_is_trained_on_and_validated_on(runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[set[int]] = []

    def spy(form: Any, given: Sequence[Recording]) -> Any:
        used.append({each.about.run for each in given})
        return rounds_of(form, given)

    monkeypatch.setattr(training, "rounds_of", spy)
    validated: list[set[int]] = []

    def figures(defense: Defense, given: Sequence[Recording]) -> Any:
        validated.append({each.about.run for each in given})
        return validate(defense, given)

    monkeypatch.setattr(training, "validate", figures)
    train(recordings(runs, rounds=2), epochs=1, **SMALL)
    held_out = {runs - 1}  # as it is, and with synthetic attacks
    assert used == [held_out, set(range(runs - 1)), held_out]
    assert validated == [{runs - 1}]


@pytest.mark.parametrize("anchor", [True, False])
def test_negated_updates_are_learned_in_seconds(anchor: bool) -> None:
    found = recordings(rounds=16, anchor=anchor)
    defense = train(found, epochs=60, settings={"hidden": 32})
    assert defense.references == (("anchor",) if anchor else ())
    assert defense.curve[-1].training < 0.5 * defense.curve[0].training
    rows = {(row["attack"], row["attackers"]): row for row in defense.about.validation}
    assert set(rows) == {("none", 0), ("omniscient", 2), ("omniscient", 3)}
    for key, row in rows.items():
        assert row["benign_kept"] > 0.95
        assert row["rounds"] == 16
        if key[1]:
            assert row["attacker_weight"] < 0.05
            assert row["auroc"] > 0.98
            assert row["distance"] < 0.5 * row["distance_of_mean"]
        else:
            assert row["attacker_weight"] is None


def test_the_papers_form_learns_them_too() -> None:
    defense = train(recordings(rounds=8), form="paper", epochs=30)
    assert not defense.references
    assert min(e.validation for e in defense.curve) < 0.9 * defense.curve[0].validation


def test_figures_by_their_definitions() -> None:
    """On a defense that says the same of everyone, which keeps all."""
    found = recording(0, attackers=2, n=8, rounds=5)
    defense = train(recordings(2, rounds=2), epochs=1, **SMALL)
    for parameter in defense.form.parameters():
        parameter.data.zero_()
    (row,) = validate(defense, [found])
    assert row["attacker_weight"] == pytest.approx(2 / 8)
    assert row["benign_kept"] == 1
    assert row["exact"] == 0
    assert row["auroc"] == pytest.approx(0.5)
    assert row["over_half"] == 0
    assert row["distance"] == pytest.approx(row["distance_of_mean"])


def test_rounds_with_other_numbers_of_clients_learn_together() -> None:
    mixed = [recording(run, n=n, rounds=3) for run in range(2) for n in (5, 8)]
    defense = train(mixed, epochs=2, **SMALL)
    assert {(row["clients"], row["rounds"]) for row in defense.about.validation} == {(5, 3), (8, 3)}


def test_what_a_defense_says_of_itself() -> None:
    found = [
        *recordings(rounds=2),
        *(recording(run, attack="backdoor", rounds=2) for run in (0, 2)),
    ]
    defense = train(found, attacks=["backdoor"], epochs=2, seed=4, **SMALL)
    about = defense.about
    assert about.attacks == ("backdoor",)
    learned = [each for each in found if each.about.attack in {"none", "backdoor"}]
    assert about.recordings == digest_of(learned)
    assert about.layers == LAYERS
    assert about.task == "synthetic"
    assert about.training["epochs"] == 2
    assert about.training["seed"] == 4
    measured = {row["attack"] for row in about.validation}
    assert measured == {"none", "backdoor", "omniscient"}, "it is validated on all"


@pytest.mark.parametrize(
    ("given", "options", "kind", "said"),
    [
        (recordings(1, rounds=1), {}, InputError, "two runs at least"),
        (recordings(2, rounds=1), {"form": "oval"}, ParameterError, "no form 'oval'; there are"),
        (recordings(2, rounds=1), {"preset": "paper"}, ParameterError, "no preset 'paper'"),
        (
            recordings(2, rounds=1),
            {"form": "paper", "preset": "mine"},
            ParameterError,
            "no preset 'mine'",
        ),
        (recordings(2, rounds=1), {"settings": {"color": 3}}, ParameterError, "color"),
        (recordings(2, rounds=1), {"settings": {"c": -1}}, ParameterError, "c: "),
        (recordings(2, rounds=1), {"attacks": ["flip"]}, ParameterError, "no recording of 'flip'"),
        (recordings(2, rounds=1), {"anchor": True}, InputError, "no anchor"),
        (
            recordings(2, rounds=1),
            {"form": "paper", "anchor": True},
            ParameterError,
            "paper's form has no anchor",
        ),
        ([], {}, InputError, "no recordings"),
        (recordings(2, rounds=1), {"settings": {"layers": 7}}, ParameterError, "layers"),
        (
            recordings(2, rounds=1),
            {"form": "paper", "settings": {"attention": False, "clients": 5}},
            FedimmuneError,
            "clients",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_cannot_be_made(
    given: list[Recording], options: dict[str, Any], kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said):
        train(given, **{"epochs": 1, **options})


def test_an_anchor_that_was_recorded_can_be_left_out() -> None:
    defense = train(recordings(2, anchor=True, rounds=2), anchor=False, epochs=1, **SMALL)
    without = train(recordings(2, anchor=False, rounds=2), epochs=1, **SMALL)
    assert not defense.references
    assert all(
        torch.equal(a, b) for a, b in zip(weights_of(defense), weights_of(without), strict=True)
    )
