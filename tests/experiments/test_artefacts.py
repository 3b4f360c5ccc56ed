"""Every artefact can be planned at every scale, and what artefacts have in common is shared."""

from __future__ import annotations

from typing import Any

import pytest

from fedimmune.errors import ParameterError
from fedimmune.experiments.artefacts import ARTEFACTS, artefact
from fedimmune.experiments.asking import Ask, read_only, read_seeds
from fedimmune.experiments.contenders import RULES, contender
from fedimmune.experiments.grids import Grid
from fedimmune.experiments.learned_parts import Rehearsed, Trained
from fedimmune.experiments.parts import closure
from fedimmune.experiments.played_parts import Played
from fedimmune.experiments.scales import SCALES, setting_of
from fedimmune.federation import Scenario
from fedimmune.tasks import find

IDS = [
    "mnist-attackers",
    "cifar10-attackers",
    "tiny-imagenet-attackers",
    "imdb-attackers",
    "mnist-backdoor",
    "cifar10-backdoor",
    "tiny-imagenet-backdoor",
    "ablation",
    "transfer-cifar100",
    "transfer-100-clients",
    "transfer-patterns",
    "training-attacks",
    "sweep",
    "partition",
    "synthetic",
    "traits",
]


def keys(name: str, ask: Ask, kind: type = object) -> set[str]:
    return {part.key for part in closure(artefact(name).parts(ask)) if isinstance(part, kind)}


def test_all_of_the_papers_artefacts_are_there() -> None:
    assert list(ARTEFACTS) == IDS


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", IDS)
def test_planned_the_same_every_time_and_without_data(name: str, scale: str) -> None:
    ask = Ask(scale, repeats=1)
    parts = closure(artefact(name).parts(ask))
    assert parts
    assert [part.key for part in parts] == [
        part.key for part in closure(artefact(name).parts(Ask(scale, repeats=1)))
    ]
    assert all(part.seconds > 0 and part.title for part in parts)
    for part in parts[:: max(1, len(parts) // 20)]:
        if isinstance(part, Played):
            Scenario(**part.fields)  # says what is wrong with it, if anything is


def test_the_papers_scale_is_the_tasks_own_recipe() -> None:
    """What the tasks have from the paper must not be changed by an experiment."""
    for task in ("mnist", "cifar10", "tiny-imagenet", "imdb", "cifar100"):
        setting = setting_of(task, "paper")
        assert Scenario(**setting.fields).resolve() == Scenario(task=task).resolve()
        assert setting.rounds == find(task).recipe.rounds
        assert setting.to_the_letter.runs == 3
        assert setting.to_the_letter.attackers == (0, 1, 2, 3, 4)
        assert len(setting.to_the_letter.follow) == 4
        assert setting.to_the_letter.local_epochs == (1,)
        assert setting.epochs == 500


@pytest.mark.parametrize("scale", SCALES)
def test_no_two_parts_are_called_the_same(scale: str) -> None:
    """Otherwise nobody could tell from a list what is missing, or which has failed."""
    ask = Ask(scale, repeats=2)
    parts = closure(part for each in ARTEFACTS.values() for part in each.parts(ask))
    assert len({part.title for part in parts}) == len({part.key for part in parts}) == len(parts)


def test_patterns_that_are_the_same_are_played_once() -> None:
    """A pattern that is not moved down is the one that is not moved to the right."""
    for scale in ("cpu", "paper"):
        ask = Ask(scale, 1)
        played = [p for p in artefact("transfer-patterns").parts(ask) if isinstance(p, Played)]
        runs = {(p.played.digest, p.needs[0].key if p.needs else p.contender.key) for p in played}
        assert len(runs) == len({p.key for p in played}) < len(played)
        unmoved = {p.key for p in played if not p.played.attack.parameters["gap"]}
        assert unmoved <= keys("mnist-backdoor", ask) | keys("cifar10-backdoor", ask)


def test_three_seeds_for_the_paper_and_as_many_as_asked_for() -> None:
    one = len(keys("mnist-backdoor", Ask("paper", 1), Played))
    assert len(keys("mnist-backdoor", Ask("paper"), Played)) == 3 * one
    assert len(keys("mnist-backdoor", Ask("cpu"), Played)) == one
    assert one == len(RULES) * 4


def test_a_table_of_backdoors_is_a_part_of_the_figure() -> None:
    for scale in SCALES:
        assert keys("mnist-backdoor", Ask(scale)) <= keys("mnist-attackers", Ask(scale))


def test_scales_share_what_does_not_differ() -> None:
    """On MNIST only what rehearses with the clients' data does so otherwise."""
    cpu, paper = (keys("mnist-backdoor", Ask(scale, 1), Played) for scale in ("cpu", "paper"))
    assert len(cpu & paper) == len(cpu) - 4
    rehearsed = [keys("mnist-backdoor", Ask(scale, 1), Rehearsed) for scale in ("cpu", "paper")]
    assert rehearsed[0] < rehearsed[1] | rehearsed[0]


def test_defences_share_rehearsals() -> None:
    """Three trainings (B, O, B+O) of two forms learn from the rehearsals of one."""
    ask = Ask("cpu")
    every = keys("mnist-attackers", ask, Rehearsed)
    on_clients = {key for key in every if "-clients-" in key}
    assert keys("training-attacks", ask, Rehearsed) == every - on_clients
    assert len(on_clients) == 3 * 2 * 5, "three runs, two trajectories, nobody and 2 and 4 of each"
    assert len(keys("training-attacks", ask, Trained)) == 6
    ablations = keys("ablation", ask, Trained)
    assert len(ablations) == 6
    assert len(ablations & keys("mnist-backdoor", ask, Trained)) == 3


def test_the_literal_form_and_the_usual_one_learn_from_the_same() -> None:
    parts = closure(artefact("ablation").parts(Ask("cpu")))
    trained = {part.contender.key: part for part in parts if isinstance(part, Trained)}
    literal, usual = trained["adaptive-paper-literal"], trained["adaptive-paper"]
    assert literal.recordings == usual.recordings
    assert literal.key != usual.key


def test_the_authors_protocol_is_played_and_rehearsed() -> None:
    parts = closure(artefact("mnist-attackers").parts(Ask("authors", 1)))
    played = [p.played for p in parts if isinstance(p, Played | Rehearsed)]
    assert all(scenario.optimiser.carried for scenario in played)
    values = {s.attack.parameters.get("value") for s in played if s.attack.name == "backdoor"}
    assert values == {1.0}
    assert keys("mnist-attackers", Ask("authors", 1)).isdisjoint(
        keys("mnist-attackers", Ask("paper", 1))
    )


def test_the_oracle_is_a_row_everywhere() -> None:
    for name in IDS:
        played = [p for p in closure(artefact(name).parts(Ask("smoke"))) if isinstance(p, Played)]
        if played and name != "traits":
            assert "oracle" in {part.contender.key for part in played}, name
            assert {"adaptive", "adaptive-paper"} <= {part.contender.key for part in played}, name


def test_only() -> None:
    ask = Ask("cpu", only=read_only(["attackers=4,rule=adaptive", "rule=mean"]))
    played = [p for p in artefact("mnist-backdoor").parts(ask) if isinstance(p, Played)]
    assert {(p.fields["attackers"], p.contender.key) for p in played} == {
        (4, "adaptive"),
        (4, "mean"),
    }
    seeds = Ask("paper", only=read_only(["seed=2"]))
    assert all(
        p.fields["seed"] == 2
        for p in artefact("mnist-backdoor").parts(seeds)
        if isinstance(p, Played)
    )
    assert artefact("mnist-backdoor").parts(Ask(only=read_only(["rule=none"]))) == []


def test_more_seeds_for_some_runs() -> None:
    def played(*texts: str, **others: Any) -> set[tuple[int, str, int]]:
        repeats, repeats_of = read_seeds(texts)
        ask = Ask("cpu", repeats, repeats_of=repeats_of, **others)
        parts = artefact("mnist-backdoor").parts(ask)
        runs = [part for part in parts if isinstance(part, Played)]
        assert len(runs) == len({part.key for part in runs})
        return {(p.fields["attackers"], p.contender.key, p.fields["seed"]) for p in runs}

    once = played("1")
    assert {seed for _, _, seed in once} == {1}
    more = played("1", "3:attackers=4,rule=mean,rule=oracle", "2:attackers=2")
    assert once < more
    assert more - once == {
        *((4, rule, seed) for rule in ("mean", "oracle") for seed in (2, 3)),
        *((2, rule, 2) for rule in RULES),
    }
    assert played("3:attackers=4") == {(4, rule, seed) for rule in RULES for seed in (1, 2, 3)} | {
        run for run in once if run[0] != 4
    }, "the scale's own number for all others"
    assert played("3", "2:rule=mean", "1:rule=mean") == {
        run for run in played("3") if run[1] != "mean" or run[2] == 1
    }, "of several the last one counts"
    third = read_only(["seed=3"])
    assert played("1", "3:attackers=4", only=third) == {(4, rule, 3) for rule in RULES}


@pytest.mark.parametrize("scale", SCALES)
def test_what_is_offered_can_be_chosen_and_nothing_else(scale: str) -> None:
    for each in ARTEFACTS.values():
        offered = each.offers(Ask(scale, 2))
        if offered is None:
            assert not isinstance(each, Grid)
            continue
        for name, values in offered.items():
            chosen = [Ask(scale, 2, {name: frozenset({value})}) for value in values]
            for ask in chosen:
                ask.check({each.id: offered})
            found = [len(each.parts(ask)) for ask in chosen]
            assert all(found), (each.id, name)
            assert sum(found) == len(each.parts(Ask(scale, 2)))
            with pytest.raises(ParameterError, match=f"{name}=x"):
                Ask(scale, 2, {name: frozenset({"x"})}).check({each.id: offered})


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: artefact("mnist"), ["'mnist'", "mnist-backdoor"]),
        (lambda: Ask("huge"), ["'huge'", "smoke"]),
        (lambda: Ask("cpu", 0), ["seed"]),
        (lambda: read_only(["rule"]), ["FIELD=VALUE", "'rule'"]),
        (lambda: read_only(["colour=red"]), ["'colour'", "attackers"]),
        (lambda: read_only(["accuracy=1"]), ["'accuracy'"]),
        (lambda: contender("best"), ["'best'", "adaptive"]),
        (lambda: setting_of("letters", "cpu"), ["'letters'", "mnist"]),
        (lambda: setting_of("mnist", "huge"), ["'huge'", "cpu"]),
    ],
)
def test_what_there_is_not_is_refused_with_what_there_is(call, words) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ParameterError) as error:
        call()
    assert all(word in str(error.value) for word in words)
