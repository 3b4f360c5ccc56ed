from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from torch import Tensor, nn

from fedimmune import Updates, adaptive, rules
from fedimmune.errors import InputError, ParameterError
from fedimmune.flower import RobustStrategy, anchor_for, verdict_of
from fedimmune.flower.arrays import record_of
from fedimmune.flower.messages import WatchfulGrid
from fedimmune.flower.sampling import Exclusion
from fedimmune.rules.base import ClientWeights, WeightRule
from tests.adaptive.judging import dictated, untrained_file
from tests.flower.federation import (
    Client,
    FakeGrid,
    altering,
    arrays_of,
    config_of,
    content_of,
    failing,
    first_model,
    group,
    honest,
    is_same,
    reply,
    robust,
    silent,
    state_of,
    trained,
)
from tests.rounds import rule_for

pytestmark = pytest.mark.flower

RULES = [
    "mean",
    "median",
    "trimmed-mean",
    "geometric-median",
    "multi-krum",
    "foolsgold",
    "residual",
]


def parameters(rule: str) -> dict[str, Any]:
    return {"attackers": 1} if rule == "multi-krum" else {}


@pytest.mark.parametrize("rule", [*RULES, "adaptive"])
def test_the_model_is_that_of_the_rule_bit_for_bit(rule: str) -> None:
    start = first_model()
    layers = ["z.weight", "a.bias", "half.weight", "scale"]
    made = rule_for(rule, [], layers, **parameters(rule))
    strategy = robust(rule=made)
    grid = FakeGrid(group(7))
    result = strategy.start(grid, arrays_of(start), num_rounds=1)
    models = {100 + seed: trained(start, seed) for seed in range(7)}
    alone = rule_for(rule, [], layers, **parameters(rule))
    expected = alone.aggregate(Updates.from_models(models, start)).apply(start)
    assert is_same(result.arrays, record_of(expected))
    assert list(result.arrays) == list(start)
    assert result.arrays["norm.num_batches_tracked"].dtype == "int64"
    assert int(result.arrays["norm.num_batches_tracked"].numpy()) == 12
    assert result.arrays["half.weight"].dtype == "float16"
    assert result.arrays["scale"].shape == ()


def test_rounds_follow_each_other_as_by_hand() -> None:
    model = first_model()
    result = robust(rule="median").start(FakeGrid(group(5)), arrays_of(model), num_rounds=3)
    for _ in range(3):
        models = {seed: trained(model, seed) for seed in range(5)}
        model = rules.get("median").aggregate(Updates.from_models(models, model)).apply(model)
    assert is_same(result.arrays, record_of(model))
    assert [*result.train_metrics_clientapp] == [1, 2, 3]


def test_each_client_learns_its_own_verdict() -> None:
    def attack(state: dict[str, Tensor]) -> None:
        for tensor in state.values():
            if tensor.is_floating_point():
                tensor.mul_(30)

    told: dict[int, list[Any]] = {}

    def listening(node: int, client: Client) -> Client:
        def answer(message: Message) -> list[Message]:
            told.setdefault(node, []).append(verdict_of(message))
            return list(client(message))

        return answer

    clients = group(6, odd=altering(attack), broken=failing())
    grid = FakeGrid({node: listening(node, client) for node, client in clients.items()})
    rule = rules.get("multi-krum", attackers=2, keep=4)
    robust(rule=rule).start(grid, arrays_of(first_model()), num_rounds=2)
    assert all(heard[0] is None for heard in told.values())
    assert told[106][1]["verdict"] in {"suspected", "unused"}
    assert told[106][1]["weight"] == 0
    assert told[106][1]["round"] == 1
    assert "not used" in told[106][1]["text"]
    assert told[107][1]["verdict"] == "failed"
    assert "not an accusation" in str(told[107][1])
    honest_verdicts = [told[node][1]["verdict"] for node in range(100, 106)]
    assert honest_verdicts.count("trusted") == 4
    assert [config_of(m)["server-round"] for m in grid.sent] == [1] * 8 + [2] * 8


def test_telling_can_be_switched_off() -> None:
    grid = FakeGrid(group(5))
    strategy = robust(tell_clients=False)
    config = ConfigRecord({"lr": 0.1})
    strategy.start(grid, arrays_of(first_model()), num_rounds=2, train_config=config)
    assert all(set(config_of(message)) == {"lr", "server-round"} for message in grid.sent)


def test_one_unreadable_reply_ends_nothing() -> None:
    grid = FakeGrid(group(5, odd=honest(9)))
    grid.unreadable = {105}
    strategy = robust(rule="mean")
    result = strategy.start(grid, arrays_of(first_model()), num_rounds=2)
    alone = robust(rule="mean").start(FakeGrid(group(5)), arrays_of(first_model()), num_rounds=2)
    assert is_same(result.arrays, alone.arrays)
    assert strategy.last_record is not None
    assert strategy.last_record.clients[-1].verdict == "rejected"
    assert "malformed" in (strategy.last_record.clients[-1].reason or "")


def test_a_lost_superlink_is_no_clients_fault() -> None:
    class Lost(FakeGrid):
        def pull_messages(self, message_ids: Any) -> Any:
            raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        robust().start(Lost(group(3)), arrays_of(first_model()), num_rounds=1)


def test_late_is_not_failed() -> None:
    class Slow(FakeGrid):
        """Node 105 answers a round later."""

        def pull_messages(self, message_ids: Any) -> Any:
            sent = {m.metadata.message_id: m.metadata for m in self.sent}
            newest = max(int(about.group_id) for about in sent.values())
            ready = [
                key
                for key in message_ids
                if sent[key].dst_node_id != 105 or int(sent[key].group_id) < newest
            ]
            return super().pull_messages(ready)

    strategy = robust(rule="mean")
    grid = Slow(group(5, slow=honest(9), dead=silent))
    seen: list[dict[Any, str]] = []

    def look(_: int, __: ArrayRecord) -> None:
        if strategy.last_record is not None:
            seen.append({c.client: c.verdict for c in strategy.last_record.clients})

    result = strategy.start(
        grid, arrays_of(first_model()), num_rounds=3, timeout=0.05, evaluate_fn=look
    )
    assert [round_["105"] for round_ in seen] == ["failed", "late", "late"]
    assert [round_["106"] for round_ in seen] == ["failed"] * 3
    assert result.train_metrics_clientapp[2]["fedimmune-late"] == 1
    alone = robust(rule="mean").start(FakeGrid(group(5)), arrays_of(first_model()), num_rounds=3)
    assert is_same(result.arrays, alone.arrays)


def test_a_watchful_grid_waits_no_longer_than_it_is_told() -> None:
    grid = WatchfulGrid(FakeGrid({1: silent, 2: honest(1)}))
    strategy = robust()
    messages = strategy.configure_train(1, arrays_of(first_model()), ConfigRecord(), grid)
    assert len(list(grid.send_and_receive(messages, timeout=0.01))) == 1
    assert list(grid.get_node_ids()) == [1, 2]
    assert list(grid.send_and_receive([], timeout=5)) == []


# -------------------------------------------------------------------- the learned rule

NODES = range(100, 107)


@pytest.fixture
def universal(tmp_path: Path) -> Path:
    return untrained_file(tmp_path / "any.defense")


@pytest.mark.usefixtures("shipped")
def test_by_default_the_shipped_defense_judges() -> None:
    strategy = RobustStrategy(
        fraction_evaluate=0.0, rule_parameters={"max_false_alarms": 0.05, "on_majority": "keep"}
    )
    result = strategy.start(FakeGrid(group(7)), arrays_of(first_model()), num_rounds=1)
    record = strategy.last_record
    assert record is not None
    shipped = adaptive.universal()
    assert record.defense == f"universal {shipped.about.version} ({shipped.digest})"
    likely = [one.probability for one in record.clients]
    assert all(0 <= (each or 0.0) <= 1 for each in likely)
    metrics = result.train_metrics_clientapp[1]
    assert metrics["fedimmune-expected-attackers"] == pytest.approx(sum(p or 0.0 for p in likely))
    assert metrics["fedimmune-largest-probability"] == max(p or 0.0 for p in likely)


def test_an_anchor_is_used_if_there_is_one(universal: Path) -> None:
    def anchor(model: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: torch.ones_like(tensor) for name, tensor in model.items()}

    given: dict[str, Any] = {"rule": "adaptive", "defense": universal, "anchor": anchor}
    assert robust(**given).rule.needs == {"anchor"}
    assert not robust(**given, rule_parameters={"anchor": False}).rule.needs
    assert not robust(rule="adaptive", defense=universal).rule.needs
    wanted = {"rule": "adaptive", "defense": universal, "rule_parameters": {"anchor": True}}
    with pytest.raises(ParameterError, match="anchor_for"):
        robust(**wanted)


def test_a_skipped_round_keeps_the_model_and_accuses_nobody_for_good(universal: Path) -> None:
    told: dict[int, list[Any]] = {}

    def listening(node: int, client: Client) -> Client:
        def answer(message: Message) -> list[Message]:
            told.setdefault(node, []).append(verdict_of(message))
            return list(client(message))

        return answer

    rule = dictated(universal, [-4.0] * 5 + [4.0] * 2)
    strategy = robust(rule=rule, exclude=(1, 5))
    grid = FakeGrid({node: listening(node, client) for node, client in group(7).items()})
    start = arrays_of(first_model())
    result = strategy.start(grid, start, num_rounds=2)
    assert is_same(result.arrays, start)
    assert result.train_metrics_clientapp[1]["fedimmune-skipped"] == 1
    assert result.train_metrics_clientapp[1]["fedimmune-suspected"] == 5
    assert result.train_metrics_clientapp[1]["fedimmune-unused"] == 2
    record = strategy.last_record
    assert record is not None
    assert "5 of 7 clients would be suspected" in (record.error or "")
    assert sorted(told) == [*NODES], "nobody was left out of the second round"
    for node in NODES:
        assert "the round was skipped" in str(told[node][1])
        assert told[node][1]["probability"] is not None


# -------------------------------------------------------------------- exclusion


def test_exclusion_counts_and_forgives() -> None:
    out = Exclusion(2, 3)
    out.note(1, ["a", "b"])
    out.note(2, ["a"])
    assert out.left_out(3) == {"a"}
    assert out.left_out(5) == {"a"}
    assert out.left_out(6) == frozenset()
    out.note(4, ["b"])  # its first was in round 1, which is not among the last three
    assert out.left_out(5) == {"a"}
    out.note(6, ["a"])  # tried again: a clean slate
    assert out.left_out(7) == frozenset()


@pytest.mark.parametrize("wrong", [(0, 3), (4, 3), (1, 0), (1.5, 3)])
def test_exclusion_refuses_nonsense(wrong: tuple[int, int]) -> None:
    with pytest.raises(ParameterError):
        robust(exclude=wrong)


class Accuses(WeightRule):
    """Suspects client 106, always."""

    name, summary, paper = "accuses", "for tests", "none"

    def weigh(self, updates: Updates) -> ClientWeights:
        trusted = torch.tensor([client != 106 for client in updates.checked().clients]).double()
        return ClientWeights(trusted / trusted.sum())


def test_who_is_suspected_often_is_not_asked_for_a_while() -> None:
    grid = FakeGrid(group(7))
    strategy = robust(rule=Accuses(), exclude=(2, 3))
    strategy.start(grid, arrays_of(first_model()), num_rounds=7)
    asked: dict[int, list[int]] = {}
    for message in grid.sent:
        asked.setdefault(message.metadata.dst_node_id, []).append(int(message.metadata.group_id))
    assert asked[106] == [1, 2, 6, 7]
    assert all(asked[node] == [1, 2, 3, 4, 5, 6, 7] for node in range(100, 106))


def test_exclusion_never_leaves_too_few() -> None:
    strategy = robust(exclude=(1, 5), min_train_nodes=3)
    assert strategy.session.exclusion is not None
    strategy.session.exclusion.note(0, ["100", "101"])
    grid = FakeGrid(group(4))
    messages = strategy.configure_train(1, arrays_of(first_model()), ConfigRecord(), grid)
    asked = {message.metadata.dst_node_id for message in messages}
    assert {102, 103} < asked
    assert len(asked) == 3


# -------------------------------------------------------------------- anchor


class _Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)
        self.norm = nn.BatchNorm1d(2)

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.norm(self.fc(inputs))
        return found


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    random = torch.Generator().manual_seed(5)
    for _ in range(2):
        yield torch.randn(8, 3, generator=random), torch.randint(0, 2, (8,), generator=random)


def test_an_anchor_is_what_training_changes() -> None:
    torch.manual_seed(1)
    model, twin = _Tiny(), _Tiny()
    start = {name: tensor.clone() for name, tensor in twin.state_dict().items()}
    kept = {name: tensor.clone() for name, tensor in start.items()}
    update = anchor_for(model, list(batches()), lr=0.1, momentum=0.9, epochs=2)(dict(start))
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        for inputs, labels in batches():
            optimizer.zero_grad()
            nn.functional.cross_entropy(twin(inputs), labels).backward()
            optimizer.step()
    for name, tensor in twin.state_dict().items():
        assert torch.equal(update[name], tensor - start[name])
    assert int(update["norm.num_batches_tracked"]) == 4
    assert all(torch.equal(start[name], kept[name]) for name in kept)  # training writes elsewhere


# -------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    "wrong",
    [
        {"rule": "no such rule"},
        {"rule": "median", "rule_parameters": {"attackers": 3}},
        {"rule": "adaptive", "defense": "nowhere"},
        {"rule": "adaptive", "rule_parameters": {"max_false_alarms": 0.7}},
        {"timeout": 0},
        {"tell_clients": 1},
        {"most_samples": 0},
        {"min_replies": -1},
        {"rule": rules.get("median"), "rule_parameters": {"a": 1}},
        {"runs": "runs", "name": "../elsewhere"},
        {"runs": "runs", "name": ""},
    ],
)
def test_wrong_parameters_are_refused_at_once(wrong: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        robust(**wrong)


def test_a_model_that_cannot_be_trained_ends_the_run_before_anybody_is_asked() -> None:
    grid = FakeGrid(group(3))
    broken = arrays_of({"w": torch.tensor([float("nan")])})
    with pytest.raises(InputError, match="'w'"):
        robust().start(grid, broken, num_rounds=1)
    assert not grid.sent


def test_aggregating_comes_after_asking() -> None:
    with pytest.raises(InputError, match="configure_train"):
        robust().aggregate_train(1, [])


def test_a_metrics_function_that_stumbles_ends_nothing() -> None:
    def stumble(*_: Any) -> MetricRecord:
        raise ZeroDivisionError

    strategy = robust(
        train_metrics_aggr_fn=stumble, evaluate_metrics_aggr_fn=stumble, min_replies=1
    )
    result = strategy.start(FakeGrid(group(3)), arrays_of(first_model()), num_rounds=1)
    assert result.train_metrics_clientapp[1]["fedimmune-trusted"] == 3


def test_clients_test_the_model_and_their_median_counts() -> None:
    def lying(message: Message) -> list[Message]:
        return [reply(message, content_of({}, {"num-examples": 10**9, "accuracy": 1e30}))]

    def measuring(message: Message) -> list[Message]:
        return [reply(message, content_of({}, {"num-examples": 3, "accuracy": 0.5}))]

    strategy = robust(fraction_train=0.0, fraction_evaluate=1.0)
    clients: dict[int, Client] = {1: lying, 2: measuring, 3: measuring, 4: failing()}
    result = strategy.start(FakeGrid(clients), arrays_of(first_model()), num_rounds=1)
    assert dict(result.evaluate_metrics_clientapp[1]) == {"accuracy": 0.5}


def test_without_training_nothing_happens() -> None:
    grid = FakeGrid(group(3))
    strategy = robust(fraction_train=0.0, fraction_evaluate=0.0)
    strategy.start(grid, arrays_of(first_model()), num_rounds=1)
    assert not grid.sent


def test_a_share_of_the_nodes_is_asked() -> None:
    grid = FakeGrid(group(10))
    strategy = robust(fraction_train=0.5, fraction_evaluate=0.0)
    strategy.start(grid, arrays_of(first_model()), num_rounds=1)
    assert len(grid.sent) == 5
    assert state_of(grid.sent[0]).keys() == first_model().keys()
