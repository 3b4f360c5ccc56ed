"""A whole deployment on this machine: a SuperLink and its SuperNodes, with TLS and node keys.

    python -m deploy.loopback FOLDER --nodes 3

Runs until Ctrl-C, or a TERM to the number in ``FOLDER/loopback.json``, then stops the nodes and the
SuperLink. In a second terminal, with the line that is printed: ``flwr run . lab --stream``.
The scripts that it calls are those for real machines.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deploy.certificates import make_certificates
from deploy.commands import HOST, answers, flwr, free_port, wait_until, write_config
from deploy.node_key import make_node_key
from deploy.processes import Processes, environment, stop_on_signals

_HERE = Path(__file__).parent
_PATIENCE = 300.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Start everything, wait to be stopped, stop everything."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="keys, certificates and logs are kept there")
    parser.add_argument("--nodes", type=int, default=3)
    chosen = parser.parse_args(arguments)
    folder = chosen.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    stop_on_signals()
    try:
        with Processes(folder) as processes:
            _deploy(processes, folder, chosen.nodes)
            print(f"ready: FLWR_HOME={folder / 'home'} flwr run . lab --stream", flush=True)
            while "superlink" not in processes.ended():
                time.sleep(0.5)
            print(f"error: the SuperLink has ended: see {processes.log('superlink')}")
            return 1
    except (RuntimeError, TimeoutError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped", flush=True)
        return 0


def _deploy(processes: Processes, folder: Path, nodes: int) -> None:
    """Start the SuperLink, register a key a node, start the nodes, and say who is who."""
    address = f"{HOST}:{free_port()}"
    certificates, home = folder / "certificates", folder / "home"
    make_certificates(certificates, [HOST])
    write_config(home, address, certificates / "ca.pem")
    started: dict[str, dict[str, Any]] = {"loopback": {"pid": os.getpid()}}

    command: list[str | Path] = [_HERE / "superlink.sh", certificates, *address.split(":")]
    pid = processes.start("superlink", command, environment(folder / "homes" / "superlink"))
    started["superlink"] = {"pid": pid, "address": address}
    wait_until(lambda: answers(address), _PATIENCE, f"see {processes.log('superlink')}")

    for number in range(nodes):
        name = f"node-{number}"
        key = folder / "keys" / name
        registered = flwr(home, "supernode", "register", str(make_node_key(key)), "lab")
        config = f"partition-id={number} num-partitions={nodes}"
        command = [_HERE / "supernode.sh", certificates / "ca.pem", key, address, config]
        # Each unpacks apps in a place of its own, as on a machine of its own.
        own = environment(folder / "homes" / name)
        pid = processes.start(name, [*command, str(free_port())], own)
        started[name] = {"pid": pid, "node-id": registered["node-id"]}
    (folder / "loopback.json").write_text(json.dumps(started, indent=2) + "\n", encoding="utf-8")

    def all_online() -> bool:
        listed = flwr(home, "supernode", "list", "lab")["nodes"]
        return len([node for node in listed if node["status"] == "online"]) >= nodes

    wait_until(all_online, _PATIENCE, f"see the nodes' logs in {folder}")


if __name__ == "__main__":
    sys.exit(main())
