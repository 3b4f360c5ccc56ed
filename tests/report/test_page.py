"""The page: complete, harmless whatever is in the runs, and careful with words."""

from __future__ import annotations

import html
import json
import re
import tempfile
from collections import Counter
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedimmune.adaptive import train
from fedimmune.records import RoundRecord, Seconds
from fedimmune.report import write_report
from fedimmune.results import ClientResult, Verdict
from fedimmune.runs import RunFolder
from tests.adaptive.rehearsed import recordings
from tests.report.making import make_run, scenario_of, visible_text

MEGABYTES = 1_000_000


def page(folder: Path, *runs: Path, title: str | None = None) -> str:
    return write_report(runs or [folder], folder / "report.html", title=title).read_text()


class Tags(HTMLParser):
    """Every tag and attribute of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def counted(self) -> dict[str, int]:
        names = [tag for tag, _ in self.found]
        return {name: names.count(name) for name in set(names)}


@pytest.fixture
def compared(tmp_path: Path) -> str:
    for rule in ("mean", "krum", "oracle"):
        for attack in ("backdoor", "omniscient"):
            for seed in (1, 2):
                place = tmp_path / f"{rule}-{attack}-{seed}"
                make_run(place, scenario_of(rule, attack, seed=seed))
    return page(tmp_path)


def test_a_comparison_has_a_section_an_attack_and_a_row_a_rule(compared: str) -> None:
    assert compared.startswith("<!doctype html>")
    assert len(re.findall('<section class="setting"', compared)) == 2
    tables = re.findall(r'<table class="sortable">.*?</table>', compared, re.DOTALL)
    assert len(tables) == 2
    for table in tables:
        assert re.findall(r'<th scope="row"[^>]*>([^<]+)', table) == ["krum", "mean", "oracle"]
    assert "behind the oracle" in tables[0]
    assert "ASR" not in re.findall(r"<button[^>]*>([^<]+)", tables[1]), "omniscient has no target"
    drawn = re.findall(r'data-name="([a-z]+)"', compared)
    assert drawn.count("acc") == 2
    assert {"asr", "score", "weight", "precision", "recall", "trust", "time", "partition"} <= set(
        drawn
    )


def test_every_picture_is_described(compared: str) -> None:
    tags = Tags(compared).found
    pictures = [given for tag, given in tags if tag == "svg" and given.get("aria-hidden") != "true"]
    figures = [given for tag, given in tags if tag == "figure"]
    assert len(pictures) == len(figures) > 10
    for given_ in pictures:
        assert given_["role"] == "img"
        assert len(given_["aria-label"] or "") > 30
    assert compared.count("<figcaption>") == len(figures)


def test_nothing_is_loaded_from_anywhere(compared: str) -> None:
    assert "http:" not in compared
    assert "https:" not in compared
    for tag, given_ in Tags(compared).found:
        assert tag not in {"link", "img", "iframe", "object", "embed", "base", "form"}
        assert not given_.keys() & {"src", "srcset", "action", "xlink:href"}
        assert (given_.get("href") or "#").startswith("#")
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|import\(", compared)
    assert "default-src 'none'" in compared


def test_a_large_comparison_stays_small(tmp_path: Path) -> None:
    names = {i: f"client-{i:03}-" + "x" * 60 for i in range(300)}
    scenario = scenario_of(clients=300, attackers=90, rounds=200)
    make_run(tmp_path / "large", scenario, names=dict(names))
    make_run(tmp_path / "one-more", scenario_of("mean"))
    text = page(tmp_path)
    assert len(text.encode()) < 6 * MEGABYTES
    assert "would make this page too large" in text


def test_the_same_runs_give_the_same_page(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    assert page(tmp_path) == page(tmp_path)


# -------------------------------------------------------------------- words


@pytest.mark.parametrize("partition", [True, False])
def test_where_no_truth_is_known_nobody_is_called_an_attacker(
    tmp_path: Path, partition: bool
) -> None:
    krum = scenario_of({"name": "krum", "attackers": 3})
    make_run(tmp_path / "a", krum, truth=False, partition=partition)
    make_run(tmp_path / "b", scenario_of("mean"), truth=False, partition=partition)
    for runs in ([tmp_path / "a"], [tmp_path / "a", tmp_path / "b"]):
        said = visible_text(page(tmp_path, *runs)).lower()
        assert "attacker" not in said
        assert "honest" not in said.replace("who is honest is not known here", "")
        assert "suspected" in said
        assert "fedimmune simulate" not in said, "nobody can run a real federation again"


def test_where_it_is_known_attackers_are_marked(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    text = page(tmp_path)
    assert "client 0 (attacks)" in text
    assert "client 9 (honest)" in text
    assert "client 9 (attacks)" not in text


def test_a_run_in_words(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", error="two\nlines <b>")
    last = RunFolder(folder).records()[-1]
    said = visible_text(page(tmp_path))
    assert (
        "After 6 rounds on digits with 10 clients, 4 of them attackers who plant a backdoor" in said
    )
    assert f"is right on {last.accuracy:.1%}" in said
    assert f"on {last.asr:.1%}" in said
    assert "In 1 round the model stayed as it was: two lines <b>." in said


def test_rules_that_were_taken_over_are_named(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / rule, scenario_of(rule)) for rule in ("mean", "krum", "oracle")]
    shown = visible_text(page(tmp_path, *runs))
    last = {run.name: RunFolder(run).records()[-1].asr or 0 for run in runs}
    lost = sorted(f"{rule} ({asr:.1%})" for rule, asr in last.items() if asr > 0.5)
    if lost:
        assert "get their way more often than not under" in shown
        assert all(name in shown for name in lost)
    else:
        assert "Under no rule do the attackers get their way" in shown
    honest = [make_run(tmp_path / f"none-{r}", scenario_of(r, "none")) for r in ("mean", "krum")]
    assert "get their way" not in visible_text(page(tmp_path, *honest))


def test_an_unfinished_run_is_reported_and_said_to_be(tmp_path: Path) -> None:
    make_run(tmp_path / "run", scenario_of(rounds=20), played=5)
    said = visible_text(page(tmp_path))
    assert "The run run is unfinished: 5 of 20 rounds were played" in said
    assert "After 5 rounds" in said


def test_a_run_without_any_round_is_no_error(tmp_path: Path) -> None:
    make_run(tmp_path / "run", played=0)
    said = visible_text(page(tmp_path))
    assert "No round is finished yet" in said
    assert "fedimmune simulate" in said


def test_a_folder_of_before_has_no_partition_and_the_page_says_why(tmp_path: Path) -> None:
    make_run(tmp_path / "run", partition=False)
    assert "the run folders have no partition.json" in visible_text(page(tmp_path))


def test_a_rule_that_judges_nobody_has_no_map(tmp_path: Path) -> None:
    make_run(tmp_path / "run", scenario_of("median"), weighs=False)
    text = page(tmp_path)
    assert 'data-name="trust"' not in text
    assert "No client is weighed or judged by median" in visible_text(text)


def test_the_title_is_ones_own(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    assert "<title>Mine &amp; yours</title>" in page(tmp_path, title="Mine & yours")


# -------------------------------------------------------------------- the defence


def adaptive(defence: Path, digest: str) -> dict[str, Any]:
    return scenario_of({"name": "adaptive", "defence": str(defence), "digest": digest})


@pytest.fixture
def defended(tmp_path: Path) -> Path:
    """A run by a defence whose file and curve are there."""
    made = train(recordings(2, rounds=2), epochs=3)
    made.save(tmp_path / "a.defence")
    digest = type(made).load(tmp_path / "a.defence").digest
    make_run(tmp_path / "run", adaptive(tmp_path / "a.defence", digest))
    return tmp_path


def test_a_defence_is_shown_in_full(defended: Path) -> None:
    text = page(defended)
    assert "On rehearsals kept apart" in text
    assert 'data-name="curve"' in text
    assert "compares with the server" in text
    assert "cannot be shown" not in text


def test_a_defence_that_has_moved_is_no_error(defended: Path) -> None:
    (defended / "a.defence").rename(defended / "b.defence")
    said = visible_text(page(defended))
    assert "It cannot be shown: the defence cannot be read: no such file" in said


def test_another_defence_in_its_place_is_not_taken_for_it(defended: Path) -> None:
    made = train(recordings(2, rounds=2), epochs=1, seed=2)
    made.save(defended / "a.defence")
    text = page(defended)
    assert "is now another defence" in text
    assert "On rehearsals kept apart" not in text


@pytest.mark.parametrize(
    "curve", [None, "", "epoch,training\n1,2\n", "epoch,training,validation\n1,x,2\n"]
)
def test_a_curve_that_is_missing_or_damaged_is_said(defended: Path, curve: str | None) -> None:
    place = defended / "a.defence.curve.csv"
    place.unlink() if curve is None else place.write_text(curve)
    text = page(defended)
    assert "Its learning curve" in text
    assert 'data-name="curve"' not in text
    assert "On rehearsals kept apart" in text


# -------------------------------------------------------------------- hostile contents

hostile = st.sampled_from(
    [
        "</script><script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        '" onload="alert(1)',
        "' onclick='x",
        "{{ 7 * 7 }}{% raw %}",
        "]]><!--",
        "&lt;b&gt; &amp;",
        "</style></svg></title>",
        "\u2028\u202e\x00\ud800",
        "$x^2$",
    ]
) | st.text(max_size=30)
finite = st.floats(allow_nan=False, allow_infinity=False)


def write_hostile(place: Path, words: list[str], number: float) -> Path:
    scenario = scenario_of({"name": "krum", words[0]: words[-1]}, rounds=2)
    make_run(place, scenario, played=1)
    clients = tuple(
        ClientResult(word, Verdict.SUSPECTED, abs(number) % 1, number, word, is_attacker=i % 2 == 0)
        for i, word in enumerate(words)
    )
    record = RoundRecord(
        round=2,
        accuracy=number,
        asr=number,
        attacker_weight=number,
        distance=number,
        robust_mean_norm=abs(number),
        clients=clients,
        error=words[0],
        seconds=Seconds(training=1, aggregating=abs(number), testing=1),
    )
    RunFolder(place).append(record)
    return place


def encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


@cache
def harmless(count: int) -> Tags:
    """The page of a run with as many words, all of them harmless."""
    with tempfile.TemporaryDirectory() as place:
        words = [f"word{i}" for i in range(count)]
        return Tags(page(Path(place), write_hostile(Path(place) / "run", words, 0.5)))


@settings(max_examples=25)
@given(words=st.lists(hostile, min_size=1, max_size=4, unique=True), number=finite)
@example(words=["</script><script>alert(1)</script>"], number=1.797e308)
def test_whatever_a_run_holds_adds_no_tag_and_no_attribute(words: list[str], number: float) -> None:
    words = [encodable(word) for word in words]
    with tempfile.TemporaryDirectory() as place:
        text = page(Path(place), write_hostile(Path(place) / "run", words, number))
    known, found = harmless(len(words)), Tags(text)
    names = {name for _, given_ in known.found for name in given_}
    assert {name for _, given_ in found.found for name in given_} <= names
    for tag in ("script", "style", "img", "section", "title", "table", "main", "footer"):
        assert found.counted().get(tag, 0) == known.counted().get(tag, 0), tag
    assert text.count("<script>") == 1
    assert text.rstrip().endswith("</html>")
    assert text.count("<!--") == 0
    for _, given_ in found.found:
        for name in ("data-lines", "data-grid"):
            if name in given_:
                json.loads(given_[name] or "")


def test_a_hostile_rule_and_task_and_title(tmp_path: Path) -> None:
    bad = "<script>alert(1)</script>"
    scenario = scenario_of(bad, task={"name": bad}, attack=bad)
    make_run(tmp_path / "run", scenario)
    make_run(tmp_path / "other", {**scenario, "seed": 2})
    text = page(tmp_path, title=bad)
    assert text.count("<script>") == 1
    assert "alert(1)" in visible_text(text)


# -------------------------------------------------------------------- clients, and odd rounds

NODES = [str(11461306513137915697 + 104729 * n) for n in range(10)]


def with_nodes(path: Path) -> Path:
    """A run whose clients have ids of 64 bits, and whose second round is odd."""
    make_run(path, scenario_of("foolsgold", "backdoor"))
    records = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    for record in records:
        for client in record["clients"]:
            client["client"] = NODES[int(client["client"])]
    records[1]["warnings"] = ["8 of 10 valid clients are suspected: <b>look</b>"]
    (path / "rounds.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    (path / "partition.json").unlink(missing_ok=True)
    return path


def test_ids_are_shown_whole_with_a_row_for_each(tmp_path: Path) -> None:
    folder = with_nodes(tmp_path / "run")
    shown = page(folder)
    (table,) = re.findall(r'<table class="sortable by-client">.*?</table>', shown, re.DOTALL)
    rows = re.findall(r'<tr><th scope="row"[^>]*>([^<]+)</th>(.*?)</tr>', table, re.DOTALL)
    assert sorted(name for name, _ in rows) == sorted(NODES)
    headings = re.findall(r"<button[^>]*>([^<]+)</button>", table)[1:]
    records = RunFolder(folder).records()
    for node, cells in rows:
        told = dict(zip(headings, re.findall(r"<td[^>]*>([^<]*)</td>", cells), strict=True))
        own = [(r.round, c) for r in records for c in r.clients if c.client == node]
        verdicts = Counter(client.verdict for _, client in own)
        assert told["rounds"] == str(len(own))
        for verdict, count in verdicts.items():
            assert told[verdict] == str(count)
        assert told["attacks"].endswith("yes") == bool(own[0][1].is_attacker)
        first = next((str(n) for n, client in own if client.verdict == "suspected"), "–")
        assert told.get("first suspected", "–") == first
        mean = sum(client.weight or 0 for _, client in own) / len(own)
        assert told["mean weight"] == f"{mean:.1%}"
        assert f'title="{node}"' in shown, "in the map, whole"


def test_an_odd_round_is_announced_at_the_top_and_under_the_pointer(tmp_path: Path) -> None:
    shown = page(with_nodes(tmp_path / "run"))
    assert "<b>look</b>" not in shown
    top = shown[: shown.index('<section class="setting"')]
    assert re.search(r'<p class="notice">foolsgold: warnings in round 2\. In round 2, 8 of 10', top)
    (grid,) = re.findall(r"data-grid=\"([^\"]*)\"", shown)
    assert json.loads(html.unescape(grid))["warnings"]["1"].startswith("8 of 10 valid clients")
