"""The course of a run: its round, what is remembered of clients, what is written down."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp.strategy import Result
from torch import Tensor

from fedimmune.flower.arrays import record_of, tensors_of
from fedimmune.flower.exclusion import Exclusion
from fedimmune.flower.journal import Journal
from fedimmune.flower.telling import Told
from fedimmune.notices import notice_of_record
from fedimmune.records import ClientRecord, RoundRecord
from fedimmune.traces import Trace
from fedimmune.verdicts import Verdict, fields_of

__all__ = ["Course", "EvaluateFunction", "FinishedRound", "renumbered"]

EvaluateFunction = Callable[[int, ArrayRecord], MetricRecord | None]
"""Tests a model: given the round and the model, what it found."""

_log = logging.getLogger("flwr")
_MEASURED = ("accuracy", "loss", "asr", "asr_others")
"""What a test of the model may have found; the names are those of records."""


@dataclass(frozen=True)
class FinishedRound:
    """A round that is aggregated: its record, its trace and the model after it."""

    record: RoundRecord
    trace: Trace
    arrays: ArrayRecord


class Course:
    """Where a run is, and what it knows.

    Parameters
    ----------
    rule
        Name of the rule.
    journal
        Writes rounds down; None where nothing is to be written.
    exclusion
        Says who is not asked; None where everybody is.
    """

    def __init__(self, rule: str, journal: Journal | None, exclusion: Exclusion | None) -> None:
        self.journal, self.exclusion = journal, exclusion
        self.told: dict[str, Told] = {}
        self.before = 0
        """How many rounds an earlier server has played; Flower counts from 1 again."""
        self.planned: int | None = None
        """How many rounds there are to be in all, where that is known."""
        self.is_tested = False
        """Whether each round is tested, and written down only then."""
        self.last: RoundRecord | None = None
        """The record of the last round that was played."""
        self._rule = rule
        self._open: FinishedRound | None = None

    def resume(self) -> tuple[int, ArrayRecord] | None:
        """Go back to where the run stopped; None where there is nothing to go back to."""
        found = None if self.journal is None else self.journal.resume()
        self.told.clear()
        if self.exclusion is not None:
            self.exclusion.forget()
        if found is None:
            self.before = 0
            return None
        self.before, model, records = found
        _log.info("going on after round %d, which was saved", self.before)
        for record in records:
            self.note(record)
        return self.before, record_of(model)

    def begin(self, model: Mapping[str, Tensor]) -> None:
        """Make ready for a round that begins with this model."""
        if self.journal is not None:
            self.journal.begin(model, self.planned)

    def left_out(self, number: int) -> frozenset[str]:
        """Who is not to be asked in a round."""
        return frozenset() if self.exclusion is None else self.exclusion.left_out(number)

    def note(self, record: RoundRecord) -> None:
        """Remember what is to be told to clients, and who was suspected."""
        for client in record.clients:
            self.told[client.id] = _told(client, record.round, self._rule)
        if self.exclusion is not None:
            suspects = [c.id for c in record.clients if c.verdict == Verdict.SUSPECTED]
            self.exclusion.note(record.round, suspects)

    def finish(self, done: FinishedRound) -> None:
        """Take a round as played; it is written down now, or when it has been tested."""
        self.note(done.record)
        self.last, self._open = done.record, done
        if not self.is_tested:
            self.write_down(None, 0.0)

    def testing(self, evaluate_fn: EvaluateFunction) -> EvaluateFunction:
        """Have a round written down with what a test of its model has found."""

        def test(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            began = time.perf_counter()
            found = evaluate_fn(self.before + server_round, arrays)
            self.write_down(found, time.perf_counter() - began)
            return found

        return test

    def write_down(self, found: MetricRecord | None, seconds: float) -> None:
        """Write the last round down.

        Parameters
        ----------
        found
            What a test of the model has shown.
        seconds
            How long that took.
        """
        done, self._open = self._open, None
        if done is None or self.journal is None:
            return
        spent = done.record.seconds.model_copy(update={"testing": round(seconds, 4)})
        record = done.record.model_copy(update={**_measured(found), "seconds": spent})
        is_last = record.round == self.planned
        self.journal.write(record, done.trace, tensors_of(done.arrays), last=is_last)

    def close(self) -> None:
        """Let other processes have the run's folder."""
        self.is_tested = False
        if self.journal is not None:
            self.journal.close()


def renumbered(result: Result, done: int) -> Result:
    """Number the rounds of a result as the run has them, not as this server's process had."""
    for metrics in (
        result.train_metrics_clientapp,
        result.evaluate_metrics_clientapp,
        result.evaluate_metrics_serverapp,
    ):
        counted = {done + played: found for played, found in metrics.items()}
        metrics.clear()
        metrics.update(counted)
    return result


def _told(client: ClientRecord, number: int, rule: str) -> Told:
    return Told(
        verdict=client.verdict,
        round=number,
        **fields_of(client.suspicion),
        weight=client.weight,
        text=notice_of_record(client, rule=rule).text,
    )


def _measured(found: MetricRecord | None) -> dict[str, float]:
    values = {name: None if found is None else found.get(name) for name in _MEASURED}
    shown = {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and abs(value) < float("inf")  # nor NaN
    }
    if "accuracy" in shown and "asr" in shown:
        shown["accuracy_without_success"] = shown["accuracy"] * (1 - shown["asr"])
    return shown
