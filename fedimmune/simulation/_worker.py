"""The command of a worker process: reads jobs, writes answers, ends with its master."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time

_LOOK = 0.3
"""Seconds between checks that the master is alive."""


def main() -> None:
    """Carry out jobs from standard input until there are no more."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a user's task prints must not mix with the answers
    jobs = sys.stdin.buffer
    signal.signal(signal.SIGTERM, _stop)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()

    def answer(message: object) -> None:
        pickle.dump(message, answers)
        answers.flush()

    from fedimmune.simulation.workers import WorkerError  # noqa: PLC0415 (the pipe first)

    try:
        make, arguments = pickle.load(jobs)
        runner = make(**arguments)
    except Exception as error:
        answer(WorkerError(f"a worker could not start: {type(error).__name__}: {error}"))
        return
    answer(None)
    while True:
        try:
            job = pickle.load(jobs)
        except EOFError:
            return
        try:
            answer(runner.do(job))
        except BrokenPipeError:
            return
        except Exception as error:
            answer(WorkerError(f"{type(error).__name__}: {error}"))


def _end_with(master: int) -> None:
    """End when the master has: if it was killed, nobody else ends a job, which may take an hour."""
    while os.getppid() == master:
        time.sleep(_LOOK)
    os.kill(os.getpid(), signal.SIGTERM)


def _stop(*_: object) -> None:
    """End in order: a file that is being written is removed."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
    sys.exit()


if __name__ == "__main__":
    try:
        main()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # nothing is left to clean up
