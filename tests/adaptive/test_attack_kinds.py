"""Kinds of attack: told apart, unknown where nothing fits, sure as often as right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save_file
from torch import Tensor

from fedimmune import rules
from fedimmune.adaptive import train
from fedimmune.adaptive.attack_kinds import Kinds, learn_kinds
from fedimmune.adaptive.defense import Defense
from fedimmune.adaptive.recordings import Recording
from fedimmune.adaptive.synthetic_attacks import invent
from fedimmune.errors import InputError
from fedimmune.io import described, read_description
from fedimmune.results import UNKNOWN, Verdict
from tests.adaptive.rehearsed import LAYERS, honest_round, negated, recording

_MARK = {
    name: torch.randn(shape, generator=torch.Generator().manual_seed(77)).double()
    for name, shape in LAYERS.items()
}


def marked(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What all attackers share, in the last layers, on top of honest work: as a backdoor does."""
    return {
        name: 0.4 * tensor + (4 * _MARK[name] if name.startswith("fc") else 0)
        for name, tensor in state.items()
    }


def turned(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What was never rehearsed: one layer negated, one replaced by nothing anybody knows."""
    return {
        "conv.weight": -tensor_of(state, "conv.weight"),
        "fc.weight": 2 * torch.randn(LAYERS["fc.weight"]).double(),
        "fc.bias": tensor_of(state, "fc.bias"),
    }


def tensor_of(state: Mapping[str, Tensor], name: str) -> Tensor:
    return state[name]


HARM: dict[str, Callable[[Mapping[str, Tensor]], dict[str, Tensor]]] = {
    "omniscient": negated,
    "backdoor": marked,
}


def rehearsals(rounds: int = 14) -> list[Recording]:
    found = [recording(run, attackers=0, rounds=rounds) for run in range(3)]
    for attack, harm in HARM.items():
        found += [
            recording(run, attackers=count, rounds=rounds, attack=attack, harm=harm)
            for run in range(3)
            for count in (2, 3)
        ]
    return found


@pytest.fixture(scope="module")
def knowing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A defense that has rehearsed both attacks."""
    path = tmp_path_factory.mktemp("kinds") / "knowing.defense"
    made = train(rehearsals(), epochs=60, settings={"hidden": 32})
    made.save(path)
    return path


class Federation:
    """Rounds of ten clients, three of whom attack."""

    def __init__(self, defense: Path, **options: Any) -> None:
        self.rule: Any = rules.get("adaptive", defense=defense, **options)
        self._random = torch.Generator().manual_seed(3)

    def play(self, harm: Callable[[Mapping[str, Tensor]], dict[str, Tensor]], bad: Any) -> Any:
        sent = honest_round(10, self._random)
        return self.rule.aggregate(
            {i: harm(state) if i in bad else state for i, state in enumerate(sent)}
        )


def kinds_of(answer: Any, bad: set[int]) -> list[str]:
    return [j.suspicion.kind for j in answer.clients if j.client in bad and j.suspicion]


@pytest.mark.parametrize("attack", HARM)
def test_a_rehearsed_attack_is_called_by_its_name(knowing: Path, attack: str) -> None:
    federation, bad = Federation(knowing), {1, 4, 7}
    called = [k for _ in range(8) for k in kinds_of(federation.play(HARM[attack], bad), bad)]
    assert len(called) >= 20, "they are suspected"
    assert Counter(called)[attack] >= 0.9 * len(called)


def test_an_attack_that_was_never_rehearsed_is_unknown_more_often_than_anything_else(
    knowing: Path,
) -> None:
    torch.manual_seed(5)
    federation, bad = Federation(knowing), {0, 5, 9}
    called = [k for _ in range(8) for k in kinds_of(federation.play(turned, bad), bad)]
    assert called
    assert Counter(called).most_common(1)[0][0] == UNKNOWN


def test_only_suspects_are_suspected_of_something(knowing: Path) -> None:
    answer = Federation(knowing).play(negated, {2, 3})
    for j in answer.clients:
        assert (j.suspicion is not None) == (j.verdict is Verdict.SUSPECTED)
        if j.suspicion:
            assert 0 <= j.suspicion.confidence <= 1
            assert j.suspicion.kind in j.reason
            assert f"{j.suspicion.confidence:.0%}" in j.reason
            assert j.suspicion.runner_up not in {None, j.suspicion.kind}
            assert 0 <= j.suspicion.runner_up_confidence <= 1 - j.suspicion.confidence + 1e-3
            assert f"then {j.suspicion.runner_up} (" in j.reason
    told = {client["client"]: client for client in answer.to_json()["clients"]}
    assert told["2"]["kind"] == "omniscient"
    assert told["0"]["kind"] is None


def test_since_counts_from_the_round_in_which_suspicion_began_and_ends_with_it(
    knowing: Path,
) -> None:
    federation = Federation(knowing, memory=True)
    nobody: set[int] = set()
    federation.play(negated, nobody)
    for _ in range(3):
        answer = federation.play(negated, {6})
        assert answer.clients[6].suspicion.since == 2
    for _ in range(8):
        answer = federation.play(negated, nobody)
    assert answer.clients[6].suspicion is None, "heard again"
    answer = federation.play(negated, {6})
    assert answer.clients[6].suspicion.since == 13, "a new case"


def test_a_client_that_takes_no_part_keeps_its_case(knowing: Path) -> None:
    rule: Any = rules.get("adaptive", defense=knowing, memory=True)
    random = torch.Generator().manual_seed(4)
    for number in range(4):
        states = honest_round(9, random)
        sent = {i: negated(s) if i == 8 else s for i, s in enumerate(states)}
        if number == 2:
            del sent[8]
        answer = rule.aggregate(sent)
    assert {j.client: j for j in answer.clients}[8].suspicion.since == 1


def test_without_memory_nothing_is_said_about_when(knowing: Path) -> None:
    federation = Federation(knowing, memory=False)
    for _ in range(2):
        answer = federation.play(negated, {6})
    assert answer.clients[6].suspicion.since is None


def test_kinds_survive_saving_and_restoring(knowing: Path, tmp_path: Path) -> None:
    one = Federation(knowing)
    for _ in range(3):
        one.play(marked, {1, 2, 3})
    one.rule.save(tmp_path / "memory")
    other = Federation(knowing)
    other.rule.restore(tmp_path / "memory")
    assert other.rule.known == one.rule.known
    assert one.rule.known.cases.keys() == {1, 2, 3}


def test_confidence_is_calibrated(knowing: Path) -> None:
    """Of held-out attackers called a kind with confidence p, a share of about p is of that kind."""
    defense = Defense.load(knowing)
    assert defense.kinds is not None
    fresh = [
        recording(9, attackers=3, rounds=20, attack=attack, harm=harm)
        for attack, harm in HARM.items()
    ]
    sure, right = [], []
    for each in fresh:
        inputs = defense.form.prepare(each.grams)
        with torch.no_grad():
            weighed = defense.form(inputs)
            found = defense.kinds(defense.form.describe(inputs, weighed.shares)).exp()
        best = found[each.attackers].max(-1)
        sure.append(best.values)
        right.append(best.indices == defense.kinds.names.index(each.about.attack))
    assert abs(float(torch.cat(sure).mean()) - float(torch.cat(right).double().mean())) < 0.1


def test_a_defense_of_rehearsals_without_attacks_knows_no_kinds(tmp_path: Path) -> None:
    peaceful = [recording(run, attackers=0, rounds=3) for run in range(2)]
    made = train(peaceful, epochs=1)
    assert made.kinds is None
    made.save(tmp_path / "a.defense")
    assert Defense.load(tmp_path / "a.defense").kinds is None


def test_an_attack_may_not_be_called_unknown() -> None:
    made = train([recording(r, rounds=2) for r in range(2)], epochs=1)
    odd = [recording(r, rounds=2, attack=UNKNOWN) for r in range(2)]
    with pytest.raises(InputError, match="unknown"):
        learn_kinds(made.form, odd[:1], odd[1:], seed=1)


def test_the_same_recordings_and_seed_give_the_same_classifier() -> None:
    made = train(rehearsals(3), epochs=1)
    again = train(rehearsals(3), epochs=1)
    assert made.kinds is not None
    assert again.kinds is not None
    for name, tensor in made.kinds.state_dict().items():
        assert torch.equal(again.kinds.state_dict()[name], tensor)


def test_it_makes_no_difference_in_which_order_clients_come(knowing: Path) -> None:
    defense = Defense.load(knowing)
    grams = rehearsals(3)[5].grams[0]
    order = torch.randperm(8, generator=torch.Generator().manual_seed(1))
    one, other = (
        defense.judge(each).kinds for each in (grams, grams[:, order][:, :, order].contiguous())
    )
    assert one is not None
    assert other is not None
    torch.testing.assert_close(one[order], other)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"preset": "authors", "settings": {"limit": 100.0}},
        {"settings": {"attention": False}},
    ],
)
def test_the_papers_form_tells_kinds_too(options: dict[str, Any], tmp_path: Path) -> None:
    made = train(rehearsals(3), epochs=1, form="paper", **options)
    assert made.kinds is not None
    assert made.kinds.names == ("backdoor", "omniscient", UNKNOWN)
    made.save(tmp_path / "a.defense")
    again = Defense.load(tmp_path / "a.defense")
    grams = rehearsals(3)[5].grams[0]
    one, other = made.judge(grams), again.judge(grams)
    assert (one.kinds is None) == (other.kinds is None)
    if one.kinds is not None and other.kinds is not None:
        assert torch.equal(one.kinds, other.kinds)


# -------------------------------------------------------------------- damage


def test_a_damaged_classifier_is_refused(knowing: Path, tmp_path: Path) -> None:
    def written(change: Callable[[dict[str, Tensor], dict[str, Any]], None]) -> Path:
        tensors: dict[str, Tensor] = load(knowing.read_bytes())
        description = read_description(knowing)
        change(tensors, description)
        path = tmp_path / "damaged.defense"
        save_file(tensors, path, described(tensors, **description))
        return path

    def without_names(_: dict[str, Tensor], description: dict[str, Any]) -> None:
        del description["kinds"]

    def other_names(_: dict[str, Tensor], description: dict[str, Any]) -> None:
        description["kinds"] = ["backdoor"]

    def less(tensors: dict[str, Tensor], _: dict[str, Any]) -> None:
        del tensors["kinds/mean"]

    def not_finite(tensors: dict[str, Tensor], _: dict[str, Any]) -> None:
        tensors["kinds/mean"] = tensors["kinds/mean"] * torch.nan

    for change in (without_names, other_names, less, not_finite):
        with pytest.raises(InputError, match="damaged"):
            Defense.load(written(change))


# -------------------------------------------------------------------- invented attacks


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.booleans())
def test_invented_rounds_are_of_real_vectors_and_leave_the_honest_alone(
    seed: int, count: int, anchor: bool
) -> None:
    rehearsed = recording(seed % 50, attackers=count, rounds=2, anchor=anchor)
    grams, attackers = rehearsed.grams, rehearsed.attackers
    found = invent(grams, attackers, torch.Generator().manual_seed(seed))
    assert found.shape == grams.shape
    torch.testing.assert_close(found, found.mT)
    least = torch.linalg.eigvalsh(found).amin(-1)
    largest = torch.linalg.eigvalsh(found).amax(-1)
    assert bool((least >= -1e-9 * largest).all()), "inner products of some vectors"
    rows = grams.shape[-1]
    for number in range(len(grams)):
        honest = [i for i in range(rows) if i >= attackers.shape[1] or not attackers[number, i]]
        kept = found[number][:, honest][:, :, honest]
        torch.testing.assert_close(kept, grams[number][:, honest][:, :, honest])
        bad = attackers[number].nonzero()[0]
        assert not torch.allclose(found[number][:, bad], grams[number][:, bad])


def test_invented_updates_are_mixtures_as_the_definition_says() -> None:
    """The same, with vectors: T X, and as many new directions at right angles to all."""
    rehearsed = recording(1, attackers=2, rounds=1, n=5)
    grams, attackers = rehearsed.grams, rehearsed.attackers
    found = invent(grams, attackers, torch.Generator().manual_seed(0))[0]
    who = attackers[0].nonzero().flatten().tolist()
    honest = [i for i in range(5) if i not in who]
    for layer in range(grams.shape[1]):
        g = grams[0, layer]
        for i in who:
            # Its products with the honest are a combination of one honest client's and its own.
            fits = []
            for h in honest:
                basis = torch.stack([g[h, honest], g[i, honest]], 1)
                solution = torch.linalg.lstsq(basis, found[layer, i, honest][:, None]).solution
                fits.append(float((basis @ solution)[:, 0].sub(found[layer, i, honest]).norm()))
            assert min(fits) < 1e-9


def test_the_classifier_gives_probabilities() -> None:
    kinds = Kinds(["a", "b"], 4).double()
    found = kinds(torch.randn(5, 4, dtype=torch.float64)).exp()
    assert found.shape == (5, 3)
    torch.testing.assert_close(found.sum(-1), torch.ones(5, dtype=torch.float64))
