"""``python -m reproduction``, from nothing to table and figure, on the smallest scale."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

from reproduction import results
from reproduction.cli import main
from reproduction.studies import EXPERIMENTS

ENDINGS = (".md", ".csv", ".tex", ".json", ".png", ".pdf")


def call(monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["reproduction", *map(str, words)])
    with pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0)


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Call the program, which has to refuse in one line; gives the line."""

    def attempt(*words: str | Path) -> str:
        capsys.readouterr()
        code = call(monkeypatch, *words)
        printed = capsys.readouterr()
        assert code in {1, 2}, printed.err
        assert printed.out == ""
        assert len(printed.err.strip().splitlines()) == 1, printed.err
        return printed.err

    return attempt


@pytest.fixture
def sketched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write figures as their descriptions: rendering takes most of the time, and other tests do."""

    def save(chart: Any, stem: Path) -> list[Path]:
        files = [stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "pdf")]
        described = chart.to_json()
        for file in files:
            file.write_text(described, encoding="utf-8")
        return files

    monkeypatch.setattr(results, "save", save)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that the first test fills, and others look into."""
    return tmp_path_factory.mktemp("reproduced")


def made(folder: Path) -> dict[str, int]:
    """When each result was written: recordings, defenses, models of runs."""
    files = [
        *folder.glob("recordings/*.recording"),
        *folder.glob("defenses/*.defense"),
        *folder.glob("runs/*/model.safetensors"),
    ]
    return {str(file.relative_to(folder)): file.stat().st_mtime_ns for file in files}


def test_from_nothing_to_table_and_figure(
    shared: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = shared / "published"
    code = call(
        *(monkeypatch, "mnist-backdoor", "--scale", "smoke", "--seeds", "2"),
        *("--folder", shared, "--publish", place, "--json"),
    )
    found = json.loads(capsys.readouterr().out)
    assert code == 0
    assert found["failed"] == {}
    assert found["done"] == 5 * 2 + 2 + 6
    there = shared / "results" / "smoke"
    assert all((there / f"mnist-backdoor{ending}").stat().st_size for ending in ENDINGS)
    assert sorted(file.suffix for file in place.iterdir()) == [".csv", ".md", ".png"]
    facts = json.loads((there / "mnist-backdoor.json").read_text())
    assert len(facts["scenarios"]) == 10
    assert facts["jobs"] == {"done": 10, "of": 10}
    assert facts["command"] == "python -m reproduction mnist-backdoor --scale smoke --seeds 2"


def test_the_table_is_what_the_runs_say(shared: Path) -> None:
    """Recomputed from the run folders, without any of the code that made the table."""
    runs: dict[str, list[tuple[float, float]]] = {}
    for folder in sorted((shared / "runs").iterdir()):
        scenario: dict[str, Any] = tomllib.loads((folder / "scenario.toml").read_text())
        last = json.loads((folder / "rounds.jsonl").read_text().splitlines()[-1])
        rule = scenario["rule"]["name"]
        if rule == "adaptive" and scenario["rule"].get("defense", "universal") == "universal":
            rule = "adaptive-universal"
        if "adaptive-paper" in scenario["rule"].get("defense", ""):
            rule = "adaptive-paper"
        if scenario["attackers"] == 4 and scenario["clients"] == 10:
            runs.setdefault(rule, []).append((last["accuracy"], last["asr"]))
    assert {rule: len(found) for rule, found in runs.items()} == dict.fromkeys(
        ("mean", "adaptive", "adaptive-paper", "adaptive-universal", "oracle"), 2
    )
    page = (shared / "results" / "smoke" / "mnist-backdoor.md").read_text()
    lines = [line for line in page.splitlines() if line.startswith("| `")]
    for rule, found in runs.items():
        accuracy, success = (
            f"{50 * (found[0][i] + found[1][i]):.2f} ± "
            f"{100 * abs(found[0][i] - found[1][i]) / 2**0.5:.2f}"
            for i in (0, 1)
        )
        of_rule = [line for line in lines if line.startswith(f"| `{rule}`")]
        assert any(accuracy in line for line in of_rule), (rule, accuracy, of_rule)
        assert any(success in line for line in of_rule), (rule, success, of_rule)
    with (shared / "results" / "smoke" / "mnist-backdoor.csv").open() as file:
        rows = list(csv.DictReader(file))
    by_rule = {rule: sorted(found) for rule, found in runs.items()}
    told: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        usual = row["defense"] in {"", "own"}
        name = row["rule"] if usual else f"{row['rule']}-{row['defense']}"
        told.setdefault(name, []).append((float(row["accuracy"]), float(row["asr"])))
    assert {rule: sorted(found) for rule, found in told.items()} == by_rule


@pytest.mark.usefixtures("sketched")
def test_jobs_are_shared_and_never_done_twice(
    shared: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = made(shared)
    words = ("mnist-attackers", "mnist-backdoor", "--scale", "smoke", "--folder", shared, "--json")
    assert call(monkeypatch, *words) == 0
    found = json.loads(capsys.readouterr().out)
    # Without attack and under the omniscient attack: five rules each, and one more defense.
    assert found["done"] == 5 + 5 + 1
    after = made(shared)
    assert {name: after[name] for name in before} == before
    assert len(after) == len(before) + 11
    assert call(monkeypatch, *words) == 0
    assert "done" not in json.loads(capsys.readouterr().out)  # there was nothing to do
    assert made(shared) == after


@pytest.mark.usefixtures("sketched")
def test_a_failed_job_is_reported_and_stops_nothing_else(
    shared: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = next((shared / "recordings").glob("sign-flip-*run1*.recording"))
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:100])
    try:
        words = ("--scale", "smoke", "--folder", shared)
        code = call(monkeypatch, "training-attacks", *words, "--filter", "rule=adaptive")
    finally:
        damaged.write_bytes(whole)
    printed = capsys.readouterr()
    assert code == 1
    assert "failed: defense digits-adaptive-omniscient" in printed.err
    assert damaged.name in printed.err
    assert "2 jobs were left out" in printed.err
    assert "**Not finished**" in printed.out
    assert "trained on B" in printed.out


@pytest.mark.reproduce
def test_killed_in_the_middle_it_goes_on(tmp_path: Path) -> None:
    """Killed again and again, whenever something new is there, it comes to the same table."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for _ in range(3):
        there = len(made(cut))
        process = subprocess.Popen(_program(cut), start_new_session=True, stdout=subprocess.DEVNULL)
        while process.poll() is None and len(made(cut)) < there + 3:
            time.sleep(0.02)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    before = made(cut)
    assert 3 <= len(before) < 12
    for folder in (cut, whole):
        subprocess.run(_program(folder), check=True, stdout=subprocess.DEVNULL)
    after = made(cut)
    assert {name: after[name] for name in before} == before
    assert _without_runs(cut) == _without_runs(whole)


@pytest.mark.reproduce
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_it_says_what_is_kept(tmp_path: Path, number: int) -> None:
    command = [word for word in _program(tmp_path) if word != "--quiet"]
    process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not made(tmp_path):
        time.sleep(0.02)
    os.killpg(process.pid, number)
    said = process.communicate()[1].splitlines()[-1]
    assert process.returncode == 128 + number
    assert re.fullmatch(
        r"reproduction: stopped; \d+ of 13 jobs are done; the same command resumes with the others",
        said,
    )
    time.sleep(2)
    with pytest.raises(ProcessLookupError):  # nobody is left to write into the folder
        os.killpg(process.pid, 0)


def _program(folder: Path) -> list[str]:
    words = ["mnist-backdoor", "--scale", "smoke", "--folder", str(folder), "--quiet"]
    return [sys.executable, "-m", "reproduction", *words]


def _without_runs(folder: Path) -> list[dict[str, str]]:
    """Rows but for the runs' names, which hold where the defense is."""
    with (folder / "results" / "smoke" / "mnist-backdoor.csv").open() as lines:
        return [
            {name: value for name, value in row.items() if name != "run"}
            for row in csv.DictReader(lines)
        ]


def test_dry_run_and_list_do_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "ablation", "--scale", "smoke", "--dry-run", "--folder", tmp_path) == 0
    listed = capsys.readouterr().out.splitlines()
    assert len(listed) == 27
    assert "defense digits-mlp-backdoor" in "\n".join(listed)
    assert call(monkeypatch, "--folder", tmp_path, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert [fact["id"] for fact in facts] == list(EXPERIMENTS)
    scales = facts[IDS.index("ablation")]["scales"]
    assert scales["smoke"]["runs"] == 10
    assert scales["smoke"]["jobs"] == 27
    assert scales["paper"]["tasks"] == ["cifar10"]
    assert scales["cpu"]["tasks"] == ["mnist"]
    assert scales["smoke"]["seconds"] < scales["cpu"]["seconds"] < scales["paper"]["seconds"]
    assert list(tmp_path.iterdir()) == []


IDS = list(EXPERIMENTS)


@pytest.mark.usefixtures("sketched")
def test_no_run_shows_what_is_there_and_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("mnist-backdoor", "--scale", "smoke", "--folder", tmp_path)
    assert call(monkeypatch, *words, "--no-run") == 0
    page = capsys.readouterr().out
    assert "**Not finished**: 0 of " in page
    assert "Nothing is run yet." in page
    assert made(tmp_path) == {}
    assert call(monkeypatch, *words, "--filter", "attackers=4,rule=mean", "--quiet") == 0
    there = made(tmp_path)
    capsys.readouterr()
    assert call(monkeypatch, *words, "--no-run", "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)["experiments"]
    assert found["done"] == 1 < found["of"]
    assert made(tmp_path) == there
    with (tmp_path / "results" / "smoke" / "mnist-backdoor.csv").open() as lines:
        (row,) = csv.DictReader(lines)
    assert (row["rule"], row["attackers"]) == ("mean", "4")


@pytest.mark.usefixtures("sketched")
def test_what_several_folders_measured_is_published_as_one_table(
    shared: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    refused: Any,
) -> None:
    """Seeds 1 and 2 of two rules, from a folder each, are as if one folder had them all."""
    asked = ("mnist-backdoor", "--scale", "smoke", "--quiet")
    which = ("--seeds", "2", "--filter", "attackers=4,rule=mean,rule=oracle")

    def publish(folder: str, place: str, *more: str, seeds: tuple[str, ...] = ("2",)) -> bytes:
        counted = [word for count in seeds for word in ("--seeds", count)]
        words = [*asked, *counted, *which[2:], *more, "--folder", str(tmp_path / folder)]
        assert call(monkeypatch, *words, "--publish", tmp_path / place) == 0
        return b"".join(file.read_bytes() for file in sorted((tmp_path / place).iterdir()))

    for seed in ("1", "2"):
        runs = list((shared / "runs").glob(f"digits-[mo]*-backdoor-4of10-seed{seed}-*"))
        assert len(runs) == 2
        for run in runs:
            for folder in (seed, "all"):
                shutil.copytree(run, tmp_path / folder / "runs" / run.name)
    whole = publish("all", "at once")
    assert b"Not finished" not in whole
    assert publish("1", "in turn", "--no-run") != whole
    assert b"Not finished" in (tmp_path / "in turn" / "mnist-backdoor.md").read_bytes()
    assert publish("2", "in turn", "--no-run") == whole
    assert publish("nothing", "in turn", "--no-run") == whole

    table = tmp_path / "in turn" / "mnist-backdoor.csv"
    text = table.read_text()
    # Many runs are the same at two scales: what one has measured is good for the other.
    table.write_text(text.replace(",smoke,", ",cpu,"))
    assert table.read_text() != text
    assert publish("nothing", "in turn", "--no-run") == whole

    # Rows of other keys, or that are not asked for, stay; running the same cell again replaces one.
    head, row, *rest = text.splitlines()
    table.write_text("\n".join([head, row.replace(row[-16:], "0" * 16), *rest]) + "\n")
    words = ("--no-run", "--folder", tmp_path / "2", "--publish", table.parent, *which)
    capsys.readouterr()
    assert call(monkeypatch, *[word for word in asked if word != "--quiet"], *words) == 0
    assert (
        "1 rows of the earlier table of mnist-backdoor are carried over" in capsys.readouterr().err
    )
    assert "0" * 16 in table.read_text()
    assert publish("1", "in turn", "--no-run") == whole
    page = publish("nothing", "in turn", "--no-run", seeds=("1", "2:attackers=4"))
    assert b" --seeds 1 --seeds 2:attackers=4 --filter attackers=4 " in page
    assert call(monkeypatch, *asked, *words[:-1], "attackers=4,rule=mean,seed=1") == 0
    assert table.read_text() == text

    before = table.read_text().replace(",smoke,", ",cpu,").replace(row[-16:], "0" * 16)
    table.write_text(before)
    assert "1 row of scale cpu" in refused(*asked, *words)
    assert table.read_text() == before
    table.write_text("rule\nmean\n")
    assert "move it away" in refused(*asked, *words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["mnist"], "there is no experiment 'mnist'"),
        (["sweep", "--scale", "tiny"], "there is no scale 'tiny'"),
        (["sweep", "--filter", "rule"], "FIELD=VALUE"),
        (["mnist-backdoor", "--filter", "rule=best", "--scale", "smoke"], "there is mean, "),
        (["sweep", "--filter", "attackers=4", "--scale", "smoke"], "without --filter"),
        (["mnist-attackers", "--filter", "attack=none,attackers=4"], "no run of mnist-attackers"),
        (["mnist-backdoor", "--device", "abacus", "--scale", "smoke"], "abacus"),
        (["mnist-backdoor", "--filter", ""], "FIELD=VALUE"),
        (["mnist-backdoor", "--seeds", "0"], "not '0'"),
        (["mnist-backdoor", "--seeds", "many"], "3:attackers=4, not 'many'"),
        (["mnist-backdoor", "--seeds", "2:"], "--seeds takes FIELD=VALUE"),
        (["mnist-backdoor", "--seeds", "2:seed=1"], "select them by --filter"),
        (["mnist-backdoor", "--seeds", "2", "--seeds", "3"], "given twice, 2 and 3"),
        (["mnist-backdoor", "--seeds", "3:attackers=9"], "--seeds 3:attackers=9: mnist-backdoor"),
        (["synthetic", "--seeds", "3:attackers=4"], "without --seeds 3:attackers=4"),
        (["--filter", "rule=best"], "there is mean, "),
        (["mnist-backdoor", "mnist-attackers", "--filter", "attack=none"], "of mnist-backdoor"),
    ],
)
def test_refused(words: list[str], said: str, refused: Any, tmp_path: Path) -> None:
    assert said in refused(*words, "--folder", tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("option", ["--folder", "--publish"])
def test_a_place_that_cannot_be_written_is_refused_before_any_work(
    option: str, refused: Any, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    words = ("mnist-backdoor", "--scale", "smoke", "--folder", tmp_path / "new")
    assert "cannot write to" in refused(*words, option, tmp_path / "file")
    assert [file.name for file in tmp_path.rglob("*")] == ["file"]


@pytest.mark.usefixtures("sketched")
def test_what_is_damaged_is_made_again_or_named(
    shared: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("mnist-backdoor", "--scale", "smoke", "--seeds", "2", "--folder", shared, "--json")
    table = shared / "results" / "smoke" / "mnist-backdoor.csv"
    assert call(monkeypatch, *words) == 0
    whole = table.read_text()
    runs = sorted((shared / "runs").glob("digits-oracle-backdoor-4of10-seed*"))
    for run, damage in zip(runs, (b"", b"\0\n"), strict=True):
        records = run / "rounds.jsonl"
        records.write_bytes(records.read_bytes().splitlines(keepends=True)[0] + damage)
    capsys.readouterr()
    assert call(monkeypatch, *words, "--dry-run") == 0
    missing = json.loads(capsys.readouterr().out)
    assert [name[:29] for name in missing["missing"]] == ["digits-oracle-backdoor-4of10-"] * 2
    assert missing["done"] > 2 > missing["seconds"] >= 0
    assert call(monkeypatch, *words) == 0
    assert json.loads(capsys.readouterr().out)["done"] == 2
    assert table.read_text() == whole

    (defense,) = (shared / "defenses").glob("digits-adaptive-backdoor+omniscient-*.defense")
    kept = defense.read_bytes()
    defense.write_bytes(kept[:100])
    try:
        assert call(monkeypatch, "--folder", shared, "--json") == 0, "the list shows what is there"
        capsys.readouterr()
        assert call(monkeypatch, *words) == 1
    finally:
        defense.write_bytes(kept)
    found = json.loads(capsys.readouterr().out)
    assert len(found["failed"]) == 2
    assert all("Remove it, and it is made again" in why for why in found["failed"].values())


@pytest.mark.usefixtures("sketched")
def test_a_folder_that_was_moved_has_the_same_runs(
    shared: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    moved = tmp_path / "elsewhere"
    shutil.copytree(shared, moved)
    words = ("mnist-backdoor", "--scale", "smoke", "--seeds", "2", "--folder", moved, "--json")
    assert call(monkeypatch, *words) == 0
    assert "done" not in json.loads(capsys.readouterr().out)


@pytest.mark.usefixtures("sketched")
def test_what_a_run_saves_does_not_make_it_another_run(
    shared: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table and the traits want the same two runs, one of them with a layer's updates."""
    words = ("--scale", "smoke", "--folder", shared, "--json")
    assert call(monkeypatch, "mnist-backdoor", "traits", *words, "--dry-run") == 0
    missing = json.loads(capsys.readouterr().out)["missing"]
    assert len(missing) == 2
    assert all("saving fc2.weight" in name for name in missing)
    before = len(made(shared))
    for done in (2, None):
        assert call(monkeypatch, "mnist-backdoor", "traits", *words) == 0
        found = json.loads(capsys.readouterr().out)
        assert found.get("done") == done
        assert all(each["done"] == each["of"] for each in found["experiments"])
    assert len(made(shared)) == before


@pytest.mark.reproduce
@pytest.mark.parametrize("name", IDS)
def test_every_experiment_at_smoke_scale(
    name: str, shared: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, name, "--scale", "smoke", "--folder", shared, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    (answer,) = found["experiments"]
    assert answer["done"] == answer["of"]
    assert not found.get("failed")
    there = shared / "results" / "smoke"
    assert all((there / f"{name}{ending}").stat().st_size for ending in ENDINGS)
    page = (there / f"{name}.md").read_text()
    pictures = [there / f"{name}.png", *there.glob(f"{name}-*.png")]
    assert all(f"]({picture.name})" in page for picture in pictures)
    assert "Not finished" not in page
    with (there / f"{name}.csv").open() as file:
        assert list(csv.DictReader(file))
