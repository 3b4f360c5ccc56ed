"""A run of a federation: its round, what it remembers of clients, and the folder it is kept in."""

from __future__ import annotations

import json
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import tomli_w
from flwr.app import ArrayRecord, MetricRecord
from torch import Tensor

from fedimmune.aggregation import Outcome
from fedimmune.errors import InputError, ParameterError
from fedimmune.flower.arrays import record_of
from fedimmune.flower.replies import Replies, one_line
from fedimmune.flower.sampling import Exclusion
from fedimmune.io import write_text_atomically
from fedimmune.results import ClientResult, Notice, Verdict
from fedimmune.rules import Rule
from fedimmune.runs.folder import Checkpoint, RunFolder, finish_round
from fedimmune.runs.records import RoundRecord, Seconds
from fedimmune.updates import Updates

__all__ = ["EvaluateFunction", "Session", "table_of"]

EvaluateFunction = Callable[[int, ArrayRecord], MetricRecord | None]
"""Tests a model: takes the round and the model, returns what it found."""

_log = logging.getLogger("flwr")
_MEASURED = ("accuracy", "loss", "asr", "asr_others")
"""What a test of the model may report, by the names in records."""
_MOST_ROWS = 20
_ORDER = (
    *(Verdict.SUSPECTED, Verdict.REJECTED, Verdict.FAILED, Verdict.LATE),
    *(Verdict.REDUCED, Verdict.UNUSED, Verdict.TRUSTED),
)


class Session:
    """Where a run is, and what it knows.

    Parameters
    ----------
    rule
        Aggregates; what it remembers is saved too.
    exclusion
        Decides who is not asked; None if everybody is.
    runs, name
        Folder of run folders, and this run's own in it, by default a new one; without `runs`
        nothing is written.
    about
        What else is known of the run, by the names that a scenario has.
    """

    def __init__(
        self,
        rule: Rule,
        exclusion: Exclusion | None = None,
        runs: str | os.PathLike[str] | None = None,
        name: str | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        self.rule, self.exclusion = rule, exclusion
        self.folder = None if runs is None else RunFolder(_place(runs, name, rule))
        self.notices: dict[str, Notice] = {}
        """The next notice of each client, by id."""
        self.before = 0
        """Number of rounds that an earlier server has played; Flower counts from 1 again."""
        self.planned: int | None = None
        """Number of rounds in all, if it is known."""
        self.is_tested = False
        """Whether the server tests each round's model, and records the round only then."""
        self.last: RoundRecord | None = None
        """The record of the last round."""
        self._about = {key: _plain(value) for key, value in (about or {}).items()}
        self._outline: str | None = None
        self._written = ""
        self._finish: Callable[..., RoundRecord] | None = None
        self._held = ExitStack()
        self._is_held = False

    # ---------------------------------------------------------------- beginning

    def resume(self) -> tuple[int, ArrayRecord] | None:
        """Go back to the last round that was saved; None if there is none.

        Raises
        ------
        InputError
            The run is finished, was begun with another rule, is damaged, or another process is
            working on it.
        """
        self.before = 0
        self.notices.clear()
        if self.exclusion is not None:
            self.exclusion.forget()
        if self.folder is None:
            return None
        path = self.folder.path
        if self.folder.is_finished:
            raise InputError(
                f"the run {path} is finished: choose another name, or remove its folder"
            )
        self._hold(self.folder)
        earlier, now = self.folder.scenario().get("rule"), _described(self.rule)
        if earlier != now:
            raise InputError(
                f"the run {path} was begun with another rule ({earlier}) than there is now "
                f"({now}): choose another name"
            )
        saved = self.folder.resume(self.rule)
        if saved.model is None or saved.fingerprint is None:
            return None
        try:  # a file of tensors does not keep their order
            model = {name: saved.model[name] for name, _, _ in json.loads(saved.fingerprint)}
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"the checkpoint in {path} is not a federation's") from error
        self.before, self._outline = saved.round, saved.fingerprint
        _log.info("resuming after round %d, which was saved", self.before)
        for record in self.folder.records():
            self._note(record)
        return self.before, record_of(model)

    def begin(self, model: Mapping[str, Tensor]) -> None:
        """Prepare for a round that begins with this model.

        Raises
        ------
        InputError
            The model has other layers than the one that was saved.
        """
        if self.folder is None:
            return
        self._hold(self.folder)
        outline = json.dumps([[n, str(t.dtype), list(t.shape)] for n, t in model.items()])
        if self._outline not in (None, outline):
            raise InputError(
                f"the run {self.folder.path} was begun with a model of other layers: choose "
                "another name, or use the model that it was begun with"
            )
        self._outline = outline
        text = self._scenario(self.planned)
        if text != self._written:
            write_text_atomically(text, self.folder.path / "scenario.toml")
            self._written = text

    def left_out(self, number: int) -> frozenset[str]:
        """Return who is not to be asked in a round."""
        return frozenset() if self.exclusion is None else self.exclusion.left_out(number)

    def close(self) -> None:
        """Release the run's folder for other processes."""
        self.is_tested = self._is_held = False
        self._finish, self._written = None, ""
        self._held.close()

    def _hold(self, folder: RunFolder) -> None:
        if not self._is_held:
            there = folder.path / "scenario.toml"
            # What is there stays until it has been compared.
            text = there.read_text(encoding="utf-8") if there.is_file() else self._scenario(None)
            self._held.enter_context(folder.held(text))
            self._is_held = True

    def _scenario(self, rounds: int | None) -> str:
        fields = {**self._about, "engine": "flower", "rule": _described(self.rule)}
        known = {**fields, "rounds": rounds or self._about.get("rounds")}
        return tomli_w.dumps({key: value for key, value in known.items() if value is not None})

    # ---------------------------------------------------------------- ending

    def finish(
        self, replies: Replies, updates: Updates, outcome: Outcome, seconds: Seconds
    ) -> RoundRecord:
        """End a round; it is recorded now, or when its model has been tested."""
        number = replies.opened.number
        model = replies.opened.model if outcome.model is None else outcome.model
        finish = partial(
            finish_round,
            rule=self.rule,
            updates=updates,
            outcome=outcome,
            done=Checkpoint(number, model, self._outline),
            last=number == self.planned,
            seconds=seconds,
            failed=replies.failed,
            late=replies.late,
            notes=replies.notes(),
        )
        self._finish = finish if self.is_tested else None
        self.last = finish(None if self.is_tested else self.folder)
        self._note(self.last)
        for line in table_of(self.last, self.rule.name):
            _log.info(line)
        return self.last

    def tested(self, evaluate_fn: EvaluateFunction) -> EvaluateFunction:
        """Record each round with what a test of its model has found."""
        self.is_tested = True

        def test(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            began = time.perf_counter()
            found = evaluate_fn(self.before + server_round, arrays)
            spent = round(time.perf_counter() - began, 4)
            finish, self._finish = self._finish, None
            if finish is not None and self.last is not None:
                seconds = self.last.seconds.model_copy(update={"testing": spent})
                self.last = finish(self.folder, metrics=_measured(found), seconds=seconds)
            return found

        return test

    def _note(self, record: RoundRecord) -> None:
        """Remember clients' notices, and who was suspected."""
        for one in record.clients:
            self.notices[one.client] = one.notice(self.rule.name)
            self.notices[one.client]["round"] = record.round
        # Nothing is held against anybody for a round that was not used.
        if self.exclusion is not None and record.error is None:
            suspects = [c.client for c in record.clients if c.verdict == Verdict.SUSPECTED]
            self.exclusion.note(record.round, suspects)


def _place(runs: str | os.PathLike[str], name: str | None, rule: Rule) -> Path:
    if name is None:
        name = f"{rule.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    if not name or name in {".", ".."} or Path(name).name != name:
        raise ParameterError(f"a run's name is that of a folder in {runs}, not {name!r}")
    return Path(runs) / name


def _described(rule: Rule) -> dict[str, Any]:
    """Return a rule's name and parameters as a scenario has them."""
    given = {name: _plain(getattr(rule, name, None)) for name in rule.told()}
    return {"name": rule.name} | {name: v for name, v in given.items() if v is not None}


def _plain(value: Any) -> Any:
    """Return a value as TOML can hold it."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple | set | frozenset):
        return sorted(str(member) for member in value)
    return str(value)


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


def table_of(record: RoundRecord, rule: str) -> list[str]:
    """Return a line that sums a round up, and one for every client that is not simply trusted."""
    counts = Counter(client.verdict for client in record.clients)
    said = ", ".join(f"{counts[verdict]} {verdict}" for verdict in _ORDER if counts[verdict])
    by = f"{rule}, {record.defense}" if record.defense else rule
    head = f"{by}, round {record.round}: {said or 'nobody was there'}"
    lines = [f"{head} ({record.seconds.aggregating:.2f} s)"]
    if record.error is not None:
        lines.append(f"  the model stays as it was: {one_line(record.error)}")
    lines += [f"  warning: {warning}" for warning in record.warnings]
    odd = [one for one in record.clients if one.verdict != Verdict.TRUSTED or one.reason]
    if record.error is not None:
        odd = [one for one in odd if one.verdict != Verdict.UNUSED]
    odd.sort(key=lambda one: _ORDER.index(one.verdict))
    lines += [_row(one) for one in odd[:_MOST_ROWS]]
    if len(odd) > _MOST_ROWS:
        lines.append(f"  … and {len(odd) - _MOST_ROWS} more")
    return lines


def _row(one: ClientResult) -> str:
    weight = "     –" if one.weight is None else f"{one.weight:6.4f}"
    likely = "" if one.probability is None else f" {one.probability:6.1%}"
    reason = one_line(one.reason, 90)
    return f"  {one.client!s:<20} {weight}{likely}  {one.verdict:<9}  {reason}"
