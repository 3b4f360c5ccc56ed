"""Figures and findings in plain English."""

from __future__ import annotations

from fedimmune.report.grouping import Line, Setting
from fedimmune.report.measures import Figures, Measured, figures_of, line_figures
from fedimmune.report.reading import Run

__all__ = [
    "LONGEST_ID",
    "counted",
    "listed",
    "percent",
    "points",
    "shortened",
    "summary_of",
    "unfinished",
    "warnings_of",
]

LONGEST_ID = 255
"""Ids are shown whole. Longer than a file's name may be, they are no ids but somebody's prank."""
_ROUNDS = 10
"""So many rounds are named one by one."""
_DEEDS = {
    "backdoor": "who plant a backdoor",
    "omniscient": "who send their update turned round",
    "sign-flip": "who send their update turned round",
    "label-flip": "who train on wrong labels",
}


def percent(value: float | None) -> str:
    """Write a share, such as 98.1%."""
    return "–" if value is None else f"{value:.1%}"


def points(value: float | None) -> str:
    """Write a difference of shares in percentage points."""
    return "–" if value is None else f"{100 * value:.1f}"


def counted(count: float, noun: str) -> str:
    """Write a number and its noun."""
    shown = f"{count:.1f}".removesuffix(".0")
    return f"{shown} {noun}" if count == 1 else f"{shown} {noun}s"


def listed(names: list[str]) -> str:
    """Write names with commas and an *and*."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def shortened(text: object, length: int = 160) -> str:
    """Cut what is long: ids and reasons are anybody's words."""
    words = str(text)
    return words if len(words) <= length else words[: length - 1] + "…"


def unfinished(run: Run) -> str | None:
    """Say that a run is not finished, and what then; None where it is."""
    if run.is_finished:
        return None
    where = f"{len(run.records)} of {counted(run.planned, 'round')}"
    return (
        f"The run {run.path.name} is unfinished: {where} were played, and this report is of those. "
        "The command that began it goes on with it."
    )


def warnings_of(run: Run, label: str) -> str | None:
    """Say in which rounds something is odd as a whole; None if in none."""
    odd = [record for record in run.records if record.warnings]
    if not odd:
        return None
    rounds = [str(record.round) for record in odd]
    more = f" and {len(rounds) - _ROUNDS} more" if len(rounds) > _ROUNDS else ""
    which = f"{', '.join(rounds[:_ROUNDS])}{more}" if more else listed(rounds)
    first = shortened(odd[0].warnings[0])
    return f"{label}: warnings in {_these(len(odd), which)}. In round {odd[0].round}, {first}."


def _these(count: int, which: str) -> str:
    return f"round {which}" if count == 1 else f"{count} rounds ({which})"


def summary_of(setting: Setting) -> list[str]:
    """Say what came of a setting, a sentence a string."""
    if not any(run.records for run in setting.runs):
        return ["No round is finished yet: there is nothing to say."]
    if len(setting.runs) == 1:
        return _one_run(setting.runs[0])
    return [_what_was_run(setting), *_comparison(setting)]


# -------------------------------------------------------------------- one run


def _one_run(run: Run) -> list[str]:
    figures = figures_of(run)
    said = [_outcome(run, figures)]
    if figures.attacker_weight is not None:
        over = figures.over_half or 0
        often = "in no round" if not over else f"in {counted(over, 'round')}"
        said.append(
            f"Attackers had {percent(figures.attacker_weight)} of the weight on average, and more "
            f"than half {often}."
        )
    if figures.honest_kept is not None and run.attackers:
        said.append(f"{percent(figures.honest_kept)} of the honest clients had a say.")
    if figures.recall is not None:
        right = percent(figures.precision)
        said.append(
            f"{percent(figures.recall)} of the attackers were accused"
            + ("." if figures.precision is None else f", and {right} of the accused do attack.")
        )
    elif run.knows_truth and not run.attackers and figures.accused:
        said.append(f"{counted(figures.accused, 'client')} a round were accused for nothing.")
    if not run.knows_truth:
        said.append(_suspicion(figures))
    if figures.failed_rounds:
        reason = next(record.error for record in run.records if record.error is not None)
        said.append(
            f"In {counted(figures.failed_rounds, 'round')} the model stayed as it was: "
            f"{shortened(reason)}."
        )
    return said


def _outcome(run: Run, figures: Figures) -> str:
    where = f"After {counted(figures.rounds, 'round')} on {_task(run)}{_with_whom(run)}"
    if figures.accuracy is None:
        return f"{where}, {run.rule} has made a model that the server did not test."
    said = f"{where}, the model that {run.rule} made is right on {percent(figures.accuracy)}"
    if figures.asr is None:
        return said + " of the test samples."
    others = (
        ""
        if figures.asr_others is None
        else f" ({percent(figures.asr_others)} of those that are not of that class anyway)"
    )
    wanted = "the attackers want" if run.knows_truth else "an attack would have it do"
    return f"{said} of the test samples, and does what {wanted} on {percent(figures.asr)}{others}."


def _suspicion(figures: Figures) -> str:
    accused = figures.accused or 0
    if not accused:
        return "Nobody was suspected. Who is honest is not known here."
    return (
        f"{counted(accused, 'client')} a round were suspected or rejected on average. Whether "
        "rightly is not known here."
    )


def _task(run: Run) -> str:
    return run.choice("task")[0].rpartition(":")[2] or "its task"


def _with_whom(run: Run) -> str:
    clients = run.whole("clients") or len(run.clients)
    if not clients:
        return ""
    if not run.knows_truth:
        return f" with {counted(clients, 'client')}"
    count = run.whole("attackers") or len(run.attackers)
    if not count:
        return f" with {counted(clients, 'client')}, all honest"
    attack = run.choice("attack")[0]
    return f" with {counted(clients, 'client')}, {count} of {_deed(attack)}"


def _deed(attack: str) -> str:
    deed = _DEEDS.get(attack)
    return f"them attackers ({attack})" if deed is None else f"them attackers {deed}"


# -------------------------------------------------------------------- several


def _what_was_run(setting: Setting) -> str:
    run = next(run for run in setting.runs if run.records)
    seeds = {run.seed for run in setting.runs}
    often = f", with {len(seeds)} seeds" if len(seeds) > 1 else ""
    rules = counted(len(setting.lines), "rule")
    return f"{rules} on {_task(run)}{_with_whom(run)}{often}."


def _comparison(setting: Setting) -> list[str]:
    scored = [(line, _score(setting, line)) for line in setting.lines]
    known = [(line, score) for line, score in scored if score is not None]
    rivals = sorted((pair for pair in known if not pair[0].is_oracle), key=lambda pair: -pair[1])
    oracle = next((score for line, score in known if line.is_oracle), None)
    has_asr = any(line_figures(setting, line)["score"].mean is not None for line in setting.lines)
    what = "ACC · (1 − ASR)" if has_asr else "ACC"
    said = []
    if oracle is not None:
        told = "which is told who attacks" if setting.knows_truth else "which is told the truth"
        said.append(f"The oracle, {told}, reaches {what} = {percent(oracle)}: the limit.")
    if rivals:
        said.append(_best(rivals, oracle, what))
    if len(rivals) > 1:
        worst, score = rivals[-1]
        said.append(f"Last is {worst.label} with {percent(score)}.")
    return [*said, *_taken_over(setting), *_where_weight_went(setting)]


def _taken_over(setting: Setting) -> list[str]:
    """Name the rules whose models do what the attackers want more often than not."""
    if not setting.knows_truth or not any(run.attackers for run in setting.runs):
        return []
    successes = {line.label: line_figures(setting, line)["asr"].mean for line in setting.lines}
    lost = [f"{label} ({percent(asr)})" for label, asr in successes.items() if (asr or 0) > 0.5]
    if lost:
        return [f"The attackers get their way more often than not under {listed(lost)}."]
    known = any(asr is not None for asr in successes.values())
    return ["Under no rule do the attackers get their way more often than not."] if known else []


def _best(rivals: list[tuple[Line, float]], oracle: float | None, what: str) -> str:
    top = rivals[0][1]
    # What the percentages do not show is no difference to report.
    first = [line.label for line, score in rivals if percent(score) == percent(top)]
    said = f"Best {'is' if len(first) == 1 else 'are'} {listed(first)} with {what} = {percent(top)}"
    if oracle is None:
        return said + "."
    gap = oracle - top
    if abs(gap) < 5e-4:
        return f"{said}, level with the oracle."
    side = "below" if gap > 0 else "above"
    return f"{said}, {points(abs(gap))} points {side} the oracle."


def _where_weight_went(setting: Setting) -> list[str]:
    shares: dict[str, Measured] = {
        line.label: line_figures(setting, line)["attacker_weight"]
        for line in setting.lines
        if not line.is_oracle
    }
    known = {label: share.mean for label, share in shares.items() if share.mean is not None}
    if not known:
        return []
    least, most = min(known, key=lambda k: known[k]), max(known, key=lambda k: known[k])
    if len(known) == 1:
        return [f"Attackers had {percent(known[least])} of the weight under {least}."]
    return [
        f"Attackers had the least weight under {least} ({percent(known[least])}) and the most "
        f"under {most} ({percent(known[most])})."
    ]


def _score(setting: Setting, line: Line) -> float | None:
    figures = line_figures(setting, line)
    score = figures["score"].mean
    return figures["accuracy"].mean if score is None else score
