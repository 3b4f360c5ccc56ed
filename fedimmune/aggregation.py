"""What a rule answers: the aggregated update, and a weight and a verdict per client.

`aggregate_safely` is how engines ask. They play many rounds: whatever one brings (too few clients,
a user's own rule that raises, a result that is not a model), the next one has to begin with a model
that can be trained.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedimmune._inputs import state_tensors
from fedimmune._layers import FLOATS, is_variance
from fedimmune.errors import FedimmuneError, InputError, NotEnoughClientsError, ParameterError
from fedimmune.geometry import Makeup
from fedimmune.io import DESCRIPTION, load_mapped, read_metadata, writable, write_atomically
from fedimmune.results import LARGEST_SHARE, ClientResult, Notice, Verdict
from fedimmune.untrusted import printable
from fedimmune.updates import ClientId, Updates

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table

    from fedimmune.rules import Rule

__all__ = ["Aggregation", "Outcome", "aggregate_files", "aggregate_safely"]

_REPR_CLIENTS = 12
_NARROW = 80
_FEW = 3
_NOT_FINITE = "{} gave a model with values that are not finite"


_STYLES = {
    Verdict.TRUSTED: "green",
    Verdict.REDUCED: "cyan",
    Verdict.UNUSED: "dim",
    Verdict.SUSPECTED: "yellow",
    Verdict.REJECTED: "bold red",
}
"""Rules give no other verdict."""


@dataclass(frozen=True)
class Aggregation:
    """The outcome of one round.

    Parameters
    ----------
    rule
        Name of the rule.
    update
        The aggregated update, in the caller's own kind: a state dict, a tensor or an array.
    weights
        Each valid client's share, by id; they sum to one. None for rules that look at single
        coordinates and have no weights, such as the median.
    scores
        What the rule measured of each valid client, where it measures something.
    rejected
        Why clients were turned away before any rule saw them, by id.
    clients
        What became of each client, rejected ones last.
    defense
        Which defense a learned rule used; empty for any other rule.
    skipped
        Why the model is to stay as it is: the update is 0 throughout. Empty if it moves.
    remarks
        What the rule says of the round as a whole.
    makeup
        What the trained part of the update is a sum of, for rules that look at inner products:
        enough to tell its length, and its distance from other such sums, without reading anything.
    """

    rule: str
    update: Any = field(repr=False)
    weights: Mapping[ClientId, float] | None
    scores: Mapping[ClientId, float] | None
    rejected: Mapping[ClientId, str]
    clients: tuple[ClientResult, ...]
    defense: str = ""
    skipped: str = ""
    remarks: tuple[str, ...] = ()
    makeup: Makeup | None = field(default=None, repr=False, compare=False)

    @property
    def verdicts(self) -> dict[ClientId, Verdict]:
        """Each client's verdict; an id that was there twice has that of the update that counted."""
        return {one.client: one.verdict for one in reversed(self.clients)}

    def notices(self) -> dict[ClientId, Notice]:
        """Return what each client is to be told, as JSON and, with `str`, as text.

        An id that was there twice gets the notice of the update that counted.
        """
        return {one.client: one.notice(self.rule) for one in reversed(self.clients)}

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is odd about the round as a whole: in the rule's own words, if it has any.

        Otherwise, of three valid clients or more, that most are suspected, or that one has more
        than half of the weight. The latter is not said of rules such as Krum, which pick by design:
        under them clients are *unused*.
        """
        if self.skipped or self.remarks:
            return (*([self.skipped] if self.skipped else ()), *self.remarks)
        valid = [one for one in self.clients if one.verdict is not Verdict.REJECTED]
        if len(valid) < _FEW:
            return ()
        found = []
        suspects = sum(one.verdict is Verdict.SUSPECTED for one in valid)
        if 2 * suspects > len(valid):
            found.append(
                f"{suspects} of {len(valid)} valid clients are suspected: attackers are the "
                "majority, or the rule is wrong about honest clients"
            )
        most = max(valid, key=lambda one: one.weight or 0.0)
        if (most.weight or 0.0) > 0.5 and all(one.verdict is not Verdict.UNUSED for one in valid):
            found.append(
                f"client {most.client} has {most.weight:.1%} of the weight: the result is mostly "
                "its update"
            )
        return tuple(found)

    def apply(self, global_model: Any) -> Any:
        """Add the update to the global model and return the new one; the old is left as it is.

        A state dict gives a state dict of tensors, a list of arrays such a list.

        Variances stay above 0, whatever the clients sent.
        """
        if isinstance(self.update, list):
            model, update = (state_tensors(state)[0] for state in (global_model, self.update))
            moved = replace(self, update=update).apply(model)
            is_tensor = isinstance(self.update[0], Tensor)
            return [t if is_tensor else t.numpy() for t in moved.values()]
        if not isinstance(self.update, Mapping):
            raise InputError("this round was made of vectors: add `update` to the model's vector")
        if set(self.update) != set(global_model):
            odd = sorted(set(self.update) ^ set(global_model))
            raise InputError(f"the global model has other layers than the update: {odd[0]!r}")
        return {
            name: _moved(name, tensor.detach(), self.update[name])
            for name, tensor in global_model.items()
        }

    def to_json(self) -> dict[str, Any]:
        """Return the outcome without the update, as plain values for JSON.

        Ids are text: many programs round whole numbers of 64 bits.
        """
        return {
            "rule": self.rule,
            "defense": self.defense or None,
            "skipped": self.skipped or None,
            "warnings": list(self.warnings),
            "clients": [
                {**one.to_json(), "notice": str(one.notice(self.rule))} for one in self.clients
            ],
        }

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the table that the command line shows."""
        from rich.text import Text  # noqa: PLC0415 (aggregating needs no terminal)

        yield self.table(options)
        for warning in self.warnings:
            yield Text(f"warning: {warning}", "yellow")

    def table(self, options: ConsoleOptions, noun: str = "client") -> Table:
        """Return the table alone; `noun` is what its rows are."""
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        narrow = options.max_width < _NARROW
        table = Table(title=f"{self._by}: {_tally(self.clients, noun)}", title_justify="left")
        table.add_column(noun, overflow="fold")
        if self.weights is not None:
            table.add_column("weight", justify="right")
        if self.weights is not None and not narrow:
            table.add_column("", min_width=10)
        if self.scores is not None and not narrow:
            table.add_column("score", justify="right")
        has_probabilities = any(one.probability is not None for one in self.clients)
        if has_probabilities:
            table.add_column("P(attack)", justify="right", no_wrap=True)
        table.add_column("verdict", no_wrap=True)
        table.add_column("reason", overflow="fold")
        largest = max((w for w in (self.weights or {}).values()), default=0) or 1
        for one in self.clients:
            style = _STYLES[one.verdict]
            cells = [Text(printable(one.client))]
            if self.weights is not None:
                cells.append(Text("–" if one.weight is None else f"{one.weight:.4f}"))
            if self.weights is not None and not narrow:
                cells.append(Text("█" * round(10 * (one.weight or 0) / largest), style=style))
            if self.scores is not None and not narrow:
                cells.append(Text("–" if one.score is None else f"{one.score:.4g}"))
            if has_probabilities:
                likely = "–" if one.probability is None else f"{one.probability:.1%}"
                cells.append(Text(likely))
            cells += [Text(one.verdict, style=style), Text(printable(one.reason))]
            table.add_row(*cells)
        return table

    @property
    def _by(self) -> str:
        return f"{self.rule}, {self.defense}" if self.defense else self.rule

    def __repr__(self) -> str:
        lines = [f"Aggregation({self._by}: {_tally(self.clients)})"]
        for one in self.clients[:_REPR_CLIENTS]:
            weight = "" if one.weight is None else f" {one.weight:.4f}"
            reason = f" ({printable(one.reason)})" if one.reason else ""
            lines.append(f"  {printable(one.client):<12}{weight} {one.verdict}{reason}")
        if len(self.clients) > _REPR_CLIENTS:
            lines.append(f"  … and {len(self.clients) - _REPR_CLIENTS} more")
        lines += [f"  warning: {warning}" for warning in self.warnings]
        return "\n".join(lines)


def _tally(clients: tuple[ClientResult, ...], noun: str = "client") -> str:
    counts = {verdict: sum(one.verdict is verdict for one in clients) for verdict in Verdict}
    parts = [f"{count} {verdict}" for verdict, count in counts.items() if count]
    nouns = noun if len(clients) == 1 else f"{noun}s"
    return f"{len(clients)} {nouns}, {', '.join(parts)}" if parts else f"no {noun}s"


def _moved(name: str, old: Tensor, change: Tensor) -> Tensor:
    if old.dtype == torch.bool:
        return old ^ change
    new = (old + change.to(old.device)).to(old.dtype)
    return new.clamp_(min=torch.finfo(new.dtype).tiny) if is_variance(name) else new


# -------------------------------------------------------------------- an engine's call


@dataclass(frozen=True)
class Outcome:
    """The result of aggregating a round safely.

    Parameters
    ----------
    model
        The new global model; None if the old one stays.
    aggregation
        What the rule said of the clients, if it can be believed.
    error
        Why the old model stays, if it does.
    rejected
        If there is no aggregation: who had been turned away by then, and why.
    """

    model: dict[str, Tensor] | None = None
    aggregation: Aggregation | None = None
    error: str | None = None
    rejected: Mapping[ClientId, str] = field(default_factory=dict)


def aggregate_safely(
    rule: Rule, updates: Updates, model: Mapping[str, Tensor], *, least: int = 0
) -> Outcome:
    """Aggregate a round and move the model; nothing that a rule does makes this raise.

    Parameters
    ----------
    rule
        Which.
    updates
        What clients sent: changes of `model`.
    model
        The global model, which is left as it is.
    least
        With fewer valid updates the old model stays. The rule's own needs are seen to anyway.
    """
    try:
        if least and rule.has_history:
            # It must not remember a round that is then skipped for want of finite updates.
            updates = updates.checked()
        if len(updates) < least:
            return Outcome(error=_too_few(len(updates), least), rejected=updates.rejected)
        aggregation = rule.aggregate(updates)
        valid = len(aggregation.clients) - len(aggregation.rejected)
        if valid < least:  # NaN is found only while reading
            return Outcome(error=_too_few(valid, least), rejected=aggregation.rejected)
        moved = aggregation.apply(model)
    except NotEnoughClientsError as error:
        return Outcome(error=str(error), rejected=error.rejected)
    except FedimmuneError as error:
        return Outcome(error=str(error), rejected=updates.rejected)
    except Exception as error:  # a rule of the user's own may raise anything: the run continues
        problem = f"{rule.name}: {type(error).__name__}: {error}"
        return Outcome(error=problem, rejected=updates.rejected)
    if not _fits(moved, model):
        # What such a rule says of clients is worth no more than what it made of their updates.
        problem = f"{rule.name} gave a model of other shapes or kinds of numbers"
        return Outcome(error=problem, rejected=aggregation.rejected)
    if not all(0 <= (one.weight or 0.0) <= LARGEST_SHARE for one in aggregation.clients):
        problem = f"{rule.name} gave weights that are not shares from 0 to 1"
        return Outcome(error=problem, rejected=aggregation.rejected)
    if aggregation.skipped:
        return Outcome(aggregation=aggregation, error=aggregation.skipped)
    if not all(_is_finite(tensor) for tensor in moved.values()):
        return Outcome(aggregation=aggregation, error=_NOT_FINITE.format(rule.name))
    return Outcome(moved, aggregation)


def _too_few(valid: int, least: int) -> str:
    return f"{valid} valid {'reply' if valid == 1 else 'replies'}, fewer than the {least} needed"


def _fits(model: Mapping[str, Tensor], pattern: Mapping[str, Tensor]) -> bool:
    return all(
        model[name].shape == tensor.shape and model[name].dtype == tensor.dtype
        for name, tensor in pattern.items()
    )


def _is_finite(tensor: Tensor) -> bool:
    if tensor.dtype not in FLOATS:
        return True
    # A finite sum proves that all its terms are; one that is not may only be too large.
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())


AnyPath = str | os.PathLike[str]


def aggregate_files(
    rule: Rule,
    files: Iterable[AnyPath],
    *,
    global_file: AnyPath | None = None,
    output: AnyPath | None = None,
    are_updates: bool = False,
    buffers: Iterable[str] = (),
    samples: Mapping[Any, float] | None = None,
    history: AnyPath | None = None,
    anchor: AnyPath | None = None,
    server_loss: Callable[[Any], float] | None = None,
    ray: str | None = None,
    workers: int | None = None,
    on_open: Callable[[], None] | None = None,
    on_start: Callable[[int], None] | None = None,
    on_read: Callable[[int], None] | None = None,
) -> Aggregation:
    """Aggregate client files and write the next global model.

    Parameters
    ----------
    rule
        The rule; see `fedimmune.rules.get`.
    files
        One safetensors file a client, whose stem is the client's id.
    global_file
        The model that the clients started from. May be left out where `are_updates`; then the
        aggregated update itself is written.
    output
        Where to write; replaced whole or not at all. None writes nothing.
    are_updates
        The client files hold differences to the global model, not models.
    buffers
        Patterns of further layers that are not trained.
    samples
        How many samples each client says it trained on.
    history
        Where a rule with history keeps it; read if it is there, written when all has gone well.
    anchor
        The server's own model, or its difference where `are_updates`, for a rule that compares
        clients with it.
    server_loss
        Loss of the global model moved by an update; see `Updates.with_server_loss`.
    ray
        Address of a Ray cluster whose workers read the files, each some columns of all: every
        machine has to find them under the same paths. See `fedimmune.sharding`.
    workers
        With `ray`: how many read; by default one per CPU of the cluster.
    on_open
        Called after each client's file has been opened.
    on_start, on_read
        Called with the number of bytes to be read in all, and after each block with its own. With
        many clients some rules read on until they are done, and so more than that.

    Raises
    ------
    FedimmuneError
        There is no result; nothing has been written.
    """
    paths = [Path(file) for file in files]
    _check_places(output, history, paths, global_file)
    _take_up(rule, history)
    how: dict[str, Any] = {
        "global_file": global_file,
        "are_updates": are_updates,
        "buffers": tuple(buffers),
    }
    updates = Updates.from_files(paths, samples=samples, on_open=on_open, **how)
    there = {"anchor": anchor, "model": global_file, "server_loss": server_loss}
    rule.check_needs([name for name, given in there.items() if given is not None])
    if "model" in rule.needs and global_file is not None:
        updates = updates.with_reference("model", load_mapped(global_file))
    if server_loss is not None:
        updates = updates.with_server_loss(server_loss)
    if anchor is not None:
        updates = updates.with_anchor(_anchor(anchor, None if are_updates else global_file))
    if on_start is not None:
        on_start(updates.nbytes * rule.reads)
    updates = replace(updates, on_read=on_read)
    if ray is None:
        aggregation = rule.aggregate(updates)
    else:
        from fedimmune.sharding import sharded  # noqa: PLC0415 (few need it)

        how["global_file"] = None if global_file is None else os.path.abspath(global_file)
        there_too = [os.path.abspath(path) for path in paths]
        with sharded(updates, there_too, ray, workers=workers, **how) as shared:
            aggregation = rule.aggregate(shared)
    if output is not None:
        tensors, metadata = _next_model(aggregation, global_file)
        if not all(_is_finite(tensor) for tensor in tensors.values()):
            raise InputError(_NOT_FINITE.format(rule.name))
        write_atomically(tensors, output, metadata)
    if history is not None:
        rule.save(history)
    return aggregation


def _check_places(
    output: AnyPath | None,
    history: AnyPath | None,
    clients: Iterable[Path],
    global_file: AnyPath | None,
) -> None:
    """Refuse what could not be written, or would overwrite what was sent, before any work."""
    taken = {os.path.realpath(client): "is one of the client files" for client in clients}
    if output is not None:
        place = str(writable(output))
        if place in taken:
            raise ParameterError(f"the output {output} {taken[place]}: choose another name")
        taken[place] = "is the output too"
    if history is not None:
        if global_file is not None:
            taken[os.path.realpath(global_file)] = "is the global model too"
        place = str(writable(history))
        if place in taken:
            raise ParameterError(f"the history {history} {taken[place]}: choose another name")


def _anchor(file: AnyPath, global_file: AnyPath | None) -> Mapping[str, Tensor]:
    """Read the server's own update; a model is seen as its difference to the global one."""
    try:
        found = load_mapped(file)
    except InputError as error:
        raise InputError(f"the anchor {error}") from error
    base = {} if global_file is None else load_mapped(global_file)
    return {
        name: tensor - base[name]
        if name in base and tensor.shape == base[name].shape and tensor.dtype in FLOATS
        else tensor
        for name, tensor in found.items()
    }


def _take_up(rule: Rule, history: AnyPath | None) -> None:
    if history is None:
        return
    if not rule.has_history:
        raise ParameterError(f"{rule.name} keeps no history, as it was made")
    if Path(history).exists():
        rule.restore(history)


def _next_model(
    aggregation: Aggregation, global_file: AnyPath | None
) -> tuple[Mapping[str, Tensor], dict[str, str]]:
    if global_file is None:
        return aggregation.update, {}
    metadata = read_metadata(global_file)
    metadata.pop(DESCRIPTION, None)  # of a run's model; it is not of this one
    return aggregation.apply(load_mapped(global_file)), metadata
