"""The strategy: every rule of fedimmune, for any federation that Flower runs."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result
from torch import Tensor

from fedimmune import rules
from fedimmune._layers import FLOATS, Kind, layers_of
from fedimmune.aggregation import aggregate_safely
from fedimmune.errors import InputError, ParameterError
from fedimmune.flower.anchor import Anchor
from fedimmune.flower.arrays import model_of, record_of
from fedimmune.flower.client import to_config
from fedimmune.flower.messages import WatchfulGrid
from fedimmune.flower.metrics import MetricsFunction, figures_of, heard, median_metrics, sum_up
from fedimmune.flower.replies import OpenRound, Replies
from fedimmune.flower.sampling import Exclusion, draw, wait_for_nodes
from fedimmune.flower.session import EvaluateFunction, Session
from fedimmune.kernels import num_threads
from fedimmune.rules import Rule, find
from fedimmune.rules.preaggregation import Before
from fedimmune.runs.records import RoundRecord, Seconds
from fedimmune.updates import Updates
from fedimmune.validation import check_bool, check_float, check_int

__all__ = ["RobustStrategy"]

_log = logging.getLogger("flwr")
_OWNER = "RobustStrategy"


class RobustStrategy(FedAvg):
    """Federated learning with any of fedimmune's rules, in any federation that Flower runs.

    It replaces ``FedAvg``. No single client can end the run or control the model: each reply is
    checked by itself, and what cannot be used is rejected by name, with the reason.

    Parameters
    ----------
    rule
        Name of a rule (``fedimmune rules`` lists them), or a rule.
    defense
        The file of a defense, for the rule ``adaptive`` (Wan and Chen, 2021); by default the
        universal one, which ships with the package and is for any model.
    rule_parameters
        The rule's other parameters, such as ``{"attackers": 3}``.
    before
        What happens to updates before the rule sees them, such as ``"clip(at=2),nnm"``.
    anchor
        Takes the global model and returns the server's own update, for rules and defenses that
        compare clients with it, as the universal one does if there is one. `anchor_for` makes one.
    server_loss
        Takes a model and returns its loss on data that the server trusts, for rules that try each
        client's update on it, such as ``zeno``.
    runs, name
        Folder of runs, and this run's own in it. Every round is written there: verdicts, the model,
        what the rule remembers. ``fedimmune report`` reads it, and a server that is restarted with
        the same name resumes where it stopped. By default nothing is written; without a name the
        folder is a new one.
    about
        What the report says about the run, by the names in a scenario: ``task``, ``attack``,
        ``attackers``, ``clients``, ``seed``. Nothing depends on it.
    tell_clients
        Whether each client learns its own verdict with its next message; see `verdict_of`.
    believe_samples, most_samples
        Whether the sample counts that clients claim are used (by rules that use them, above all
        ``mean``), and the highest that is believed. They cannot be verified.
    exclude
        (k, r): a client suspected in k of the last r rounds is not asked for the next r rounds, and
        then tried again. By default everybody is asked.
    min_replies
        With fewer valid replies a round is skipped and the model stays as it was. By default more
        than half of those asked: among fewer, attackers may be the majority.
    timeout
        Seconds that clients have to answer, and that a round waits for nodes.
    threads
        Number of PyTorch threads that check and aggregate. More than one pays only if the server
        has its cores to itself; otherwise they slow each other down.
    fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes, min_available_nodes
        Number of nodes asked, as in ``FedAvg``.
    weighted_by_key, arrayrecord_key, configrecord_key
        Names in messages, as in ``FedAvg``.
    train_metrics_aggr_fn, evaluate_metrics_aggr_fn
        Summarize clients' metrics; by default each metric's median. Metrics of clients that were
        suspected or rejected in training are left out, and so are replies with more than 10,000
        numbers in their metrics.

    Raises
    ------
    ParameterError
        The rule cannot be made, or a value is out of range.

    Examples
    --------
    ::

        strategy = RobustStrategy(runs="runs", name="a")
        result = strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=20)
    """

    def __init__(
        self,
        *,
        rule: str | Rule = "adaptive",
        defense: str | os.PathLike[str] | None = None,
        rule_parameters: Mapping[str, Any] | None = None,
        before: Before = "",
        anchor: Anchor | None = None,
        server_loss: Callable[[Mapping[str, Tensor]], float] | None = None,
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
        self.tell_clients = check_bool(_OWNER, "tell_clients", tell_clients)
        self.timeout = check_float(_OWNER, "timeout", timeout, above=0)
        self.threads = check_int(_OWNER, "threads", threads, 1)
        if min_replies is not None:
            check_int(_OWNER, "min_replies", min_replies, 1)
        self.min_replies = min_replies
        self.believe_samples = check_bool(_OWNER, "believe_samples", believe_samples)
        self.most_samples = check_int(_OWNER, "most_samples", most_samples, 1)
        parameters = dict(rule_parameters or {}) | ({"before": before} if before else {})
        supplies = anchor is not None
        self.rule = _rule_of(rule, defense, parameters, believe_samples, has_anchor=supplies)
        supplied = {"anchor", "model"} | ({"server_loss"} if server_loss is not None else set())
        self.rule.check_needs(supplied)
        if "anchor" in self.rule.needs and anchor is None:
            raise ParameterError(
                f"{_OWNER}: the rule compares clients with the server's own update: pass "
                "anchor=, which anchor_for makes from a model and a few samples"
            )
        self.anchor = anchor if "anchor" in self.rule.needs else None
        self.server_loss = server_loss
        exclusion = None if exclude is None else Exclusion(*exclude)
        self.session = Session(self.rule, exclusion, runs, name, about)
        self._resumed: tuple[int, ArrayRecord] | None = None
        self._opened: OpenRound | None = None

    def summary(self) -> None:
        """Log what the strategy does."""
        _log.info("\t├──> Rule: %r", self.rule)
        if self.session.folder is not None:
            _log.info("\t├──> Run folder: %s", self.session.folder.path)
        super().summary()

    @property
    def last_record(self) -> RoundRecord | None:
        """The record of the last round; None before the first."""
        return self.session.last

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
            As in ``FedAvg``.
        num_rounds
            Number of rounds **in all**: a run that was interrupted plays the rest, from the model
            that was saved.
        timeout
            As in the constructor, whose value is the default.
        evaluate_fn
            Tests the model after every round. What it calls ``accuracy``, ``loss``, ``asr`` and
            ``asr_others`` goes into the round's record.

        Returns
        -------
        Result
            Rounds are numbered as the run has them.
        """
        session = self.session
        try:
            resumed = self.resume() if self._resumed is None else self._resumed
            done, arrays = (0, initial_arrays) if resumed is None else resumed
            session.planned = num_rounds
            session.begin(self._model(initial_arrays))
            if done >= num_rounds:
                return Result(arrays=arrays)
            result = super().start(
                WatchfulGrid(grid),
                arrays,
                num_rounds - done,
                self.timeout if timeout is None else timeout,
                train_config,
                evaluate_config,
                None if evaluate_fn is None else session.tested(evaluate_fn),
            )
        finally:
            self._resumed = None
            session.close()
        for metrics in (
            result.train_metrics_clientapp,
            result.evaluate_metrics_clientapp,
            result.evaluate_metrics_serverapp,
        ):
            counted = {done + played: found for played, found in metrics.items()}
            metrics.clear()
            metrics.update(counted)
        return result

    def resume(self) -> tuple[int, ArrayRecord] | None:
        """Go back to where a run of this name stopped; `start` does so by itself.

        Returns
        -------
        tuple or None
            The last finished round and the model after it; None if there is none.
        """
        self._resumed = self.session.resume()
        return self._resumed

    # ---------------------------------------------------------------- training

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw nodes and address each of them; the model that they start from is kept."""
        self._opened = None
        if self.fraction_train == 0.0:
            return []
        number = self.session.before + server_round
        model = self._model(arrays)
        layers = layers_of(model)
        self.rule.check_model([layer for layer in layers if layer.kind is Kind.PARAMETER])
        self.session.begin(model)
        anchor = None
        if self.anchor is not None:
            anchor = self.anchor(dict(model))  # with the threads of whoever made it
            Updates.from_models([], model).with_anchor(anchor)  # refused now, if at all
        nodes = self._draw(grid, number, self.fraction_train, self.min_train_nodes)
        notices = self.session.notices if self.tell_clients else {}
        told = {node: to_config(notices.get(str(node), {})) for node in nodes}
        messages = [
            self._message(MessageType.TRAIN, node, number, arrays, {**config, **told[node]})
            for node in nodes
        ]
        sent = {message.metadata.dst_node_id: message.metadata for message in messages}
        self._opened = OpenRound(number, arrays, model, sent, time.perf_counter(), anchor)
        return messages

    def _supplied(self, updates: Updates, opened: OpenRound) -> Updates:
        """Add to a round what the rule may need besides the updates."""
        updates, loss = replace(updates, round=opened.number), self.server_loss
        if loss is None:
            return updates

        def loss_after(update: Mapping[str, Tensor]) -> float:
            floats = {k: old + update[k] for k, old in opened.model.items() if old.dtype in FLOATS}
            return loss({**opened.model, **floats})

        return updates.with_server_loss(loss_after)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate what came back; nothing that a client sends makes this raise.

        Returns
        -------
        arrays
            The new model, or the old one if the round was skipped.
        metrics
            Number of clients trusted, suspected and so on, and what clients measured.
        """
        opened, self._opened = self._opened, None
        if opened is None:
            if self.fraction_train == 0.0:
                return None, None
            raise InputError(
                "aggregate_train needs the model that the clients started from: call "
                "configure_train before it, once per round"
            )
        began = time.perf_counter()
        with num_threads(self.threads):
            key = self.weighted_by_key if self.believe_samples else None
            found = Replies(opened, key, self.most_samples)
            found.sort(replies, began - opened.began)
            updates = self._supplied(found.updates(), opened)
            least = self.min_replies or len(opened.sent) // 2 + 1
            outcome = aggregate_safely(self.rule, updates, opened.model, least=least)
            arrays = opened.arrays if outcome.model is None else record_of(outcome.model)
        seconds = Seconds(
            training=round(began - opened.began, 4),
            aggregating=round(time.perf_counter() - began, 4),
            testing=0.0,
        )
        record = self.session.finish(found, updates, outcome, seconds)
        metrics = sum_up(found.contents, record, self.train_metrics_aggr_fn, self.weighted_by_key)
        metrics = MetricRecord() if metrics is None else metrics
        for name, value in figures_of(record).items():
            metrics[name] = value
        return arrays, metrics

    # ---------------------------------------------------------------- evaluating

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw nodes that test the model."""
        if self.fraction_evaluate == 0.0:
            return []
        number = self.session.before + server_round
        nodes = self._draw(grid, number, self.fraction_evaluate, self.min_evaluate_nodes)
        return [self._message(MessageType.EVALUATE, node, number, arrays, config) for node in nodes]

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Summarize what clients measured, each once; nothing that they send makes this raise."""
        return sum_up(
            heard(replies), self.last_record, self.evaluate_metrics_aggr_fn, self.weighted_by_key
        )

    # ---------------------------------------------------------------- asking

    def _model(self, arrays: ArrayRecord) -> dict[str, Tensor]:
        """Read the global model, which has to be complete and finite."""
        with num_threads(self.threads):
            return model_of(arrays)

    def _draw(self, grid: Grid, number: int, fraction: float, least: int) -> list[int]:
        # The first round waits for nodes as long as it takes; later the run has to continue.
        patience = None if number == self.session.before + 1 else self.timeout
        nodes = wait_for_nodes(grid, max(self.min_available_nodes, least), patience)
        return draw(nodes, fraction, least, self.session.left_out(number))

    def _message(
        self, kind: str, node: int, number: int, arrays: ArrayRecord, config: Mapping[str, Any]
    ) -> Message:
        settings = ConfigRecord({**config, "server-round": number})
        content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: settings})
        # The group tells replies to this round from those to another.
        return Message(content=content, dst_node_id=node, message_type=kind, group_id=str(number))


def _rule_of(
    rule: str | Rule,
    defense: str | os.PathLike[str] | None,
    parameters: Mapping[str, Any] | None,
    believes_samples: bool,
    *,
    has_anchor: bool,
) -> Rule:
    """Make a rule, or take one that is made; it uses sample counts and an anchor if there are."""
    if isinstance(rule, Rule):
        if defense is not None or parameters:
            raise ParameterError(
                f"{rule.name} is made already and takes no more parameters: pass its name instead"
            )
        return rule
    given = dict(parameters or {})
    if defense is not None:
        given["defense"] = defense
    if believes_samples and "by_samples" in find(rule).parameters():
        given.setdefault("by_samples", True)
    made = rules.get(rule, **given)
    if has_anchor and "anchor" in made.welcomes:
        return rules.get(rule, **given, anchor=True)
    return made
