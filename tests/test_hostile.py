"""Files that were made to do harm, one by one: each is refused in one line, before it costs much.

Changes at random are in tests/fuzz.
"""

from __future__ import annotations

import json
import os
import resource
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save_file
from torch import Tensor

from fedimmune import Updates, rules
from fedimmune.adaptive import train
from fedimmune.adaptive.defense import Defense
from fedimmune.adaptive.recordings import Recording
from fedimmune.adaptive.reputation import Memory
from fedimmune.cli import main
from fedimmune.cli._ui import in_ascii
from fedimmune.errors import InputError
from fedimmune.io import DESCRIPTION, described, read_described, read_description, write_described
from fedimmune.runs.folder import RunFolder
from fedimmune.simulation import Scenario
from fedimmune.untrusted import printable, read_json
from tests.adaptive.rehearsed import honest_round, recording, recordings
from tests.report.making import make_run

DEEP = "[" * 100_000
Change = Callable[[dict[str, Tensor], dict[str, Any]], object]


def framed(header: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + data


def rewritten(path: Path, change: Change) -> None:
    """Change a file as somebody does who knows how to digest it."""
    tensors, about = load(path.read_bytes()), read_description(path)
    change(tensors, about)
    save_file({n: t.contiguous() for n, t in tensors.items()}, path, described(tensors, **about))


@pytest.fixture(scope="module")
def made() -> Defense:
    return train(recordings(2, rounds=2), epochs=1, settings={"hidden": 8})


@pytest.fixture
def defense(made: Defense, tmp_path: Path) -> Path:
    made.save(tmp_path / "a.defense")
    return tmp_path / "a.defense"


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Call the program, which has to refuse in one line; gives the line."""

    def attempt(*arguments: str | Path) -> str:
        monkeypatch.setattr(sys, "argv", ["fedimmune", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        printed = capsys.readouterr()
        assert stop.value.code in {1, 2}, printed.err
        assert len(printed.err.strip().splitlines()) == 1, printed.err
        return printed.err

    return attempt


# -------------------------------------------------------------------- odd values


@pytest.mark.parametrize("text", [DEEP, f'{{"format": {DEEP}', '{"a":' * 5000])
@pytest.mark.parametrize("kind", ["defense", "recording"])
def test_a_description_of_brackets(
    defense: Path, tmp_path: Path, refused: Any, kind: str, text: str
) -> None:
    path = tmp_path / f"deep.{kind}"
    tensors = load(defense.read_bytes())
    save_file(tensors, path, {DESCRIPTION: text})
    command = ["inspect", path] if kind == "defense" else ["train", path, "-o", tmp_path / "new"]
    assert "deep" in refused(*command)


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors, _: tensors.update({"kinds/mean": torch.tensor(0.0)}),
        lambda tensors, _: tensors.update({"kinds/temperature": torch.tensor(0.0).double()}),
        lambda tensors, _: tensors.update({"kinds/spread": tensors["kinds/spread"] * 0}),
        lambda tensors, _: tensors.update({"key.weight": tensors["key.weight"] * 1e300}),
        lambda tensors, _: tensors.update({"key.weight": tensors["key.weight"].half()}),
        lambda tensors, _: tensors.update({"odd": torch.zeros(3)}),
        lambda _, about: about["about"].update(memory=None),
        lambda _, about: about["about"].update(memory=-1),
        lambda _, about: about["about"].update(memory=1e300),
        lambda _, about: about["about"].update(validation=[{"attack": 3}]),
        lambda _, about: about["about"].update(validation=[{}]),
        lambda _, about: about["about"]["validation"][0].update(auroc="high"),
        lambda _, about: about["about"].update(searched={"grid": 3, "points": [], "best": {}}),
        lambda _, about: about["about"].update(searched={"grid": {}, "points": [1], "best": {}}),
        lambda _, about: about["about"]["settings"].update(passes=10**9),
        lambda _, about: about["about"]["settings"].update(hidden=20_000),
        lambda _, about: about["about"]["settings"].update(hidden="inf"),
        lambda _, about: about["about"]["settings"].update(layers=2),
        lambda _, about: about.update(kinds=["a", "b", "c"]),
    ],
)
@pytest.mark.parametrize("command", ["inspect", "patch", "simulate"])
def test_odd_values_in_a_defense(
    defense: Path, tmp_path: Path, refused: Any, change: Change, command: str
) -> None:
    rewritten(defense, change)
    words = {
        "inspect": ["inspect", defense],
        "patch": ["patch", defense, "--with", tmp_path, "-o", tmp_path / "new"],
        "simulate": ["simulate", "--rule", "adaptive", "--defense", defense],
    }
    assert "is damaged" in refused(*words[command])


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors, _: tensors.update(grams=tensors["grams"].long()),
        lambda tensors, _: tensors.update(grams=tensors["grams"].half()),
        lambda tensors, _: tensors.update(grams=tensors["grams"].to(torch.complex64)),
        lambda tensors, _: tensors.update(grams=tensors["grams"] * torch.nan),
        lambda tensors, _: tensors.update({name: each[:0] for name, each in tensors.items()}),
        lambda tensors, _: tensors.update(
            grams=torch.zeros(2, 3, 0, 0).double(), attackers=torch.zeros(2, 0).bool()
        ),
        lambda tensors, _: tensors.update(attackers=tensors["attackers"].double()),
        lambda _, about: about["about"].update(clients=0),
    ],
    ids=["int", "half", "complex", "nan", "no rounds", "no clients", "who", "0 clients"],
)
def test_odd_values_in_a_recording(tmp_path: Path, refused: Any, change: Change) -> None:
    path = tmp_path / "a.recording"
    recording(rounds=2, n=4).save(path)
    rewritten(path, change)
    assert "is damaged" in refused("train", path, "-o", tmp_path / "new")
    with pytest.raises(InputError, match=r"a\.recording is damaged"):
        Recording.load(path)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("scenario.toml", "a = " + "[" * 5000),
        ("scenario.toml", "a = " + "[" * 40 + "]" * 40),
        ("scenario.toml", ".".join("a" * 2000) + " = 1"),
        ("scenario.toml", f"a = {10**30}"),
        ("rounds.jsonl", DEEP + "\n"),
        ("rounds.jsonl", '{"round": 1, "accuracy": NaN}\n'),
        ("rounds.jsonl", '{"round": 1, "accuracy": 1e999}\n'),
        ("rounds.jsonl", '{"round": 1, "seconds": {"training": Infinity}}\n'),
        ("rounds.jsonl", '{"round": 1, "round": 1}\n'),
        ("partition.json", DEEP),
        ("partition.json", '[{"client": 1, "samples": [-1]}]'),
        ("partition.json", f'[{{"client": 1, "samples": [{10**40}]}}]'),
    ],
)
@pytest.mark.parametrize("command", ["report", "inspect"])
def test_odd_values_in_a_run(
    tmp_path: Path, refused: Any, command: str, file: str, content: str
) -> None:
    folder = make_run(tmp_path / "run")
    (folder / file).write_text(content)
    if command == "report":
        assert file in refused("report", folder, "-o", tmp_path / "report.html")
        assert not (tmp_path / "report.html").exists()
    elif file == "rounds.jsonl":
        assert file in refused("inspect", folder)
    if file == "scenario.toml":
        assert file in refused("simulate", folder)


def test_a_folder_whose_files_are_pipes(tmp_path: Path, refused: Any) -> None:
    folder = make_run(tmp_path / "run")
    (folder / "partition.json").unlink()
    os.mkfifo(folder / "partition.json")
    assert "it is not a file" in refused("report", folder, "-o", tmp_path / "report.html")


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "-1e400", '{"a": 1, "a": 2}', str(10**30)])
def test_json_that_others_would_take(text: str) -> None:
    with pytest.raises(InputError):
        read_json(text)


# -------------------------------------------------------------------- too much


def test_a_network_is_not_made_before_its_weights_are_there(defense: Path) -> None:
    rewritten(defense, lambda _, about: about["about"]["settings"].update(hidden=90_000))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match="has the shape"):
        Defense.load(defense)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert used < 200 << 10, "kilobytes; the network would have 8 billion weights"


def test_a_replay_of_a_great_width_is_not_unfolded(defense: Path) -> None:
    def widen(tensors: dict[str, Tensor], _: object) -> None:
        tensors["replay/000/squares"] = torch.zeros(0, 3, 15_000).double()
        tensors["replay/000/cosines"] = torch.zeros(0, 3, 15_000 * 14_999 // 2)

    rewritten(defense, widen)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match="its replay, recording 0"):
        Defense.load(defense)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10, "kilobytes"


EMPTY = b'{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'


@pytest.mark.parametrize("with_global", [True, False])
def test_a_million_empty_tensors_reject_one_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_global: bool
) -> None:
    names = (b'"%d":' % number + EMPTY for number in range(1_500_000 if with_global else 120_000))
    (tmp_path / "greedy.safetensors").write_bytes(framed(b"{" + b",".join(names) + b"}"))
    save_file({"w": torch.ones(3)}, tmp_path / "honest.safetensors")
    parsed: list[int] = []

    def watched(text: bytes) -> Any:
        parsed.append(len(text))
        return read_json(text)

    monkeypatch.setattr("fedimmune.io.read_json", watched)
    updates = Updates.from_files(
        [tmp_path / "honest.safetensors", tmp_path / "greedy.safetensors"],
        global_file=tmp_path / "honest.safetensors" if with_global else None,
        are_updates=not with_global,
    )
    assert updates.clients == ("honest",)
    assert "at most" in updates.rejected["greedy"]
    assert max(parsed) < 1000, "nothing of the greedy one was parsed"


def test_one_layer_too_many_is_still_named(tmp_path: Path) -> None:
    save_file({"w": torch.ones(3)}, tmp_path / "base.safetensors")
    save_file({"w": torch.ones(3), "more": torch.ones(1)}, tmp_path / "a.safetensors")
    updates = Updates.from_files(
        [tmp_path / "a.safetensors"], global_file=tmp_path / "base.safetensors"
    )
    assert "'more'" in updates.rejected["a"]


@pytest.mark.parametrize(
    "header",
    [struct.pack("<Q", 2**63), struct.pack("<Q", 10**12) + b"{}", b"", b"\x01"],
    ids=["most", "more than there is", "empty", "one byte"],
)
def test_a_header_that_lies_about_its_length(tmp_path: Path, header: bytes) -> None:
    (tmp_path / "a").write_bytes(header)
    with pytest.raises(InputError, match="shorter than it says"):
        read_description(tmp_path / "a")


# -------------------------------------------------------------------- digests


@pytest.mark.parametrize("kind", ["defense", "recording", "memory"])
def test_a_flipped_bit_is_seen(defense: Path, tmp_path: Path, kind: str) -> None:
    path = defense
    if kind == "recording":
        path = tmp_path / "a.recording"
        recording(rounds=2, n=4).save(path)
    elif kind == "memory":
        path = tmp_path / "memory"
        Memory({"a": -0.5, "b": -0.25}).save(path)
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    load_it: dict[str, Callable[[Path], object]] = {
        "defense": Defense.load,
        "recording": Recording.load,
        "memory": Memory.load,
    }
    with pytest.raises(InputError, match="does not match its digest"):
        load_it[kind](path)


def test_equal_contents_have_equal_bytes_and_one_word_more_another_digest(tmp_path: Path) -> None:
    tensors = {"b": torch.arange(3.0), "a": torch.zeros(0), "c": torch.tensor(True)}
    for name, told in (("one", 1), ("two", 1), ("three", 2)):
        write_described(tensors, tmp_path / name, format="fedimmune-thing-1", told=told)
    one, two, three = ((tmp_path / name).read_bytes() for name in ("one", "two", "three"))
    assert one == two
    changed = three.replace(b'\\"told\\": 2', b'\\"told\\": 1')
    assert changed != three
    (tmp_path / "three").write_bytes(changed)
    with pytest.raises(InputError, match="digest"):
        read_described(tmp_path / "three", "fedimmune-thing-1")
    with pytest.raises(InputError, match=r"one is not a thing-of-two-words$"):
        read_described(tmp_path / "one", "fedimmune-thing-of-two-words-1")
    found, about = read_described(tmp_path / "one", "fedimmune-thing-1")
    assert about == {"format": "fedimmune-thing-1", "told": 1}
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


def test_numbers_that_json_has_not_are_left_out_when_written(tmp_path: Path) -> None:
    about = {"row": [{"a": float("nan")}, float("inf"), 1.5]}
    write_described({}, tmp_path / "a", format="fedimmune-thing-1", **about)
    assert read_described(tmp_path / "a", "fedimmune-thing-1")[1]["row"] == [{"a": None}, None, 1.5]


# -------------------------------------------------------------------- code

EVIL = """
from pathlib import Path
Path("was here").write_text("evil")
from tests.simulation.own_task import Blobs as X
"""
STRANGE = 'clients = 3\nrounds = 1\nattackers = 0\n[task]\nname = "evil:X"\n'


@pytest.fixture
def strange(tmp_path: Path) -> Path:
    """A stranger's folder, with a scenario that names its code."""
    folder = tmp_path / "strange"
    folder.mkdir()
    (folder / "evil.py").write_text(EVIL)
    (folder / "scenario.toml").write_text(STRANGE)
    return folder


def called(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Call the program in a folder, as the console script does: without the folder on the path."""
    code = "import sys; from fedimmune.cli import main; sys.exit(main())"
    root = str(Path(__file__).parent.parent)
    return subprocess.run(
        [sys.executable, "-P", "-c", code, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"},
        text=True,
        capture_output=True,
        check=False,
    )


def test_code_that_a_file_names_is_not_imported(strange: Path) -> None:
    found = called(strange, "simulate", ".")
    assert found.returncode in {1, 2}
    (line,) = found.stderr.strip().splitlines()
    assert "'evil:X'" in line
    assert "--trust-code" in line
    for command in ("report", "inspect"):
        called(strange, command, ".")
    assert not (strange / "was here").exists()


def test_trusted_code_is_imported_but_not_from_a_runs_folder(strange: Path) -> None:
    found = called(strange, "simulate", ".", "--trust-code")
    assert found.returncode in {1, 2}
    assert "cannot import 'evil'" in found.stderr
    assert not (strange / "was here").exists()
    found = called(strange, "simulate", "scenario.toml", "--trust-code", "--workers", "2")
    assert found.returncode == 0, found.stderr
    assert (strange / "was here").exists()


def test_code_that_the_command_line_names_needs_no_more(strange: Path) -> None:
    words = ("simulate", "--task", "evil:X", "--clients", "3", "--rounds", "1")
    assert called(strange, *words).returncode == 0
    (strange / "was here").unlink()
    assert called(strange, "simulate", "scenario.toml", "--task", "digits", "--rounds", "1").stdout
    assert not (strange / "was here").exists()


def test_in_python_too(strange: Path) -> None:
    with pytest.raises(InputError, match="trust_code=True"):
        Scenario.from_toml(strange)
    assert "evil" not in sys.modules
    assert Scenario.from_toml(strange, {"task": "digits"}).task.name == "digits"


def test_workers_do_not_take_modules_of_the_current_folder(strange: Path) -> None:
    for module in ("pickle", "numpy", "fedimmune"):
        (strange / f"{module}.py").write_text(EVIL)
    words = ("--task", "digits", "--clients", "3", "--rounds", "1", "--workers", "2")
    found = called(strange, "simulate", *words)
    assert found.returncode == 0, found.stderr
    assert not (strange / "was here").exists()


# -------------------------------------------------------------------- terminals

ESCAPES = "\x1b[2J\x9b31m\u202eevil\u2066\r\x07"


def test_printable_text_is_left_alone() -> None:
    assert printable("client 3 · 98 % – β █") == "client 3 · 98 % – β █"
    assert printable(ESCAPES).isprintable()
    assert printable("a\x1b[2J") == r"a\x1b[2J"


def test_json_says_the_same_in_ascii() -> None:
    text = json.dumps({"id": f"é𝄞{ESCAPES}"}, ensure_ascii=False)
    assert in_ascii(text).isascii()
    assert json.loads(in_ascii(text)) == json.loads(text)


def no_controls(text: str) -> None:
    assert all(each.isprintable() or each == "\n" for each in text), repr(text)


def test_escapes_in_client_ids_are_shown_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"a{ESCAPES}".replace("/", "")
    for stem in (name, "b", "c"):
        save_file({f"w{ESCAPES}": torch.ones(3)}, tmp_path / f"{stem}.safetensors")
    save_file({f"v{ESCAPES}": torch.ones(3)}, tmp_path / f"d{ESCAPES}.safetensors")
    files = sorted(tmp_path.iterdir())
    argv = ["fedimmune", "aggregate", "--updates", *map(str, files), "-o", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", argv)
    with pytest.raises(SystemExit):
        main()
    printed = capsys.readouterr()
    assert r"a\x1b[2J\x9b31m\u202eevil" in printed.out
    no_controls(printed.out + printed.err)
    sent = honest_round(2, torch.Generator().manual_seed(1))
    no_controls(repr(rules.get("mean").aggregate({f"x{ESCAPES}": sent[0], "y": {}})))


def test_escapes_and_markup_in_a_run_are_shown_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    evil = f"[/]{ESCAPES}"
    folder = make_run(tmp_path / "run", names={0: evil}, reason=evil, error=evil)
    records = RunFolder(folder).records()
    assert records[0].clients[0].client == evil
    for words in ([], ["--round", "2"], ["--client", evil]):
        monkeypatch.setattr(sys, "argv", ["fedimmune", "inspect", str(folder), *words])
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code == 0
        printed = capsys.readouterr()
        assert r"[/]\x1b[2J" in printed.out
        no_controls(printed.out + printed.err)


def test_escapes_in_a_defense_are_shown_escaped(
    made: Defense,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    evil = f"[/]{ESCAPES}"
    rows = tuple({**row, "attack": evil} for row in made.about.validation)
    about = made.about.model_copy(update={"task": evil, "attacks": (evil,), "validation": rows})
    Defense(made.form, about, replay=made.replay, kinds=made.kinds).save(tmp_path / "a.defense")
    monkeypatch.setattr(sys, "argv", ["fedimmune", "inspect", str(tmp_path / "a.defense")])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 0
    printed = capsys.readouterr()
    assert r"[/]\x1b[2J" in printed.out
    no_controls(printed.out)


def test_an_error_names_a_hostile_file_without_harm(tmp_path: Path, refused: Any) -> None:
    path = tmp_path / f"evil{ESCAPES}.defense"
    path.write_text(json.dumps("nothing"))
    no_controls(refused("inspect", path))
