"""What a rule answers: the aggregated update, and a weight and a verdict for every client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text
from torch import Tensor

from fedimmune.errors import InputError
from fedimmune.intake import state_tensors
from fedimmune.layers import is_variance
from fedimmune.notices import Notice, notice_of
from fedimmune.untrusted import printable
from fedimmune.updates import ClientId
from fedimmune.verdicts import Judgement, Verdict, fields_of

__all__ = ["Aggregation"]

_REPR_CLIENTS = 12
_NARROW = 80
_FEW = 3


_STYLES = {
    Verdict.TRUSTED: "green",
    Verdict.REDUCED: "cyan",
    Verdict.UNUSED: "dim",
    Verdict.SUSPECTED: "yellow",
    Verdict.REJECTED: "bold red",
}


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
    judgements
        A line for every client, rejected ones last.
    """

    rule: str
    update: Any = field(repr=False)
    weights: Mapping[ClientId, float] | None
    scores: Mapping[ClientId, float] | None
    rejected: Mapping[ClientId, str]
    judgements: tuple[Judgement, ...]

    @property
    def verdicts(self) -> dict[ClientId, Verdict]:
        """Each client's verdict; an id that was there twice has that of the update that counted."""
        return {judgement.client: judgement.verdict for judgement in reversed(self.judgements)}

    def notices(self) -> dict[ClientId, Notice]:
        """Give what each client is to be told, as text and as JSON.

        An id that was there twice gets the notice of the update that counted.
        """
        return {
            judgement.client: notice_of(judgement, rule=self.rule)
            for judgement in reversed(self.judgements)
        }

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is odd about the round as a whole; empty for fewer than three valid clients.

        Either most of the valid clients are suspected, or one of them has more than half of the
        weight. The latter is not said of rules such as Krum, which pick by design: under them
        clients are *unused*.
        """
        valid = [j for j in self.judgements if j.verdict is not Verdict.REJECTED]
        if len(valid) < _FEW:
            return ()
        found = []
        suspects = sum(j.verdict is Verdict.SUSPECTED for j in valid)
        if 2 * suspects > len(valid):
            found.append(
                f"{suspects} of {len(valid)} valid clients are suspected: attackers are the "
                "majority, or the rule is wrong about honest clients"
            )
        most = max(valid, key=lambda j: j.weight or 0.0)
        if (most.weight or 0.0) > 0.5 and all(j.verdict is not Verdict.UNUSED for j in valid):
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
        """Give the outcome without the update, as plain values for JSON.

        Ids are text: many programs round whole numbers of 64 bits.
        """
        return {
            "rule": self.rule,
            "warnings": list(self.warnings),
            "clients": [
                {
                    "id": str(j.client),
                    "weight": j.weight,
                    "score": j.score,
                    "verdict": str(j.verdict),
                    "reason": j.reason or None,
                    **fields_of(j.suspicion),
                    "notice": notice_of(j, rule=self.rule).text,
                }
                for j in self.judgements
            ],
        }

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the table that the command line shows."""
        yield self._table(narrow=options.max_width < _NARROW)
        for warning in self.warnings:
            yield Text(f"warning: {warning}", "yellow")

    def _table(self, *, narrow: bool) -> Table:
        table = Table(title=f"{self.rule}: {_tally(self.judgements)}", title_justify="left")
        table.add_column("client", overflow="fold")
        if self.weights is not None:
            table.add_column("weight", justify="right")
        if self.weights is not None and not narrow:
            table.add_column("", min_width=10)
        if self.scores is not None and not narrow:
            table.add_column("score", justify="right")
        table.add_column("verdict", no_wrap=True)
        table.add_column("reason", overflow="fold")
        largest = max((w for w in (self.weights or {}).values()), default=0) or 1
        for j in self.judgements:
            style = _STYLES[j.verdict]
            cells = [Text(printable(j.client))]
            if self.weights is not None:
                cells.append(Text("–" if j.weight is None else f"{j.weight:.4f}"))
            if self.weights is not None and not narrow:
                cells.append(Text("█" * round(10 * (j.weight or 0) / largest), style=style))
            if self.scores is not None and not narrow:
                cells.append(Text("–" if j.score is None else f"{j.score:.4g}"))
            cells += [Text(j.verdict, style=style), Text(printable(j.reason))]
            table.add_row(*cells)
        return table

    def __repr__(self) -> str:
        lines = [f"Aggregation({self.rule}: {_tally(self.judgements)})"]
        for j in self.judgements[:_REPR_CLIENTS]:
            weight = "" if j.weight is None else f" {j.weight:.4f}"
            reason = f" ({printable(j.reason)})" if j.reason else ""
            lines.append(f"  {printable(j.client):<12}{weight} {j.verdict}{reason}")
        if len(self.judgements) > _REPR_CLIENTS:
            lines.append(f"  … and {len(self.judgements) - _REPR_CLIENTS} more")
        lines += [f"  warning: {warning}" for warning in self.warnings]
        return "\n".join(lines)


def _tally(judgements: tuple[Judgement, ...]) -> str:
    counts = {verdict: sum(j.verdict is verdict for j in judgements) for verdict in Verdict}
    parts = [f"{count} {verdict}" for verdict, count in counts.items() if count]
    noun = "client" if len(judgements) == 1 else "clients"
    return f"{len(judgements)} {noun}, {', '.join(parts)}" if parts else "no clients"


def _moved(name: str, old: Tensor, change: Tensor) -> Tensor:
    if old.dtype == torch.bool:
        return old ^ change
    new = (old + change.to(old.device)).to(old.dtype)
    return new.clamp_(min=torch.finfo(new.dtype).tiny) if is_variance(name) else new
