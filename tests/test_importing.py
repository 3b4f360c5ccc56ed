"""`import fedimmune` is quick: nothing heavy, and at first use little besides PyTorch."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

DRAWN_OR_ASKED = (
    "jinja2",
    "pandas",
    "altair",
    "vl_convert",
    "typer",
    "click",
    "tensorboard",
    "selenium",
)
READ_OR_FETCHED = ("sklearn", "scipy", "pooch", "PIL")
AT_USE = ("torch", "numpy", "safetensors", "pydantic", "rich")
ALLOWED = ("torch", "numpy", "safetensors", "pydantic")


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
            # numba, if it is there, looks at SciPy's version.
            "import os; os.environ['FEDIMMUNE_KERNELS'] = 'plain'\n"
            "from fedimmune import Updates, rules; rules.get('krum')([[0.0], [1.0], [2.0]])",
            (*DRAWN_OR_ASKED, *READ_OR_FETCHED, "numba"),
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


BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked}:
            raise ImportError(f"{{name}} is not installed")

sys.meta_path.insert(0, Blocked())
"""


def test_aggregating_needs_four_packages_only() -> None:
    """Everything that `pip install` brings besides them may be missing."""
    about = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    required = about["project"]["dependencies"]
    names = {re.split(r"[^\w.-]", each)[0].replace("-", "_") for each in required}
    modules = {"scikit_learn": "sklearn", "pillow": "PIL", "vl_convert_python": "vl_convert"}
    blocked = {modules.get(name, name) for name in names} - set(ALLOWED)
    assert {"rich", "typer", "pandas", "altair", "sklearn"} <= blocked
    code = BLOCKED.format(blocked=blocked) + (
        "import fedimmune, torch\n"
        "from fedimmune.rules import Krum\n"
        "own = torch.ones(5)\n"
        "given = fedimmune.Updates.of(torch.randn(7, 5)).with_anchor(own)\n"
        "given = given.with_reference('model', own).with_server_loss(lambda update: 0.0)\n"
        "for name in set(fedimmune.rules.available()) - {'adaptive', 'spectral', 'oracle'}:\n"
        "    rule = fedimmune.rules.get(name)\n"
        "    if not rule.packages:\n"
        "        print(rule.aggregate(given))\n"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
