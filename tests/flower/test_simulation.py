"""The demo of ``make flower-demo``, whole: Flower's simulation, its figures, and what it leaves."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

from fedimmune.simulation import Scenario, simulate
from tests.flower.running import Program, records_in, wait_until

pytestmark = pytest.mark.flower

PATIENCE = 600.0
ROUNDS = 4


def demo(folder: Path, defense: Path) -> Program:
    arguments = [str(folder), "--defense", str(defense), "--rounds", str(ROUNDS)]
    return Program([sys.executable, "demo.py", *arguments], folder.with_suffix(".log"))


def test_flower_plays_what_simulate_plays_and_the_learned_rule_holds(
    tmp_path: Path, digits_defense: Path
) -> None:
    folder = tmp_path / "demo"
    program = demo(folder, digits_defense)
    try:
        assert program.wait(PATIENCE) == 0, program.text
        assert program.family() == []
    finally:
        program.end()
    mean, adaptive = records_in(folder / "runs" / "mean"), records_in(folder / "runs" / "adaptive")
    assert len(mean) == len(adaptive) == ROUNDS

    scenario = Scenario(task="digits", attack="backdoor", attackers=4, rounds=ROUNDS, seed=1)
    for here, there in zip(mean, simulate(scenario), strict=True):
        assert here["accuracy"] == pytest.approx(there.accuracy, abs=0.005)
        assert here["loss"] == pytest.approx(there.loss, rel=1e-3)
        assert here["asr"] == pytest.approx(there.asr, abs=0.005)
    assert mean[-1]["asr"] > 0.9

    truth = json.loads((folder / "runs" / "adaptive" / "partition.json").read_text())
    attackers = {client["client"] for client in truth if client["is_attacker"]}
    assert (len(truth), len(attackers)) == (10, 4)
    for record in adaptive:
        assert {client["client"] for client in record["clients"]} == {
            each["client"] for each in truth
        }
        weights = {client["client"]: client["weight"] for client in record["clients"]}
        assert sum(weights.values()) == pytest.approx(1)
        assert sum(weights[node] for node in attackers) < 0.1
        suspects = {c["client"] for c in record["clients"] if c["verdict"] == "suspected"}
        assert len(suspects & attackers) >= 3
    assert adaptive[-1]["accuracy"] > adaptive[0]["accuracy"]

    assert (
        "is told: Your update was taken for an attack and not used"
        in (folder / "run-adaptive.log").read_text()
    )
    page = (folder / "report.html").read_text()
    assert "Trust map of adaptive" in page
    for node in attackers:
        assert f"node {node}" in program.text
    assert " 40.0%" in program.text, "of the plain mean's weight four attackers of ten have 40 %"


def runs_ray(program: Program) -> bool:
    return any("raylet" in line for line in program.family())


def test_ctrl_c_stops_what_was_started(tmp_path: Path, digits_defense: Path) -> None:
    program = demo(tmp_path / "demo", digits_defense)
    try:
        # The worst time for it: Ray, which starts processes by the dozen, has just begun.
        wait_until(lambda: runs_ray(program) or program.process.poll() is not None, PATIENCE)
        assert runs_ray(program), program.text
        program.process.send_signal(signal.SIGINT)
        assert program.wait(PATIENCE) == 130
        assert "stopped" in program.text
        assert program.family() == []
    finally:
        program.end()
