"""What learned rules play benchmarks with: made once, of the right rehearsals."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fedimmune import adaptive, rules
from fedimmune.adaptive import Recording
from reproduction import defenses
from reproduction.benchmarks import byzfl

HOW: dict[str, Any] = {"data": None, "workers": 1}


def test_a_detector_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shorter = partial(adaptive.rehearse, rounds=2, local_epochs=[1], runs=2)
    monkeypatch.setattr(adaptive, "rehearse", shorter)
    monkeypatch.setattr(adaptive, "train", partial(adaptive.train, epochs=2))
    names = ["mean", "spectral", "krum"]
    made = defenses.learned("digits", names, tmp_path, **HOW)
    assert set(made) == {"spectral"}
    rules.get("spectral", detector=made["spectral"])
    monkeypatch.delattr(adaptive, "train")
    assert defenses.learned("digits", names, tmp_path, **HOW) == made


def test_nothing_is_made_for_rules_that_do_not_learn(tmp_path: Path) -> None:
    assert defenses.learned("digits", ["mean", "krum"], tmp_path / "none", **HOW) == {}
    assert not (tmp_path / "none").exists()


def test_byzfls_single_steps_are_rehearsed_as_they_are_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    def rehearse(task: str, attacks: list[str], **given: Any) -> list[Recording]:
        asked.append({"task": task, "attacks": attacks, **given})
        return []

    class Trained:
        def save(self, path: Path) -> None:
            path.touch()

    monkeypatch.setattr(adaptive, "rehearse", rehearse)
    monkeypatch.setattr(adaptive, "train", lambda *_, **__: Trained())
    made = defenses.learned(defenses.BYZFL_TASK, ["adaptive"], tmp_path, **HOW)
    played = {one.scenario.clients: one.scenario for one in byzfl(["mean"], [1], [0.0], {})}
    assert made == {"adaptive": tmp_path / "ByzflMnist.defense"}
    assert {each["settings"]["clients"] for each in asked} == set(played)
    assert len({str(each["output"]) for each in asked}) == len(asked)
    for each in asked:
        settings, scenario = each["settings"], played[each["settings"]["clients"]]
        assert scenario.attackers in each["attackers"]
        assert (scenario.local_steps, scenario.batch) == (settings["local_steps"], 25)
        assert scenario.optimizer.momentum == settings["optimizer"]["momentum"]
        assert scenario.attacker_data == settings["attacker_data"]
