"""What docs/theory.md shows is what comes out."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from fedimmune import bounds

TEXT = (Path(__file__).parent.parent.parent / "docs" / "theory.md").read_text(encoding="utf-8")


def rows_under(header: str) -> list[list[str]]:
    """Read the cells of the table with this header."""
    after = TEXT.split(header, 1)[1].split("\n\n", 1)[0]
    lines = after.splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_examples() -> None:
    found = re.findall(r"```pycon\n(.*?)```", TEXT, re.DOTALL)
    assert len(found) == 2
    examples = doctest.DocTestParser().get_doctest("\n".join(found), {}, "theory", None, 0)
    assert doctest.DocTestRunner().run(examples).failed == 0


def test_the_limits_of_truncation() -> None:
    rows = rows_under("| attackers | every attacker is cut off below |")
    assert len(rows) == 5
    for attackers, below, up_to in rows:
        m = int(attackers)
        if m:
            assert f"{bounds.surely_truncated_below(n=10, m=m):.3f}" == below
        assert bounds.benign_kept_up_to(n=10, m=m) == pytest.approx(float(up_to), abs=6e-4)


def test_the_conservative_choices() -> None:
    rows = [row for row in rows_under("conservative $c$ |") if "and more" not in row[0]]
    assert len(rows) == 6
    for error, c, its_bound, sharp, mean in rows:
        found = bounds.conservative_c(float(error), n=10, m=4)
        assert found == pytest.approx(float(c), abs=6e-3)
        assert f"{bounds.error_bound(float(error), n=10, m=4, c=found):.3f}" == its_bound
        assert f"{bounds.error_bound(float(error), n=10, m=4):.3f}" == sharp
        assert bounds.error_bound(float(error), n=10, m=4, c=0) == pytest.approx(float(mean))
