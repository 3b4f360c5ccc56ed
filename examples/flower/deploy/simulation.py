"""Flower's simulation, from a SuperLink of one's own that is stopped again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Self

from deploy.commands import HOST, answers, free_port, wait_until, write_config
from deploy.processes import Processes, environment

__all__ = ["Simulation"]

_PATIENCE = 300.0


class Simulation:
    """A SuperLink in simulation mode, for as long as the ``with`` block lasts.

    Parameters
    ----------
    folder
        Logs go there, and what Flower keeps.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._home = folder / "home"
        self._processes = Processes(folder)

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._processes.__exit__()

    def _start(self) -> None:
        port = free_port()
        write_config(self._home, f"{HOST}:{port}")
        # Without TLS: it listens to this machine alone.
        command = ["flower-superlink", "--insecure", "--simulation", "--host", HOST]
        command += ["--port", str(port), "--disable-runtime-dependency-installation"]
        self._processes.start("superlink", command, environment(self._home))
        hint = f"see {self._processes.log('superlink')}"

        def is_ready() -> bool:
            if self._processes.ended():
                raise RuntimeError(f"the SuperLink has ended: {hint}")
            return answers(f"{HOST}:{port}")

        wait_until(is_ready, _PATIENCE, hint)

    def run(self, app: Path, name: str, settings: Mapping[str, str | int], nodes: int) -> Path:
        """Have an app run to its end, well or not: what it was to leave behind tells which.

        Parameters
        ----------
        app
            Folder of the app.
        name
            Of the run, for its log.
        settings
            For ``-c``.
        nodes
            How many there are to be.

        Returns
        -------
        Path
            The run's log.
        """
        config = " ".join(f"{key}={_written(value)}" for key, value in settings.items())
        command = ["flwr", "run", str(app), "lab", "--stream", "-c", config]
        command += ["--federation-config", f"num-supernodes={nodes}"]
        self._processes.start(name, command, environment(self._home))
        wait_until(lambda: name in self._processes.ended(), float("inf"), "")
        return self._processes.log(name)


def _written(value: str | int) -> str:
    """Write a value as TOML has it."""
    return str(value) if isinstance(value, int) else f'"{value}"'
