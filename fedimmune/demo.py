"""The whole story on bundled data: be attacked, rehearse attacks, learn them, compare.

Ten clients learn handwritten digits; four of them plant a backdoor. The same federation is played
under the learned rule as it ships, under the plain mean and two robust rules, under the learned
rule with a defense of its own, and under the oracle. Nothing is downloaded, and what was done
before is not done again.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedimmune.adaptive.defense import Defense
from fedimmune.adaptive.description import Epoch
from fedimmune.adaptive.recordings import digest_of, read_recordings
from fedimmune.adaptive.training import train
from fedimmune.errors import InputError
from fedimmune.report import write_report
from fedimmune.runs.records import RoundRecord
from fedimmune.simulation import Scenario, run_folder, simulate
from fedimmune.simulation.rehearsal import plan, record
from fedimmune.simulation.scenario import ResolvedScenario
from fedimmune.simulation.workers import usable_cores
from fedimmune.tasks import data_folder, load_data

__all__ = ["RULES", "SHIPPED", "Demo", "Outcome", "in_words", "label_of", "outcome_of"]

SHIPPED = "universal"
"""The learned rule as it ships: nothing has to be rehearsed."""
RULES = (SHIPPED, "mean", "median", "krum", "adaptive", "oracle")
_ATTACKERS = 4
_ROUNDS = 20
_EPOCHS = 200
_KEPT = ("fc2.weight",)
"""The last layer's updates, so that the report can show what attackers send."""
_USELESS = 0.8
"""A model that is right on less than this part of what the oracle's is has not held."""


class Demo:
    """The demonstration's parts, in the order of the story.

    Parameters
    ----------
    folder
        Where everything is kept.
    seed
        Other clients, other attackers, another first model.
    """

    def __init__(self, folder: Path, seed: int = 1) -> None:
        self.folder, self.seed = folder, seed
        self.recordings, self.defense = folder / "recordings", folder / "digits.defense"
        self.runs, self.report = folder / "runs", folder / "report.html"

    def forget(self) -> None:
        """Throw away what an earlier call has made."""
        for part in (self.recordings, self.runs):
            if part.exists():
                shutil.rmtree(part)
        for file in (self.defense, self.report):
            file.unlink(missing_ok=True)

    def rehearse(self, on_progress: Callable[[int, int], None]) -> bool:
        """Rehearse attacks on the server's own data; says whether anything was left to do.

        Parameters
        ----------
        on_progress
            Is told how many of how many rehearsals are there.
        """
        base = {"task": "digits", "rounds": _ROUNDS}
        task = Scenario(**base).make_task()
        data = load_data(task, data_folder())
        rehearsals = plan(
            base,
            data.spec,
            attacks=("backdoor", "sign-flip"),
            attackers=range(_ATTACKERS + 1),
            runs=3,
            follow=("oracle",),
        )
        there = sum((self.recordings / each.file_name).is_file() for each in rehearsals)
        on_progress(there, len(rehearsals))
        if there == len(rehearsals):
            return False

        def done(_: object) -> None:
            nonlocal there
            there += 1
            on_progress(there, len(rehearsals))

        record(rehearsals, self.recordings, task, data, workers=usable_cores(), on_done=done)
        return True

    def learn(self, on_progress: Callable[[int, int], None]) -> bool:
        """Train the defense on what was rehearsed; says whether that was left to do."""
        recordings = read_recordings([self.recordings])
        if self._is_learned(digest_of(recordings)):
            return False

        def done(epoch: Epoch) -> None:
            on_progress(epoch.number, _EPOCHS)

        train(recordings, epochs=_EPOCHS, on_epoch=done).save(self.defense)
        return True

    def _is_learned(self, recordings: str) -> bool:
        try:
            about = Defense.load(self.defense).about
        except InputError:
            return False
        return about.recordings == recordings and about.training["epochs"] == _EPOCHS

    def scenario(self, rule: str) -> ResolvedScenario:
        """Return what is played under a rule."""
        chosen: str | dict[str, str] = rule
        if rule == "adaptive":
            chosen = {"name": rule, "defense": str(self.defense)}
        elif rule == SHIPPED:
            chosen = "adaptive"
        return Scenario(
            task="digits",
            rule=chosen,
            attack="backdoor",
            attackers=_ATTACKERS,
            rounds=_ROUNDS,
            seed=self.seed,
        ).resolve()

    def play(self, rule: str) -> Iterator[RoundRecord]:
        """Train federatedly under attack, by one rule; a finished run is read again."""
        return simulate(self.scenario(rule), runs=self.runs, save_updates=_KEPT)

    def is_played(self, rule: str) -> bool:
        """Whether a rule's run is finished."""
        return run_folder(self.scenario(rule), self.runs).is_finished

    def write_report(self) -> None:
        """Put all runs of this seed into one page."""
        folders = [run_folder(self.scenario(rule), self.runs).path for rule in RULES]
        write_report(folders, self.report, title="fedimmune: four of ten plant a backdoor")


@dataclass(frozen=True)
class Outcome:
    """What became of the model under one rule, as shares from 0 to 1.

    Parameters
    ----------
    rule
        Which, of `RULES`.
    accuracy
        Of the last model (ACC).
    success
        How often the last model does what the attackers want (ASR).
    attacker_weight
        Share of the weight that attackers had, on average; None for a rule without weights.
    """

    rule: str
    accuracy: float
    success: float
    attacker_weight: float | None

    @property
    def label(self) -> str:
        """What the rule is called."""
        return label_of(self.rule)

    @property
    def is_taken_over(self) -> bool:
        """Whether the model does what the attackers want more often than not."""
        return self.success > 0.5


def label_of(rule: str) -> str:
    """Return what one of `RULES` is called."""
    return "adaptive as shipped" if rule == SHIPPED else rule


def outcome_of(rule: str, records: Sequence[RoundRecord]) -> Outcome:
    """Sum a run up."""
    last = records[-1]
    weights = [each.attacker_weight for each in records if each.attacker_weight is not None]
    return Outcome(
        rule=rule,
        accuracy=last.accuracy or 0.0,
        success=last.asr or 0.0,
        attacker_weight=sum(weights) / len(weights) if weights else None,
    )


def in_words(outcomes: Mapping[str, Outcome]) -> list[str]:
    """Tell who was taken over, who held, and how far the learned rule is from the limit."""
    learned, shipped, limit = outcomes["adaptive"], outcomes[SHIPPED], outcomes["oracle"]
    rivals = [each for each in outcomes.values() if each.rule != "oracle"]
    lost = [each for each in rivals if each.is_taken_over]
    safe = [each for each in rivals if not each.is_taken_over]
    useless = [each for each in safe if each.accuracy < _USELESS * limit.accuracy]
    held = [each for each in safe if each not in useless]
    first = (
        f"Taken over: {_listed(lost)} of the images that carry the attackers' pattern are "
        "classified as they want."
        if lost
        else "Taken over: no rule."
    )
    for each in useless:
        first += f" Ruined: {each.label}, right on {each.accuracy:.1%} only."
    return [
        first,
        f"Held: {_listed(held)} (a model without a backdoor has about {limit.success:.0%}: so many "
        "images show the attackers' digit anyway)."
        if held
        else "Held: no rule.",
        f"The limit is the oracle, which is told who attacks: ACC {limit.accuracy:.1%}, ASR "
        f"{limit.success:.1%}. The learned rule, which is not, ends at ACC {learned.accuracy:.1%} "
        f"and ASR {learned.success:.1%}: {_points(learned.accuracy - limit.accuracy)} and "
        f"{_points(learned.success - limit.success)} away. As it ships, without any rehearsal, it "
        f"ends at ACC {shipped.accuracy:.1%} and ASR {shipped.success:.1%}.",
    ]


def _listed(outcomes: Sequence[Outcome]) -> str:
    return ", ".join(f"{each.label} {each.success:.1%}" for each in outcomes)


def _points(share: float) -> str:
    return f"{100 * abs(share):.1f} points"
