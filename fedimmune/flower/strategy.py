"""`RobustStrategy`: any of fedimmune's rules as a Flower strategy."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from fedimmune.checks import flag, number, whole
from fedimmune.errors import InputError, ParameterError
from fedimmune.flower.anchors import Anchor
from fedimmune.flower.arrays import model_of, record_of
from fedimmune.flower.contents import Counting
from fedimmune.flower.course import Course, FinishedRound
from fedimmune.flower.exclusion import Exclusion
from fedimmune.flower.grids import WatchfulGrid
from fedimmune.flower.journal import Journal
from fedimmune.flower.making import rule_of
from fedimmune.flower.metrics import MetricsFunction, figures_of, median_metrics, safely
from fedimmune.flower.outcomes import aggregate, client_records, updates_of
from fedimmune.flower.replies import Asked, sort_replies
from fedimmune.flower.sampling import sample, wait_for_nodes
from fedimmune.flower.tables import table_of
from fedimmune.layers import Kind, layers_of
from fedimmune.records import RoundRecord, Seconds
from fedimmune.rules import Rule
from fedimmune.traces import trace_of
from fedimmune.updates import Updates

__all__ = ["RobustStrategy"]

_log = logging.getLogger("flwr")
_OWNER = "RobustStrategy"

EvaluateFunction = Callable[[int, ArrayRecord], MetricRecord | None]


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
    fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes, min_available_nodes
        How many nodes are asked, as ``FedAvg`` has it.
    weighted_by_key, arrayrecord_key, configrecord_key
        Names in messages, as ``FedAvg`` has them.
    train_metrics_aggr_fn, evaluate_metrics_aggr_fn
        Sum clients' metrics up; by default each metric's median. Suspects' metrics are left out.

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
        least = 1 if min_replies is None else whole(_OWNER, "min_replies", min_replies, 1)
        self.min_replies = None if min_replies is None else least
        believed = flag(_OWNER, "believe_samples", believe_samples)
        most = whole(_OWNER, "most_samples", most_samples, 1)
        self.counting = Counting(weighted_by_key, believed, most)
        self.rule = rule_of(rule, defence, rule_parameters, believes_samples=believed)
        if self.rule.needs_anchor and anchor is None:
            raise ParameterError(
                f"{_OWNER}: this defence compares clients with the server's own update: give "
                "anchor=, which anchor_for makes of a model and a few samples"
            )
        self.anchor = anchor if self.rule.needs_anchor else None
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
            course.begin(initial_arrays)
            if done >= num_rounds:
                return Result(arrays=arrays)
            result = super().start(
                WatchfulGrid(grid),
                arrays,
                num_rounds - done,
                self.timeout if timeout is None else timeout,
                train_config,
                evaluate_config,
                None if evaluate_fn is None else self._testing(evaluate_fn),
            )
        finally:
            self._resumed = None
            course.close()
        return _renumbered(result, done)

    def resume(self) -> tuple[int, ArrayRecord] | None:
        """Go back to where a run of this name stopped; `start` does so by itself.

        Returns
        -------
        tuple or None
            The last finished round and the model after it; None where there is none.
        """
        self._resumed = self.course.resume()
        return self._resumed

    def _testing(self, evaluate_fn: EvaluateFunction) -> EvaluateFunction:
        """Test, and write the round down with what was found."""

        def test(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            began = time.perf_counter()
            found = evaluate_fn(self.course.before + server_round, arrays)
            self.course.write_down(found, time.perf_counter() - began)
            return found

        return test

    # ---------------------------------------------------------------- training

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw nodes and address each of them, having kept the model that they start from."""
        self._asked = None
        if self.fraction_train == 0.0:
            return []
        this = self.course.before + server_round
        model = model_of(arrays)
        layers = layers_of(model)
        self.rule.check_model([layer.name for layer in layers if layer.kind is Kind.PARAMETER])
        self.course.begin(arrays)
        anchor = None
        if self.anchor is not None:
            anchor = self.anchor(dict(model))
            Updates.from_models([], model).with_anchor(anchor)  # refused now, if at all
        messages = [
            self._message(MessageType.TRAIN, node, this, arrays, self._config(config, node))
            for node in self._draw(grid, this, self.fraction_train, self.min_train_nodes)
        ]
        sent = {message.metadata.dst_node_id: message.metadata for message in messages}
        self._asked = Asked(this, arrays, model, sent, time.perf_counter(), anchor)
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
        began = time.perf_counter()
        waited = began - asked.began
        found = sort_replies(replies, asked, self.counting, waited)
        updates = updates_of(asked, found)
        count = len(asked.messages)
        outcome = aggregate(self.rule, asked, updates, self.min_replies or count // 2 + 1)
        arrays = asked.arrays if outcome.model is None else record_of(outcome.model)
        spent = time.perf_counter() - began
        record = RoundRecord(
            round=asked.number,
            clients=client_records(found, outcome),
            error=outcome.error,
            seconds=Seconds(training=round(waited, 4), aggregating=round(spent, 4), testing=0.0),
        )
        for line in table_of(record, self.rule.name):
            _log.info(line)
        # Where the rule could not answer, what it last looked at was of an earlier round.
        basis = None if outcome.aggregation is None else self.rule.basis
        trace = trace_of(asked.number, updates, basis, ())
        self.course.finish(FinishedRound(record, trace, arrays))
        return arrays, figures_of(
            record, found.contents, self.train_metrics_aggr_fn, self.weighted_by_key
        )

    # ---------------------------------------------------------------- evaluating

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw nodes that test the model."""
        if self.fraction_evaluate == 0.0:
            return []
        this = self.course.before + server_round
        nodes = self._draw(grid, this, self.fraction_evaluate, self.min_evaluate_nodes)
        kind = MessageType.EVALUATE
        return [self._message(kind, node, this, arrays, dict(config)) for node in nodes]

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Sum up what clients measured, each once; nothing that they send makes this raise."""
        contents: dict[int, RecordDict] = {}
        for reply in replies:
            if isinstance(reply, Message) and reply.has_content():
                contents.setdefault(reply.metadata.src_node_id, reply.content)
        if not contents:
            return None
        return safely(self.evaluate_metrics_aggr_fn, contents.values(), self.weighted_by_key)

    # ---------------------------------------------------------------- asking

    def _draw(self, grid: Grid, this: int, fraction: float, least: int) -> list[int]:
        # The first nodes are waited for as long as it takes; later on the run has to go on.
        patience = None if this == self.course.before + 1 else self.timeout
        nodes = wait_for_nodes(grid, max(self.min_available_nodes, least), patience)
        left_out = self.course.left_out(this)
        drawn = sample(nodes, max(int(len(nodes) * fraction), least), least, left_out)
        _log.info("round %d: %d of %d nodes are asked", this, len(drawn), len(nodes))
        for node in sorted({*nodes} & left_out - {*drawn}):
            _log.info("  %d is left out: it was suspected too often", node)
        return drawn

    def _config(self, config: ConfigRecord, node: int) -> dict[str, Any]:
        """Give the config for one client, with what it is told of its last round."""
        told = self.course.told.get(node) if self.tell_clients else None
        return dict(config) if told is None else {**config, **told.to_config()}

    def _message(
        self, kind: str, node: int, this: int, arrays: ArrayRecord, config: Mapping[str, Any]
    ) -> Message:
        own = ConfigRecord({**config, "server-round": this})
        content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: own})
        # The group tells replies to this round from those to another.
        return Message(content=content, dst_node_id=node, message_type=kind, group_id=str(this))


def _renumbered(result: Result, done: int) -> Result:
    """Number the rounds of a result as the run has them, not as this server's process had."""
    for metrics in (
        result.train_metrics_clientapp,
        result.evaluate_metrics_clientapp,
        result.evaluate_metrics_serverapp,
    ):
        counted = {done + played: found for played, found in metrics.items()}
        metrics.clear()
        metrics.update(counted)
    return result
