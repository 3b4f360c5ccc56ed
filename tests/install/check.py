"""Install the package as users do, at both ends of the ranges in pyproject.toml, and use it.

Builds the wheel and installs it without constraints.txt into new environments, once with the newest
versions that there are and once with the oldest that are admitted; there, from a folder of its own,
runs what a new user runs. Flower is then added to the same environment, and all of it run again:
that is two environments instead of four, and also what a user does. PyTorch stays at the version of
constraints.txt.

    make test-install
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXTRA = "flower"

FILES = """
import torch
from safetensors.torch import save_file
for name in ("base", "a", "b", "c"):
    save_file({"w": torch.rand(3)}, f"{name}.safetensors")
"""
FLOWER = """
from fedimmune.flower import RobustStrategy
RobustStrategy(rule="krum")
"""


class CheckError(Exception):
    """Something did not do what it should."""


class Environment:
    """A new environment with PyTorch, and a folder to use it in."""

    def __init__(self, place: Path, pins: list[str], torch_index: str | None) -> None:
        self._python = place / "env" / "bin" / "python"
        self._pins = place / "pins.txt"
        self.folder = place / "use"
        self.folder.mkdir(parents=True)
        self._pins.write_text("\n".join(pins), encoding="utf-8")
        run([sys.executable, "-m", "venv", place / "env"], place)
        index = ["--index-url", torch_index] if torch_index else []
        self.install(*index, next(pin for pin in pins if pin.startswith("torch==")))

    def install(self, *words: object) -> None:
        """Install packages; what is pinned stays so."""
        pip = (self._python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
        run([*pip, "--constraint", self._pins, *words], self.folder)

    def python(self, code: str) -> str:
        """Run Python code."""
        return run([self._python, "-c", code], self.folder)

    def fedimmune(self, words: str) -> str:
        """Run the program as it was installed."""
        return run([self._python.with_name("fedimmune"), *words.split()], self.folder)

    def versions(self) -> str:
        """Say which versions were taken."""
        listed = json.loads(run([self._python, "-m", "pip", "list", "--format=json"], self.folder))
        known = {each["name"].lower(): each["version"] for each in listed}
        names = [name for name, _ in lower_ends() if name in known]
        return ", ".join(f"{name} {known[name]}" for name in names)


def run(command: list[object], folder: Path) -> str:
    """Run a command outside of the repository; its output, or what is wrong."""
    usual = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env={**usual, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise CheckError(f"exit code {done.returncode} of {' '.join(map(str, command))}\n{said}")
    return done.stdout


def lower_ends() -> list[tuple[str, str]]:
    """Read the oldest admitted version of every direct dependency, the extra's included."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = []
    for needed in (*project["dependencies"], *project["optional-dependencies"][EXTRA]):
        parts = re.match(r"([\w.-]+)(?:\[[\w,]+\])?>=([\w.]+)", needed)
        if parts is None:
            raise CheckError(f"pyproject.toml: {needed} has no lower end")
        found.append((parts[1], parts[2]))
    return found


def expect(what: str, *, true: bool) -> None:
    """Hold what was printed or written against what should have been."""
    if not true:
        raise CheckError(what)


def use(env: Environment) -> Iterator[str]:
    """Do what a new user does; yields what is done next."""
    yield "fedimmune --help"
    expect("it lists no simulate", true="simulate" in env.fedimmune("--help"))
    yield "fedimmune demo --help"
    expect("it has no --seed", true="--seed" in env.fedimmune("demo --help"))
    yield "fedimmune simulate"
    words = "simulate --task digits --rule krum --attack backdoor --clients 5 --attackers 1"
    records = env.fedimmune(f"{words} --rounds 2 --json --quiet --force").splitlines()
    expect("no two records", true=[json.loads(line)["round"] for line in records] == [1, 2])
    yield "fedimmune aggregate"
    env.python(FILES)
    clients = "a.safetensors b.safetensors c.safetensors"
    env.fedimmune(f"aggregate --global base.safetensors {clients} -o next.safetensors")
    expect("no next model", true=(env.folder / "next.safetensors").is_file())
    yield "the README's example"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    example = readme.partition("```python\n")[2].partition("```")[0]
    expect("mallory is not told of", true="mallory" in env.python(example))


class Checks:
    """Counts what passed and what failed, and tells of it as it goes."""

    def __init__(self) -> None:
        self.passed = self.failed = 0
        self._began = time.monotonic()

    def say(self, words: str) -> None:
        """Print a line with the time since the start."""
        print(f"[{time.monotonic() - self._began:4.0f} s] {words}", flush=True)

    @contextmanager
    def one(self, name: str) -> Iterator[None]:
        """Carry out one check; an error is told, and others are carried out all the same."""
        try:
            yield
        except (CheckError, subprocess.TimeoutExpired) as error:
            self.failed += 1
            self.say(f"{name}: FAILED: {error}")
        else:
            self.passed += 1
            self.say(f"{name}: passed")


def main() -> int:
    """Carry out all checks; the exit code is 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--torch-index", help="an index to take PyTorch from")
    torch_index = parser.parse_args().torch_index
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    torch = next(line for line in constraints if line.startswith("torch=="))
    oldest = [f"{name}=={version}" for name, version in lower_ends() if name != "torch"]
    checks = Checks()
    with tempfile.TemporaryDirectory(prefix="fedimmune-install-") as place:
        checks.say("building the wheel")
        build = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"]
        run([*build, "--no-deps", "--wheel-dir", place, ROOT], Path(place))
        (wheel,) = Path(place).glob("*.whl")
        for end, pins in {"newest": [torch], "oldest": [torch, *oldest]}.items():
            env: Environment | None = None
            for extra in ("", f"[{EXTRA}]"):
                name = f"{end}{extra}"
                with checks.one(name):
                    checks.say(f"{name}: installing")
                    env = env or Environment(Path(place) / end, pins, torch_index)
                    env.install(f"{wheel}{extra}")
                    checks.say(f"{name}: {env.versions()}")
                    for what in use(env):
                        checks.say(f"{name}: {what}")
                    if extra:
                        checks.say(f"{name}: a strategy")
                        env.python(FLOWER)
    checks.say(f"{checks.passed} passed, {checks.failed} failed")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
