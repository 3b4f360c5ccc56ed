"""Groups of clients, and groups of groups: a robust rule at every level.

Large federations aggregate at the edge first: clients report to an edge server, edges to a region,
regions to the server. Each level sees only what the level below made of its own members, so no
level needs more than its members' updates, and nothing is n×n for n clients.

What groups cost: whoever owns the majority of a group speaks for the whole group. A rule that
withstands a share a of its members at the edge, under one that withstands a share b of groups,
withstands only a·b of the clients if attackers choose where they are (¼ for two medians, not ½).

Secure aggregation (Bonawitz et al., 2017) is the case in which a server sees *sums* of groups and
no client's update: `sums_only`. A group is then judged as a whole, and so are its members.

References
----------
Bonawitz et al.: *Practical Secure Aggregation for Privacy-Preserving Machine Learning*, CCS 2017.
Liu, Zhang, Song, Letaief: *Client-Edge-Cloud Hierarchical Federated Learning*, ICC 2020.
Means of drawn groups under a robust rule are the bucketing of Karimireddy, He, Jaggi, ICLR 2022.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from fedimmune import rules as catalogue
from fedimmune._layers import Kind, Layer
from fedimmune._sources import StateSource
from fedimmune.aggregation import Aggregation
from fedimmune.errors import InputError, NotEnoughClientsError, ParameterError
from fedimmune.io import read_described, write_described
from fedimmune.kernels import combine, weighted_sum
from fedimmune.results import ClientResult, Verdict
from fedimmune.rules.base import Rule
from fedimmune.rules.mean import Mean
from fedimmune.rules.preaggregation import lot
from fedimmune.updates import ClientId, Updates
from fedimmune.validation import check_bool, check_int

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

__all__ = ["GroupedAggregation", "Grouping", "Hierarchy"]

Grouping: TypeAlias = int | Mapping[Any, Any]
"""A number, for groups drawn of at least so many members; or each member's group, by id."""

_FORMAT = "fedimmune-hierarchy-1"


@dataclass(frozen=True, repr=False)
class GroupedAggregation(Aggregation):
    """The outcome of a round that was aggregated in groups.

    Parameters
    ----------
    groups
        What became of each group, one tuple per level, the edge first: `ClientResult` with the
        group's name as `client`, and its share of the result as `weight`.
    members
        Each client's groups by id, its edge first.
    """

    groups: tuple[tuple[ClientResult, ...], ...] = ()
    members: Mapping[ClientId, tuple[Any, ...]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the outcome without the update; groups are a list of levels, the edge first."""
        levels = [[one.to_json() for one in level] for level in self.groups]
        where = {str(client): [*map(str, path)] for client, path in self.members.items()}
        return {**super().to_json(), "groups": levels, "members": where}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the clients' table, and one of each level's groups."""
        yield from super().__rich_console__(console, options)
        for number, level in enumerate(self.groups, start=1):
            weights = {one.client: one.weight or 0.0 for one in level}
            weighed = None if self.weights is None else weights
            shown = Aggregation(f"level {number}", None, weighed, None, {}, level)
            yield shown.table(options, "group")


class Hierarchy(Rule):
    """Aggregates groups of clients, then groups of groups, each level by a rule of its own.

    Groups' results are the only rows that are stored; a client's weight is its weight in its group
    times the group's. Members of a group that is left out are *unused*, not accused, unless the
    rule of their own group accuses them.

    Parameters
    ----------
    rules
        Names of rules, or rules, from the edge to the server: one more than there are `groups`.
    groups
        One `Grouping` per level, from the edge: which group each client is in, then which group of
        the next level each group is in. A number draws groups of at least so many members, in every
        round anew. One level need not be a list.
    seed
        Lots are drawn from it, the round's number and the members' ids.
    sums_only
        Only sums of the first groups are visible, as under secure aggregation. The first rule has
        to be ``mean``. Nobody can be rejected but for the form of what was sent: one NaN makes its
        whole group invalid, and no rule sees who sent it.

    Examples
    --------
    >>> from fedimmune.hierarchy import Hierarchy
    >>> rule = Hierarchy(rules=["median", "mean"], groups={0: "a", 1: "a", 2: "a", 3: "b"})
    >>> rule([[0.0], [2.0], [100.0], [4.0]])
    array([3.])
    """

    name = "hierarchy"
    summary = "groups of clients, then groups of groups, each level by a rule of its own"
    paper = "Liu et al., ICC 2020"
    guards_buffers = False  # every level's rule does, among its own members
    looks_at_layers = True
    is_translation_equivariant = False
    is_scale_equivariant = False
    keeps_common_update = False
    weights_make_result = False

    def __init__(
        self,
        *,
        rules: Sequence[str | Rule] = ("mean", "median"),
        groups: Grouping | Sequence[Grouping] = 10,
        seed: int = 0,
        sums_only: bool = False,
    ) -> None:
        super().__init__()
        self.rules = list(rules) if not isinstance(rules, str) else [rules]
        self.groups = groups
        self.seed = check_int(self.name, "seed", seed, 0)
        self.sums_only = check_bool(self.name, "sums_only", sums_only)
        self._groupings = _checked_groupings(groups)
        self._rules = [_made(rule) for rule in self.rules]
        if len(self._rules) != len(self._groupings) + 1:
            raise ParameterError(
                f"hierarchy: {len(self._groupings)} levels of groups take "
                f"{len(self._groupings) + 1} rules, the server's last; there are {len(self._rules)}"
            )
        if self.sums_only and not _is_plain_mean(self._rules[0]):
            raise ParameterError(
                f"hierarchy: of sums alone nobody can make {self._rules[0]!r}: with sums_only the "
                "first rule has to be mean, as it is by default"
            )
        self.needs = frozenset().union(*(rule.needs for rule in self._rules))
        self.reads = self._rules[0].reads
        self._kept: dict[str, Rule] = {}
        """Rules that remember, by level and group."""
        self._next: dict[str, Rule] = {}

    # ---------------------------------------------------------------- what it says of itself

    @property
    def clients_needed(self) -> int:
        return 1  # a group with too few is left out by name

    @property
    def has_history(self) -> bool:
        return any(map(self._remembers, range(len(self._rules))))

    def breakdown(self, n: int) -> int:
        """Return how many clients may attack wherever they are; 0 if groups are not drawn."""
        costs = [1] * n  # how many attackers it takes to speak for each member
        for rule, grouping in zip(self._rules, self._groupings, strict=False):
            if not isinstance(grouping, int):
                return 0
            costs.sort()  # as if the cheapest were in every group: lots may bring them together
            sizes = _sizes(len(costs), grouping)
            costs = [sum(costs[: rule.withstands(size) + 1]) for size in sizes]
        return sum(sorted(costs)[: self._rules[-1].withstands(len(costs)) + 1]) - 1

    def check_needs(self, supplied: Collection[str]) -> None:
        for rule in self._rules:
            rule.check_needs(supplied)

    def check_model(self, layers: Sequence[Layer]) -> None:
        for rule in self._rules:
            rule.check_model(layers)

    # ---------------------------------------------------------------- memory

    def _remembers(self, level: int) -> bool:
        """Whether a level's rule meets the same members again: not if they are drawn anew."""
        named = all(not isinstance(each, int) for each in self._groupings[: level + 1])
        return named and self._rules[level].has_history

    def _rule(self, level: int, group: Any = "") -> Rule:
        """Return the rule of a group: a copy, if it remembers, until the round has succeeded."""
        rule, key = self._rules[level], f"{level}/{group}"
        if not rule.has_history:
            return rule
        copied = deepcopy(self._kept.get(key, rule))
        if self._remembers(level):
            self._next[key] = copied
        return copied

    def save(self, path: str | os.PathLike[str]) -> None:
        if not self.has_history:
            super().save(path)
        files = {}
        with tempfile.TemporaryDirectory() as folder:
            for key, rule in self._kept.items():
                rule.save(Path(folder) / "one")
                content = bytearray((Path(folder) / "one").read_bytes())
                files[key] = torch.frombuffer(content, dtype=torch.uint8)
        write_described(files, path, format=_FORMAT, rules=[rule.name for rule in self._rules])

    def restore(self, path: str | os.PathLike[str]) -> None:
        if not self.has_history:
            super().restore(path)
        tensors, about = read_described(path, _FORMAT)
        if about.get("rules") != [rule.name for rule in self._rules]:
            raise InputError(f"the history {path} is of a hierarchy of other rules")
        kept = {}
        with tempfile.TemporaryDirectory() as folder:
            for key, content in tensors.items():
                level = key.partition("/")[0]
                known = level.isdecimal() and int(level) < len(self._rules)
                if not known or content.dtype != torch.uint8:
                    raise InputError(f"the history {path} is damaged: it has no level {level!r}")
                (Path(folder) / "one").write_bytes(content.numpy().tobytes())
                kept[key] = deepcopy(self._rules[int(level)])
                kept[key].restore(Path(folder) / "one")
        self._kept = kept

    # ---------------------------------------------------------------- aggregating

    def _attempt(self, updates: Updates) -> GroupedAggregation:
        self._next = {}
        rows, levels = updates, []
        for number, grouping in enumerate(self._groupings):
            levels.append(self._level(number, grouping, rows))
            rows = _rows_of(rows, levels[-1])
        top = self._top(rows, levels)
        self._kept |= self._next  # only now: a round that fails is not remembered
        answers = [answer for level in levels for answer in level.answers.values()]
        weighs = all(answer.weights is not None for answer in [top, *answers])
        above = {one.client: one for one in top.clients}
        results: list[tuple[ClientResult, ...]] = []
        for level in reversed(levels):
            above |= level.failed
            results.insert(0, tuple(above[group] for group in level.names))
            above = level.results(above, weighs=weighs)
        turned_away = {
            client: one.reason for client, one in above.items() if one.verdict is Verdict.REJECTED
        }
        rejected = {**updates.rejected, **turned_away}
        valid = [one for one in above.values() if one.verdict is not Verdict.REJECTED]
        clients = [
            *valid,
            *(ClientResult(c, Verdict.REJECTED, reason=why) for c, why in rejected.items()),
        ]
        scores = {one.client: one.score for one in valid if one.score is not None}
        return GroupedAggregation(
            self.name,
            top.update,
            {one.client: one.weight or 0.0 for one in valid} if weighs else None,
            scores or None,
            rejected,
            tuple(clients),
            defense=top.defense,
            skipped=top.skipped,
            remarks=(
                *(said for level in levels for said in level.remarks()),
                *top.warnings[bool(top.skipped) :],
            ),
            groups=tuple(results),
            members=_paths(updates.clients, levels),
        )

    def _level(self, number: int, grouping: Grouping, rows: Updates) -> _Level:
        """Aggregate each group of a level."""
        if isinstance(grouping, int):
            owner = _drawn(rows.clients, grouping, f"{self.seed}:{number}", rows.round, number)
        else:
            owner = {member: _group_of(grouping, member) for member in rows.clients}
        found = _Level(owner)
        for group in found.names:
            part = rows.only(member for member in rows.clients if owner[member] == group)
            part = replace(part, rejected={})
            try:
                if number == 0 and self.sums_only:
                    found.answers[group] = _mean_unseen(part)
                else:
                    found.answers[group] = self._rule(number, group).aggregate_quietly(part)
            except NotEnoughClientsError as error:
                found.failed[group] = ClientResult(group, Verdict.REJECTED, reason=str(error))
                found.turned_away |= error.rejected
        for group, answer in found.answers.items():
            if answer.skipped:
                found.failed[group] = ClientResult(group, Verdict.UNUSED, reason=answer.skipped)
        return found

    def _top(self, rows: Updates, levels: Sequence[_Level]) -> Aggregation:
        try:
            return self._rule(len(self._groupings)).aggregate_quietly(rows)
        except NotEnoughClientsError as error:
            # Said in the words of the clients: groups are not what an engine's record has.
            reasons = dict(error.rejected)
            for level in reversed(levels):
                failed = {group: one.reason for group, one in level.failed.items()}
                reasons = level.turned_away | {
                    member: f"its group {group} cannot be used: {(reasons | failed)[group]}"
                    for member, group in level.owner.items()
                    if group in reasons | failed and member not in level.turned_away
                }
            raise NotEnoughClientsError(
                f"{error.rule}, of groups,", error.valid, error.needed, reasons
            ) from error


@dataclass
class _Level:
    """One level of groups, aggregated.

    Parameters
    ----------
    owner
        Each member's group.
    answers
        Of the groups' rules, by group.
    failed
        Groups that take no further part.
    turned_away
        Why members were, in groups without an answer.
    """

    owner: dict[Any, Any]
    answers: dict[Any, Aggregation] = field(default_factory=dict)
    failed: dict[Any, ClientResult] = field(default_factory=dict)
    turned_away: dict[Any, str] = field(default_factory=dict)

    @property
    def names(self) -> list[Any]:
        # By name: the order in which clients come must not decide.
        return sorted(set(self.owner.values()), key=lambda group: (str(group), repr(group)))

    def remarks(self) -> list[str]:
        if not self.failed:
            return []
        name, first = next(iter(self.failed.items()))
        what = f"{len(self.failed)} of {len(self.names)} groups take no part"
        return [f"{what}, such as {name}: {first.reason}"]

    def results(
        self, above: Mapping[Any, ClientResult], *, weighs: bool
    ) -> dict[Any, ClientResult]:
        """Return what became of the members, given what became of their groups."""
        found = {}
        for answer in self.answers.values():
            for one in answer.clients:
                found[one.client] = _within(one, above[self.owner[one.client]], weighs=weighs)
        for member, group in self.owner.items():
            if member in self.turned_away:
                reason = self.turned_away[member]
                found[member] = ClientResult(member, Verdict.REJECTED, reason=reason)
            elif member not in found:
                one = ClientResult(member, Verdict.TRUSTED, 0.0)
                found[member] = _within(one, above[group], weighs=weighs)
        return {member: found[member] for member in self.owner}


def _within(one: ClientResult, group: ClientResult, *, weighs: bool) -> ClientResult:
    """Return what became of a member of a group that something became of."""
    weight = (one.weight or 0.0) * (group.weight or 0.0) if weighs else None
    if one.verdict is Verdict.REJECTED:
        return one
    one = replace(one, weight=weight)
    if one.verdict is Verdict.SUSPECTED or group.verdict is Verdict.TRUSTED:
        return one
    why = f": {group.reason}" if group.reason else ""
    left_out = not group.weight and group.verdict is not Verdict.REDUCED
    if left_out:
        return replace(
            one, verdict=Verdict.UNUSED, reason=f"its group {group.client} was not used{why}"
        )
    said = f"its group {group.client} counts for little{why}"
    return replace(one, verdict=Verdict.REDUCED, reason=said)


# -------------------------------------------------------------------- who is where


def _made(rule: str | Rule) -> Rule:
    made = rule if isinstance(rule, Rule) else catalogue.get(rule)
    if made.is_told_attackers:
        raise ParameterError(f"hierarchy: {made.name} knows clients by name, and not groups")
    return made


def _is_plain_mean(rule: Rule) -> bool:
    return isinstance(rule, Mean) and not rule.by_samples and not rule.preaggregators


def _checked_groupings(given: Grouping | Sequence[Grouping]) -> list[Grouping]:
    each = [given] if isinstance(given, int | float | Mapping) else list(given)
    if not each or any(not isinstance(one, int | float | Mapping) for one in each):
        raise ParameterError(
            "hierarchy: groups are a number of members, or a mapping of ids to groups; one per "
            f"level: {given!r}"
        )
    return [
        one if isinstance(one, Mapping) else check_int("hierarchy", "groups", one, 1)
        for one in each
    ]


def _group_of(grouping: Mapping[Any, Any], member: ClientId) -> Any:
    for key in (member, str(member)):
        if key in grouping:
            return grouping[key]
    raise InputError(
        f"hierarchy: {member!r} is in no group: name the group of everybody who may take part"
    )


def _sizes(members: int, size: int) -> list[int]:
    """Sizes of drawn groups: none has fewer than `size`, and they differ by one at most."""
    count = max(1, members // size)
    return [len(part) for part in torch.arange(members).tensor_split(count)]


def _drawn(
    members: Sequence[Any], size: int, seed: str, round_number: int, level: int
) -> dict[Any, str]:
    # By id, so that the order in which clients are given does not matter.
    order = sorted(members, key=lambda member: lot(seed, round_number, member))
    prefix = "group" if level == 0 else f"level-{level + 1}-group"
    digits = len(str(max(1, len(members) // size)))
    names = [
        f"{prefix}-{number:0{digits}}"
        for number, count in enumerate(_sizes(len(members), size), start=1)
        for _ in range(count)
    ]
    owner = dict(zip(order, names, strict=True))
    return {member: owner[member] for member in members}


def _paths(clients: Sequence[Any], levels: Sequence[_Level]) -> dict[Any, tuple[Any, ...]]:
    found: dict[Any, tuple[Any, ...]] = {}
    for client in clients:
        path: tuple[Any, ...] = (client,)
        for level in levels:
            if path[-1] not in level.owner:  # its group has failed
                break
            path += (level.owner[path[-1]],)
        found[client] = path[1:]
    return found


# -------------------------------------------------------------------- groups as rows


def _mean_unseen(part: Updates) -> Aggregation:
    """Return the mean of a group of which nobody sees more: what is not finite stays in it."""
    n, settled = len(part), {}
    for layer in part.of_kind(Kind.COUNTER):  # a median is not a sum
        mean = part.source.counters(layer).double().mean(0).round().to(torch.int64)
        base = part.source.base_of(layer)
        before = 0 if base is None else part.source.flatten(layer, base).to(torch.int64)
        settled[layer.name] = mean - before
    equal = torch.full((n,), 1 / n, dtype=torch.float64)
    update = combine(replace(part, is_checked=True, settled=settled), weighted_sum(equal))
    clients = tuple(ClientResult(client, Verdict.TRUSTED, 1 / n) for client in part.clients)
    return Aggregation("mean", update, dict.fromkeys(part.clients, 1 / n), None, {}, clients)


def _rows_of(rows: Updates, level: _Level) -> Updates:
    """Return the groups of a level as a round, in the caller's own kind."""
    names = [name for name in level.names if name not in level.failed]
    answers = [level.answers[name] for name in names]
    # What groups are weighed by, if by numbers, is no client's claim.
    members = [len(answer.clients) - len(answer.rejected) for answer in answers]
    return replace(
        rows,
        clients=tuple(names),
        rejected={},
        source=StateSource([rows.by_layer(answer.update) for answer in answers]),
        samples=dict(zip(names, map(float, members), strict=True)),
        is_checked=False,
        on_read=None,
        block_columns=None,
        shards=None,
    )
