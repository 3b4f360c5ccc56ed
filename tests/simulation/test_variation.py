"""Clients who differ in what they do: how much they train, and with which data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedimmune import Scenario, simulate
from fedimmune.errors import ParameterError
from fedimmune.simulation.client import odd_inputs
from fedimmune.simulation.components import Variation, Work
from fedimmune.simulation.federation import Federation
from fedimmune.tasks import DataSpec, load_data
from fedimmune.tasks.digits import Digits

IMAGES = DataSpec(10, (1, 16, 16), (1.0,))
TEXTS = DataSpec(2, (9,), words=50)
factors = st.floats(1, 50)


@given(
    share=st.floats(0, 1, exclude_min=True),
    epochs=factors,
    lr=factors,
    samples=factors,
    seed=st.integers(0, 2**62),
    clients=st.integers(1, 40),
)
def test_factors_are_within_their_ranges_and_some_clients_have_none(
    share: float, epochs: float, lr: float, samples: float, seed: int, clients: int
) -> None:
    variation = Variation(share=share, epochs=epochs, lr=lr, samples=samples)
    works = variation.draw(seed, clients, ())
    assert works == variation.draw(seed, clients, ())
    slack = 1 + 1e-9
    for work in works:
        assert 1 <= work.epochs <= epochs * slack
        assert 1 / (lr * slack) <= work.lr <= lr * slack
        assert 1 / (samples * slack) <= work.samples <= 1
    assert sum(work == Work() for work in works) >= clients - round(share * clients)


def lengths(**variation: Any) -> list[float]:
    """How long each client's update is after a round, without momentum."""
    scenario = Scenario(
        task="digits",
        partition="iid",
        clients=6,
        variation=variation or None,
        optimizer={"lr": 0.001, "momentum": 0.0},
    )
    task = Digits()
    with Federation(scenario, task, load_data(task, Path()), workers=1) as made:
        updates = made.train(1, lambda *_: None).updates
        states = (updates.state(client) for client in updates.clients)
        return [sum(float(t.square().sum()) for t in each.values()) ** 0.5 for each in states]


def test_who_trains_longer_or_with_larger_steps_sends_more() -> None:
    plain = lengths()
    works = Variation(epochs=9).draw(1, 6, ())
    longer = lengths(epochs=9)
    order = sorted(range(6), key=lambda client: works[client].epochs)
    grown = [after / before for after, before in zip(longer, plain, strict=True)]
    assert sorted(grown) == pytest.approx([grown[client] for client in order], rel=0.05)
    assert grown[order[-1]] > 2 * grown[order[0]]
    works = Variation(lr=5).draw(1, 6, ())
    for before, after, work in zip(plain, lengths(lr=5), works, strict=True):
        assert after == pytest.approx(before * work.lr, rel=0.1), "small steps add up"
    half = lengths(epochs=9, share=0.5)
    assert sum(a == b for a, b in zip(half, plain, strict=True)) >= 3


def test_some_have_few_samples_or_one_class_and_nobody_else_changes() -> None:
    task = Digits()
    data = load_data(task, Path())

    def parts(attackers: int = 2, **variation: Any) -> tuple[list[torch.Tensor], frozenset[int]]:
        scenario = Scenario(
            task="digits", attack="sign-flip", attackers=attackers, variation=variation or None
        )
        with Federation(scenario, task, data, workers=1) as made:
            return made.parts, made.attackers

    plain, attackers = parts()
    few, _ = parts(samples=10)
    for before, after in zip(plain, few, strict=True):
        assert set(after.tolist()) <= set(before.tolist())
        assert len(before) // 11 <= len(after)
    odd, _ = parts(odd="one-class", odd_clients=3)
    differing = [n for n in range(10) if not torch.equal(odd[n], plain[n])]
    assert len(differing) == 3
    assert not attackers & set(differing), "odd clients are honest"
    for client in differing:
        assert len(data.clients.labels[odd[client]].unique()) == 1
    with pytest.raises(ParameterError, match="only 2 of 10 are honest"):
        parts(attackers=8, odd="inverted", odd_clients=3)


def test_odd_inputs_are_other_inputs_of_the_same_kind() -> None:
    images = torch.randn(5, 1, 16, 16)
    assert torch.equal(odd_inputs(images, "inverted", IMAGES), -images)
    assert torch.equal(odd_inputs(images, "brighter", IMAGES), images + 1)
    assert odd_inputs(images, "one-class", IMAGES) is images
    noise = odd_inputs(images, "noisy", IMAGES) - images
    assert 0.5 < float(noise.std()) < 1.5
    texts = torch.randint(1, 50, (200, 9), dtype=torch.int32)
    texts[:, :3] = 0
    assert torch.equal(odd_inputs(texts, "inverted", TEXTS).flip(1), texts)
    noisy = odd_inputs(texts, "noisy", TEXTS)
    assert noisy.dtype == texts.dtype
    assert not noisy[:, :3].any(), "padding stays"
    assert 0.2 < float((noisy != texts)[:, 3:].float().mean()) < 0.4
    assert 1 <= int(noisy[:, 3:].min()) <= int(noisy.max()) < 50


def test_an_odd_client_trains_on_odd_data_and_stays_in_the_round() -> None:
    fields: dict[str, Any] = {"task": "digits", "rounds": 1, "seed": 3}
    (plain,) = simulate(Scenario(**fields), workers=1)
    (odd,) = simulate(Scenario(**fields, variation={"odd": "inverted"}), workers=1)
    assert plain.loss != odd.loss
    assert [one.client for one in plain.clients] == [one.client for one in odd.clients]
    assert not any(one.is_attacker for one in odd.clients)


def test_what_makes_no_sense_is_refused() -> None:
    for wrong in ({"share": 0}, {"epochs": 0.5}, {"odd": "strange"}, {"odd_clients": 0}):
        with pytest.raises(ParameterError, match=f"variation.{next(iter(wrong))}"):
            Scenario(variation=wrong)
    with pytest.raises(ParameterError, match="the variation has no field 'epoch'"):
        Scenario(variation={"epoch": 2})
    text = Scenario(task="tests.simulation.own_task:Blobs", variation={"odd": "noisy"})
    assert text.resolve().variation == Variation(odd="noisy")


def test_digests_of_older_scenarios_stay() -> None:
    plain = Scenario(task="digits").digest
    assert Scenario(task="digits", variation=None).digest == plain
    assert Scenario(task="digits", variation={"epochs": 2}).digest != plain
