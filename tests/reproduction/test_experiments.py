"""Every experiment can be planned at every scale; what experiments have in common is shared."""

from __future__ import annotations

from typing import Any

import pytest

from fedimmune.errors import ParameterError
from fedimmune.simulation import Scenario
from fedimmune.tasks import find
from reproduction.experiments import RunTable
from reproduction.jobs import DefenseJob, RehearsalJob, RunJob
from reproduction.methods import RULES, find_method
from reproduction.presets import SCALES, find_preset
from reproduction.schedule import closure
from reproduction.selection import Request, parse_filter, parse_seeds
from reproduction.studies import EXPERIMENTS, find_experiment

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


def keys(name: str, request: Request, kind: type = object) -> set[str]:
    return {
        job.key for job in closure(find_experiment(name).jobs(request)) if isinstance(job, kind)
    }


def test_all_of_the_papers_experiments_are_there() -> None:
    assert list(EXPERIMENTS) == IDS


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", IDS)
def test_planned_the_same_every_time_and_without_data(name: str, scale: str) -> None:
    request = Request(scale, repeats=1)
    jobs = closure(find_experiment(name).jobs(request))
    assert jobs
    assert [job.key for job in jobs] == [
        job.key for job in closure(find_experiment(name).jobs(Request(scale, repeats=1)))
    ]
    assert all(job.seconds > 0 and job.title for job in jobs)
    for job in jobs[:: max(1, len(jobs) // 20)]:
        if isinstance(job, RunJob):
            Scenario(**job.fields)  # says what is wrong with it, if anything is


def test_the_papers_scale_is_the_tasks_own_recipe() -> None:
    """What the tasks have from the paper must not be changed by an experiment."""
    for task in ("mnist", "cifar10", "tiny-imagenet", "imdb", "cifar100"):
        preset = find_preset(task, "paper")
        assert Scenario(**preset.fields) == Scenario(task=task)
        assert preset.rounds == find(task).recipe.rounds
        assert preset.paper_rehearsals.runs == 3
        assert preset.paper_rehearsals.attackers == (0, 1, 2, 3, 4)
        assert len(preset.paper_rehearsals.trajectories) == 4
        assert preset.paper_rehearsals.local_epochs == (1,)
        assert preset.epochs == 500


@pytest.mark.parametrize("scale", SCALES)
def test_no_two_jobs_are_called_the_same(scale: str) -> None:
    """Otherwise nobody could tell from a list what is missing, or which has failed."""
    request = Request(scale, repeats=2)
    jobs = closure(job for each in EXPERIMENTS.values() for job in each.jobs(request))
    assert len({job.title for job in jobs}) == len({job.key for job in jobs}) == len(jobs)


def test_patterns_that_are_the_same_are_played_once() -> None:
    """A pattern that is not moved down is the one that is not moved to the right."""
    for scale in ("cpu", "paper"):
        request = Request(scale, 1)
        played = [
            p for p in find_experiment("transfer-patterns").jobs(request) if isinstance(p, RunJob)
        ]
        runs = {(p.scenario.digest, p.needs[0].key if p.needs else p.method.key) for p in played}
        assert len(runs) == len({p.key for p in played}) < len(played)
        unmoved = {p.key for p in played if not p.scenario.attack.parameters["gap"]}
        assert unmoved <= keys("mnist-backdoor", request) | keys("cifar10-backdoor", request)


def test_three_seeds_for_the_paper_and_as_many_as_asked_for() -> None:
    one = len(keys("mnist-backdoor", Request("paper", 1), RunJob))
    assert len(keys("mnist-backdoor", Request("paper"), RunJob)) == 3 * one
    assert len(keys("mnist-backdoor", Request("cpu"), RunJob)) == one
    assert one == len(RULES) * 4


def test_a_table_of_backdoors_is_a_part_of_the_figure() -> None:
    for scale in SCALES:
        assert keys("mnist-backdoor", Request(scale)) <= keys("mnist-attackers", Request(scale))


def test_scales_share_what_does_not_differ() -> None:
    """On MNIST only what rehearses with the clients' data does so otherwise."""
    cpu, paper = (keys("mnist-backdoor", Request(scale, 1), RunJob) for scale in ("cpu", "paper"))
    assert len(cpu & paper) == len(cpu) - 4
    rehearsed = [
        keys("mnist-backdoor", Request(scale, 1), RehearsalJob) for scale in ("cpu", "paper")
    ]
    assert rehearsed[0] < rehearsed[1] | rehearsed[0]


def test_defenses_share_rehearsals() -> None:
    """Three trainings (B, O, B+O) of four methods learn from the rehearsals of one table."""
    request = Request("cpu")
    every = keys("mnist-attackers", request, RehearsalJob)
    on_clients = {key for key in every if "-clients-" in key}
    assert keys("training-attacks", request, RehearsalJob) == every
    assert len(on_clients) == 3 * 2 * 5, "three runs, two trajectories, nobody and 2 and 4 of each"
    assert len(keys("training-attacks", request, DefenseJob)) == 12
    ablations = keys("ablation", request, DefenseJob)
    assert len(ablations) == 7
    assert len(ablations & keys("mnist-backdoor", request, DefenseJob)) == 4


def test_the_literal_form_and_the_usual_one_learn_from_the_same() -> None:
    jobs = closure(find_experiment("ablation").jobs(Request("cpu")))
    trained = {job.method.key: job for job in jobs if isinstance(job, DefenseJob)}
    literal, usual = trained["adaptive-paper-literal"], trained["adaptive-paper"]
    assert literal.recordings == usual.recordings
    assert literal.key != usual.key


def test_the_authors_protocol_is_played_and_rehearsed() -> None:
    jobs = closure(find_experiment("mnist-attackers").jobs(Request("authors", 1)))
    played = [p.scenario for p in jobs if isinstance(p, RunJob | RehearsalJob)]
    assert all(scenario.optimizer.carried for scenario in played)
    values = {s.attack.parameters.get("value") for s in played if s.attack.name == "backdoor"}
    assert values == {1.0}
    assert keys("mnist-attackers", Request("authors", 1)).isdisjoint(
        keys("mnist-attackers", Request("paper", 1))
    )


def test_the_oracle_is_a_row_everywhere() -> None:
    for name in IDS:
        played = [
            p
            for p in closure(find_experiment(name).jobs(Request("smoke")))
            if isinstance(p, RunJob)
        ]
        if played and name != "traits":
            assert "oracle" in {job.method.key for job in played}, name
            assert {"adaptive", "adaptive-paper"} <= {job.method.key for job in played}, name


def test_filter() -> None:
    request = Request("cpu", filter=parse_filter(["attackers=4,rule=adaptive", "rule=mean"]))
    played = [p for p in find_experiment("mnist-backdoor").jobs(request) if isinstance(p, RunJob)]
    assert {(p.fields["attackers"], p.method.key) for p in played} == {
        (4, "adaptive"),
        (4, "mean"),
    }
    seeds = Request("paper", filter=parse_filter(["seed=2"]))
    assert all(
        p.fields["seed"] == 2
        for p in find_experiment("mnist-backdoor").jobs(seeds)
        if isinstance(p, RunJob)
    )
    assert find_experiment("mnist-backdoor").jobs(Request(filter=parse_filter(["rule=none"]))) == []


def test_more_seeds_for_some_runs() -> None:
    def played(*texts: str, **others: Any) -> set[tuple[int, str, int]]:
        repeats, repeats_of = parse_seeds(texts)
        request = Request("cpu", repeats, repeats_of=repeats_of, **others)
        jobs = find_experiment("mnist-backdoor").jobs(request)
        runs = [job for job in jobs if isinstance(job, RunJob)]
        assert len(runs) == len({job.key for job in runs})
        return {(p.fields["attackers"], p.method.key, p.fields["seed"]) for p in runs}

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
    third = parse_filter(["seed=3"])
    assert played("1", "3:attackers=4", filter=third) == {(4, rule, 3) for rule in RULES}


@pytest.mark.parametrize("scale", SCALES)
def test_what_is_offered_can_be_chosen_and_nothing_else(scale: str) -> None:
    for each in EXPERIMENTS.values():
        offered = each.offers(Request(scale, 2))
        if offered is None:
            assert not isinstance(each, RunTable)
            continue
        for name, values in offered.items():
            chosen = [Request(scale, 2, {name: frozenset({value})}) for value in values]
            for request in chosen:
                request.check({each.id: offered})
            found = [len(each.jobs(request)) for request in chosen]
            assert all(found), (each.id, name)
            assert sum(found) == len(each.jobs(Request(scale, 2)))
            with pytest.raises(ParameterError, match=f"{name}=x"):
                Request(scale, 2, {name: frozenset({"x"})}).check({each.id: offered})


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: find_experiment("mnist"), ["'mnist'", "mnist-backdoor"]),
        (lambda: Request("huge"), ["'huge'", "smoke"]),
        (lambda: Request("cpu", 0), ["seed"]),
        (lambda: parse_filter(["rule"]), ["FIELD=VALUE", "'rule'"]),
        (lambda: parse_filter(["color=red"]), ["'color'", "attackers"]),
        (lambda: parse_filter(["accuracy=1"]), ["'accuracy'"]),
        (lambda: find_method("best"), ["'best'", "adaptive"]),
        (lambda: find_preset("letters", "cpu"), ["'letters'", "mnist"]),
        (lambda: find_preset("mnist", "huge"), ["'huge'", "cpu"]),
    ],
)
def test_what_there_is_not_is_refused_with_what_there_is(call, words) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ParameterError) as error:
        call()
    assert all(word in str(error.value) for word in words)
