"""A real deployment on this machine, by the scripts of the guide: TLS, node keys, a node that dies.

Three nodes, one of them an attacker. The learned rule is the only one that can name one attacker of
three, and of the two that are left after one has died: it knows the server's own update.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fedimmune.federation import Scenario
from fedimmune.federation.federation import Federation
from fedimmune.files import load_mapped
from fedimmune.tasks import data_folder, load_data
from tests.flower.running import APP, Program, records_in, wait_until

pytestmark = pytest.mark.flower

PATIENCE = 600.0
ROUNDS = 3
SETTING: dict[str, Any] = {"clients": 3, "attack": "omniscient", "attackers": 1, "seed": 1}


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Program]]:
    folder = tmp_path_factory.mktemp("deployment")
    command = [sys.executable, "-m", "deploy.loopback", str(folder), "--nodes", "3"]
    program = Program(command, folder / "loopback.out")
    try:
        program.says("ready: ", PATIENCE)
        yield folder, program
    finally:
        program.end()


def who_attacks() -> int:
    scenario = Scenario(**SETTING)
    task = scenario.make_task()
    with Federation(scenario, task, load_data(task, data_folder()), workers=1) as federation:
        attackers: list[int] = sorted(federation.attackers)
    return attackers[0]


def python(module: str, *arguments: Path) -> None:
    command = [sys.executable, "-m", module, *map(str, arguments)]
    subprocess.run(command, cwd=APP, check=True, capture_output=True)


def refused(folder: Path, authority: Path, key: Path, address: str) -> str:
    """What a node says that has to give up."""
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        port = asked.getsockname()[1]
    command = [APP / "deploy" / "supernode.sh", authority, key, address, "partition-id=0", port]
    home = str(folder / "homes" / "stranger")
    node = Program([str(part) for part in command], folder / "stranger.out", FLWR_HOME=home)
    try:
        assert node.wait(PATIENCE) != 0, node.text
        return node.text
    finally:
        node.end()


def test_strangers_are_refused(deployment: tuple[Path, Program]) -> None:
    folder, _ = deployment
    started = json.loads((folder / "loopback.json").read_text())
    address = started["superlink"]["address"]

    # Whoever does not speak TLS is not heard.
    plain = http.client.HTTPConnection(address, timeout=10)
    plain.request("GET", "/")
    with pytest.raises((http.client.HTTPException, OSError)):
        plain.getresponse()

    # Nor is a node whose key nobody has registered, though it trusts the right authority.
    stranger = folder / "keys" / "stranger"
    python("deploy.node_key", stranger)
    assert stranger.stat().st_mode & 0o077 == 0, "nobody else may read a private key"
    authority = folder / "certificates" / "ca.pem"
    assert "Failed to activate SuperNode" in refused(folder, authority, stranger, address)

    # And a node refuses a server that its own authority does not vouch for.
    python("deploy.certificates", folder / "elsewhere")
    elsewhere = folder / "elsewhere" / "ca.pem"
    registered = folder / "keys" / "node-0"
    assert "certificate verify failed" in refused(folder, elsewhere, registered, address)


def test_the_attacker_is_named_and_the_dead_node_is_not(
    deployment: tuple[Path, Program], digits_defence: Path
) -> None:
    folder, program = deployment
    started = json.loads((folder / "loopback.json").read_text())
    nodes = {number: int(started[f"node-{number}"]["node-id"]) for number in range(3)}
    attacker = who_attacks()
    victim, survivor = (number for number in nodes if number != attacker)

    runs = folder / "runs"
    places = {"rule": "adaptive", "defence": str(digits_defence), "runs": str(runs), "name": "it"}
    config = {**SETTING, **places, "rounds": ROUNDS, "timeout": 300.0}
    said = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
    command = ["flwr", "run", str(APP), "lab", "--stream", "-c", said]
    run = Program(command, folder / "run.out", FLWR_HOME=str(folder / "home"))
    try:
        wait_until(
            lambda: len(records_in(runs / "it")) == 1 or run.process.poll() is not None, PATIENCE
        )
        assert run.process.poll() is None, run.text
        os.kill(started[f"node-{victim}"]["pid"], signal.SIGKILL)
        assert run.wait(PATIENCE) == 0, run.text
    finally:
        run.end()

    records = records_in(runs / "it")
    assert len(records) == ROUNDS, run.text
    seen = [{c["id"]: c for c in record["clients"]} for record in records]
    assert set(seen[0]) == set(nodes.values()), "a key's node id is the one it was registered with"
    for number, clients in enumerate(seen):
        assert records[number]["error"] is None
        assert clients[nodes[attacker]]["verdict"] == "suspected"
        assert clients[nodes[attacker]]["weight"] == 0
        assert clients[nodes[survivor]]["verdict"] == "trusted"
    assert seen[0][nodes[victim]]["verdict"] == "trusted"
    later = [clients[nodes[victim]]["verdict"] for clients in seen[1:] if nodes[victim] in clients]
    assert later, "it was asked once more at least: nobody knew that it was dead"
    assert set(later) == {"failed"}
    assert seen[-1][nodes[attacker]]["kind"] in {"omniscient", "unknown"}

    model = load_mapped(runs / "it" / "model.safetensors")
    assert all(bool(torch.isfinite(tensor).all()) for tensor in model.values())
    assert records[-1]["accuracy"] > 0.25, "of ten digits it knows more than by chance"

    program.process.send_signal(signal.SIGTERM)
    assert program.wait(PATIENCE) == 0
    assert program.family() == []
