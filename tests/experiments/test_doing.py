"""Parts are made once, in an order that works, by several processes; failures stay put."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedimmune.experiments.doing import Done, Work, _Board, carry_out
from fedimmune.experiments.parts import Part, closure
from fedimmune.experiments.store import Store
from tests.experiments.fakes import Fake, logged


@st.composite
def webs(draw: st.DrawFn) -> list[Fake]:
    """Parts that need earlier ones."""
    made: list[Fake] = []
    for number in range(draw(st.integers(1, 9))):
        needs = draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else set()
        made.append(Fake(f"p{number}", tuple(made[i] for i in sorted(needs))))
    return made


def before(part: Part) -> set[str]:
    """All that a part needs, however far away: the definition."""
    return {each.key for need in part.needs for each in (need,)} | {
        key for need in part.needs for key in before(need)
    }


@given(webs())
def test_closure_has_each_once_and_needs_first(web: list[Fake]) -> None:
    found = [part.key for part in closure(web[::-1])]
    assert sorted(found) == sorted({part.key for part in web})
    for part in web:
        assert all(found.index(key) < found.index(part.key) for key in before(part))


@given(webs(), st.data())
def test_the_board_gives_every_part_when_it_can_be_made(
    web: list[Fake], data: st.DataObject
) -> None:
    failing = data.draw(st.sets(st.sampled_from([part.key for part in web])))
    board = _Board(closure(web))
    given_out: list[str] = []
    open_parts: list[Part] = []
    while True:
        # Up to two lanes, finishing in any order.
        if len(open_parts) < 2 and board._ready:
            part = board.take()
            assert part is not None
            assert not before(part) & failing
            assert before(part) <= set(given_out) - {each.key for each in open_parts}
            given_out.append(part.key)
            open_parts.append(part)
        elif open_parts:
            part = open_parts.pop(data.draw(st.integers(0, len(open_parts) - 1)))
            board.put(Done(part, 0.0, "no" if part.key in failing else ""), lambda _: None)
        else:
            break
    assert board.take() is None
    assert len(given_out) == len(set(given_out))
    hopeless = {part.key for part in web if before(part) & failing}
    assert set(given_out) == {part.key for part in web} - hopeless
    assert {part.key for part in board.outcome.left_out} == hopeless
    assert {done.part.key for done in board.outcome.failed} == failing - hopeless


def test_what_most_others_wait_for_is_first() -> None:
    alone, root = Fake("alone"), Fake("root")
    chain = Fake("end", (Fake("middle", (root,)),))
    board = _Board(closure([alone, chain]))
    first = board.take()
    assert first is not None
    assert first.key == root.key


def test_parts_are_made_by_several_processes(tmp_path: Path) -> None:
    store = Store(tmp_path)
    a, b = Fake("a", takes=0.3), Fake("b", takes=0.3)
    wanted = [Fake("c", (a, b)), Fake("d", (a,)), b]
    told: list[str] = []
    work = Work.of(wanted, store)
    outcome = carry_out(
        work,
        store,
        workers=2,
        on_begun=lambda part: told.append(f"+{part.title}"),
        on_done=lambda done: told.append(f"-{done.part.title}"),
    )
    assert sorted(logged(store)) == ["a", "b", "c", "d"]
    assert {done.part.title for done in outcome.made} == {"fake a", "fake b", "fake c", "fake d"}
    assert sorted(told) == sorted(f"{sign}fake {name}" for sign in "+-" for name in "abcd")
    workers = {line.split()[1] for line in (tmp_path / "log").read_text().splitlines()}
    assert len(workers) == 2
    assert str(os.getpid()) not in workers
    assert outcome.seconds > 0.3
    assert outcome.busy > 0
    again = Work.of(wanted, store)
    assert again.parts == ()
    assert again.there == 4


@pytest.mark.parametrize("how", ["dies", "raises", "the disk is full"])
def test_a_failure_stops_nothing_else(tmp_path: Path, how: str) -> None:
    store = Store(tmp_path)
    bad = Fake("bad", fails=how)
    wanted = [Fake("needs-bad", (bad,)), Fake("good"), Fake("later", (Fake("early"),))]
    outcome = carry_out(Work.of(wanted, store), store, workers=1)
    assert {done.part.title for done in outcome.made} == {"fake good", "fake early", "fake later"}
    assert [done.part.title for done in outcome.failed] == ["fake bad"]
    expected = {"dies": "worker process ended", "raises": "ZeroDivisionError: by zero"}
    assert expected.get(how, how) in outcome.failed[0].problem
    assert [part.title for part in outcome.left_out] == ["fake needs-bad"]
    # The same again does only what is missing.
    assert [part.title for part in Work.of(wanted, store).parts] == ["fake bad", "fake needs-bad"]


def test_what_a_made_part_needed_is_not_missed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    raw = Fake("raw")
    (tmp_path / "product").touch()
    work = Work.of([Fake("product", (raw,)), Fake("other")], store)
    assert [part.title for part in work.parts] == ["fake other"]
    assert work.seconds == 1.0
