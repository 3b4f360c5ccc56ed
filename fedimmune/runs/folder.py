"""Run folders: what a run leaves on disk, so that it can be resumed, inspected and compared.

::

    TITLE-DIGEST/
      scenario.toml            what was run, in full
      partition.json           which client has how many samples of which class, if that is known
      rounds.jsonl             one record per round
      model.safetensors        the model after the last round; only if the run is finished
      checkpoint.safetensors   until then: the model after a finished round, and what clients carry
                               over to the next
      history-N.safetensors    what the rule remembers after round N, if it remembers
      traces/                  what explains each round: see `fedimmune.runs.traces`

Every engine ends its rounds with `finish_round`. A trace is written before its record, and a record
is appended before the checkpoint is replaced. A run that is resumed keeps as many records as the
checkpoint has rounds, so it may be killed at any moment. Rounds may be much shorter than it takes
to write a checkpoint: then not every round has one, and those after the last are played again.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from fedimmune.aggregation import Outcome
from fedimmune.errors import InputError
from fedimmune.io import load_mapped, read_described, write_described, write_text_atomically
from fedimmune.kernels import kernels_used
from fedimmune.results import ClientResult, Verdict
from fedimmune.rules import Rule
from fedimmune.runs.records import ClientData, RoundRecord, Seconds
from fedimmune.runs.traces import Traces, trace_of
from fedimmune.untrusted import MIB, first_problem, read_bytes, read_json, read_toml
from fedimmune.updates import ClientId, Updates

__all__ = ["Checkpoint", "RunFolder", "finish_round"]

_UNFINISHED = re.compile(
    r"\.(scenario\.toml|partition\.json|(model|checkpoint|history-\d+)\.safetensors)\.[0-9a-f]{8}"
)
"""Files that were being written when their process ended."""
_FORMAT = "fedimmune-checkpoint-2"
_CARRIED = "carried/"
"""Prefix of tensors that are not the model's."""
_MOST_PARTITION, _MOST_ROUNDS = 64 * MIB, 1024 * MIB
_Partition = TypeAdapter(tuple[ClientData, ...])


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stands.

    Parameters
    ----------
    round
        The last finished one; 0 if there is none.
    model
        The global model after it; None at the start.
    fingerprint
        Of what the run began with.
    carried
        What clients carry over to the next round, by name.
    """

    round: int = 0
    model: Mapping[str, Tensor] | None = None
    fingerprint: str | None = None
    carried: Mapping[str, Tensor] = field(default_factory=dict)


class RunFolder:
    """The folder of one run, which need not exist yet."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._scenario = self.path / "scenario.toml"
        self._partition = self.path / "partition.json"
        self._rounds = self.path / "rounds.jsonl"
        self._model = self.path / "model.safetensors"
        self._checkpoint = self.path / "checkpoint.safetensors"
        self.traces = Traces(self.path / "traces")
        self._saved = 0
        self._saved_at = -math.inf

    # ---------------------------------------------------------------- looking

    @property
    def is_finished(self) -> bool:
        """Whether all rounds were played."""
        return self._model.is_file()

    def scenario(self) -> dict[str, Any]:
        """Read what was run, as it was written: nothing is checked or filled in."""
        return read_toml(self._scenario)

    def partition(self) -> tuple[ClientData, ...] | None:
        """Read who has which data; None if that is not known."""
        if not self._partition.exists():
            return None
        content = read_bytes(self._partition, _MOST_PARTITION)
        try:
            return _Partition.validate_python(read_json(content))
        except (ValidationError, InputError) as error:
            problem = first_problem(error)
            raise InputError(f"{self._partition} is not a partition: {problem}") from None

    def records(self) -> list[RoundRecord]:
        """Read the records of all finished rounds."""
        if not self._rounds.is_file():
            return []
        records = []
        lines = read_bytes(self._rounds, _MOST_ROUNDS).split(b"\n")
        for number, line in enumerate(lines[:-1], start=1):
            try:
                record = RoundRecord.model_validate(read_json(line))
            except (ValidationError, InputError) as error:
                raise InputError(
                    f"{self._rounds}, line {number}, is not a record of a round: "
                    f"{first_problem(error)}"
                ) from None
            if record.round != number:
                raise InputError(
                    f"{self._rounds}, line {number}, is of round {record.round}: rounds are "
                    "missing or repeated"
                )
            records.append(record)
        return records  # what follows the last line's end was cut off while being written

    def model(self) -> dict[str, Tensor]:
        """Map the final model."""
        return load_mapped(self._model)

    # ---------------------------------------------------------------- running

    @contextmanager
    def held(self, scenario: str) -> Iterator[None]:
        """Make the folder if there is none, write the scenario (TOML), and lock others out.

        Raises
        ------
        InputError
            Another process is at it, or the folder cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / ".lock").open("w")
        except OSError as error:
            raise InputError(f"cannot write the run {self.path}: {error.strerror}") from error
        with lock:
            if not _lock(lock):
                raise InputError(f"another process is at the run {self.path}")
            for file in self.path.iterdir():
                if _UNFINISHED.fullmatch(file.name):
                    file.unlink()  # by a process that was killed: nobody else is here
            self.traces.tidy()
            if not _holds(self._scenario, scenario):
                write_text_atomically(scenario, self._scenario)
            yield

    def clear(self) -> None:
        """Forget what was run."""
        # The checkpoint first: nothing resumes from it without the history. The model last: as long
        # as it is there, the run counts as finished.
        for file in (self._checkpoint, *self.path.glob("history-*.safetensors"), self._model):
            file.unlink(missing_ok=True)
        self._rounds.unlink(missing_ok=True)
        self.traces.clear()

    def resume(self, rule: Rule) -> Checkpoint:
        """Go back to the last checkpoint: drop later records, and restore the rule's history."""
        if not self._checkpoint.is_file():
            self.clear()
            return Checkpoint()
        checkpoint = self._read_checkpoint()
        if rule.has_history:
            rule.restore(self._history(checkpoint.round))
        self._keep_records(checkpoint.round)
        self.traces.forget_after(checkpoint.round)
        return checkpoint

    def keep_partition(self, clients: tuple[ClientData, ...]) -> None:
        """Write who has which data, unless it is written there already."""
        text = _Partition.dump_json(clients).decode() + "\n"
        if not _holds(self._partition, text):
            write_text_atomically(text, self._partition)

    def append(self, record: RoundRecord) -> None:
        """Add a record. It is on disk for good when a checkpoint is."""
        try:
            with self._rounds.open("a", encoding="utf-8") as file:
                file.write(record.model_dump_json() + "\n")
        except OSError as error:
            raise InputError(f"cannot write {self._rounds}: {error.strerror}") from error

    def save(self, done: Checkpoint, rule: Rule, *, last: bool) -> None:
        """Replace the checkpoint and the rule's history; after the last round, write the model."""
        assert done.model is not None
        self._sync_records()  # a checkpoint never has more rounds than there are records
        if rule.has_history:
            rule.save(self._history(done.round))
        about = {"format": _FORMAT, "round": done.round, "fingerprint": done.fingerprint}
        if last:
            write_described(done.model, self._model, **about)
            self._checkpoint.unlink(missing_ok=True)
        else:
            kept = {f"{_CARRIED}{name}": tensor for name, tensor in done.carried.items()}
            write_described({**done.model, **kept}, self._checkpoint, **about)
        self._forget_histories_but(done.round)
        self._saved, self._saved_at = done.round, time.monotonic()

    @property
    def saved_round(self) -> int:
        """The last round whose checkpoint this object has written; 0 if there is none."""
        return self._saved

    @property
    def unsaved_seconds(self) -> float:
        """How long ago that was."""
        return time.monotonic() - self._saved_at

    def _sync_records(self) -> None:
        try:
            with self._rounds.open("rb") as file:
                os.fsync(file.fileno())
        except OSError as error:
            raise InputError(f"cannot write {self._rounds}: {error.strerror}") from error

    def tidy(self) -> None:
        """Remove what a finished run no longer needs, if a kill has left it."""
        self._checkpoint.unlink(missing_ok=True)
        self._forget_histories_but(len(self.records()))

    def _forget_histories_but(self, number: int) -> None:
        for file in self.path.glob("history-*.safetensors"):
            if file != self._history(number):
                file.unlink()

    def _history(self, number: int) -> Path:
        return self.path / f"history-{number}.safetensors"

    def _read_checkpoint(self) -> Checkpoint:
        try:
            model, about = read_described(self._checkpoint, _FORMAT)
        except InputError as error:
            raise InputError(f"{error}; force the run to begin anew") from error
        number, fingerprint = about.get("round"), about.get("fingerprint")
        if not isinstance(number, int) or number < 1 or not isinstance(fingerprint, str):
            raise InputError(
                f"{self._checkpoint} is not a checkpoint of a run; force the run to begin anew"
            )
        copied = {name: tensor.clone() for name, tensor in model.items()}
        names = [name for name in copied if name.startswith(_CARRIED)]
        carried = {name.removeprefix(_CARRIED): copied.pop(name) for name in names}
        return Checkpoint(number, copied, fingerprint, carried)

    def _keep_records(self, count: int) -> None:
        found = len(self.records())  # what is kept must be readable: look before anything is cut
        if found < count:
            raise InputError(
                f"{self.path} is damaged: its checkpoint is of round {count}, but there are "
                f"{found} records; force the run to begin anew"
            )
        lines = self._rounds.read_bytes().split(b"\n")
        os.truncate(self._rounds, sum(len(line) + 1 for line in lines[:count]))


def finish_round(
    folder: RunFolder | None,
    rule: Rule,
    updates: Updates,
    outcome: Outcome,
    done: Checkpoint,
    *,
    last: bool,
    seconds: Seconds,
    metrics: Mapping[str, float | None] | None = None,
    failed: Mapping[ClientId, str] | None = None,
    late: Mapping[ClientId, str] | None = None,
    notes: Mapping[ClientId, str] | None = None,
    attackers: Collection[ClientId] | None = None,
    save_updates: Sequence[str] = (),
    save_every: float = 0.0,
) -> RoundRecord:
    """End a round: record what became of every client, and write trace, record and checkpoint.

    Parameters
    ----------
    folder
        Where the run is kept; None if nothing is to be written.
    rule, updates, outcome
        The rule, what was sent, and the result of aggregating it.
    done
        Where the run stands now, with the model after the round.
    last
        Whether this was the last round.
    seconds
        Where the time went.
    metrics
        What was measured, by the fields of `RoundRecord`.
    failed, late
        Why others sent nothing, or sent it too late, by client.
    notes
        Further remarks, by client.
    attackers
        Who attacks; None if nobody knows.
    save_updates
        Names of layers whose updates are kept in the trace.
    save_every
        Leave the checkpoint as it is if it is younger, in seconds, unless the round was the last.
    """
    answer = outcome.aggregation
    record = RoundRecord(
        round=done.round,
        **(metrics or {}),
        clients=_clients(updates, outcome, failed or {}, late or {}, notes or {}, attackers),
        warnings=() if answer is None else _other_than(outcome.error, answer.warnings),
        error=outcome.error,
        defense=None if answer is None else answer.defense or None,
        kernels=kernels_used(),
        seconds=seconds,
    )
    if folder is not None:
        # If the rule could not answer, what it last looked at was of an earlier round.
        basis = None if answer is None else rule.basis
        folder.traces.write(trace_of(done.round, updates, basis, save_updates))
        folder.append(record)
        if last or folder.unsaved_seconds >= save_every:
            folder.save(done, rule, last=last)
    return record


def _other_than(error: str | None, warnings: Sequence[str]) -> tuple[str, ...]:
    """Return the warnings that an error, which is shown too, does not repeat."""
    return tuple(warning for warning in warnings if warning != error)


def _clients(
    updates: Updates,
    outcome: Outcome,
    failed: Mapping[ClientId, str],
    late: Mapping[ClientId, str],
    notes: Mapping[ClientId, str],
    attackers: Collection[ClientId] | None,
) -> tuple[ClientResult, ...]:
    """Return what became of each client, once, in the order of their ids."""
    answer = outcome.aggregation
    skipped = dict.fromkeys(updates.clients, "the round was not aggregated")
    found = list(() if answer is None else answer.clients)
    for verdict, reasons in (
        (Verdict.REJECTED, outcome.rejected),
        (Verdict.UNUSED, skipped),
        (Verdict.FAILED, failed),
        (Verdict.LATE, late),
    ):
        found += [ClientResult(client, verdict, reason=why) for client, why in reasons.items()]
    first = {one.client: one for one in reversed(found)}
    return tuple(
        replace(
            one,
            client=str(client),
            score=one.score if one.score is not None and math.isfinite(one.score) else None,
            reason="; ".join(said for said in (one.reason, notes.get(client)) if said),
            is_attacker=None if attackers is None else client in attackers,
        )
        for client, one in sorted(first.items())
    )


def _holds(path: Path, text: str) -> bool:
    try:
        return path.read_text(encoding="utf-8") == text
    except (OSError, UnicodeDecodeError):
        return False


def _lock(file: IO[str]) -> bool:
    """Lock an open file until it is closed or its process ends."""
    try:
        import fcntl  # noqa: PLC0415 (not on every system)
    except ImportError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
