"""The page: complete, harmless whatever is in the runs, and careful with words."""

from __future__ import annotations

import json
import re
import shlex
import tempfile
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from fedimmune import Scenario, load_runs, simulation
from fedimmune.adaptive import train
from fedimmune.cli import app
from fedimmune.errors import InputError
from fedimmune.report import write_report
from fedimmune.report.summary import command_of
from fedimmune.results import ClientResult, Verdict
from fedimmune.runs.folder import RunFolder
from fedimmune.runs.records import RoundRecord, Seconds
from tests.adaptive.rehearsed import recordings
from tests.report.making import make_run, scenario_of, visible_text, with_probabilities

MEGABYTES = 1_000_000
COLUMNS = {
    *("rule_label", "round", "value", "low", "high", "on", "side", "level", "run", "score", "asr"),
    *("accuracy", "behind_oracle", "limit", "seconds", "phase", "place", "taken_for", "truth"),
    *("count", "share", "row", "verdict", "weight", "looks", "reason", "warnings", "shade", "left"),
    *("right", "class", "samples", "x", "x2", "y", "y2", "sign", "size", "client", "name"),
    *("said", "attacked", "called", "probability"),
}
"""The names of fields: ours alone."""


def page(folder: Path, *runs: Path, title: str | None = None) -> str:
    return write_report(runs or [folder], folder / "report.html", title=title).read_text()


class Tags(HTMLParser):
    """Every tag and attribute of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_endtag(self, tag: str) -> None:
        self.found.append((f"/{tag}", {}))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def specs(self) -> list[dict[str, Any]]:
        """What pictures are drawn from, data included, as the page's script reads it."""
        return [json.loads(text) for text in self.texts]

    def handle_data(self, data: str) -> None:
        if self.found and self.found[-1] == ("script", {"type": "application/json"}):
            self.texts.append(data)

    def counted(self) -> dict[str, int]:
        names = [tag for tag, _ in self.found]
        return {name: names.count(name) for name in set(names)}


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> str:
    tmp_path = tmp_path_factory.mktemp("compared")
    for rule in ("mean", "krum", "oracle"):
        for attack in ("backdoor", "omniscient"):
            for seed in (1, 2):
                place = tmp_path / f"{rule}-{attack}-{seed}"
                make_run(place, scenario_of(rule, attack, seed=seed))
    return page(tmp_path)


def test_a_comparison_has_a_section_an_attack_and_a_row_a_rule(compared: str) -> None:
    assert compared.startswith("<!doctype html>")
    assert len(re.findall('<section class="setting"', compared)) == 2
    sections = compared.split('<section class="setting"')[1:]
    tables = [section[: section.index("</table>")] for section in sections]
    for table in tables:
        assert re.findall(r'<th scope="row"[^>]*>([^<]+)', table) == ["krum", "mean", "oracle"]
    assert "behind the oracle" in tables[0]
    assert "ASR" not in re.findall(r"<button[^>]*>([^<]+)", tables[1]), "omniscient has no target"
    drawn = re.findall(r'data-name="([a-z-]+)"', compared)
    assert drawn.count("accuracy") == drawn.count("standing") == 2
    assert {"asr", "accuracy-without-success", "attacker-weight", "precision", "recall"} <= set(
        drawn
    )
    assert {"trust", "time", "partition", "weight-by-side"} <= set(drawn)


def test_every_picture_is_described(compared: str) -> None:
    tags = Tags(compared).found
    pictures = [given for _, given in tags if given.get("class") == "picture"]
    figures = [given for tag, given in tags if tag == "figure"]
    assert len(pictures) == len(figures) > 10
    for given_ in pictures:
        assert given_["role"] == "img"
        assert len(given_["aria-label"] or "") > 30
    assert compared.count("<figcaption>") == len(figures)


def test_nothing_is_loaded_from_anywhere(compared: str) -> None:
    for tag, given_ in Tags(compared).found:
        assert tag not in {"link", "img", "iframe", "object", "embed", "base", "form"}
        assert not given_.keys() & {"src", "srcset", "action", "xlink:href"}
        assert (given_.get("href") or "#").startswith("#")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', compared)
    assert policy is not None
    scripts = re.findall(r"<script>(.*?)</script>", compared, re.DOTALL)
    hashes = [b64encode(sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{each}'" for each in hashes)
    assert policy.group(1) == (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src {allowed}"
    )
    style, own = re.search(r"<style>(.*?)</style>", compared, re.DOTALL), scripts[1]
    assert style is not None
    for text in (style.group(1), own):
        assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|import\(|https?:|eval", text)
    assert "ast: true" in own, "expressions are interpreted, not compiled"
    assert "University of Washington" in scripts[0], "the libraries' license is there"
    for spec in Tags(compared).specs():
        assert not re.search(r'"(url|href|\$schema|usermeta)":', json.dumps(spec))


def test_a_large_comparison_stays_small(tmp_path: Path) -> None:
    names = {i: f"client-{i:03}-" + "x" * 60 for i in range(200)}
    scenario = scenario_of(clients=200, attackers=60, rounds=300)
    make_run(tmp_path / "large", scenario, names=dict(names))
    make_run(tmp_path / "one-more", scenario_of("mean"))
    text = page(tmp_path)
    assert len(text.encode()) < 3 * MEGABYTES
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
        assert "honest" not in said.replace("who is honest is not known", "")
        assert "suspected" in said
        assert "fedimmune simulate" not in said, "nobody can run a real federation again"


def test_where_it_is_known_attackers_are_marked(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    text = page(tmp_path)
    assert '"▲ 0"' in text.replace("\\u25b2", "▲")
    assert '"9"' in text
    assert '"▲ 9"' not in text.replace("\\u25b2", "▲")


def test_a_run_in_words(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", error="two\nlines <b>")
    last = RunFolder(folder).records()[-1]
    said = visible_text(page(tmp_path))
    assert "After 6 rounds on digits with 10 clients, 4 of them attackers (backdoor)" in said
    assert f"is right on {last.accuracy:.1%}" in said
    assert f"on {last.asr:.1%}" in said
    assert "In 1 round the model stayed as it was: two lines <b>." in said


def test_in_a_comparison_rounds_that_were_skipped_are_told(tmp_path: Path) -> None:
    why = "6 of 10 clients would be suspected: the round is skipped (on_majority=skip)"
    make_run(tmp_path / "a", scenario_of({"name": "adaptive"}), error=why)
    make_run(tmp_path / "b", scenario_of("median"))
    shown = visible_text(write_report(tmp_path, tmp_path / "r.html").read_text())
    assert f"adaptive: the model stayed as it was in round 2. In round 2, {why}." in shown
    assert "failed rounds" in shown


def test_probabilities_are_shown_and_held_against_the_truth(tmp_path: Path) -> None:
    folder = with_probabilities(tmp_path / "run")
    shown = visible_text(write_report(folder, tmp_path / "r.html").read_text())
    assert "Reliability of adaptive" in shown
    assert "mean P(attack)" in shown
    assert "How far probabilities of attack can be believed" in shown
    plain = make_run(tmp_path / "plain")
    shown = visible_text(write_report(plain, tmp_path / "r.html").read_text())
    assert "P(attack)" not in shown
    assert "Reliability" not in shown


def test_a_run_of_before_there_were_probabilities_is_read(tmp_path: Path) -> None:
    folder = with_probabilities(tmp_path / "run")
    file, lines = folder / "rounds.jsonl", []
    for line in file.read_text().splitlines():
        record = json.loads(line)
        del record["defense"]
        for client in record["clients"]:
            del client["probability"]
        lines.append(json.dumps(record) + "\n")
    file.write_text("".join(lines))
    results = load_runs(folder)
    assert results.clients["probability"].isna().all()
    write_report(folder, tmp_path / "r.html")


def test_rules_that_were_taken_over_are_named(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / rule, scenario_of(rule)) for rule in ("mean", "krum", "oracle")]
    shown = visible_text(page(tmp_path, *runs))
    last = {run.name: RunFolder(run).records()[-1].asr or 0 for run in runs}
    lost = sorted(f"{rule} ({asr:.1%})" for rule, asr in last.items() if asr > 0.5)
    if lost:
        assert "succeeds more often than not under" in shown
        assert all(name in shown for name in lost)
    else:
        assert "succeeds more often than not under no rule" in shown
    honest = [make_run(tmp_path / f"none-{r}", scenario_of(r, "none")) for r in ("mean", "krum")]
    assert "more often than not" not in visible_text(page(tmp_path, *honest))


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


# -------------------------------------------------------------------- the defense


def adaptive(defense: Path, digest: str) -> dict[str, Any]:
    return scenario_of({"name": "adaptive", "defense": str(defense), "digest": digest})


@pytest.fixture
def defended(tmp_path: Path) -> Path:
    """A run by a defense whose file and curve are there."""
    made = train(recordings(2, rounds=2), epochs=3)
    made.save(tmp_path / "a.defense")
    digest = type(made).load(tmp_path / "a.defense").digest
    make_run(tmp_path / "run", adaptive(tmp_path / "a.defense", digest))
    return tmp_path


def test_a_defense_is_shown_in_full(defended: Path) -> None:
    text = page(defended)
    assert "On held-out rehearsals" in text
    assert 'data-name="curve"' in text
    assert "compares with the server" in text
    assert "cannot be shown" not in text


def test_a_defense_that_has_moved_is_no_error(defended: Path) -> None:
    (defended / "a.defense").rename(defended / "b.defense")
    said = visible_text(page(defended))
    assert "It cannot be shown: the defense cannot be read: no such file" in said


def test_another_defense_in_its_place_is_not_taken_for_it(defended: Path) -> None:
    made = train(recordings(2, rounds=2), epochs=1, seed=2)
    made.save(defended / "a.defense")
    text = page(defended)
    assert "is now another defense" in text
    assert "On held-out rehearsals" not in text


@pytest.mark.parametrize(
    "curve", [None, "", "epoch,training\n1,2\n", "epoch,training,validation\n1,x,2\n"]
)
def test_a_curve_that_is_missing_or_damaged_is_said(defended: Path, curve: str | None) -> None:
    place = defended / "a.defense.curve.csv"
    place.unlink() if curve is None else place.write_text(curve)
    text = page(defended)
    assert "Its learning curve" in text
    assert 'data-name="curve"' not in text
    assert "On held-out rehearsals" in text


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


def expressions(part: Any) -> Iterator[str]:
    """Everything in a specification that is code."""
    if isinstance(part, dict):
        for name, value in part.items():
            if name in {"filter", "calculate", "labelExpr", "expr", "signal", "test", "zoom"}:
                yield json.dumps(value)
            elif name == "field":
                assert value in COLUMNS, value
            elif name != "datasets":
                yield from expressions(value)
    elif isinstance(part, list):
        for value in part:
            yield from expressions(value)


def encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


@cache
def harmless(count: int) -> Tags:
    """The page of a run with as many words, all of them harmless."""
    with tempfile.TemporaryDirectory() as place:
        words = [f"word{i}" for i in range(count)]
        return Tags(page(Path(place), write_hostile(Path(place) / "run", words, 0.5)))


@settings(max_examples=12, phases=[Phase.explicit, Phase.generate])
@given(words=st.lists(hostile, min_size=1, max_size=4, unique=True), number=finite)
@example(words=["</script><script>alert(1)</script>"], number=1.797e308)
def test_whatever_a_run_holds_adds_no_tag_and_no_attribute(words: list[str], number: float) -> None:
    words = [encodable(word) for word in words]
    with tempfile.TemporaryDirectory() as place:
        text = page(Path(place), write_hostile(Path(place) / "run", words, number))
    known, found = harmless(len(words)), Tags(text)
    names = {name for _, given_ in known.found for name in given_}
    assert {name for _, given_ in found.found for name in given_} <= names
    for tag in ("style", "img", "section", "title", "table", "main", "footer"):
        assert found.counted().get(tag, 0) == known.counted().get(tag, 0), tag
    assert text.count("<script>") == 2
    assert text.rstrip().endswith("</html>")
    assert text.count("<!--") == 0
    assert len(found.specs()) == found.counted()["figure"]
    for spec in found.specs():
        for code in expressions(spec):
            assert not any(len(word) > 4 and word in code for word in words), code


def test_a_hostile_rule_and_task_and_title(tmp_path: Path) -> None:
    bad = "<script>alert(1)</script>"
    scenario = scenario_of(bad, task={"name": bad}, attack=bad)
    make_run(tmp_path / "run", scenario)
    make_run(tmp_path / "other", {**scenario, "seed": 2})
    text = page(tmp_path, title=bad)
    assert text.count("<script>") == 2
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
    (part,) = re.findall(r'<details class="clients".*?</details>', shown, re.DOTALL)
    (table,) = re.findall(r"<table.*?</table>", part, re.DOTALL)
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
        assert f'{node}"' in shown, "in the map, whole"


def test_an_odd_round_is_announced_at_the_top_and_under_the_pointer(tmp_path: Path) -> None:
    shown = page(with_nodes(tmp_path / "run"))
    assert "<b>look</b>" not in shown
    top = shown[: shown.index('<section class="setting"')]
    assert re.search(r'<p class="notice">foolsgold: warnings in round 2\. In round 2, 8 of 10', top)
    packed = [table for spec in Tags(shown).specs() for table in spec["datasets"].values()]
    (warnings,) = (table["warnings"] for table in packed if "warnings" in table)
    assert [str(word)[:21] for word in warnings["words"] if word] == ["8 of 10 valid clients"]


# -------------------------------------------------------------------- the command

SCENARIOS: list[dict[str, Any]] = [
    {"rounds": 1},
    {"rounds": 1, "attack": {"name": "backdoor", "shift_x": 2}, "attackers": 3, "rule": "krum"},
    {
        "rounds": 1,
        "attack": {"name": "label-flip", "kind": "swap"},
        "partition": {"name": "by-label", "shards": 3},
        "rule": {"name": "multi-krum", "attackers": 2, "keep": 4},
        "optimizer": {"name": "adam", "lr": 0.002},
        "clients": 12,
        "participation": 0.75,
        "seed": 12345,
    },
]


@pytest.mark.parametrize("fields", SCENARIOS, ids=lambda f: str(f.get("rule", "mean")))
def test_the_command_in_a_report_runs_the_very_same_scenario(
    fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Scenario] = []

    def play(given: Scenario, **_: object) -> None:
        seen.append(given)
        raise InputError("what is meant is known: it need not be run")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(simulation, "simulate", play)
    scenario = Scenario(task="digits", batch=64, **fields).resolve()
    lines = command_of(scenario.model_dump(), is_simulated=True)
    assert lines is not None
    program, *words = shlex.split(" ".join(lines))
    assert program == "fedimmune"
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, InputError), result.stderr
    assert [one.digest for one in seen] == [scenario.digest]


def test_text_that_looks_like_a_number_stays_text() -> None:
    scenario = {"task": "digits", "rule": {"name": "adaptive", "defense": "a b", "digest": "12e4"}}
    words = shlex.split(" ".join(command_of(scenario, is_simulated=True) or []))
    assert 'rule.digest="12e4"' in words
    assert "a b" in words
