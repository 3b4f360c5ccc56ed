"""What the results page says of an experiment is what the experiment's rows come to."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from statistics import fmean

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "results.md").read_text(encoding="utf-8")


def rows_of(experiment: str) -> list[dict[str, str]]:
    with (DOCS / "results" / f"{experiment}.csv").open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def mean_of(rows: list[dict[str, str]], field: str, **wanted: str) -> str:
    found = [
        100 * float(row[field])
        for row in rows
        if all(row[name] == value for name, value in wanted.items())
    ]
    return f"{fmean(found):.2f}"


@pytest.mark.parametrize(
    ("heading", "experiment"),
    [("MNIST, all rules", "mnist-attackers"), ("CIFAR-10, all rules", "cifar10-attackers")],
)
def test_rules_side_by_side(heading: str, experiment: str) -> None:
    section = PAGE.partition(f"\n### {heading}\n")[2].partition("\n#")[0]
    lines = re.findall(
        r"^\| .*?`([a-z-]+)`.*? \| (\d+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", section, re.M
    )
    rows = rows_of(experiment)
    shown = [row["rule"] for row in rows if row["attackers"] == "4"]
    assert [line[0] for line in lines] == list(dict.fromkeys(shown))
    for rule, seeds, accuracy, success, omniscient in lines:
        own = [row for row in rows if row["rule"] == rule and row["attackers"] == "4"]
        assert int(seeds) == len({row["seed"] for row in own}) == len(own) / 2
        assert accuracy == mean_of(own, "accuracy", attack="backdoor")
        assert success == mean_of(own, "asr", attack="backdoor")
        assert omniscient == mean_of(own, "accuracy", attack="omniscient")


def test_patterns_side_by_side() -> None:
    section = PAGE.partition("\n### Patterns that were not rehearsed\n")[2].partition("\n#")[0]
    lines = re.findall(r"^\| (\S+), `(\w+)` = (\d+) \| (.+) \|$", section, re.M)
    rows = rows_of("transfer-patterns")
    assert sum(cells.count(".") for *_, cells in lines) == len(rows)
    for task, varied, value, cells in lines:
        own = [row for row in rows if (row["varied"], row["value"]) == (varied, value)]
        for rule, cell in zip(
            ("mean", "adaptive-paper-literal", "adaptive-paper-clients", "adaptive", "oracle"),
            cells.split(" | "),
            strict=True,
        ):
            name = task.lower().replace("-", "")
            if cell != "–":
                assert cell.strip("*") == mean_of(own, "asr", task=name, rule=rule)


OWN_COMMANDS = {"paper-form.md", "grid.md", "byzfl.md", "immunity.md"}
"""Pages that are not an experiment of the paper's."""


def test_every_page_of_results_is_told_of() -> None:
    for page in (DOCS / "results").glob("*.md"):
        assert f"(results/{page.name}" in PAGE
        if page.name in OWN_COMMANDS:
            continue
        command = re.search(
            r"```sh\npython -m reproduction (\S+) (.*)\n```", page.read_text("utf-8")
        )
        assert command
        assert command[1] == page.stem
        assert any(command[1] in line and command[2] in line for line in PAGE.splitlines()), page


def test_the_papers_form_in_the_federation() -> None:
    page = (DOCS / "results/paper-form.md").read_text("utf-8")
    section = page.partition("\n## The text's protocol\n")[2].partition("\n## ")[0]
    lines = re.findall(
        r"^\| (\d) of 10, (\d) \|.*\| ([\d.]+) / ([\d.]+) \| [\d.]+ / [\d.]+ \| [\d.]+ \|$",
        section,
        re.M,
    )
    assert lines
    rows = [row for row in rows_of("paper-form") if row["rule"] == "both"]
    for attackers, seed, accuracy, success in lines:
        own = {"attackers": attackers, "seed": seed, "round": "30", "protocol": "paper"}
        assert accuracy == mean_of(rows, "accuracy", **own)
        assert success == mean_of(rows, "asr", **own)
