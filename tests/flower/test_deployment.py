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
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from fedimmune.io import load_mapped
from fedimmune.simulation import Scenario
from fedimmune.simulation.federation import Federation
from fedimmune.tasks import data_folder, load_data
from tests.flower.running import APP, Program, records_in, wait_until

pytestmark = pytest.mark.flower

PATIENCE = 600.0
ROUNDS = 2
SETTING: dict[str, Any] = {"clients": 3, "attack": "omniscient", "attackers": 1, "seed": 1}


@dataclass(frozen=True)
class Deployment:
    """A federation that runs, and in which a node has just died.

    Parameters
    ----------
    folder
        Of `loopback`, with its keys and its logs.
    loopback, run
        The processes of the federation, and the one that has the app run.
    nodes
        Node ids by client number.
    attacker, victim
        Numbers of the client that attacks, and of the one that has died after the first round.
    """

    folder: Path
    loopback: Program
    run: Program
    nodes: dict[int, str]
    attacker: int
    victim: int

    @property
    def address(self) -> str:
        """The SuperLink's."""
        address: str = started_in(self.folder)["superlink"]["address"]
        return address

    def records(self) -> list[dict[str, Any]]:
        """The rounds that are finished."""
        return records_in(self.folder / "runs" / "it")


@pytest.fixture(scope="module")
def deployment(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Deployment]:
    """Start all, and kill a node after the first round.

    Flower takes a minute to notice, which is for what tests have to do meanwhile.
    """
    folder = tmp_path_factory.mktemp("deployment")
    command = [sys.executable, "-m", "deploy.loopback", str(folder), "--nodes", "3"]
    with ExitStack() as stack:
        loopback = Program(command, folder / "loopback.out")
        stack.callback(loopback.end)
        defense = request.getfixturevalue("digits_defense")  # is learned while the others start
        loopback.says("ready: ", PATIENCE)
        started, attacker = started_in(folder), who_attacks()
        nodes = {number: str(started[f"node-{number}"]["node-id"]) for number in range(3)}
        run = Program(run_command(folder, defense), folder / "run.out", **home_in(folder))
        stack.callback(run.end)
        victim = min(number for number in nodes if number != attacker)
        it = Deployment(folder, loopback, run, nodes, attacker, victim)
        # At once: a node that has begun on the second round would be trusted in it.
        wait_until(lambda: it.records() or run.process.poll() is not None, PATIENCE, pause=0.1)
        assert run.process.poll() is None, run.text
        os.kill(started[f"node-{victim}"]["pid"], signal.SIGKILL)
        yield it


def started_in(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "loopback.json").read_text())
    return found


def home_in(folder: Path) -> dict[str, str]:
    return {"FLWR_HOME": str(folder / "home")}


def run_command(folder: Path, defense: Path) -> list[str]:
    places = {"rule": "adaptive", "defense": str(defense)}
    places |= {"runs": str(folder / "runs"), "name": "it"}
    config = {**SETTING, **places, "rounds": ROUNDS, "timeout": PATIENCE}
    said = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
    return ["flwr", "run", str(APP), "lab", "--stream", "-c", said]


def who_attacks() -> int:
    scenario = Scenario(**SETTING)
    task = scenario.make_task()
    with Federation(scenario, task, load_data(task, data_folder()), workers=1) as federation:
        attackers: list[int] = sorted(federation.attackers)
    return attackers[0]


def python(module: str, *arguments: Path | str) -> None:
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


def test_strangers_are_refused(deployment: Deployment) -> None:
    folder, address = deployment.folder, deployment.address

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
    python("deploy.certificates", folder / "elsewhere", "--host", "127.0.0.1")
    elsewhere = folder / "elsewhere" / "ca.pem"
    registered = folder / "keys" / "node-0"
    assert "certificate verify failed" in refused(folder, elsewhere, registered, address)


def test_the_attacker_is_named_and_the_dead_node_is_not(deployment: Deployment) -> None:
    run, nodes = deployment.run, deployment.nodes
    assert run.wait(PATIENCE) == 0, run.text
    records = deployment.records()
    assert len(records) == ROUNDS, run.text
    attacker, victim = nodes[deployment.attacker], nodes[deployment.victim]
    seen = [{c["client"]: c for c in record["clients"]} for record in records]
    for number, clients in enumerate(seen):
        assert records[number]["error"] is None
        assert set(clients) == set(nodes.values()), "a key's node id is what it was registered as"
        assert clients[attacker]["verdict"] == "suspected"
        assert clients[attacker]["weight"] == 0
        (survivor,) = set(clients) - {attacker, victim}
        assert clients[survivor]["verdict"] == "trusted"
    assert [clients[victim]["verdict"] for clients in seen] == ["trusted", "failed"]
    assert seen[-1][attacker]["kind"] in {"sign-flip", "unknown"}

    model = load_mapped(deployment.folder / "runs" / "it" / "model.safetensors")
    assert all(bool(torch.isfinite(tensor).all()) for tensor in model.values())
    assert records[-1]["accuracy"] > records[0]["accuracy"]


def test_everything_ends_with_it(deployment: Deployment) -> None:
    loopback = deployment.loopback
    assert deployment.run.wait(PATIENCE) == 0
    loopback.process.send_signal(signal.SIGTERM)
    assert loopback.wait(PATIENCE) == 0, loopback.text
    assert loopback.family() == []
