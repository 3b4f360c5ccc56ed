"""`RobustStrategy`: any of fedimmune's rules as a Flower strategy."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result
from torch import Tensor

from fedimmune.checks import flag, number, whole
from fedimmune.errors import InputError, ParameterError
from fedimmune.flower.addressing import Letter
from fedimmune.flower.anchors import Anchor
from fedimmune.flower.arrays import model_of
from fedimmune.flower.concluding import conclude
from fedimmune.flower.contents import Counting
from fedimmune.flower.course import Course, EvaluateFunction, renumbered
from fedimmune.flower.exclusion import Exclusion
from fedimmune.flower.grids import WatchfulGrid
from fedimmune.flower.journal import Journal
from fedimmune.flower.making import rule_of
from fedimmune.flower.metrics import MetricsFunction, figures_of, median_metrics, sum_up
from fedimmune.flower.replies import Asked
from fedimmune.flower.sampling import draw, wait_for_nodes
from fedimmune.flower.tables import table_of
from fedimmune.layers import Kind, layers_of
from fedimmune.records import RoundRecord
from fedimmune.rules import Rule
from fedimmune.threads import computing_with
from fedimmune.updates import Updates

__all__ = ["RobustStrategy"]

_log = logging.getLogger("flwr")
_OWNER = "RobustStrategy"


class RobustStrategy(FedAvg):
    """Federated learning with any of fedimmune's rules, in any federation that Flower runs.

    It stands where ``FedAvg`` stood. No single client can end the run or own the model: each reply
    is checked by itself, and what cannot be used is rejected by name, with the reason.

    Parameters
    ----------
    rule
        Name of a rule (``fedimmune rules`` lists them), or a rule.
    defence
        The file of a defence, for the rule ``adaptive`` (Wan and Chen, 2021).
    rule_parameters
        What else the rule is to be made with, such as ``{"attackers": 3}``.
    anchor
        Given the global model, gives the server's own update, for defences that compare clients
        with it. `anchor_for` makes one.
    runs, name
        Folder of runs, and this run's own in it. Every round is written there: verdicts, the model,
        what the rule remembers. ``fedimmune report`` reads it, and a server that was restarted goes
        on where it stopped if it has the same name. By default nothing is written; without a name
        the folder is a new one.
    about
        What the report is to say of the run, by the names that a scenario has: ``task``,
        ``attack``, ``attackers``, ``clients``, ``seed``. Nothing depends on it.
    tell_clients
        Whether each client learns its own verdict with its next message; see `verdict_of`.
    believe_samples, most_samples
        Whether the sample counts that clients claim are used (by rules that use them, ``mean``
        above all), and what the highest is that is believed. They cannot be verified.
    exclude
        (k, r): who was suspected in k of the last r rounds is not asked for the next r rounds, and
        then tried again. By default everybody is asked.
    min_replies
        With fewer valid replies a round is skipped and the model stays as it was. By default more
        than half of those that were asked: of fewer, attackers may be the majority.
    timeout
        How many seconds clients have to answer, and how long a round waits for nodes.
    threads
        How many of PyTorch's threads check and aggregate. More than one pays only where the server
        has its cores to itself; elsewhere they hold each other up.
    fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes, min_available_nodes
        How many nodes are asked, as ``FedAvg`` has it.
    weighted_by_key, arrayrecord_key, configrecord_key
        Names in messages, as ``FedAvg`` has them.
    train_metrics_aggr_fn, evaluate_metrics_aggr_fn
        Sum clients' metrics up; by default each metric's median. Metrics of clients that were
        suspected or rejected in training are left out, and so are replies with more than 10,000
        numbers in their metrics.

    Raises
    ------
    ParameterError
        The rule cannot be made, or a value is out of range.

    Examples
    --------
    ::

        strategy = RobustStrategy(rule="adaptive", defence="mnist.defence", runs="runs", name="a")
        result = strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=20)
    """

    def __init__(
        self,
        *,
        rule: str | Rule = "median",
        defence: str | os.PathLike[str] | None = None,
        rule_parameters: Mapping[str, Any] | None = None,
        anchor: Anchor | None = None,
        runs: str | os.PathLike[str] | None = None,
        name: str | None = None,
        about: Mapping[str, Any] | None = None,
        tell_clients: bool = True,
        believe_samples: bool = False,
        most_samples: int = 10_000,
        exclude: tuple[int, int] | None = None,
        min_replies: int | None = None,
        timeout: float = 600.0,
        threads: int = 1,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 1.0,
        min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        train_metrics_aggr_fn: MetricsFunction | None = None,
        evaluate_metrics_aggr_fn: MetricsFunction | None = None,
    ) -> None:
        super().__init__(
            fraction_train=fraction_train,
            fraction_evaluate=fraction_evaluate,
            min_train_nodes=min_train_nodes,
            min_evaluate_nodes=min_evaluate_nodes,
            min_available_nodes=min_available_nodes,
            weighted_by_key=weighted_by_key,
            arrayrecord_key=arrayrecord_key,
            configrecord_key=configrecord_key,
            train_metrics_aggr_fn=train_metrics_aggr_fn or median_metrics,
            evaluate_metrics_aggr_fn=evaluate_metrics_aggr_fn or median_metrics,
        )
        self.tell_clients = flag(_OWNER, "tell_clients", tell_clients)
        self.timeout = number(_OWNER, "timeout", timeout, above=0)
        self.threads = whole(_OWNER, "threads", threads, 1)
        least = 1 if min_replies is None else whole(_OWNER, "min_replies", min_replies, 1)
        self.min_replies = None if min_replies is None else least
        believed = flag(_OWNER, "believe_samples", believe_samples)
        most = whole(_OWNER, "most_samples", most_samples, 1)
        self.counting = Counting(weighted_by_key, believed, most)
        self.rule = rule_of(rule, defence, rule_parameters, believes_samples=believed)
        self.rule.check_needs({"anchor"})
        if "anchor" in self.rule.needs and anchor is None:
            raise ParameterError(
                f"{_OWNER}: this defence compares clients with the server's own update: give "
                "anchor=, which anchor_for makes of a model and a few samples"
            )
        self.anchor = anchor if "anchor" in self.rule.needs else None
        self.course = Course(
            self.rule.name,
            None if runs is None else Journal(runs, name, self.rule, about),
            None if exclude is None else Exclusion(*exclude),
        )
        self._resumed: tuple[int, ArrayRecord] | None = None
        self._asked: Asked | None = None

    def summary(self) -> None:
        """Log what the strategy does."""
        _log.info("\t├──> Rule: %r", self.rule)
        if self.course.journal is not None:
            _log.info("\t├──> Run folder: %s", self.course.journal.folder.path)
        super().summary()

    @property
    def last_record(self) -> RoundRecord | None:
        """What came of the last round, client by client; None before the first."""
        return self.course.last

    # ---------------------------------------------------------------- a whole run

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFunction | None = None,
    ) -> Result:
        """Play the rounds, as Flower's strategies do.

        Parameters
        ----------
        grid, initial_arrays, train_config, evaluate_config
            As ``FedAvg`` has them.
        num_rounds
            How many rounds the run is to have **in all**: one that was interrupted plays the rest,
            from the model that was saved.
        timeout
            As in the constructor, which has the default.
        evaluate_fn
            Tests the model after every round. What it calls ``accuracy``, ``loss``, ``asr`` and
            ``asr_others`` goes into the round's record.

        Returns
        -------
        Result
            Rounds are numbered as the run has them.
        """
        course = self.course
        try:
            resumed = self.resume() if self._resumed is None else self._resumed
            done, arrays = (0, initial_arrays) if resumed is None else resumed
            course.planned, course.is_tested = num_rounds, evaluate_fn is not None
            course.begin(self._model(initial_arrays))
            if done >= num_rounds:
                return Result(arrays=arrays)
            result = super().start(
                WatchfulGrid(grid),
                arrays,
                num_rounds - done,
                self.timeout if timeout is None else timeout,
                train_config,
                evaluate_config,
                None if evaluate_fn is None else course.testing(evaluate_fn),
            )
        finally:
            self._resumed = None
            course.close()
        return renumbered(result, done)

    def resume(self) -> tuple[int, ArrayRecord] | None:
        """Go back to where a run of this name stopped; `start` does so by itself.

        Returns
        -------
        tuple or None
            The last finished round and the model after it; None where there is none.
        """
        self._resumed = self.course.resume()
        return self._resumed

    # ---------------------------------------------------------------- training

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw nodes and address each of them, having kept the model that they start from."""
        self._asked = None
        if self.fraction_train == 0.0:
            return []
        number = self.course.before + server_round
        model = self._model(arrays)
        layers = layers_of(model)
        self.rule.check_model([layer for layer in layers if layer.kind is Kind.PARAMETER])
        self.course.begin(model)
        anchor = None
        if self.anchor is not None:
            anchor = self.anchor(dict(model))  # with the threads of whoever made it
            Updates.from_models([], model).with_anchor(anchor)  # refused now, if at all
        letter = self._letter(MessageType.TRAIN, number, arrays, config)
        nodes = self._draw(grid, number, self.fraction_train, self.min_train_nodes)
        messages = [letter.to(node, self._told(node)) for node in nodes]
        sent = {message.metadata.dst_node_id: message.metadata for message in messages}
        self._asked = Asked(number, arrays, model, sent, time.perf_counter(), anchor)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate what came back; nothing that a client sends makes this raise.

        Returns
        -------
        arrays
            The new model, or the old one where the round was skipped.
        metrics
            How many clients were trusted, suspected and so on, and what clients measured.
        """
        asked, self._asked = self._asked, None
        if asked is None:
            if self.fraction_train == 0.0:
                return None, None
            raise InputError(
                "aggregate_train needs the model that the clients started from: call "
                "configure_train before it, once a round"
            )
        with computing_with(self.threads):
            done, contents = conclude(self.rule, asked, replies, self.counting, self.min_replies)
        for line in table_of(done.record, self.rule.name):
            _log.info(line)
        self.course.finish(done)
        return done.arrays, figures_of(
            done.record, contents, self.train_metrics_aggr_fn, self.weighted_by_key
        )

    # ---------------------------------------------------------------- evaluating

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw nodes that test the model."""
        if self.fraction_evaluate == 0.0:
            return []
        number = self.course.before + server_round
        letter = self._letter(MessageType.EVALUATE, number, arrays, config)
        nodes = self._draw(grid, number, self.fraction_evaluate, self.min_evaluate_nodes)
        return [letter.to(node) for node in nodes]

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Sum up what clients measured, each once; nothing that they send makes this raise."""
        return sum_up(
            replies, self.last_record, self.evaluate_metrics_aggr_fn, self.weighted_by_key
        )

    # ---------------------------------------------------------------- asking

    def _model(self, arrays: ArrayRecord) -> dict[str, Tensor]:
        """Read the global model, which has to be whole and finite."""
        with computing_with(self.threads):
            return model_of(arrays)

    def _draw(self, grid: Grid, number: int, fraction: float, least: int) -> list[int]:
        # The first nodes are waited for as long as it takes; later on the run has to go on.
        patience = None if number == self.course.before + 1 else self.timeout
        nodes = wait_for_nodes(grid, max(self.min_available_nodes, least), patience)
        return draw(nodes, fraction, least, self.course.left_out(number))

    def _letter(self, kind: str, number: int, arrays: ArrayRecord, config: ConfigRecord) -> Letter:
        return Letter(kind, number, arrays, config, (self.arrayrecord_key, self.configrecord_key))

    def _told(self, node: int) -> Mapping[str, Any] | None:
        """Give what a client is told of its last round."""
        told = self.course.told.get(str(node)) if self.tell_clients else None
        return None if told is None else told.to_config()
