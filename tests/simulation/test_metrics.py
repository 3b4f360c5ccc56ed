"""Figures against their definitions, computed naively over everything at once."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

from fedimmune import Aggregation, Scenario, Verdict, attacks, rules
from fedimmune.errors import ParameterError
from fedimmune.results import ClientResult
from fedimmune.simulation.client import PIECE, Counts
from fedimmune.simulation.client import test_piece as count_piece
from fedimmune.simulation.federation import Federation
from fedimmune.simulation.metrics import auroc, detections, distances
from fedimmune.tasks import Data, Samples, data_folder
from tests.attacks.contexts import context
from tests.simulation.own_task import Blobs
from tests.simulation.test_client import BLOBS, WOBBLY, nobody, sent, set_up

# -------------------------------------------------------------------- who was found

few_weights = st.sampled_from([0.0, 0.1, 0.1 + 1e-12, 0.5])  # so that there are ties


@example(weights=[0.5, 0.5, 0.1], attackers={0})
@given(
    weights=st.lists(few_weights, min_size=1, max_size=12),
    attackers=st.sets(st.integers(0, 8), max_size=6),
)
def test_auroc_is_the_area_under_the_curve(weights: list[float], attackers: set[int]) -> None:
    honest = [c for c in range(len(weights)) if c not in attackers]
    hostile = [c for c in range(len(weights)) if c in attackers]
    found = auroc(dict(enumerate(weights)), attackers)
    if not honest or not hostile:
        assert found is None
        return
    # Accuse everybody with at most so much weight, for each threshold; trapezoids between.
    points = [(0.0, 0.0)]
    for threshold in sorted(set(weights)):
        wrong = sum(weights[c] <= threshold for c in honest) / len(honest)
        right = sum(weights[c] <= threshold for c in hostile) / len(hostile)
        points.append((wrong, right))
    area = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(points))
    assert found == pytest.approx(area, abs=1e-12)


def aggregation(verdicts: list[Verdict], weights: list[float] | None) -> Aggregation:
    clients = tuple(
        ClientResult(client, verdict, None if weights is None else weights[client])
        for client, verdict in enumerate(verdicts)
    )
    shares = None
    if weights is not None:
        shares = {
            client: weights[client]
            for client, verdict in enumerate(verdicts)
            if verdict is not Verdict.REJECTED
        }
    return Aggregation("rule", {}, shares, None, {}, clients)


@given(
    verdicts=st.lists(st.sampled_from(list(Verdict)), min_size=1, max_size=10),
    attackers=st.sets(st.integers(0, 12)),
    weighted=st.booleans(),
)
def test_precision_recall_and_the_attackers_share(
    verdicts: list[Verdict], attackers: set[int], weighted: bool
) -> None:
    weights = [0.1 + 0.01 * client for client in range(len(verdicts))] if weighted else None
    found = detections(attackers, aggregation(verdicts, weights))
    right = wrong = missed = 0
    for client, verdict in enumerate(verdicts):
        accused = verdict in {Verdict.SUSPECTED, Verdict.REJECTED}
        right += accused and client in attackers
        wrong += accused and client not in attackers
        missed += not accused and client in attackers
    if not weighted and right + wrong == 0:
        assert found == {}  # who judges nobody has not failed to find anybody
        return
    assert found["precision"] == (right / (right + wrong) if right + wrong else None)
    assert found["recall"] == (right / (right + missed) if right + missed else None)
    if weights is None:
        assert found.get("auroc") is None
    elif right + missed:
        present = [c for c, v in enumerate(verdicts) if c in attackers and v != Verdict.REJECTED]
        assert found["attacker_weight"] == pytest.approx(sum(weights[c] for c in present))


def test_nothing_is_detected_where_nothing_was_aggregated() -> None:
    assert detections({1}, None) == {}


# -------------------------------------------------------------------- how far from the truth


@pytest.mark.parametrize("task", [BLOBS, WOBBLY])
@pytest.mark.parametrize("rule", ["mean", "median", "krum"])
def test_distance_to_the_mean_of_the_honest(task: str, rule: str) -> None:
    scenario = Scenario(task=task, clients=6, attack="omniscient", attackers=2)
    built, data, federation = set_up(scenario)
    answer = federation.train(1, nobody)
    trained = [name for name, _ in built.model(data).named_parameters()]
    rows = {
        client: torch.cat([sent(answer, client)[name].double().flatten() for name in trained])
        for client in range(6)
    }
    honest = [rows[client] for client in rows if client not in federation.attackers]
    robust = torch.stack(honest).mean(0)
    made = rules.get(rule).aggregate(answer.updates)
    result = torch.cat([made.update[name].double().flatten() for name in trained])
    found = distances(answer.updates, federation.attackers, made)
    assert found["distance"] == pytest.approx(float((result - robust).norm()), rel=1e-5)
    assert found["robust_mean_norm"] == pytest.approx(float(robust.norm()), rel=1e-5)
    alone = distances(answer.updates, federation.attackers, None)
    assert alone.get("distance") is None
    assert alone["robust_mean_norm"] == pytest.approx(found["robust_mean_norm"], rel=1e-6)


@pytest.mark.parametrize(
    ("rule", "reads"), [("krum", False), ("multi-krum", False), ("geometric-median", False),
                        ("mean", True), ("median", True)],
)  # fmt: skip
def test_where_inner_products_tell_nothing_is_read(rule: str, reads: bool) -> None:
    federation = set_up(Scenario(task=BLOBS, clients=7, attack="omniscient", attackers=2))[2]
    updates = federation.train(1, nobody).updates
    made, seen = rules.get(rule).aggregate(updates), list[int]()
    found = distances(replace(updates, on_read=seen.append), federation.attackers, made)
    assert bool(seen) == reads
    by_reading = distances(updates, federation.attackers, replace(made, makeup=None))
    assert found == pytest.approx(by_reading, rel=1e-5)


def test_the_oracle_is_at_no_distance() -> None:
    scenario = Scenario(task=BLOBS, clients=6, attack="omniscient", attackers=2)
    federation = set_up(scenario)[2]
    answer = federation.train(1, nobody)
    made = scenario.model_copy(update={"rule": Scenario(rule="oracle").rule})
    told = made.make_rule(federation.attackers).aggregate(answer.updates)
    found = distances(answer.updates, federation.attackers, told)
    assert found["distance"] == pytest.approx(0, abs=1e-6)
    assert found["robust_mean_norm"] is not None
    assert found["robust_mean_norm"] > 0


def test_no_distance_where_all_attack() -> None:
    federation = set_up(Scenario(task=BLOBS, clients=3, attack="omniscient", attackers=3))[2]
    answer = federation.train(1, nobody)
    assert distances(answer.updates, federation.attackers, None) == {}


# -------------------------------------------------------------------- how good the model is


class Large(Blobs):
    """More test samples than fit one piece, and no whole number of pieces."""

    def load(self, place: Any) -> Data:
        data = super().load(place)
        count = 2 * PIECE + 123
        random = torch.Generator().manual_seed(3)
        images = torch.randn(count, 1, 8, 8, generator=random)
        labels = torch.randint(4, (count,), generator=random)
        return Data(data.clients, Samples(images, labels), classes=4, highest=(1.0,))


@pytest.mark.parametrize(
    "attack",
    [
        "none",
        "omniscient",
        {"name": "backdoor", "target": 3, "gap": 1},
        {"name": "label-flip", "target": 3},
        {"name": "label-flip", "kind": "reverse", "source": 0},
    ],
)
def test_accuracy_and_success_are_counted_over_the_whole_test_set(attack: Any) -> None:
    scenario = Scenario(task=BLOBS, clients=3, attack=attack)
    task = Large()
    data = task.load(data_folder())
    federation = Federation(scenario, task, data, workers=1)
    tested = Samples(data.server.inputs[federation.tested], data.server.labels[federation.tested])
    assert len(tested) == 2 * PIECE + 123 - federation.scenario.anchor
    seen: list[tuple[int, int]] = []
    counts = federation.test(lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]
    model = task.model(data)
    model.load_state_dict(federation.global_model)
    model.eval()
    with torch.no_grad():
        logits = model(tested.inputs)
    labels = tested.labels.tolist()
    right = sum(int(row.argmax()) == label for row, label in zip(logits, labels, strict=True))
    losses = [-float(row.log_softmax(0)[y]) for row, y in zip(logits, labels, strict=True)]
    assert (counts.samples, counts.correct) == (len(labels), right)
    assert counts.accuracy == right / len(labels)
    assert counts.mean_loss == pytest.approx(sum(losses) / len(labels), rel=1e-4)
    name = scenario.attack.name
    if name in {"none", "omniscient"}:
        assert counts.asr is counts.asr_others is counts.accuracy_without_success is None
        return
    source = scenario.attack.parameters.get("source", 1)
    hits = tried = hits_others = tried_others = 0
    for image, label in zip(tested.inputs, labels, strict=True):
        shown = image[None].clone()
        if name == "backdoor":
            shown, _ = attacks.get("backdoor", target=3, gap=1, fraction=1.0).on_batch(
                shown, torch.tensor([label]), context(data.spec)
            )
        elif label != source:
            continue
        with torch.no_grad():
            said = int(model(shown).argmax())
        tried, hits = tried + 1, hits + (said == 3)
        if label != 3:
            tried_others, hits_others = tried_others + 1, hits_others + (said == 3)
    assert (counts.tried, counts.hits) == (tried, hits)
    assert (counts.tried_others, counts.hits_others) == (tried_others, hits_others)
    assert counts.asr == hits / tried
    assert counts.asr_others == hits_others / tried_others
    assert counts.accuracy_without_success == pytest.approx(counts.accuracy * (1 - hits / tried))
    assert tried == (len(labels) if name == "backdoor" else labels.count(source))


@given(anchor=st.integers(0, 99), seed=st.integers(0, 99))
def test_the_anchors_samples_are_never_tested_on(anchor: int, seed: int) -> None:
    fields: dict[str, Any] = {"task": BLOBS, "clients": 2, "anchor": anchor}
    federation = set_up(Scenario(**fields))[2]
    aside, tested = federation.anchor.tolist(), federation.tested.tolist()
    assert len(aside) == anchor
    assert sorted(aside + tested) == list(range(100))
    other = set_up(Scenario(**fields, seed=seed, rule="median", attack="omniscient"))[2]
    assert other.tested.tolist() == tested  # all are measured alike
    assert other.test(nobody).samples == 100 - anchor


@pytest.mark.parametrize("anchor", [100, 101, 10**9])
def test_something_must_be_left_to_test_on(anchor: int) -> None:
    with pytest.raises(ParameterError, match="anchor"):
        set_up(Scenario(task=BLOBS, anchor=anchor))


class Perfect(nn.Module):
    """Says what the last pixel tells, whatever else is in the image."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        labels = (images[:, 0, 7, 7] * 10).round().long()
        return nn.functional.one_hot(labels, 4).float()


def test_a_perfect_model_has_the_targets_own_share() -> None:
    task = Blobs()
    data = task.load(data_folder())
    cpu = torch.device("cpu")
    attack, whole = attacks.get("backdoor"), torch.arange(len(data.server))
    counts = count_piece(Perfect(), task, data.server, whole, attack, data.spec, cpu)
    assert counts.accuracy == 1
    assert counts.asr == 0.25
    assert counts.asr_others == 0
    assert counts.accuracy_without_success == 0.75


def test_testing_switches_dropout_off_and_changes_no_statistics() -> None:
    federation = set_up(Scenario(task=WOBBLY, clients=3))[2]
    before = {name: tensor.clone() for name, tensor in federation.global_model.items()}
    federation.train(1, nobody)  # leaves a model behind that is not the global one
    first, second = federation.test(nobody), federation.test(nobody)
    assert first == second
    assert all(torch.equal(federation.global_model[name], before[name]) for name in before)


count_fields = st.integers(0, 50)


@given(parts=st.lists(st.tuples(*[count_fields] * 7), max_size=5))
def test_counts_add_up(parts: list[tuple[int, ...]]) -> None:
    whole = sum((Counts(*part) for part in parts), Counts())
    totals = [sum(column) for column in zip(*parts, strict=True)] or [0] * 7
    assert whole == Counts(*totals)
    if whole.samples:
        assert whole.accuracy == totals[1] / totals[0]
        assert whole.mean_loss == totals[2] / totals[0]
    assert whole.asr == (totals[4] / totals[3] if totals[3] else None)
    assert whole.asr_others == (totals[6] / totals[5] if totals[5] else None)


def test_a_loss_that_is_no_number_is_none() -> None:
    assert Counts(samples=1, loss=float("nan")).mean_loss is None
    assert (Counts(samples=1, loss=float("inf")) + Counts(samples=1, loss=1.0)).mean_loss is None
