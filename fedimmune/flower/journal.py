"""A run's folder, as `simulate` has it: written every round, gone on with after a restart."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import tomli_w
from torch import Tensor

from fedimmune.errors import InputError, ParameterError
from fedimmune.files import write_text_atomically
from fedimmune.records import RoundRecord
from fedimmune.rules import Rule
from fedimmune.runs import RunFolder
from fedimmune.traces import Trace

__all__ = ["Journal", "described_rule"]


class Journal:
    """Writes a federation's rounds down.

    Parameters
    ----------
    runs
        Folder of run folders.
    name
        Of this run's folder; by default a new one, after the rule and the time.
    rule
        What it remembers is saved too.
    about
        What else is known of the run, by the names that a scenario has.
    """

    def __init__(
        self,
        runs: str | os.PathLike[str],
        name: str | None,
        rule: Rule,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        if name is None:
            name = f"{rule.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
        if not name or name in {".", ".."} or Path(name).name != name:
            raise ParameterError(f"a run's name is that of a folder in {runs}, not {name!r}")
        self.folder = RunFolder(Path(runs) / name)
        self._rule = rule
        self._about = {key: _plain(value) for key, value in (about or {}).items()}
        self._outline: str | None = None
        self._held = ExitStack()
        self._is_held = False

    # ---------------------------------------------------------------- beginning

    def resume(self) -> tuple[int, dict[str, Tensor], list[RoundRecord]] | None:
        """Go back to the last round that was saved; the rule remembers what it did then.

        Returns
        -------
        tuple or None
            The round, the model after it and the records so far; None where nothing was saved.

        Raises
        ------
        InputError
            The run is finished, was begun with another rule, is damaged, or another process is
            at it.
        """
        path = self.folder.path
        if self.folder.is_finished:
            raise InputError(
                f"the run {path} is finished: give another name, or remove its folder to run anew"
            )
        self._hold()
        before = self.folder.scenario().get("rule")
        if before != described_rule(self._rule):
            raise InputError(
                f"the run {path} was begun with another rule ({before}) than there is now "
                f"({described_rule(self._rule)}): give another name"
            )
        checkpoint = self.folder.resume(self._rule)
        if checkpoint.model is None or checkpoint.fingerprint is None:
            return None
        self._outline = checkpoint.fingerprint
        return checkpoint.round, self._in_order(checkpoint.model), self.folder.records()

    def begin(self, model: Mapping[str, Tensor], rounds: int | None) -> None:
        """Make ready to write rounds.

        Parameters
        ----------
        model
            The global model that the next round begins with.
        rounds
            How many rounds the run is to have in all; None where nobody says.

        Raises
        ------
        InputError
            The model has other layers than the one that was saved.
        """
        self._hold()
        outline = _outline(model)
        if self._outline is not None and outline != self._outline:
            raise InputError(
                f"the run {self.folder.path} was begun with a model of other layers: give another "
                "name, or the model that it was begun with"
            )
        self._outline = outline
        write_text_atomically(self._scenario(rounds), self.folder.path / "scenario.toml")

    def close(self) -> None:
        """Let other processes have the folder."""
        self._held.close()
        self._is_held = False

    def _hold(self) -> None:
        if self._is_held:
            return
        there = self.folder.path / "scenario.toml"
        # What is there stays until it has been compared.
        text = there.read_text(encoding="utf-8") if there.is_file() else self._scenario(None)
        self._held.enter_context(self.folder.held(text))
        self._is_held = True

    def _scenario(self, rounds: int | None) -> str:
        known = {key: value for key, value in self._about.items() if value is not None}
        fields = {**known, "engine": "flower", "rule": described_rule(self._rule)}
        if rounds is not None:
            fields["rounds"] = rounds
        return tomli_w.dumps(fields)

    def _in_order(self, model: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Put layers into their order, which a file of tensors does not keep."""
        try:
            return {name: model[name] for name, _, _ in json.loads(self._outline or "")}
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"the checkpoint in {self.folder.path} is no federation's") from error

    # ---------------------------------------------------------------- writing

    def write(
        self, record: RoundRecord, trace: Trace, model: Mapping[str, Tensor], *, last: bool
    ) -> None:
        """Write a finished round down, and the model after it."""
        assert self._outline is not None
        self.folder.traces.write(trace)
        self.folder.append(record)
        self.folder.save(record.round, model, self._outline, self._rule, last=last)


def described_rule(rule: Rule) -> dict[str, Any]:
    """Give a rule's name and parameters as a scenario has them."""
    given = {name: _plain(getattr(rule, name, None)) for name in rule.told()}
    return {"name": rule.name} | {name: v for name, v in given.items() if v is not None}


def _plain(value: Any) -> Any:
    """Give a value as TOML knows it; None where there is nothing of the kind."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple | set | frozenset):
        return sorted(str(member) for member in value)
    return str(value)


def _outline(model: Mapping[str, Tensor]) -> str:
    """Describe a model's layers, in their order."""
    return json.dumps([[n, str(t.dtype), list(t.shape)] for n, t in model.items()])
