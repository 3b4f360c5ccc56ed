"""`import fedimmune` is quick: nothing heavy, and at first use little besides PyTorch."""

from __future__ import annotations

import subprocess
import sys

import pytest

DRAWN_OR_ASKED = (
    "jinja2",
    "pandas",
    "altair",
    "vl_convert",
    "matplotlib",
    "typer",
    "click",
    "tensorboard",
    "selenium",
)
READ_OR_FETCHED = ("sklearn", "scipy", "pooch", "PIL")
AT_USE = ("torch", "numpy", "safetensors", "pydantic", "rich")


def imported(code: str) -> set[str]:
    """Say which modules some code imports, in a process of its own."""
    told = f"{code}\nimport sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        ("import fedimmune", (*AT_USE, *DRAWN_OR_ASKED, *READ_OR_FETCHED)),
        ("from fedimmune import ClientResult", (*AT_USE, *DRAWN_OR_ASKED, *READ_OR_FETCHED)),
        (
            "from fedimmune import Updates, rules; rules.get('krum')([[0.0], [1.0], [2.0]])",
            (*DRAWN_OR_ASKED, *READ_OR_FETCHED),
        ),
        ("from fedimmune import Scenario, simulate", (*DRAWN_OR_ASKED, *READ_OR_FETCHED)),
        (
            "import fedimmune.cli",
            ("torch", "numpy", "jinja2", "pandas", "altair", *READ_OR_FETCHED),
        ),
    ],
)
def test_nothing_heavy_is_imported_before_it_is_needed(code: str, heavy: tuple[str, ...]) -> None:
    assert imported(code) & set(heavy) == set()
