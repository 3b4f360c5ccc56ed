"""Patches: the new attack is learned, the old one kept, and what is worse is said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from fedimmune import __version__
from fedimmune.adaptive import train, training
from fedimmune.adaptive.defense import Defense
from fedimmune.adaptive.evaluation import validate
from fedimmune.adaptive.patching import Compared, Patched, patch
from fedimmune.adaptive.recordings import Recording, digest_of
from fedimmune.adaptive.training import examples_of
from fedimmune.errors import FedimmuneError
from tests.adaptive.rehearsed import LAYERS, recording, recordings


def halved(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """An attack that negating teaches nothing about: half of the update, in the same direction."""
    return {name: 0.5 * tensor for name, tensor in state.items()}


def halving(runs: int = 2, *, rounds: int = 16, **options: Any) -> list[Recording]:
    return [
        recording(10 + run, attack="halve", harm=halved, rounds=rounds, **options)
        for run in range(runs)
    ]


@pytest.fixture(scope="module")
def parent(trained: Path) -> Defense:
    return Defense.load(trained)


@pytest.fixture(scope="module")
def patched(parent: Defense) -> Patched:
    return patch(parent, halving(3), epochs=40)


def by_attack(rows: Any) -> dict[tuple[bool, str, int], Compared]:
    return {(row.is_old, row.before["attack"], row.before["attackers"]): row for row in rows}


def test_the_new_attack_is_learned_and_the_old_is_kept(patched: Patched) -> None:
    rows = by_attack(patched.rows)
    assert set(rows) == {
        (True, "none", 0),
        (True, "omniscient", 2),
        (True, "omniscient", 3),
        (False, "halve", 2),
    }
    new = rows[False, "halve", 2]
    assert new.before["attacker_weight"] > 0.15, "else there is nothing to learn"
    assert new.after["attacker_weight"] < 0.25 * new.before["attacker_weight"]
    for row in patched.rows:
        assert row.after["benign_kept"] > 0.9
        if row.is_old and row.before["attackers"]:
            assert row.after["attacker_weight"] < 0.03


def test_figures_are_those_of_the_two_defenses_on_what_neither_was_trained_on(
    parent: Defense, patched: Patched
) -> None:
    apart = [each for each in halving(3) if each.about.run == 12]
    for is_old, given in ((True, parent.replay.to_validate), (False, apart)):
        rows = [row for row in patched.rows if row.is_old == is_old]
        assert [row.before for row in rows] == validate(parent, given)
        assert [row.after for row in rows] == validate(patched.defense, given)
    everything = [*parent.replay.to_validate, *apart]
    assert list(patched.defense.about.validation) == validate(patched.defense, everything)


def test_what_a_patched_defense_says_of_itself(parent: Defense, patched: Patched) -> None:
    about = patched.defense.about
    assert about.attacks == ("halve", "omniscient")
    (ancestor,) = about.lineage
    assert ancestor.digest == parent.digest
    assert ancestor.attacks == ("omniscient",)
    assert ancestor.version == about.version == __version__
    assert about.training["epochs"] == len(patched.defense.curve) == 40
    assert about.recordings == digest_of([*parent.replay.every, *halving(3)])
    unchanged = ("task", "layers", "form", "settings", "memory")
    assert all(getattr(about, name) == getattr(parent.about, name) for name in unchanged)


def test_a_patch_can_be_patched(tmp_path: Path, patched: Patched) -> None:
    """By a third attack: the first two are old then, and held out as they were."""
    patched.defense.save(tmp_path / "second.defense")
    second = Defense.load(tmp_path / "second.defense")
    assert {r.about.run for r in second.replay.to_train} == {0, 1, 10, 11}
    assert {r.about.run for r in second.replay.to_validate} == {2, 12}
    assert second.replay.kinds == {"halve", "omniscient"}
    others = [recording(run, attack="third", rounds=3) for run in (20, 21)]
    third = patch(second, others, epochs=1).defense
    assert third.about.attacks == ("halve", "omniscient", "third")
    assert [each.attacks for each in third.about.lineage] == [
        ("omniscient",),
        ("halve", "omniscient"),
    ]
    assert [each.digest for each in third.about.lineage][1] == second.digest
    assert {r.about.run for r in third.replay.to_validate} == {2, 12, 21}


def test_the_parent_is_left_as_it_is_and_a_seed_gives_the_same_bits(trained: Path) -> None:
    parent = Defense.load(trained)
    before = {name: tensor.clone() for name, tensor in parent.form.state_dict().items()}
    file = trained.read_bytes()
    found = halving(rounds=3)
    once, again = (patch(parent, found, epochs=2) for _ in range(2))
    other = patch(parent, found, epochs=2, seed=2)
    assert trained.read_bytes() == file
    assert all(torch.equal(before[name], t) for name, t in parent.form.state_dict().items())
    assert parent.form.dtype == torch.float64
    same = [once.defense.form.state_dict(), again.defense.form.state_dict()]
    assert all(torch.equal(same[0][name], same[1][name]) for name in same[0])
    changed = other.defense.form.state_dict()
    assert not all(torch.equal(same[0][name], changed[name]) for name in same[0])


def test_it_begins_with_the_parents_weights(
    parent: Defense, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[dict[str, Tensor]] = []

    def note(form: Any, *_: Any, **__: Any) -> Any:
        begun.append({name: tensor.clone() for name, tensor in form.state_dict().items()})
        return []

    monkeypatch.setattr(training, "fit", note)
    patch(parent, halving(rounds=2), epochs=1)
    weights = parent.form.state_dict()
    assert all(torch.equal(begun[0][name].double(), weights[name]) for name in weights)
    assert all(tensor.dtype == torch.float32 for tensor in begun[0].values()), "as it was trained"


@pytest.mark.parametrize("rounds", [1, 100])
def test_no_kind_is_drowned(parent: Defense, monkeypatch: pytest.MonkeyPatch, rounds: int) -> None:
    used: list[Counter[str]] = []

    def spy(form: Any, given: Sequence[Recording], **options: Any) -> Any:
        used.append(Counter(r.about.attack for r in given for _ in range(len(r))))
        return examples_of(form, given, **options)

    monkeypatch.setattr(training, "examples_of", spy)
    new = halving(rounds=rounds)
    found = patch(parent, new, epochs=1).defense
    assert len(used) == 2, "to train on, and to validate on"
    for counts in used:
        assert set(counts) == {"none", "omniscient", "halve"}
        assert max(counts.values()) <= 1.5 * min(counts.values())
    learned = digest_of([*parent.replay.every, *new])
    assert found.about.recordings == learned, "repeated to be learned, and not in what is kept"
    assert len(found.replay.every) == len(parent.replay.every) + len(new)


def test_what_is_known_is_not_learned_as_new(parent: Defense) -> None:
    """A folder that old and new recordings share: no run is validated on that was trained on."""
    shared = [*recordings(rounds=16), *halving(rounds=4)]
    found = patch(parent, shared, epochs=1)
    assert {row.before["attack"] for row in found.rows if not row.is_old} == {"halve"}
    more = [*recordings(4, rounds=2), *recordings(5, rounds=2)]
    again = patch(parent, more, epochs=1)
    assert {r.about.run for r in again.defense.replay.to_train} == {0, 1, 3}
    assert {r.about.run for r in again.defense.replay.to_validate} == {2, 4}
    assert again.defense.about.attacks == ("omniscient",), "more of the same is fine"


# -------------------------------------------------------------------- worse


def row(before: tuple[float | None, float], after: tuple[float | None, float]) -> Compared:
    names = ("attacker_weight", "benign_kept")
    return Compared(
        True, dict(zip(names, before, strict=True)), dict(zip(names, after, strict=True))
    )


@pytest.mark.parametrize(
    ("before", "after", "lost"),
    [
        ((0.10, 1.00), (0.15, 1.00), 0.05),
        ((0.10, 1.00), (0.05, 0.90), 0.10),
        ((0.10, 0.90), (0.00, 1.00), -0.10),
        ((0.10, 0.90), (0.20, 1.00), 0.10),
        ((None, 0.90), (None, 0.80), 0.10),
        ((None, 0.90), (None, 1.00), -0.10),
    ],
)
def test_worse_is_more_weight_on_attackers_or_fewer_honest(
    before: tuple[float | None, float], after: tuple[float | None, float], lost: float
) -> None:
    assert row(before, after).lost == pytest.approx(lost)


def test_only_old_attacks_and_only_beyond_the_margin(parent: Defense) -> None:
    worse, better = row((0.0, 1.0), (0.5, 1.0)), row((0.5, 1.0), (0.0, 1.0))
    slightly, worst = row((0.0, 1.0), (0.25, 1.0)), row((0.0, 1.0), (0.0, 0.25))
    new = Compared(False, worse.before, worse.after)
    found = Patched(parent, [better, worse, slightly, new, worst], margin=0.25)
    assert found.worse == [worst, worse]


def test_a_patch_that_forgets_says_so(parent: Defense) -> None:
    """Negated updates are honest now, it is told: what it knew cannot hold."""
    turned = []
    for run in (10, 11):
        one = recording(run, rounds=16, attack="turned")
        turned.append(Recording(one.about, one.grams, ~one.attackers, one.median_distances))
    found = patch(parent, turned, epochs=10)
    assert found.worse
    assert all(each.is_old for each in found.worse)


# -------------------------------------------------------------------- refused


def renamed(**options: Any) -> list[Recording]:
    return [recording(run, **options) for run in (10, 11)]


@pytest.mark.parametrize(
    ("given", "options", "said"),
    [
        ([], {}, "no recordings to learn from"),
        (halving(1), {}, "two runs at least"),
        (recordings(rounds=2), {}, "knows all of these recordings"),
        (renamed(layers={"w": (3,)}), {}, "trained for another model .*lacks 'conv"),
        (renamed(layers={**LAYERS, "more": (3,)}), {}, "has 'more' besides"),
        (renamed(layers=dict(reversed(LAYERS.items()))), {}, "another order"),
        (halving(), {"margin": -0.1}, "margin"),
        (halving(), {"margin": float("nan")}, "margin"),
        (halving(), {"old_recordings": []}, "no recordings"),
        (halving(), {"old_recordings": halving()}, "no recording of 'omniscient'"),
        (halving(), {"old_recordings": renamed(layers={"w": (3,)})}, "another model"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_cannot_be_patched(
    parent: Defense, given: list[Recording], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(FedimmuneError, match=said):
        patch(parent, given, epochs=1, **options)


def test_an_anchor_is_asked_for_where_the_defense_has_one(anchored: Path, parent: Defense) -> None:
    with pytest.raises(FedimmuneError, match="set the scenario's `anchor`"):
        patch(Defense.load(anchored), halving(), epochs=1)
    with_anchor = patch(Defense.load(anchored), halving(rounds=2, anchor=True), epochs=1)
    assert with_anchor.defense.references
    needless = patch(parent, halving(rounds=2, anchor=True), epochs=1).defense
    without = patch(parent, halving(rounds=2), epochs=1).defense
    pairs = zip(needless.form.parameters(), without.form.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_a_defense_without_a_file_or_without_a_replay(tmp_path: Path) -> None:
    made = train(recordings(rounds=2), epochs=1, settings={"hidden": 8})
    with pytest.raises(FedimmuneError, match="no file yet"):
        patch(made, halving(), epochs=1)
    Defense(made.form, made.about).save(tmp_path / "old.defense")
    assert not any(name.startswith("replay") for name in load_file(tmp_path / "old.defense"))
    old = Defense.load(tmp_path / "old.defense")
    with pytest.raises(FedimmuneError, match="--old-recordings"):
        patch(old, halving(), epochs=1)
    given = patch(old, halving(rounds=2), old_recordings=recordings(rounds=2), epochs=1)
    assert given.defense.about.attacks == ("halve", "omniscient")
    assert given.defense.replay.kinds == {"halve", "omniscient"}


@pytest.mark.parametrize("preset", ["paper", "authors"])
def test_the_papers_form_can_be_patched(tmp_path: Path, preset: str) -> None:
    # These updates are longer than any that has not diverged.
    settings = {"limit": 100.0} if preset == "authors" else {}
    made = train(recordings(rounds=2), form="paper", preset=preset, epochs=1, settings=settings)
    made.save(tmp_path / "paper.defense")
    found = patch(Defense.load(tmp_path / "paper.defense"), halving(rounds=2), epochs=1).defense
    assert found.about.form == "paper"
    found.save(tmp_path / "patched.defense")
    again = Defense.load(tmp_path / "patched.defense")
    assert again.about == found.about
