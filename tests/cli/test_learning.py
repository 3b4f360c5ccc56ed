"""`fedimmune rehearse` and `train`, and the defense in `simulate` and `aggregate`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner, Result

from fedimmune.adaptive.defense import Defense
from fedimmune.adaptive.recordings import Recording
from fedimmune.cli import app
from fedimmune.tasks.digits import DigitsNet
from tests.adaptive.rehearsed import recording

RECORD = (
    *("rehearse", "--rounds", "2", "--attacks", "sign-flip", "--attackers", "0,3", "--runs", "2"),
)


def call(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDIMMUNE_DATA", raising=False)
    return tmp_path


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("rehearsals") / "recordings"
    result = call(*RECORD, "--workers", "1", "-o", place)
    assert result.exit_code == 0, result.output
    assert "4 rehearsals" in result.stdout
    assert "recorded already" not in result.stderr
    return place


@pytest.fixture(scope="module")
def defense(recorded: Path) -> Path:
    path = recorded.parent / "digits.defense"
    result = call("train", recorded, "-o", path, "--epochs", "3")
    assert result.exit_code == 0, result.output
    assert "sign-flip" in result.stdout
    assert "of 3)" in result.stderr
    return path


# -------------------------------------------------------------------- record and train


def test_recording_goes_on_where_it_was(recorded: Path) -> None:
    files = sorted(recorded.glob("*.recording"))
    assert len(files) == 4
    assert sum(file.name.startswith("sign-flip-3of10-oracle-run") for file in files) == 2
    stamps = [file.stat().st_mtime_ns for file in files]
    again = call(*RECORD, "--workers", "1", "-o", recorded)
    assert "4 of 4 are recorded already" in again.stderr
    assert [file.stat().st_mtime_ns for file in files] == stamps


def test_families_and_ranges_reach_the_scenarios() -> None:
    result = call(
        *("rehearse", "--rounds", "1", "--attacks", "sign-flip", "--attackers", "2", "--runs", "2"),
        *("--range", "scale=3-4", "--set", "local_epochs=1", "--workers", "1", "-o", "drawn"),
    )
    assert result.exit_code == 0, result.output
    from fedimmune.adaptive.recordings import read_recordings  # noqa: PLC0415

    scales = [r.about.scenario["attack"]["scale"] for r in read_recordings(["drawn"])]  # type: ignore[index]
    assert len(set(scales)) == 2
    assert all(3 <= scale <= 4 for scale in scales)


ROWS = ("rehearse", "--task", "tests.simulation.own_task:Rows", "--workers", "1", "-o", "rows")


def test_a_table_is_rehearsed_with_attacks_that_fit_it() -> None:
    result = call(*ROWS, "--attackers", "0,2", "--runs", "1", "--local-epochs", "1")
    assert result.exit_code == 0, result.output
    kinds = {file.name.partition("-2of")[0] for file in Path("rows").glob("*-2of10-*")}
    assert kinds == {"label-flip", "sign-flip"}


@pytest.mark.parametrize("family", [(), ("--randomize",)])
def test_an_attack_that_does_not_fit_is_refused_before_anything_is_rehearsed(
    refused: Callable[..., str], family: tuple[str, ...]
) -> None:
    said = refused(*ROWS, "--attacks", "sign-flip,backdoor", *family)
    assert "backdoor: its pattern needs images" in said
    assert "--attacks" in said
    assert not Path("rows").exists()


def test_the_curve_is_beside_the_defense(defense: Path) -> None:
    lines = Path(f"{defense}.curve.csv").read_text().splitlines()
    assert lines[0] == "epoch,training,validation"
    assert [line.split(",")[0] for line in lines[1:]] == ["1", "2", "3"]
    about = Defense.load(defense).about
    assert about.task == "digits"
    assert list(about.layers) == list(DigitsNet().state_dict())
    assert about.settings["anchor"] is True


def test_train_as_json(recorded: Path) -> None:
    result = call(
        *("train", recorded, "-o", "a.defense", "--epochs", "2", "--json", "--no-anchor"),
        *("--form", "relational", "--set", "c=5"),
    )
    printed = json.loads(result.stdout)
    assert printed["attacks"] == ["sign-flip"]
    assert printed["settings"]["c"] == 5
    assert printed["settings"]["anchor"] is False
    assert {row["attackers"] for row in printed["validation"]} == {0, 3}
    first = Path("a.defense").read_bytes()
    call("train", recorded, "-o", "b.defense", "--epochs", "2", "--no-anchor", "--set", "c=5")
    one, other = Defense.load("a.defense"), Defense.load("b.defense")
    assert len(first) == Path("b.defense").stat().st_size
    assert all(
        torch.equal(a, b)
        for a, b in zip(
            one.form.state_dict().values(), other.form.state_dict().values(), strict=True
        )
    )


@pytest.mark.parametrize("preset", ["paper", "authors", "authors-2020"])
def test_train_the_papers_form(recorded: Path, preset: str) -> None:
    paper = call(
        *("train", recorded, "-o", "p.defense", "--epochs", "2"),
        *("--form", "paper", "--preset", preset),
    )
    assert paper.exit_code == 0, paper.output
    settings = Defense.load("p.defense").about.settings
    assert settings["shared"] == (preset != "paper")
    assert settings["random_start"] == (preset == "authors")
    assert settings["orient"]


@pytest.mark.parametrize("preset", ["paper", "authors"])
def test_record_on_the_clients_data_as_a_preset_has_it(preset: str) -> None:
    words = (
        "rehearse",
        "--attacks",
        "backdoor",
        "--attackers",
        "3",
        "--rounds",
        "1",
        "--workers",
        "1",
    )
    assert call(*words, "--on", "clients", "--preset", preset, "-o", "own").exit_code == 0
    files = sorted(Path("own").glob("*.recording"))
    assert len(files) == 3 * 4, "three runs, four trajectories"
    about = Recording.load(files[0]).about
    assert about.on == "clients"
    assert ("carried" in about.scenario["optimizer"]) == (preset == "authors")  # type: ignore[operator]
    assert ("value" in about.scenario["attack"]) == (preset == "authors")  # type: ignore[operator]


# -------------------------------------------------------------------- used


def test_simulate_with_a_defense(defense: Path, folder: Path) -> None:
    words = ("simulate", "--rule", "adaptive", "--defense", defense, "--rounds", "1", "--json")
    result = call(*words, "--attack", "sign-flip", "--attackers", "3")
    assert result.exit_code == 0, result.output
    (line,) = result.stdout.splitlines()
    record = json.loads(line)
    assert record["error"] is None
    assert sum(client["weight"] for client in record["clients"]) == pytest.approx(1)
    (run,) = (folder / "runs").iterdir()
    again = call("simulate", run, "--json")
    assert again.stdout == result.stdout, "a run's folder says which defense it was"


def test_aggregate_with_a_defense_and_an_anchor(defense: Path, refused: Callable[..., str]) -> None:
    torch.manual_seed(1)
    base = DigitsNet().state_dict()
    save_file(base, "base.safetensors")
    for name in ("a", "b", "c", "server"):
        moved = {key: tensor + 0.01 * torch.randn(tensor.shape) for key, tensor in base.items()}
        save_file(moved, f"{name}.safetensors")
    clients = [f"{name}.safetensors" for name in "abc"]
    words = (
        "aggregate",
        "--rule",
        "adaptive",
        "--defense",
        defense,
        "--global",
        "base.safetensors",
    )
    result = call(*words, "--anchor", "server.safetensors", "--json", *clients, "-o", "next")
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert [client["client"] for client in printed["clients"]] == ["a", "b", "c"]
    assert sum(client["weight"] for client in printed["clients"]) == pytest.approx(1)
    remembered = call(*words, "--anchor", "server.safetensors", "--history", "memory", *clients)
    assert remembered.exit_code == 0
    assert Path("memory").is_file()
    assert "--anchor" in refused(*words, *clients)
    assert "the anchor" in refused(*words, "--anchor", "nowhere", *clients)
    save_file({"fc": torch.ones(2)}, "odd.safetensors")
    assert "the anchor" in refused(*words, "--anchor", "odd.safetensors", *clients)


# -------------------------------------------------------------------- refused in one line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--task", "mnits"), "no task 'mnits'"),
        (("--attacks", "tickle"), "no attack 'tickle'"),
        (("--attacks", ""), "there have to be attacks"),
        (("--attackers", "many"), "--attackers takes numbers such as 0-4"),
        (("--attackers", "11"), "11 attackers among 10"),
        (("--trajectory", "krumm"), "no rule 'krumm'"),
        (("--preset", "mine"), "there is no preset 'mine'"),
        (("--on", "moon"), "on takes server or clients"),
        (("--range", "shift"), "--range takes NAME=LOW-HIGH"),
        (("--range", "size=1-2"), "range 'size'"),
        (("--range", "shift=5-1"), "low to high"),
        (("--set", "color=3"), "no field 'color'"),
        (("--set", "anchor=899"), "none would be left"),
    ],
)
def test_record_refuses_in_one_line(
    refused: Callable[..., str], words: tuple[str, ...], said: str
) -> None:
    usual = ("rehearse", "--rounds", "1", "--runs", "1", "--workers", "1", "-o", "out")
    assert said in refused(*usual, *words)
    assert not list(Path("out").glob("*.recording"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nowhere",), "nowhere"),
        (("empty",), "no recordings"),
        (("broken.recording",), "broken.recording"),
        (("one.recording",), "two runs at least"),
        (("one.recording", "two.recording", "--form", "oval"), "no form 'oval'"),
        (("one.recording", "two.recording", "--preset", "mine"), "no preset 'mine'"),
        (("one.recording", "two.recording", "--set", "color=1"), "color"),
        (("one.recording", "two.recording", "--set", "c=much"), "c: "),
        (("one.recording", "two.recording", "--attacks", "flip"), "no recording of 'flip'"),
        (("one.recording", "two.recording", "--anchor"), "no anchor"),
        (("one.recording", "other.recording"), "other.recording is of another model"),
    ],
)
def test_train_refuses_in_one_line(
    folder: Path, refused: Callable[..., str], words: tuple[str, ...], said: str
) -> None:
    (folder / "empty").mkdir()
    (folder / "broken.recording").write_text("never")
    recording(0).save(folder / "one.recording")
    recording(1).save(folder / "two.recording")
    recording(1, layers={"w": (2, 2)}).save(folder / "other.recording")
    assert said in refused("train", *words, "-o", "x.defense", "--epochs", "1")
    assert not Path("x.defense").exists()
    assert "no folder" in refused("train", "one.recording", "-o", "nowhere/x.defense")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--rule", "adaptive", "--defense", "nowhere"), "no such file"),
        (("--rule", "krum", "--defense", "nowhere"), "no parameter 'defense'"),
    ],
)
def test_simulate_refuses_in_one_line(
    refused: Callable[..., str], words: tuple[str, ...], said: str
) -> None:
    assert said in refused("simulate", "--rounds", "1", *words)
    assert not Path("runs").exists()


def test_a_defense_for_another_model_is_refused_before_anything_runs(
    refused: Callable[..., str],
) -> None:
    from tests.rounds import needs_of  # noqa: PLC0415

    path = needs_of("adaptive", ("other",))["defense"]
    words = ("simulate", "--rounds", "2", "--rule", "adaptive", "--defense", path)
    assert "another model" in refused(*words)
    assert not Path("runs").exists()


def test_an_anchor_of_no_samples_is_refused_before_anything_runs(
    defense: Path, refused: Callable[..., str]
) -> None:
    words = ("simulate", "--rounds", "2", "--rule", "adaptive", "--defense", defense)
    assert "anchor" in refused(*words, "--set", "anchor=0")
