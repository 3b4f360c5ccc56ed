"""The table of kinds, against counts by hand; and the sentence about it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from fedimmune.report.confusion import confusions_of
from fedimmune.report.contents import contents_of
from fedimmune.report.grouping import settings_of
from fedimmune.report.page import page_of
from fedimmune.report.reading import read_runs
from tests.report.making import make_run, scenario_of, visible_text

_KINDS = ("backdoor", "omniscient", "unknown")


def with_kinds(path: Path, **options: Any) -> Path:
    """A run whose suspects are called by kinds in turn; changed where it lies."""
    make_run(path, scenario_of({"name": "adaptive"}), **options)
    records, turn = [], 0
    for line in (path / "rounds.jsonl").read_text().splitlines():
        record = json.loads(line)
        for client in record["clients"]:
            if client["verdict"] == "suspected":
                client |= {"kind": _KINDS[turn % 3], "confidence": 0.75, "since": 1}
                client["reason"] = f"it looks most like {client['kind']} (75%)"
                turn += 1
        records.append(json.dumps(record))
    (path / "rounds.jsonl").write_text("\n".join(records) + "\n")
    return path


def by_hand(path: Path) -> Counter[tuple[str, str]]:
    counts: Counter[tuple[str, str]] = Counter()
    for line in (path / "rounds.jsonl").read_text().splitlines():
        for client in json.loads(line)["clients"]:
            truth = "backdoor" if client["is_attacker"] else "honest"
            counts[truth, client.get("kind") or client["verdict"]] += 1
    return counts


def test_every_client_round_is_counted_once_in_its_place(tmp_path: Path) -> None:
    path = with_kinds(tmp_path / "a")
    (setting,) = settings_of(read_runs([path]))
    (table,) = confusions_of(setting)
    assert table.columns == ("trusted", *_KINDS)
    assert [truth for truth, _ in table.rows] == ["honest", "backdoor"]
    wanted = by_hand(path)
    for truth, counts in table.rows:
        for column, count in zip(table.columns, counts, strict=True):
            assert count == wanted[truth, column]
    assert sum(sum(counts) for _, counts in table.rows) == 60


def test_the_page_shows_it_with_a_sentence_and_the_kind_on_hover(tmp_path: Path) -> None:
    path = with_kinds(tmp_path / "a")
    page = page_of(contents_of(read_runs([path])))
    text = visible_text(page)
    assert "What suspects looked like" in text
    wanted = by_hand(path)
    accused = sum(wanted["backdoor", kind] for kind in _KINDS)
    assert f"{wanted['backdoor', 'backdoor'] / accused:.1%} of the suspected attackers" in text
    assert "looks most like omniscient (75%)" in page


def test_there_is_none_where_no_kind_is_named_or_no_truth_known(tmp_path: Path) -> None:
    plain = make_run(tmp_path / "plain")
    assert "What suspects looked like" not in visible_text(page_of(contents_of(read_runs([plain]))))
    secret = with_kinds(tmp_path / "secret", truth=False)
    text = visible_text(page_of(contents_of(read_runs([secret]))))
    assert "What suspects looked like" not in text
