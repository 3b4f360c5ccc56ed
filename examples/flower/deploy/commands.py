"""Flower's command line, and where it finds the SuperLink."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deploy.processes import environment

__all__ = ["HOST", "answers", "flwr", "free_port", "wait_until", "write_config"]

HOST = "127.0.0.1"


def write_config(home: Path, address: str, authority: Path | None = None) -> None:
    """Tell Flower's command line where the SuperLink is, by the name of ``lab``.

    Parameters
    ----------
    home
        What ``FLWR_HOME`` is to name.
    address
        Of the SuperLink, host:port.
    authority
        Certificate of who vouches for the SuperLink; None for one without TLS.
    """
    home.mkdir(parents=True, exist_ok=True)
    trust = (
        "insecure = true"
        if authority is None
        else f"root-certificates = {json.dumps(str(authority))}"
    )
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "lab"\n\n[superlink.lab]\naddress = "{address}"\n{trust}\n',
        encoding="utf-8",
    )


def flwr(home: Path, *arguments: str) -> dict[str, Any]:
    """Call Flower's command line, and read its answer.

    Raises
    ------
    RuntimeError
        It was refused; the message says why.
    """
    command = ["flwr", *arguments, "--format", "json"]
    done = subprocess.run(
        command, env=environment(home), capture_output=True, text=True, check=False
    )
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        answer = {}
    if done.returncode or not answer.get("success"):
        said = answer.get("error-message") or f"{done.stdout}{done.stderr}".strip()
        raise RuntimeError(f"{' '.join(command)}: {said}")
    return answer


def free_port() -> int:
    """Find a port that nobody uses at the moment."""
    with socket.socket() as asked:
        asked.bind((HOST, 0))
        return int(asked.getsockname()[1])


def answers(address: str) -> bool:
    """Whether somebody listens at host:port."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=1):
            return True
    except OSError:
        return False


def wait_until(holds: Callable[[], bool], patience: float, hint: str) -> None:
    """Ask until it holds.

    Raises
    ------
    TimeoutError
        It has not come to hold; the message ends with the hint.
    """
    until = time.monotonic() + patience
    while not holds():
        if time.monotonic() > until:
            raise TimeoutError(f"not ready after {patience:g} seconds: {hint}")
        time.sleep(0.5)
