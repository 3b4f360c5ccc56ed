"""The demo: every part of the story, once; what is there is not done again."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedimmune.demo
from fedimmune.cli import app
from fedimmune.demo import RULES, SHIPPED, Demo, Outcome, in_words, label_of, outcome_of
from fedimmune.simulation import run_folder

OUTCOMES = {
    SHIPPED: Outcome(SHIPPED, 0.93, 0.11, 0.02),
    "mean": Outcome("mean", 0.95, 1.0, 0.4),
    "median": Outcome("median", 0.94, 0.2, None),
    "adaptive": Outcome("adaptive", 0.941, 0.105, 0.01),
    "oracle": Outcome("oracle", 0.95, 0.1, 0.0),
}


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedimmune.demo, "_ROUNDS", 1)
    monkeypatch.setattr(fedimmune.demo, "_EPOCHS", 2)


def call(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, ["demo", *(str(each) for each in arguments)])
    assert result.exit_code == 0, result.output
    return result.output


def files_of(folder: Path) -> dict[Path, int]:
    return {
        file: file.stat().st_mtime_ns
        for file in folder.rglob("*")
        if file.is_file() and file.name not in {"report.html", ".lock"}
    }


@pytest.mark.usefixtures("short", "shipped")
def test_the_whole_story_and_what_a_second_call_reuses(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    first = call("-o", folder)
    for rule in RULES:
        assert f" {label_of(rule)} " in first
    assert first.index("by adaptive as shipped") < first.index("rehearsing"), "it needs none"
    assert "The limit is the oracle" in first
    assert "As it ships" in first
    assert "earlier call" not in first
    assert str(folder / "report.html") in first.replace("\n", "")
    page = (folder / "report.html").read_text()
    assert all(rule in page for rule in RULES)
    assert (folder / "digits.defense.curve.csv").is_file()
    made = files_of(folder)

    second = call("-o", folder)
    reused = "the rehearsals; the defense; the runs of adaptive as shipped, mean, median, krum,"
    assert f"{reused} adaptive" in " ".join(second.split())
    assert "--force" in second
    assert files_of(folder) == made, "nothing is done again"

    other = call("-o", folder, "--seed", "2")
    assert "From an earlier call: the rehearsals; the defense." in other
    assert made.items() < files_of(folder).items()

    (folder / "digits.defense").write_bytes(b"damaged")
    assert "the defense" not in call("-o", folder).rpartition("earlier call")[2]

    assert "earlier call" not in call("-o", folder, "--force")
    assert all(files_of(folder)[file] > when for file, when in made.items())


@pytest.mark.usefixtures("short", "shipped")
def test_rules_meet_the_same_federation(tmp_path: Path) -> None:
    scenarios = [Demo(tmp_path).scenario(rule) for rule in RULES if rule != "adaptive"]
    alike = [scenario.model_dump(exclude={"rule"}) for scenario in scenarios]
    assert all(each == alike[0] for each in alike)
    assert alike[0]["attack"]["name"] == "backdoor"
    assert (alike[0]["attackers"], alike[0]["clients"]) == (4, 10)
    assert not run_folder(scenarios[0], tmp_path).path.exists(), "asking does nothing"


def test_an_outcome_is_the_last_rounds_and_the_mean_weight(tmp_path: Path) -> None:
    played = Demo(tmp_path)
    records = list(played.play("krum"))[:5]
    found = outcome_of("krum", records)
    assert (found.accuracy, found.success) == (records[-1].accuracy, records[-1].asr)
    shares = [record.attacker_weight or 0 for record in records]
    assert found.attacker_weight == pytest.approx(sum(shares) / 5)


def test_in_words() -> None:
    lost, held, limit = in_words(OUTCOMES)
    assert lost.startswith("Taken over: mean 100.0% of")
    assert held.startswith("Held: adaptive as shipped 11.0%, median 20.0%, adaptive 10.5% (")
    assert "ACC 95.0%, ASR 10.0%" in limit
    assert "ACC 94.1% and ASR 10.5%: 0.9 points and 0.5 points away" in limit
    assert limit.endswith("without any rehearsal, it ends at ACC 93.0% and ASR 11.0%.")


def test_it_says_so_where_all_held_and_where_none_did() -> None:
    good = {name: Outcome(name, 0.9, 0.1, 0.0) for name in OUTCOMES}
    assert in_words(good)[0] == "Taken over: no rule."
    bad = {name: Outcome(name, 0.9, 0.9, 0.4) for name in OUTCOMES}
    assert in_words(bad)[1] == "Held: no rule."


def test_a_ruined_model_has_not_held() -> None:
    krum = Outcome("krum", 0.108, 0.0, 0.35)
    first, held, _ = in_words({**OUTCOMES, "krum": krum})
    assert first.endswith("Ruined: krum, right on 10.8% only.")
    assert "krum" not in held


def test_no_negative_seed() -> None:
    assert CliRunner().invoke(app, ["demo", "--seed", "-1"]).exit_code == 2
