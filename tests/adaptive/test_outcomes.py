"""Outcomes of a search: figures by their definitions, which is best, and a file that survives."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedimmune.adaptive.evaluation import detection
from fedimmune.adaptive.sweep import FIGURES, Outcome, OutcomeFile, best_of, figures_of
from fedimmune.errors import InputError

SHARES = st.floats(0, 1)


def outcome(accuracy: float = 0.5, weight: float | None = 0.1, **point: Any) -> Outcome:
    return Outcome(
        settings=point,
        accuracy=accuracy,
        exact=0.25,
        benign_kept=0.75,
        attacker_weight=weight,
        epoch=3,
    )


# -------------------------------------------------------------------- figures


@given(st.lists(st.lists(st.tuples(SHARES, st.booleans()), min_size=4, max_size=4), min_size=1))
def test_accuracy_counts_clients_that_are_rightly_kept_or_left_out(
    rounds: list[list[tuple[float, bool]]],
) -> None:
    weights = torch.tensor([[weight for weight, _ in each] for each in rounds])
    attackers = torch.tensor([[attacks for _, attacks in each] for each in rounds])
    found = detection(weights, attackers)["accuracy"].tolist()
    for each, who, value in zip(weights.tolist(), attackers.tolist(), found, strict=True):
        right = [(weight > 0) != attacks for weight, attacks in zip(each, who, strict=True)]
        assert value == sum(right) / 4


@given(
    st.lists(
        st.tuples(st.sampled_from(["none", "a", "b", "unseen"]), SHARES, st.none() | SHARES),
        min_size=1,
    )
)
def test_every_learned_kind_counts_the_same(rows: list[tuple[str, float, float | None]]) -> None:
    rows.append(("none", 0.5, None))
    table: list[dict[str, Any]] = [
        {**dict.fromkeys(FIGURES, accuracy), "attack": kind, "attacker_weight": weight}
        for kind, accuracy, weight in rows
    ]
    found = figures_of(table, ["a", "b"])
    for name, column in (("accuracy", 1), ("exact", 1), ("attacker_weight", 2)):
        means = []
        for kind in ("none", "a", "b"):
            values = [row[column] for row in rows if row[0] == kind and row[column] is not None]
            if values:
                means.append(sum(values) / len(values))  # type: ignore[arg-type]
        wanted = sum(means) / len(means) if means else None
        assert found[name] == (None if wanted is None else pytest.approx(wanted))


@given(
    st.lists(
        st.tuples(st.sampled_from([0.1, 0.2, 0.1 + 0.2, 0.3]), st.sampled_from([None, 0.0, 0.5])),
        min_size=1,
    )
)
def test_the_most_accurate_then_the_least_weight_on_attackers_then_the_first(
    pairs: list[tuple[float, float | None]],
) -> None:
    outcomes = [outcome(accuracy, weight, n=i) for i, (accuracy, weight) in enumerate(pairs)]
    chosen = best_of(outcomes)
    place = chosen.settings["n"]
    for i, other in enumerate(outcomes):
        assert other.accuracy < chosen.accuracy + 1e-12
        if abs(other.accuracy - chosen.accuracy) < 1e-12:  # 0.1 + 0.2 is 0.3 here
            mine, its = (9 if w is None else w for w in (chosen.attacker_weight, pairs[i][1]))
            assert (mine, place) <= (its, i)


# -------------------------------------------------------------------- the file


def test_what_is_added_is_read(tmp_path: Path) -> None:
    file = OutcomeFile(tmp_path / "x.jsonl")
    assert file.read() == {}
    wanted = {str(i): outcome(i / 7, None if i else 0.1, c=i, name="ü") for i in range(5)}
    for digest, one in wanted.items():
        file.add(digest, one)
    assert OutcomeFile(tmp_path / "x.jsonl").read() == wanted


def test_a_line_may_be_torn_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    file = OutcomeFile(path)
    file.add("a", outcome(c=1))
    first = path.stat().st_size
    file.add("b", outcome(c=2))
    whole = path.read_bytes()
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        there = {"a"} if length >= first else set()
        there |= {"b"} if length == len(whole) else set()
        assert set(file.read()) == there
        file.add("c", outcome(c=3))
        # A line that only lacked its end is whole again with it: no harm.
        assert {*there, "c"} <= set(file.read()) <= {*there, "a", "b", "c"}
        assert file.read()["c"] == outcome(c=3)


@settings(max_examples=50)
@given(st.binary().filter(lambda line: b"\n" not in line))
def test_lines_that_are_nothing_of_ours_are_passed_over(
    tmp_path_factory: pytest.TempPathFactory, line: bytes
) -> None:
    path = tmp_path_factory.mktemp("lines") / "x.jsonl"
    path.write_bytes(line + b'\n[1]\n7\nnull\n{}\n{"digest": "b", "accuracy": 1}\n')
    file = OutcomeFile(path)
    file.add("a", outcome(c=1))
    assert set(file.read()) == {"a"}


def test_several_threads_add(tmp_path: Path) -> None:
    file = OutcomeFile(tmp_path / "x.jsonl")
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda i: file.add(str(i), outcome(c=i)), range(60)))
    assert {key: one.settings["c"] for key, one in file.read().items()} == {
        str(i): i for i in range(60)
    }


def test_a_place_where_no_file_can_be(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder"):
        OutcomeFile(tmp_path)
    with pytest.raises(InputError, match="no folder"):
        OutcomeFile(tmp_path / "nowhere" / "x.jsonl")
