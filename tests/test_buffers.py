"""What is not trained: settled by all valid clients, judged, and never part of a measurement."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedimmune import Updates, rules
from fedimmune.errors import ParameterError
from fedimmune.results import Verdict
from tests.rounds import rule_for, with_needs

State = dict[str, Tensor]

TRAINED = ("0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias")


def model(seed: int) -> State:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, 2))
    net(torch.randn(8, 1, 6, 6))
    return {name: tensor.clone() for name, tensor in net.state_dict().items()}


def round_of(n: int) -> tuple[list[State], State]:
    return [model(seed) for seed in range(1, n + 1)], model(0)


@pytest.mark.parametrize("name", rules.available())
def test_integers_stay_integers_and_are_never_measured(name: str) -> None:
    models, base = round_of(7)
    rule = rule_for(name, range(7), layers=TRAINED)
    quiet = rule.aggregate(Updates.from_models(models, base))
    for client, count in enumerate([2**63 - 1, 5, 7, 9, -(2**63), 8, 6]):
        models[client]["1.num_batches_tracked"] = torch.tensor(count)
    answer = rule.aggregate(Updates.from_models(models, base))
    assert answer.weights == quiet.weights
    moved = answer.apply(base)
    assert moved["1.num_batches_tracked"].dtype == torch.int64
    for key in set(base) - {"1.num_batches_tracked"}:
        assert torch.equal(answer.update[key], quiet.update[key])


def test_a_counter_takes_the_lower_median_of_those_that_count() -> None:
    models, base = round_of(6)
    base["1.num_batches_tracked"] = torch.tensor(100)
    for client, count in enumerate([103, 101, 2**63 - 1, 102, 7, 9]):
        models[client]["1.num_batches_tracked"] = torch.tensor(count)
    everyone = rules.get("median").aggregate(Updates.from_models(models, base))
    assert int(everyone.apply(base)["1.num_batches_tracked"]) == 101
    few = rules.get("oracle", benign=[0, 1, 3, 2]).aggregate(Updates.from_models(models, base))
    assert int(few.apply(base)["1.num_batches_tracked"]) == 102
    assert int(few.update["1.num_batches_tracked"]) == 2


def test_the_largest_difference_does_not_wrap_around() -> None:
    base = {"w": torch.zeros(2), "steps": torch.tensor(-5)}
    states = [{"w": torch.ones(2), "steps": torch.tensor(c)} for c in (2**63 - 1, 2**63 - 1, 3)]
    answer = rules.get("mean").aggregate(Updates.from_models(states, base))
    assert int(answer.apply(base)["steps"]) == 2**63 - 1


def test_booleans_and_small_integers() -> None:
    def state(w: float, mask: list[bool], byte: int) -> State:
        small = torch.tensor(byte).byte()
        return {"w": torch.full((2,), w), "mask": torch.tensor(mask), "byte": small}

    base = state(0.0, [True, False], 250)
    states = [state(1.0, [False, i < 2], byte) for i, byte in enumerate((3, 251, 4))]
    moved = rules.get("mean").aggregate(Updates.from_models(states, base)).apply(base)
    assert moved["mask"].tolist() == [False, True]
    assert moved["mask"].dtype == torch.bool
    assert int(moved["byte"]) == 4
    assert moved["byte"].dtype == torch.uint8


@pytest.mark.parametrize("name", ["krum", "geometric-median", "foolsgold", "multi-krum", "mean"])
def test_float_buffers_go_with_the_weights_where_wanted(name: str) -> None:
    models, base = round_of(7)
    rule = rules.get(name) if name == "mean" else rules.get(name, buffers="weights")
    answer = rule.aggregate(Updates.from_models(models, base))
    assert answer.weights is not None
    for key in ("1.running_mean", "1.running_var"):
        expected = sum(w * (models[c][key] - base[key]) for c, w in answer.weights.items())
        torch.testing.assert_close(answer.update[key], expected)


@pytest.mark.parametrize("name", sorted(set(rules.available()) - {"mean", "oracle"}))
def test_a_float_buffer_is_the_median_of_all_valid_clients(name: str) -> None:
    for n in (6, 7):
        models, base = round_of(n)
        rule = rule_for(name, range(n), layers=TRAINED)
        moved = rule.aggregate(Updates.from_models(models, base)).apply(base)
        for key in ("1.running_mean", "1.running_var"):
            expected = torch.stack([state[key] for state in models]).quantile(0.5, dim=0)
            torch.testing.assert_close(moved[key], expected)


@pytest.mark.parametrize("name", sorted(set(rules.available()) - {"mean", "oracle"}))
@pytest.mark.parametrize("buffers", ["median", "weights"])
def test_who_writes_anything_into_buffers_is_set_aside(name: str, buffers: str) -> None:
    models, base = round_of(8)
    models[2]["1.running_mean"] += 1e6
    models[5]["1.running_var"] *= 1e5
    rule = rule_for(name, range(8), layers=TRAINED, buffers=buffers)
    given = Updates.from_models(models, base)
    states = [given.state(client) for client in given.clients]
    answer = rule.aggregate(with_needs(given, rule.needs, states))
    assert not answer.rejected
    suspects = {j.client: j for j in answer.clients if "buffer" in j.reason}
    assert set(suspects) == {2, 5}
    for suspect in suspects.values():
        assert suspect.verdict is Verdict.SUSPECTED
        assert suspect.weight == (None if answer.weights is None else 0)
    assert "'1.running_mean' is far from" in suspects[2].reason
    assert answer.weights is None or set(answer.weights) == set(range(8))
    honest = {c: models[c] for c in range(8) if c not in suspects}
    rest = with_needs(Updates.from_models(honest, base), rule.needs, states)
    expected = rule.aggregate(rest).update
    for key in TRAINED:
        assert torch.equal(answer.update[key], expected[key])
    moved = answer.apply(base)
    for key in ("1.running_mean", "1.running_var"):
        low = torch.stack([state[key] for state in honest.values()]).amin(0)
        high = torch.stack([state[key] for state in honest.values()]).amax(0)
        assert bool(((low <= moved[key] + 1e-6) & (moved[key] <= high + 1e-6)).all())


def test_a_buffer_that_all_agree_on_may_differ_by_rounding() -> None:
    models, base = round_of(5)
    for state in models:
        state["1.running_mean"] = base["1.running_mean"].clone()
        state["1.running_var"] = base["1.running_var"].clone()
    models[1]["1.running_mean"] *= 1 + 1e-6
    answer = rules.get("krum").aggregate(Updates.from_models(models, base))
    assert all(j.verdict is not Verdict.SUSPECTED for j in answer.clients)
    models[1]["1.running_mean"] += 5
    accused = rules.get("krum").aggregate(Updates.from_models(models, base)).clients[-1]
    assert (accused.client, accused.verdict) == (1, Verdict.SUSPECTED)
    assert accused.reason.endswith("who agree")


def test_nobody_can_have_a_round_skipped_by_odd_buffers() -> None:
    models, base = round_of(7)
    models[2]["1.running_mean"] += 1e6
    rule = rules.get("krum", attackers=2)
    assert rule.clients_needed == 7
    answer = rule.aggregate(Updates.from_models(models, base))
    accused = {j.client: j for j in answer.clients if j.verdict is Verdict.SUSPECTED}
    assert set(accused) == {2}
    assert "buffer" in accused[2].reason
    assert len(answer.clients) == 7
    assert answer.apply(base)["1.running_mean"].abs().max() < 10


def test_two_clients_cannot_say_who_of_them_is_odd() -> None:
    models, base = round_of(2)
    models[0]["1.running_mean"] += 1e6
    answer = rules.get("median").aggregate(Updates.from_models(models, base))
    assert set(answer.verdicts.values()) == {Verdict.TRUSTED}


def test_buffers_are_the_median_or_the_weights() -> None:
    with pytest.raises(ParameterError, match="buffers must be median or weights"):
        rules.get("krum", buffers="largest")
    assert repr(rules.get("krum", buffers="weights")) == "Krum(attackers=None, buffers='weights')"
    assert repr(rules.get("krum")) == "Krum(attackers=None)"
    with pytest.raises(ParameterError, match="mean has no parameter 'buffers'"):
        rules.get("mean", buffers="median")


def test_float_buffers_are_no_evidence() -> None:
    models, base = round_of(7)
    before = rules.get("krum").aggregate(Updates.from_models(models, base)).scores
    models[3]["1.running_mean"] += 1
    assert rules.get("krum").aggregate(Updates.from_models(models, base)).scores == before
    custom = Updates.from_models(models, base, buffers=["0.*"])
    assert rules.get("krum").aggregate(custom).scores != before


@pytest.mark.parametrize("name", rules.available())
def test_a_variance_stays_positive(name: str) -> None:
    models, base = round_of(6)
    for state in models:
        state["1.running_var"] = torch.tensor([-5.0, 1.0, -1e-3])
    answer = rule_for(name, range(6), layers=TRAINED).aggregate(Updates.from_models(models, base))
    assert (base["1.running_var"] + answer.update["1.running_var"]).min() >= 0
    moved = answer.apply(base)["1.running_var"]
    assert moved.tolist() == pytest.approx([0, 1, 0], abs=1e-6)
    assert float(moved.min()) > 0


def test_differences_without_a_global_model_are_caught_when_applied() -> None:
    change = {"w": torch.ones(2), "bn.running_var": torch.tensor([-9.0])}
    answer = rules.get("mean").aggregate([change, change, change])
    moved = answer.apply({"w": torch.zeros(2), "bn.running_var": torch.tensor([1.0])})
    assert moved["bn.running_var"].tolist() == pytest.approx([0], abs=1e-30)
    assert float(moved["bn.running_var"]) > 0


@pytest.mark.parametrize("name", rules.available())
def test_nan_in_a_buffer_rejects_too(name: str) -> None:
    models, base = round_of(8)
    rule = rule_for(name, range(8), layers=TRAINED)
    expected = rule.aggregate(Updates.from_models(dict(enumerate(models[1:], 1)), base))
    models[0]["1.running_var"][1] = torch.nan
    answer = rule.aggregate(Updates.from_models(models, base))
    assert dict(answer.rejected) == {0: "layer '1.running_var' holds NaN or infinite values"}
    assert answer.weights == expected.weights
    assert all(torch.equal(answer.update[key], expected.update[key]) for key in base)


def test_channels_last_models_keep_their_memory_format() -> None:
    wide = [{"w": torch.randn(4, 3, 5, 5)} for _ in range(5)]
    last = [{"w": s["w"].to(memory_format=torch.channels_last)} for s in wide]
    mixed = [last[0], wide[1], last[2], wide[3], last[4]]
    for name in ("median", "krum", "residual"):
        expected = rules.get(name).aggregate(wide).update["w"]
        for states in (last, mixed):
            found = rules.get(name).aggregate(states).update["w"]
            torch.testing.assert_close(found, expected)
            assert found.is_contiguous(memory_format=torch.channels_last)
