"""The rounds of a simulation: train, aggregate, test; one record each, saved and resumed."""

from __future__ import annotations

import inspect
import os
import time
import warnings
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fedimmune.aggregation import Outcome, aggregate_safely
from fedimmune.errors import InputError, NotEnoughClientsError, ParameterError
from fedimmune.kernels import num_threads
from fedimmune.rules import Rule
from fedimmune.runs.folder import Checkpoint, RunFolder, finish_round
from fedimmune.runs.records import RoundRecord, Seconds
from fedimmune.simulation.federation import SUPPLIED, Federation, RoundUpdates
from fedimmune.simulation.metrics import detections, distances
from fedimmune.simulation.scenario import ResolvedScenario, Scenario
from fedimmune.tasks import data_folder, load_data
from fedimmune.validation import check_int

__all__ = ["Observer", "Rounds", "run_folder", "simulate"]

_SAVE_EVERY = 2.0
"""Seconds between checkpoints, if rounds are shorter: to write one may take longer than a round."""


class Observer:
    """Called with what a simulation is doing; by default it ignores it."""

    def loading(self, task: str) -> None:
        """The data is about to be loaded."""

    def starting(self, federation: Federation, finished: int) -> None:
        """Everything is ready; so many rounds were finished before."""

    def progress(self, phase: str, done: int, total: int) -> None:
        """A part of a round's *training* or *testing* is done; called from several threads."""


def run_folder(scenario: Scenario, runs: str | os.PathLike[str]) -> RunFolder:
    """Return the folder of a scenario's run in a folder of runs."""
    full = scenario.resolve()
    return RunFolder(Path(runs) / f"{full.title}-{full.digest}")


class Rounds(Iterator[RoundRecord]):
    """The rounds of a simulation; each runs when its record is asked for.

    Dropping them without asking for any, so that nothing has run, is a warning.

    Parameters
    ----------
    records
        Runs a round and yields its record.
    """

    def __init__(self, records: Generator[RoundRecord, None, None]) -> None:
        self._records = records

    def __next__(self) -> RoundRecord:
        return next(self._records)

    def close(self) -> None:
        """Stop after the last record; worker processes end."""
        self._records.close()

    def __del__(self) -> None:
        if inspect.getgeneratorstate(self._records) == inspect.GEN_CREATED:
            warnings.warn(
                "simulate() was called, but no round has run: iterate over the records, as in "
                "`for record in simulate(scenario)` or `list(simulate(scenario))`",
                RuntimeWarning,
                stacklevel=2,
            )


def simulate(
    scenario: Scenario,
    *,
    data: str | os.PathLike[str] | None = None,
    runs: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    force: bool = False,
    save_updates: Sequence[str] = (),
    observer: Observer | None = None,
) -> Rounds:
    """Simulate a scenario; each round runs when its record is asked for: iterate, or use `list`.

    The same scenario gives the same bits on the same machine with the same version of PyTorch,
    whatever the number of workers and interruptions.

    Parameters
    ----------
    scenario
        What to simulate.
    data
        Folder of data sets; by default ``FEDIMMUNE_DATA``, else a cache of the user's.
    runs
        Folder of runs. The run has a folder of its own in it and resumes after its last finished
        round, earlier records coming first; a finished run is not run again. What is killed loses
        the present round, and rounds of the last two seconds. By default nothing is written.
    workers
        How many processes train; by default one per core, or only this one if there is little to
        do.
    force
        Discard an earlier run and start anew.
    save_updates
        Names of layers whose updates by every client are saved with the run, round by round. They
        do not change the outcome; a finished run is not run again for them.
    observer
        Called with what is happening within rounds.

    Examples
    --------
    >>> scenario = Scenario(task="digits", rule="median", attack="backdoor", attackers=3, rounds=2)
    >>> [record.round for record in simulate(scenario)]
    [1, 2]
    """
    if workers is not None:
        check_int("simulate", "workers", workers, 1)
    if save_updates and runs is None:
        raise ParameterError("simulate: updates are saved with the run: set a folder for runs too")
    scenario = scenario.resolve()  # refuses what is wrong before hours of work
    folder = None if runs is None else run_folder(scenario, runs)
    watching, kept = observer or Observer(), tuple(save_updates)
    return Rounds(_rounds(scenario, data_folder(data), folder, workers, force, kept, watching))


def _rounds(
    scenario: ResolvedScenario,
    place: Path,
    folder: RunFolder | None,
    workers: int | None,
    force: bool,
    save_updates: Sequence[str],
    observer: Observer,
) -> Generator[RoundRecord, None, None]:
    if folder is not None and folder.is_finished and not force:
        with folder.held(scenario.to_toml()):
            folder.tidy()
            records = _finished(folder, scenario)
        yield from records
        return
    with ExitStack() as stack:
        observer.loading(scenario.task.name)
        task = scenario.make_task()
        with num_threads(1):
            data = load_data(task, place)
            federation = stack.enter_context(Federation(scenario, task, data, workers))
            rule = scenario.make_rule(federation.attackers)
            rule.check_needs(SUPPLIED)
            _check_enough(rule, len(federation.participants(1)))
            rule.check_model(federation.trained_layers())
            _check_kept(save_updates, [layer.name for layer in federation.trained_layers()])
            fingerprint = federation.fingerprint()
            # Only now is anything written, or an old run discarded: nothing is left to refuse.
            if folder is not None:
                stack.enter_context(folder.held(scenario.to_toml()))
                if force:
                    folder.clear()
            checkpoint = _resume(folder, rule, federation, fingerprint)
            if folder is not None:
                folder.keep_partition(federation.partition())
        observer.starting(federation, checkpoint.round)
        if folder is not None:
            yield from folder.records()
        for number in range(checkpoint.round + 1, scenario.rounds + 1):
            with num_threads(1):
                record = _run_round(
                    federation, rule, number, folder, fingerprint, save_updates, observer
                )
            try:
                yield record
            except GeneratorExit:  # nobody asks for more: no round is under way, and none is lost
                if folder is not None and number not in (folder.saved_round, scenario.rounds):
                    folder.save(_reached(federation, number, fingerprint), rule, last=False)
                raise


def _finished(folder: RunFolder, scenario: ResolvedScenario) -> list[RoundRecord]:
    records = folder.records()
    if len(records) != scenario.rounds:
        raise InputError(
            f"{folder.path} is damaged: it has a final model, but {len(records)} records of "
            f"{scenario.rounds}; force the run to begin anew"
        )
    return records


def _resume(
    folder: RunFolder | None, rule: Rule, federation: Federation, fingerprint: str
) -> Checkpoint:
    if folder is None:
        return Checkpoint()
    checkpoint = folder.resume(rule)
    if checkpoint.model is not None:
        if checkpoint.fingerprint != fingerprint:
            raise InputError(
                f"{folder.path} began with other data or another first model than there are now; "
                "force the run to begin anew, or keep it and choose another folder for runs"
            )
        federation.set_global_model(checkpoint.model)
        federation.carry_on(checkpoint.carried)
    return checkpoint


def _check_enough(rule: Rule, clients: int) -> None:
    try:
        rule.check_count(clients)
    except NotEnoughClientsError as error:
        raise ParameterError(f"no round can be aggregated: {error}") from None


def _check_kept(save_updates: Sequence[str], layers: Sequence[str]) -> None:
    unknown = [name for name in save_updates if name not in layers]
    if unknown:
        raise ParameterError(
            f"the model has no trained layer {unknown[0]!r} to keep; it has {', '.join(layers)}"
        )


# -------------------------------------------------------------------- one round


def _run_round(
    federation: Federation,
    rule: Rule,
    number: int,
    folder: RunFolder | None,
    fingerprint: str,
    save_updates: Sequence[str],
    observer: Observer,
) -> RoundRecord:
    watch = _Watch()
    with watch("training"):
        sent = federation.train(
            number,
            lambda *done: observer.progress("training", *done),
            needs=rule.needs,
            rule=rule,
        )
    with watch("aggregating"):
        outcome = _aggregate(federation, rule, sent)
    with watch("measuring"):
        attackers, aggregation = federation.attackers, outcome.aggregation
        measured = {
            **distances(sent.updates, attackers, aggregation),
            **detections(attackers, aggregation),
        }
    last = number == federation.scenario.rounds
    tested: dict[str, float | None] = {}
    with watch("testing"):
        if last or number % federation.scenario.test_every == 0:
            counts = federation.test(lambda *done: observer.progress("testing", *done))
            tested = {
                "accuracy": counts.accuracy,
                "loss": counts.mean_loss,
                "asr": counts.asr,
                "asr_others": counts.asr_others,
                "accuracy_without_success": counts.accuracy_without_success,
            }
    return finish_round(
        folder,
        rule,
        sent.updates,
        outcome,
        _reached(federation, number, fingerprint),
        last=last,
        seconds=Seconds(**watch.seconds),
        metrics=tested | measured,
        failed=sent.failed,
        attackers=attackers,
        save_updates=save_updates,
        save_every=_SAVE_EVERY,
    )


def _reached(federation: Federation, number: int, fingerprint: str) -> Checkpoint:
    return Checkpoint(number, federation.global_model, fingerprint, federation.carried)


def _aggregate(federation: Federation, rule: Rule, sent: RoundUpdates) -> Outcome:
    """Aggregate and set the global model, or return why it stays as it is."""
    if sent.without_anchor is not None:
        return Outcome(error=sent.without_anchor, rejected=sent.updates.rejected)
    outcome = aggregate_safely(rule, sent.updates, federation.global_model)
    if outcome.model is not None:
        federation.set_global_model(outcome.model)
    return outcome


class _Watch:
    """Measures the seconds of each phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[phase] = round(time.perf_counter() - start, 4)
