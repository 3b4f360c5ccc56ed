"""Jobs are done once, in an order that works, by several processes; failures stay put."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reproduction.jobs import Job, Store
from reproduction.schedule import closure, execute, plan_jobs
from tests.reproduction.fakes import Fake, logged


@st.composite
def webs(draw: st.DrawFn) -> list[Fake]:
    """Jobs that need earlier ones."""
    made: list[Fake] = []
    for number in range(draw(st.integers(1, 9))):
        needs = draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else set()
        made.append(Fake(f"p{number}", tuple(made[i] for i in sorted(needs))))
    return made


def before(job: Job) -> set[str]:
    """Everything that a job needs, however far away: the definition."""
    return {each.key for need in job.needs for each in (need,)} | {
        key for need in job.needs for key in before(need)
    }


@given(webs())
def test_closure_has_each_once_and_needs_first(web: list[Fake]) -> None:
    found = [job.key for job in closure(web[::-1])]
    assert sorted(found) == sorted({job.key for job in web})
    for job in web:
        assert all(found.index(key) < found.index(job.key) for key in before(job))


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(webs(), st.data())
def test_whatever_does_not_need_a_failure_is_done(
    tmp_path_factory: pytest.TempPathFactory, web: list[Fake], data: st.DataObject
) -> None:
    failing = data.draw(st.sets(st.sampled_from([job.key for job in web])))
    store = Store(tmp_path_factory.mktemp("store"))
    made: dict[str, Fake] = {}
    for job in web:
        needs = tuple(made[each.key] for each in job.wanted)
        made[job.key] = replace(job, wanted=needs, fails="no" if job.key in failing else "")
    outcome = execute(plan_jobs(list(made.values()), store), store, workers=2)
    hopeless = {job.key for job in web if before(job) & failing}
    assert {job.key for job in outcome.left_out} == hopeless
    assert {ended.job.key for ended in outcome.failed} == failing - hopeless
    # A job asserts itself that all it needs is there.
    assert {ended.job.key for ended in outcome.done} == made.keys() - hopeless - failing
    assert len(logged(store)) == len(set(logged(store)))


def test_what_begins_the_longest_chain_is_first(tmp_path: Path) -> None:
    long, root = Fake("alone", seconds=2.5), Fake("root")
    end = Fake("end", (Fake("middle", (root,)),))
    store = Store(tmp_path)
    execute(plan_jobs([Fake("short"), long, end], store), store, workers=1)
    assert logged(store)[:3] == ["root", "alone", "middle"]


def test_jobs_are_done_by_several_processes(tmp_path: Path) -> None:
    store = Store(tmp_path)
    a, b = Fake("a", takes=0.3), Fake("b", takes=0.3)
    wanted = [Fake("c", (a, b)), Fake("d", (a,)), b]
    told: list[str] = []
    work = plan_jobs(wanted, store)
    outcome = execute(
        work,
        store,
        workers=2,
        on_start=lambda job: told.append(f"+{job.title}"),
        on_end=lambda ended: told.append(f"-{ended.job.title}"),
    )
    assert sorted(logged(store)) == ["a", "b", "c", "d"]
    assert {ended.job.title for ended in outcome.done} == {"fake a", "fake b", "fake c", "fake d"}
    assert sorted(told) == sorted(f"{sign}fake {name}" for sign in "+-" for name in "abcd")
    workers = {line.split()[1] for line in (tmp_path / "log").read_text().splitlines()}
    assert len(workers) == 2
    assert str(os.getpid()) not in workers
    assert outcome.seconds > 0.3
    assert outcome.busy > 0
    again = plan_jobs(wanted, store)
    assert again.jobs == ()
    assert again.done == 4


@pytest.mark.parametrize("how", ["dies", "raises", "the disk is full"])
def test_a_failure_stops_nothing_else(tmp_path: Path, how: str) -> None:
    store = Store(tmp_path)
    bad = Fake("bad", fails=how)
    wanted = [Fake("needs-bad", (bad,)), Fake("good"), Fake("later", (Fake("early"),))]
    outcome = execute(plan_jobs(wanted, store), store, workers=1)
    assert {ended.job.title for ended in outcome.done} == {"fake good", "fake early", "fake later"}
    assert [ended.job.title for ended in outcome.failed] == ["fake bad"]
    expected = {
        "dies": "its process ended by itself (exit code -9)",
        "raises": "ZeroDivisionError: by zero",
    }
    assert expected.get(how, how) in outcome.failed[0].problem
    assert [job.title for job in outcome.left_out] == ["fake needs-bad"]
    # The same again does only what is missing.
    assert [job.title for job in plan_jobs(wanted, store).jobs] == ["fake bad", "fake needs-bad"]


def test_what_a_finished_job_needed_is_not_missed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    raw = Fake("raw")
    (tmp_path / "product").touch()
    work = plan_jobs([Fake("product", (raw,)), Fake("other")], store)
    assert [job.title for job in work.jobs] == ["fake other"]
    assert work.seconds == 1.0
