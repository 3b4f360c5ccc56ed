"""Attacks that need no honest update: free riders, late layers, PoisonedFL, three sign flips."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor, nn

from fedimmune import Scenario, Updates, attacks, simulate
from fedimmune._layers import layers_of
from fedimmune.attacks.poisoned_fl import PoisonedFL
from fedimmune.errors import ParameterError
from tests.attacks.contexts import TRAINED, a_round, context, trained, vector
from tests.simulation.test_client import BLOBS

MODEL = {
    "conv.weight": torch.ones(2, 3),
    "conv.bias": torch.ones(2),
    "norm.weight": torch.ones(2),
    "norm.running_var": torch.ones(2),
    "norm.num_batches_tracked": torch.tensor(5),
    "fc.weight": torch.ones(4, 2),
    "fc.bias": torch.ones(4),
}


def changed(attack: Any, **given: Any) -> dict[str, Tensor]:
    update = {name: tensor.clone() for name, tensor in MODEL.items()}
    attack.on_update(update, context(**given))
    return update


# -------------------------------------------------------------------- late layers


@pytest.mark.parametrize(
    ("layers", "negated"),
    [
        (1, ["fc.weight", "fc.bias"]),
        (2, ["norm.weight", "fc.weight", "fc.bias"]),
        (["fc"], ["fc.weight", "fc.bias"]),
        (["*.bias"], ["conv.bias", "fc.bias"]),
        (["norm", "conv.bias"], ["conv.bias", "norm.weight"]),
    ],
)
def test_only_late_layers_are_negated(layers: Any, negated: list[str]) -> None:
    attack = attacks.get("late-layers", layers=layers, scale=3)
    attack.check_model(layers_of(MODEL))
    found = changed(attack)
    for name, tensor in MODEL.items():
        assert torch.equal(found[name], -3 * tensor if name in negated else tensor)


def test_by_default_the_last_layer_keeps_its_length() -> None:
    assert torch.equal(changed(attacks.get("late-layers"))["fc.bias"], -MODEL["fc.bias"])


@pytest.mark.parametrize("layers", [4, ["head"], ["norm.running_var"]])
def test_layers_that_the_model_has_not_are_refused_before_anything_is_trained(layers: Any) -> None:
    with pytest.raises(ParameterError, match=r"late-layers.*(4|head|running_var)"):
        attacks.get("late-layers", layers=layers).check_model(layers_of(MODEL))
    scenario = Scenario(task=BLOBS, attack={"name": "late-layers", "layers": layers}, rounds=1)
    with pytest.raises(ParameterError, match="late-layers"):
        next(simulate(scenario, workers=1))


@pytest.mark.parametrize("layers", [0, -1, 1.5, True, "fc", [], [1], None])
def test_bad_layers_are_refused(layers: Any) -> None:
    with pytest.raises(ParameterError, match="layers"):
        attacks.get("late-layers", layers=layers)


# -------------------------------------------------------------------- free riders


@pytest.mark.parametrize("kind", ["zero", "repeated", "noisy"])
def test_a_free_rider_sends_nothing_of_its_own(kind: str) -> None:
    attack = attacks.get("free-rider", kind=kind, scale=0.5)
    assert attack.needs_previous_model == (kind != "zero")
    before = {name: 2 * tensor for name, tensor in MODEL.items()}
    now = {name: 5 * tensor for name, tensor in MODEL.items()}
    assert not any(tensor.any() for tensor in changed(attack, global_model=now).values())
    found = changed(attack, global_model=now, previous_model=before)
    assert not found["norm.num_batches_tracked"]
    for name in ("fc.weight", "norm.running_var"):
        apart = found[name] - (0 if kind == "zero" else 3)
        is_noisy = kind == "noisy" and name == "fc.weight"
        assert bool(apart.any()) == is_noisy
    others = changed(attack, seed=1, global_model=now, previous_model=before)
    assert torch.equal(others["fc.weight"], found["fc.weight"]) == (kind != "noisy")


def test_the_noise_is_as_long_as_was_said() -> None:
    attack = attacks.get("free-rider", kind="noisy", scale=0.5)
    now = {"w": torch.full((100, 100), 3.0)}
    update = {"w": torch.zeros(100, 100)}
    attack.on_update(update, context(global_model=now, previous_model={"w": torch.ones(100, 100)}))
    assert float((update["w"] - 2).std()) == pytest.approx(1, rel=0.05)


# -------------------------------------------------------------------- PoisonedFL


def naive_poisoned_fl(models: list[Any], signs: Any, scale: float, period: int) -> list[Any]:
    """What is sent in each round, by the paper's formulas on whole vectors."""
    sent: list[Any] = [None]
    factor, counted, last = scale, models[0], np.zeros_like(models[0])
    for number in range(2, len(models) + 1):
        now = models[number - 1]
        h = now - models[number - 2]
        v = np.abs(h - last * np.linalg.norm(h))  # the last is of length 1
        if not v.any():  # the model stayed
            v = np.abs(last)
        if number % period == 0:
            agree = int((np.sign(now - counted) == signs).sum())
            chance = len(h) / 2 + 2.3263 * np.sqrt(len(h)) / 2
            if v.any() and agree < chance and 0.7 * factor >= 0.5:
                factor *= 0.7
            counted = now
        last = v / (np.linalg.norm(v) or 1) * signs
        sent.append(factor * np.linalg.norm(h) * last)
    return sent


@given(
    seed=st.integers(0, 999),
    drift=st.sampled_from([0.0, 0.3, 3.0]),
    period=st.sampled_from([2, 3, 50]),
    scale=st.sampled_from([0.6, 1.0, 8.0]),
    stays=st.sets(st.integers(1, 7)),
)
@example(seed=0, drift=0.0, period=3, scale=8.0, stays={4})  # it forgot that c had shrunk
@example(seed=0, drift=0.0, period=2, scale=1.0, stays={1})
def test_poisoned_fl_follows_the_papers_formulas_over_rounds(
    seed: int, drift: float, period: int, scale: float, stays: set[int]
) -> None:
    attack = attacks.get("poisoned-fl", scale=scale, period=period, seed=seed)
    assert isinstance(attack, PoisonedFL)
    mine = Updates.from_states(a_round(seed, clients=2))
    like = {name: mine.state(0)[name] for name in TRAINED}
    signs = vector(attack._signs(like))
    assert set(signs.tolist()) == {-1.0, 1.0}
    memory = tuple({n: torch.zeros_like(t) for n, t in mine.state(0).items()} for _ in range(2))
    random = np.random.default_rng(seed)
    models = [random.standard_normal(len(signs))]
    for number in range(1, 8):
        moved = random.standard_normal(len(signs)) + drift * signs
        models.append(models[-1] + (0 if number in stays else 1) * moved)
    expected = naive_poisoned_fl(models, signs, scale, period)
    states = [as_state(model, mine.state(0)) for model in models]
    for number, state in enumerate(states, 1):
        told = context(
            round=number,
            global_model=state,
            previous_model=states[number - 2] if number > 1 else None,
            memory=memory,
        )
        answer = attack.on_round(mine, mine, told)
        if number == 1:
            assert answer is mine
            continue
        for row in trained(answer):
            np.testing.assert_allclose(row, expected[number - 1], rtol=1e-6, atol=1e-9)
            assert (row * signs >= 0).all(), "the same signs in every round"


def as_state(values: Any, like: dict[str, Tensor]) -> dict[str, Tensor]:
    parts = torch.from_numpy(values).split([like[name].numel() for name in TRAINED])
    named = zip(TRAINED, parts, strict=True)
    return like | {name: part.reshape(like[name].shape) for name, part in named}


def test_what_an_attack_remembers_survives_an_interruption(tmp_path: Path) -> None:
    scenario = Scenario(
        task=BLOBS,
        clients=4,
        attackers=1,
        rounds=5,
        attack={"name": "poisoned-fl", "scale": 2, "period": 2},
        optimizer={"momentum": 0.5, "carried": True},
    )
    whole = [*simulate(scenario, workers=1)]
    stopped = simulate(scenario, workers=1, runs=tmp_path)
    next(stopped), next(stopped), next(stopped)
    stopped.close()
    again = [*simulate(scenario, workers=1, runs=tmp_path)]
    assert [(r.loss, r.distance) for r in again] == [(r.loss, r.distance) for r in whole]


# -------------------------------------------------------------------- sign flips


def test_the_honest_mean_is_negated_except_what_is_spared() -> None:
    sent = a_round(2)
    visible = Updates.from_states(sent)
    attack = attacks.get("sign-flip", flip="mean", scale=2, spare=["b"])
    answer = attack.on_round(visible.only([0, 3]), visible, context())
    honest = [sent[client] for client in (1, 2, 4, 5, 6)]
    for client in (0, 3):
        state = answer.state(client)
        for name in ("w", "bn.running_mean"):
            mean = torch.stack([each[name] for each in honest]).mean(0)
            torch.testing.assert_close(state[name], -2 * mean)
        for name in ("b", "bn.num_batches_tracked", "flag"):
            assert torch.equal(state[name], sent[client][name])
    nobody = visible.only([0, 3])
    assert attack.on_round(nobody, nobody, context()) is nobody


@pytest.mark.parametrize("flip", ["own", "mean", "training"])
def test_each_flip_acts_at_its_own_moment_alone(flip: str) -> None:
    attack = attacks.get("sign-flip", flip=flip, scale=2)
    loss = attack.on_loss(torch.tensor(3.0), nn.Linear(1, 1), context())
    assert float(loss) == (-6 if flip == "training" else 3)
    assert torch.equal(changed(attack)["fc.bias"], (-2 if flip == "own" else 1) * MODEL["fc.bias"])
    visible = Updates.from_states(a_round(1))
    mine = visible.only([0])
    assert (attack.on_round(mine, visible, context()) is mine) == (flip != "mean")
    assert attack.acts_on() == {"own": "update", "mean": "round", "training": "loss"}[flip]


def test_older_runs_of_the_sign_flip_keep_their_digest() -> None:
    plain = Scenario(attack="sign-flip").resolve()
    assert "flip" not in plain.attack.parameters
    assert Scenario(attack={"name": "sign-flip", "flip": "own"}).digest == plain.digest
    assert Scenario(attack={"name": "sign-flip", "flip": "mean"}).digest != plain.digest
