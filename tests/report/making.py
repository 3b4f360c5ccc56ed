"""Run folders for reports, made up in milliseconds."""

from __future__ import annotations

import json
import random
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import tomli_w
import torch
from safetensors.torch import save_file

from fedimmune.results import ClientResult, Verdict
from fedimmune.runs.folder import RunFolder
from fedimmune.runs.records import ClientData, RoundRecord, Seconds

__all__ = ["make_run", "scenario_of", "visible_text", "with_kinds", "with_probabilities"]


def scenario_of(
    rule: str | dict[str, Any] = "krum", attack: str = "backdoor", **fields: Any
) -> dict[str, Any]:
    return {
        "clients": 10,
        "attackers": 0 if attack == "none" else 4,
        "rounds": 6,
        "seed": 1,
        "task": {"name": "digits"},
        "rule": {"name": rule} if isinstance(rule, str) else rule,
        "attack": {"name": attack},
        "partition": {"name": "dirichlet", "alpha": 0.9},
        **fields,
    }


def make_run(
    place: Path,
    scenario: dict[str, Any] | None = None,
    *,
    truth: bool = True,
    played: int | None = None,
    partition: bool = True,
    weighs: bool = True,
    names: dict[int, int | str] | None = None,
    reason: str = "it was far from the others",
    error: str | None = None,
) -> Path:
    """Write a run whose figures are drawn at random, but always the same ones for one scenario."""
    scenario = scenario_of() if scenario is None else scenario
    chance = random.Random(str(scenario))
    folder = RunFolder(place)
    place.mkdir(parents=True)
    (place / "scenario.toml").write_text(tomli_w.dumps(scenario))
    clients = [(names or {}).get(i, i) for i in range(scenario["clients"])]
    attackers = set(clients[: scenario["attackers"]])
    if partition:
        folder.keep_partition(
            tuple(
                ClientData(
                    client=client,
                    is_attacker=client in attackers if truth else None,
                    samples=tuple(chance.randrange(40) for _ in range(10)),
                )
                for client in clients
            )
        )
    rounds = scenario["rounds"] if played is None else played
    for number in range(1, rounds + 1):
        has_target = scenario["attack"]["name"] != "omniscient" and scenario["attackers"]
        accuracy, asr = chance.random(), chance.random() if has_target and truth else None
        records = _clients(clients, attackers, truth, weighs, reason, chance)
        accused = [c for c in records if c.verdict == "suspected"]
        hits = sum(bool(c.is_attacker) for c in accused)
        folder.append(
            RoundRecord(
                round=number,
                accuracy=accuracy,
                asr=asr,
                asr_others=asr,
                accuracy_without_success=None if asr is None else accuracy * (1 - asr),
                precision=hits / len(accused) if accused and truth else None,
                recall=hits / len(attackers) if attackers and truth and weighs else None,
                attacker_weight=sum(c.weight or 0 for c in records if c.is_attacker)
                if truth and weighs and attackers
                else None,
                distance=chance.random(),
                robust_mean_norm=2.0,
                clients=records,
                error=error if number == 2 else None,
                seconds=Seconds(training=1.5, aggregating=0.25, testing=0.5),
            )
        )
    if rounds == scenario["rounds"]:
        save_file({"w": torch.zeros(1)}, place / "model.safetensors")
    return place


def _clients(
    clients: list[int | str],
    attackers: set[int | str],
    truth: bool,
    weighs: bool,
    reason: str,
    chance: random.Random,
) -> tuple[ClientResult, ...]:
    raw = [chance.random() if chance.random() < 0.7 else 0.0 for _ in clients]
    raw[-1] = raw[-1] or 0.5
    return tuple(
        ClientResult(
            str(client),
            Verdict.TRUSTED if not weighs or weight else Verdict.SUSPECTED,
            weight=weight / sum(raw) if weighs else None,
            reason="" if not weighs or weight else reason,
            is_attacker=client in attackers if truth else None,
        )
        for client, weight in zip(clients, raw, strict=True)
    )


def with_kinds(path: Path, **options: Any) -> Path:
    """A run whose suspects are called by kinds in turn; changed where it lies."""
    kinds = ("backdoor", "omniscient", "unknown")
    make_run(path, scenario_of({"name": "adaptive"}), **options)
    records, turn = [], 0
    for line in (path / "rounds.jsonl").read_text().splitlines():
        record = json.loads(line)
        for client in record["clients"]:
            if client["verdict"] == "suspected":
                client |= {"kind": kinds[turn % 3], "confidence": 0.75, "since": 1}
                client["reason"] = f"it looks most like {client['kind']} (75%)"
                turn += 1
        records.append(json.dumps(record))
    (path / "rounds.jsonl").write_text("\n".join(records) + "\n")
    return path


def with_probabilities(path: Path, **options: Any) -> Path:
    """A run whose rule says how likely clients attack, but for the last; changed where it lies."""
    make_run(path, scenario_of({"name": "adaptive"}), **options)
    chance, records = random.Random(3), []
    for line in (path / "rounds.jsonl").read_text().splitlines():
        record = json.loads(line)
        for client in record["clients"][:-1]:
            client["probability"] = chance.random() ** (1 if client["is_attacker"] else 3)
        records.append(json.dumps(record))
    (path / "rounds.jsonl").write_text("\n".join(records) + "\n")
    return path


class _Reader(HTMLParser):
    """Collects what is not style or script, and what is said of pictures."""

    told = ("aria-label", "title", "alt")

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.hidden += tag in {"style", "script"}
        self.words += [value or "" for name, value in attrs if name in self.told]

    def handle_endtag(self, tag: str) -> None:
        self.hidden -= tag in {"style", "script"}

    def handle_data(self, data: str) -> None:
        if not self.hidden:
            self.words.append(data)


def visible_text(page: str) -> str:
    """What a reader, or a reader's screen reader, gets of a page."""
    reader = _Reader()
    reader.feed(page)
    return " ".join(" ".join(reader.words).split())
