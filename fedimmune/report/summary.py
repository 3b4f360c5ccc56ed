"""A report in words and tables: the result of runs, in plain English."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import pandas as pd

from fedimmune import attacks
from fedimmune.results import ACCUSING, UNKNOWN, Verdict
from fedimmune.runs.labels import flat
from fedimmune.runs.results import ORACLE, Results, attackers_in, rows_of
from fedimmune.untrusted import printable

__all__ = [
    "LONGEST_ID",
    "Cell",
    "Heading",
    "Setting",
    "Table",
    "client_table",
    "command_of",
    "confusion_of",
    "counted",
    "figure_table",
    "listed",
    "notices_of",
    "percent",
    "settings_of",
    "shortened",
    "summary_of",
    "written",
]

LONGEST_ID = 255
"""Ids are shown whole. Longer than a file's name may be, they are not ids but somebody's prank."""
_ROUNDS = 10
"""How many rounds are named one by one."""
_CLIENTS = 1000
"""How many clients are shown at most, those first that were accused most."""
_HONEST = "honest"
_OPTIONS = {
    "task": ("task", "task.name"),
    "rule": ("rule", "rule.name"),
    "defense": ("rule.defense",),
    "attack": ("attack", "attack.name"),
    "attackers": ("attackers",),
    "clients": ("clients",),
    "rounds": ("rounds",),
    "seed": ("seed",),
}
"""Fields of a scenario that have an option of their own."""


# -------------------------------------------------------------------- figures in words


def percent(value: float | None, digits: int = 1) -> str:
    """Write a share, such as 98.1%."""
    return "–" if value is None or not math.isfinite(value) else f"{value:.{digits}%}"


def counted(count: float, noun: str) -> str:
    """Write a number and its noun."""
    return f"{_count(count)} {noun}" if count == 1 else f"{_count(count)} {noun}s"


def listed(names: Sequence[str]) -> str:
    """Write names with commas and an *and*."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def shortened(text: object, length: int = 160) -> str:
    """Cut what is long: ids and reasons are anybody's words."""
    words = str(text)
    return words if len(words) <= length else words[: length - 1] + "…"


def written(value: object) -> str:
    """Write a setting's value as one gives it."""
    return value if isinstance(value, str) else json.dumps(value)


def _count(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _points(value: float) -> str:
    return f"{100 * value:.1f}"


# -------------------------------------------------------------------- settings


@dataclass(frozen=True)
class Setting:
    """Runs that differ in rule and seed alone: those of one ``key`` in all results."""

    results: Results
    key: str

    @cached_property
    def figures(self) -> pd.DataFrame:
        """`Results.figures` of these runs."""
        found = self.results.figures
        return found[found["key"] == self.key]

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """`Results.rounds` of these runs, rules in their order."""
        found = self.results.rounds
        found = found[found["key"] == self.key]
        place = self.rules.index
        return found.sort_values("rule_label", key=lambda one: one.map(place), kind="stable")

    @cached_property
    def runs(self) -> list[Any]:
        """Rows of `Results.figures`, rules in their order."""
        return sorted(rows_of(self.figures), key=lambda row: self.rules.index(row.rule_label))

    @cached_property
    def rules(self) -> list[str]:
        """Labels, the oracle's last."""
        labels = list(dict.fromkeys(self.figures["rule_label"]))
        return sorted(labels, key=lambda one: one in self.oracles)

    @cached_property
    def oracles(self) -> set[str]:
        """Labels of the rule that is told who attacks."""
        return set(self.figures.loc[self.figures["rule"] == ORACLE, "rule_label"])

    @cached_property
    def means(self) -> pd.DataFrame:
        """`Results.summary` of these runs, by label."""
        found = self.results.summary(["key", "rule_label"])
        return found[found["key"] == self.key].set_index("rule_label").loc[self.rules]

    @property
    def title(self) -> str:
        """What the runs have in common, in a few words."""
        return shortened(printable(self.figures["label"].iloc[0]), 300)

    @property
    def knows_truth(self) -> bool:
        """Whether it is known who attacks."""
        return bool(self.figures["knows_truth"].any())

    @cached_property
    def has_attackers(self) -> bool:
        """Whether anybody is known to attack."""
        tables = (self.results.clients, self.results.partition)
        return any(attackers_in(table[table["run"].isin(self.figures["run"])]) for table in tables)

    def runs_of(self, label: str) -> list[Any]:
        """Return the rows of a rule's runs, by seed."""
        rows = [run for run in self.runs if run.rule_label == label]
        return sorted(rows, key=lambda run: 0 if pd.isna(run.seed) else run.seed)

    def name_of(self, run: Any) -> str:
        """Return the rule of a run, with its seed if the rule has several runs."""
        several = len(self.runs_of(run.rule_label)) > 1
        seed = "" if pd.isna(run.seed) or not several else f", seed {run.seed}"
        return shortened(printable(run.rule_label)) + seed


def settings_of(results: Results) -> list[Setting]:
    """Return the settings of runs, in the order of the runs."""
    return [Setting(results, key) for key in dict.fromkeys(results.runs["key"])]


# -------------------------------------------------------------------- sentences


def notices_of(setting: Setting) -> list[str]:
    """Return which runs are unfinished, and which rounds have warnings or left the model alone."""
    notices = [
        f"The run {run.run} is unfinished: {int(run.played)} of {counted(run.planned, 'round')} "
        "were played, and this report is of those. The command that began it resumes it."
        for run in setting.runs
        if not run.finished
    ]
    for run in setting.runs:
        odd = setting.rounds[setting.rounds["run"] == run.run].dropna(subset=["warnings"])
        if odd.empty:
            continue
        first = odd.iloc[0]
        notices.append(
            f"{setting.name_of(run)}: warnings in {_which(odd)}. In round {first['round']}, "
            f"{shortened(first['warnings'])}."
        )
    if len(setting.runs) == 1:  # its summary says it
        return notices
    for run in setting.runs:
        failed = setting.rounds[setting.rounds["run"] == run.run].dropna(subset=["error"])
        if len(failed):
            first = failed.iloc[0]
            notices.append(
                f"{setting.name_of(run)}: the model stayed as it was in {_which(failed)}. In round "
                f"{first['round']}, {shortened(first['error'])}."
            )
    return notices


def _which(rounds: pd.DataFrame) -> str:
    """Name rounds, as many as fit."""
    names = [str(number) for number in rounds["round"]]
    count = len(names)
    which = names if count <= _ROUNDS else [", ".join(names[:_ROUNDS]), f"{count - _ROUNDS} more"]
    return f"round {names[0]}" if count == 1 else f"{count} rounds ({listed(which)})"


def summary_of(setting: Setting) -> list[str]:
    """Describe the result of a setting, one sentence per string."""
    if not setting.figures["played"].any():
        return ["No round is finished yet."]
    if len(setting.runs) == 1:
        return _one_run(setting, setting.runs[0])
    first = next(run for run in setting.runs if run.played)
    seeds = setting.figures["seed"].nunique()
    often = f", with {seeds} seeds" if seeds > 1 else ""
    rules = counted(len(setting.rules), "rule")
    what = f"{rules} on {first.task or 'its task'}{_with_whom(setting, first)}{often}."
    return [what, *_comparison(setting)]


def _one_run(setting: Setting, run: Any) -> list[str]:
    said = [_outcome(setting, run)]
    if pd.notna(run.attacker_weight):
        often = f"in {counted(run.over_half, 'round')}" if run.over_half else "in no round"
        said.append(
            f"Attackers had {percent(run.attacker_weight)} of the weight on average, and more than "
            f"half {often}."
        )
    if pd.notna(run.honest_kept) and setting.has_attackers:
        said.append(f"{percent(run.honest_kept)} of the honest clients had a weight.")
    if pd.notna(run.recall):
        right = f", and {percent(run.precision)} of the accused are attackers"
        said.append(
            f"{percent(run.recall)} of the attackers were accused"
            f"{'' if pd.isna(run.precision) else right}."
        )
    elif run.knows_truth and not setting.has_attackers and run.accused > 0:
        said.append(f"{counted(run.accused, 'client')} per round were accused wrongly.")
    if not run.knows_truth:
        said.append(
            f"{counted(run.accused, 'client')} per round were suspected or rejected on average. "
            "Whether they attack is not known."
            if run.accused > 0
            else "Nobody was suspected. Who is honest is not known."
        )
    if run.failed_rounds:
        reason = setting.rounds["error"].dropna().iloc[0]
        said.append(
            f"In {counted(run.failed_rounds, 'round')} the model stayed as it was: "
            f"{shortened(reason)}."
        )
    return said


def _outcome(setting: Setting, run: Any) -> str:
    rule, task = shortened(printable(run.rule)), run.task or "its task"
    where = f"After {counted(run.played, 'round')} on {task}{_with_whom(setting, run)}"
    if pd.isna(run.accuracy):
        return f"{where}, {rule} has made a model that the server did not test."
    said = f"{where}, the model that {rule} made is right on {percent(run.accuracy)}"
    if pd.isna(run.asr):
        return said + " of the test samples."
    others = f" ({percent(run.asr_others)} of those that are not of that class anyway)"
    wanted = "the attackers want" if run.knows_truth else "an attack would have it do"
    return (
        f"{said} of the test samples, and does what {wanted} on {percent(run.asr)}"
        f"{'' if pd.isna(run.asr_others) else others}."
    )


def _with_whom(setting: Setting, run: Any) -> str:
    there = setting.results.clients
    there = there[there["run"] == run.run]
    clients = there["client"].nunique() if pd.isna(run.clients) else run.clients
    if not clients:
        return ""
    who = f" with {counted(clients, 'client')}"
    if not run.knows_truth:
        return who
    count = len(attackers_in(there)) if pd.isna(run.attackers) else run.attackers
    if not count:
        return f"{who}, all honest"
    attack = attacks.known(run.attack)
    called = shortened(printable(run.attack)) if attack is None else attack.label
    return f"{who}, {count} of them attackers ({called})"


def _comparison(setting: Setting) -> list[str]:
    scores = {str(label): float(x) for label, x in setting.means["score"].dropna().items()}
    rivals = sorted((one for one in scores if one not in setting.oracles), key=lambda r: -scores[r])
    oracle = next((scores[label] for label in scores if label in setting.oracles), None)
    has_asr = setting.means["accuracy_without_success"].notna().any()
    what = "ACC · (1 − ASR)" if has_asr else "ACC"
    said = []
    if oracle is not None:
        told = "which is told who attacks" if setting.knows_truth else "which is told the truth"
        said.append(f"The oracle, {told}, reaches {what} = {percent(oracle)}: the limit.")
    if rivals:
        said.append(_best(rivals, scores, oracle, what))
    if len(rivals) > 1:
        said.append(f"Last is {rivals[-1]} with {percent(scores[rivals[-1]])}.")
    return [*said, *_taken_over(setting), *_where_weight_went(setting)]


def _best(
    rivals: Sequence[str], scores: Mapping[str, float], oracle: float | None, what: str
) -> str:
    top = percent(scores[rivals[0]])
    # A difference that the percentages do not show is not one to report.
    first = [label for label in rivals if percent(scores[label]) == top]
    said = f"Best {'is' if len(first) == 1 else 'are'} {listed(first)} with {what} = {top}"
    if oracle is None:
        return said + "."
    gap = oracle - scores[rivals[0]]
    if abs(gap) < 5e-4:
        return f"{said}, level with the oracle."
    return f"{said}, {_points(abs(gap))} points {'below' if gap > 0 else 'above'} the oracle."


def _taken_over(setting: Setting) -> list[str]:
    """Name the rules under whose models an attack succeeds more often than not."""
    successes = setting.means["asr"].dropna()
    if not setting.has_attackers or successes.empty:
        return []
    lost = [f"{label} ({percent(asr)})" for label, asr in successes.items() if asr > 0.5]
    if lost:
        return [f"The attack succeeds more often than not under {listed(lost)}."]
    return ["The attack succeeds more often than not under no rule."]


def _where_weight_went(setting: Setting) -> list[str]:
    shares = setting.means["attacker_weight"].drop(list(setting.oracles)).dropna()
    if shares.empty:
        return []
    least, most = str(shares.idxmin()), str(shares.idxmax())
    if len(shares) == 1:
        return [f"Attackers had {percent(shares[least])} of the weight under {least}."]
    return [
        f"Attackers had the least weight under {least} ({percent(shares[least])}) and the most "
        f"under {most} ({percent(shares[most])})."
    ]


# -------------------------------------------------------------------- tables


@dataclass(frozen=True)
class Heading:
    """A column's name, and what it means."""

    text: str
    meaning: str = ""


@dataclass(frozen=True)
class Cell:
    """A cell as it is shown, and as it is sorted; None comes last."""

    text: str
    value: float | str | None = None


@dataclass(frozen=True)
class Table:
    """Rows of a name and its figures.

    Parameters
    ----------
    label
        What it shows.
    headings
        Of all columns, that of the names first.
    rows
        A name and its cells.
    more
        Number of rows that are left out.
    marked
        Names of the rows that are a limit and not competitors.
    """

    label: str
    headings: Sequence[Heading]
    rows: Sequence[tuple[str, Sequence[Cell]]]
    more: int = 0
    marked: frozenset[str] = frozenset()


_Column = tuple[str, Heading, Callable[[float], str]]
_ALWAYS: tuple[_Column, ...] = (
    (
        "accuracy",
        Heading("ACC", "share of the test samples that are classified correctly"),
        percent,
    ),
    ("asr", Heading("ASR", "share of attacked samples classified as the attack wants"), percent),
    ("accuracy_without_success", Heading("ACC · (1 − ASR)", "higher is better"), percent),
)
_WITH_TRUTH: tuple[_Column, ...] = (
    ("attacker_weight", Heading("weight on attackers", "mean over rounds"), percent),
    (
        "over_half",
        Heading("rounds over half", "attackers had more than half of the weight"),
        _count,
    ),
    ("honest_kept", Heading("honest clients kept", "share that had a weight"), percent),
    (
        "behind_oracle",
        Heading("behind the oracle", "percentage points of ACC · (1 − ASR), or of ACC without ASR"),
        _points,
    ),
    (
        "distance",
        Heading("distance to the robust mean", "relative to its length, mean over rounds"),
        "{:.2f}".format,
    ),
)
_WITHOUT_TRUTH: tuple[_Column, ...] = (
    (
        "accused",
        Heading("suspected per round", "clients suspected or rejected, on average"),
        _count,
    ),
)
_FAILED = ("failed_rounds", Heading("failed rounds", "in which the model did not change"), _count)
_PLAYED = ("played", Heading("rounds", "that are finished"), _count)


def figure_table(setting: Setting) -> Table:
    """Return one row per rule; columns in which nobody has a figure are left out."""
    means = setting.means
    columns = (*_ALWAYS, *(_WITH_TRUTH if setting.knows_truth else _WITHOUT_TRUTH))
    shown = [column for column in columns if means[column[0]].notna().any()]
    shown += [_FAILED] if means["failed_rounds"].any() else []
    shown += [_PLAYED] if means["played"].nunique() > 1 else []
    headings = [Heading("rule"), *(heading for _, heading, _ in shown)]
    rows = [
        (str(label), [_measured(row[name], row[f"{name}_std"], write) for name, _, write in shown])
        for label, row in means.iterrows()
    ]
    if (means["n"] > 1).any():
        headings.append(Heading("seeds", "runs; figures are their mean ± standard deviation"))
        for (_, cells), runs in zip(rows, means["n"], strict=True):
            cells.append(Cell(str(runs), float(runs)))
    return Table("Figures by rule", headings, rows, marked=frozenset(setting.oracles))


def _measured(mean: float, spread: float, write: Callable[[float], str]) -> Cell:
    if not math.isfinite(mean):
        return Cell("–")
    around = f" ± {write(spread).removesuffix('%')}" if spread and math.isfinite(spread) else ""
    return Cell(write(mean) + around, float(mean))


def client_table(setting: Setting, run: Any) -> Table | None:
    """Sum up a run by client, the most accused first; None if the rule judges nobody."""
    cells = setting.results.clients
    cells = cells[cells["run"] == run.run]
    by_client = cells.groupby("client", sort=False)
    weights = by_client["weight"].mean()
    if weights.isna().all() and not set(cells["verdict"]) - {"trusted"}:
        return None
    accused = cells["verdict"].isin(ACCUSING).groupby(cells["client"]).sum()
    clients = sorted(weights.index, key=lambda one: -accused[one])
    counts = pd.crosstab(cells["client"], cells["verdict"])
    attackers = attackers_in(cells)
    columns: dict[str, Callable[[str], Cell]] = {}
    if run.knows_truth:
        columns["attacks"] = lambda one: Cell("▲ yes", 1) if one in attackers else Cell("no", 0)
    columns["rounds"] = partial(_whole, by_client.size())
    columns |= {name: partial(_whole, counts[name]) for name in map(str, Verdict) if name in counts}
    if weights.notna().any():
        columns["mean weight"] = lambda one: _measured(weights[one], 0, percent)
    likely_by = by_client["probability"].mean()
    if likely_by.notna().any():
        columns["mean P(attack)"] = lambda one: _measured(likely_by[one], 0, percent)
    suspected = cells[cells["verdict"] == "suspected"].groupby("client")["round"].min()
    if len(suspected):
        columns["first suspected"] = partial(_whole, suspected)
    likely = {
        str(one): _likeliest(part) for one, part in cells.dropna(subset=["kind"]).groupby("client")
    }
    if likely:
        columns["looks most like"] = lambda one: likely.get(one, Cell("–"))
    rows = [
        (shortened(one, LONGEST_ID), [cell(one) for cell in columns.values()])
        for one in clients[:_CLIENTS]
    ]
    headings = [Heading(name) for name in ("client", *columns)]
    return Table(setting.name_of(run), headings, rows, max(0, len(clients) - _CLIENTS))


def _whole(counts: pd.Series[int], client: str) -> Cell:
    count = int(counts.get(client, 0))
    return Cell(str(count), count) if count else Cell("–")


def _likeliest(rows: pd.DataFrame) -> Cell:
    kind = rows["kind"].value_counts().index[0]
    confidence = float(rows.loc[rows["kind"] == kind, "confidence"].mean())
    named = "no rehearsed kind" if kind == UNKNOWN else shortened(kind, 30)
    return Cell(f"{named} ({percent(confidence, 0)})", confidence)


# -------------------------------------------------------------------- suspected of what


def confusion_of(setting: Setting, label: str) -> tuple[pd.DataFrame, str] | None:
    """Count what clients looked most like, by what they were, and describe it in a sentence.

    Returns
    -------
    tuple or None
        Client-rounds, one row per truth and one column per thing they were taken for, and the
        sentence; None if the rule names no kinds, or the truth is not known.
    """
    runs = setting.figures[setting.figures["rule_label"] == label]
    cells = setting.results.clients.merge(runs[["run", "attack"]], on="run")
    kinds = set(cells["kind"].dropna())
    if not kinds or not setting.knows_truth:
        return None
    attack = cells["attack"].where(cells["attack"] != "", "attacker")
    truth = attack.where(cells["is_attacker"].fillna(False).astype(bool), _HONEST).rename("truth")
    taken = cells["kind"].where(cells["kind"].notna(), cells["verdict"]).rename("taken_for")
    named = [*sorted(kinds - {UNKNOWN}), UNKNOWN]
    other = sorted(set(taken) - kinds - {"trusted"})
    order = sorted(set(truth), key=lambda one: (one != _HONEST, one))
    counts = pd.crosstab(truth, taken)
    counts = counts.reindex(index=order, columns=["trusted", *named, *other], fill_value=0)
    said = []
    for one, row in counts.to_dict("index").items():
        accused = sum(row[name] for name in named)
        if one == _HONEST:
            trusted = percent(row["trusted"] / max(sum(row.values()), 1))
            said.append(f"{trusted} of the honest were trusted")
        elif accused:
            looked = f"looked most like {one}" if one in named else "looked like no rehearsed kind"
            right = row[str(one) if one in named else UNKNOWN]
            said.append(f"{percent(right / accused)} of the suspected attackers {looked}")
    return counts, f"Of all clients in all rounds: {'; '.join(said)}."


# -------------------------------------------------------------------- the command


def command_of(scenario: Mapping[str, Any], *, is_simulated: bool) -> list[str] | None:
    """Return the command that runs a scenario again, in lines, quoted for a shell.

    Every field is given, also those at their defaults: defaults may change. None if another engine
    has run it.
    """
    if not is_simulated or "engine" in scenario or not {"task", "rule"} <= scenario.keys():
        return None
    fields = flat(scenario)
    lines = {"": ["fedimmune simulate"]}
    for option, names in _OPTIONS.items():
        name = next((name for name in names if name in fields), None)
        if name is not None:
            lines[""].append(f"--{option} {shlex.quote(str(fields.pop(name)))}")
    for name, value in fields.items():
        table = name.partition(".")[0] if "." in name else "."
        setting = shlex.quote(f"{name}={_given(value)}")
        lines.setdefault(table, []).append(f"--set {setting}")
    return [" ".join(line) for line in lines.values()]


def _given(value: Any) -> str:
    """Write a value so that ``--set`` reads it back: text as it is, unless it looks like JSON."""
    if not isinstance(value, str):
        return json.dumps(value, default=str)
    try:
        json.loads(value)
    except (ValueError, RecursionError):
        return value
    return json.dumps(value)
