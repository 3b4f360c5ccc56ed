"""Jobs that do next to nothing, for worker processes to import."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from fedimmune.errors import InputError
from reproduction.jobs import Job, Store


@dataclass(frozen=True)
class Fake(Job):
    """Writes a file, unless it is to fail, and a line into a log."""

    name: str
    wanted: tuple[Fake, ...] = ()
    fails: str = ""
    seconds: float = 1.0
    takes: float = 0.0

    @property
    def key(self) -> str:
        return f"fakes/{self.name}"

    @property
    def title(self) -> str:
        return f"fake {self.name}"

    @property
    def needs(self) -> tuple[Job, ...]:
        return self.wanted

    def file(self, store: Store) -> Path:
        return store.folder / self.name

    def is_done(self, store: Store) -> bool:
        return self.file(store).is_file()

    def run(self, store: Store) -> None:
        with (store.folder / "log").open("a") as log:
            log.write(f"{self.name} {os.getpid()}\n")
        if self.fails == "dies":
            os.kill(os.getpid(), 9)
        if self.fails == "raises":
            raise ZeroDivisionError("by zero")
        if self.fails:
            raise InputError(self.fails)
        missing = [each.name for each in self.wanted if not each.is_done(store)]
        assert not missing, missing
        time.sleep(self.takes)
        self.file(store).touch()


def logged(store: Store) -> list[str]:
    """Names of the jobs that were started, in order."""
    log = store.folder / "log"
    return [line.split()[0] for line in log.read_text().splitlines()] if log.is_file() else []
