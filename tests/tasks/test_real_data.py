"""The real data sets, where they are: whole or a subset. ``FEDIMMUNE_DATA`` says where.

Run with ``make test-data``.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
import torch

from fedimmune import Scenario, simulate, tasks
from fedimmune.tasks import Data
from tests.tasks.training import learns

pytestmark = [
    pytest.mark.data,
    pytest.mark.skipif(
        "FEDIMMUNE_DATA" not in os.environ, reason="FEDIMMUNE_DATA does not say where data is"
    ),
]

SHAPES = {
    "mnist": (1, 32, 32),
    "fashion-mnist": (1, 32, 32),
    "cifar10": (3, 32, 32),
    "cifar100": (3, 32, 32),
    "tiny-imagenet": (3, 64, 64),
    "imdb": (200,),
}
CLASSES = {
    "mnist": 10,
    "fashion-mnist": 10,
    "cifar10": 10,
    "cifar100": 100,
    "tiny-imagenet": 200,
    "imdb": 2,
}
WHOLE = {
    "mnist": (60_000, 10_000),
    "fashion-mnist": (60_000, 10_000),
    "cifar10": (50_000, 10_000),
    "cifar100": (50_000, 10_000),
    "tiny-imagenet": (100_000, 10_000),
    "imdb": (25_000, 25_000),
}
FAST = {name: {"width": 8} for name in ("cifar10", "cifar100", "tiny-imagenet")}

STEPS = {"mnist": (100, 0.05), "fashion-mnist": (100, 0.05), "imdb": (40, 0.3)}
"""How many steps of training at which rate, where others than most need."""


def place_of(name: str) -> Path:
    place = Path(os.environ["FEDIMMUNE_DATA"])
    if all(each.verdict == "missing" for each in tasks.get(name).check(place)):
        pytest.skip(f"no {name} in FEDIMMUNE_DATA")
    return place


@pytest.mark.parametrize("name", SHAPES)
def test_it_loads(name: str, caplog: pytest.LogCaptureFixture) -> None:
    place, task = place_of(name), tasks.get(name)
    with caplog.at_level(logging.WARNING, "fedimmune"):
        data = task.load(place)
    counts = (len(data.clients), len(data.server))
    verdicts = {each.verdict for each in task.check(place)}
    if counts == WHOLE[name]:
        assert not caplog.records
        assert verdicts <= {"whole", "unknown"}
    else:
        assert f"{name}: {counts[0]:,} of {WHOLE[name][0]:,} training" in caplog.text
        assert "differs" in verdicts
    assert data.spec.shape == SHAPES[name]
    assert data.classes == CLASSES[name]
    check_samples(name, data)
    again = task.load(place)
    assert torch.equal(again.server.inputs, data.server.inputs)


def check_samples(name: str, data: Data) -> None:
    for samples in (data.clients, data.server):
        shares = torch.bincount(samples.labels, minlength=data.classes) / len(samples)
        assert shares.min() > 0.8 / data.classes
        assert shares.max() < 1.2 / data.classes
    if name == "imdb":
        words, size = data.extras["vectors"].shape
        assert words == 25_002
        assert size >= 50
        assert data.clients.inputs.dtype == torch.int32
        assert int(data.clients.inputs.max()) < words
        # Most words have vectors.
        known = data.extras["vectors"].any(1)[data.server.inputs[:1000].long()]
        assert known.float().mean() > 0.6
        return
    assert data.highest is not None
    inputs = data.clients.inputs[:: max(1, len(data.clients) // 5000)]
    assert inputs.dtype == torch.float32
    # Normalized by the set's own means and deviations; resizing takes some of the latter.
    assert inputs.mean((0, 2, 3)).abs().max() < 0.05
    assert (inputs.std((0, 2, 3)) - 1).abs().max() < 0.1
    for channel, highest in enumerate(data.highest):
        assert float(inputs[:, channel].max()) == pytest.approx(highest, abs=0.01)


@pytest.mark.parametrize("name", SHAPES)
def test_it_trains(name: str) -> None:
    task = tasks.get(name, **FAST.get(name, {}))
    data = task.load(place_of(name))
    # Some of each class, as the files have them in order.
    order = torch.randperm(len(data.clients), generator=torch.Generator().manual_seed(0))[:64]
    some = tasks.Samples(data.clients.inputs[order], data.clients.labels[order])
    few = Data(some, data.server, data.classes, data.highest, data.extras)
    steps, lr = STEPS.get(name, (20, 0.1))
    assert learns(task, few, steps, lr, batch=64)


@pytest.mark.parametrize("name", SHAPES)
def test_a_round_is_played(name: str) -> None:
    place = place_of(name)
    # One client of twenty keeps it short; ResNets are narrow.
    scenario = Scenario(
        task={"name": name, **FAST.get(name, {})},
        attack="label-flip",
        clients=20,
        participation=0.05,
        rounds=1,
    )
    (record,) = simulate(scenario, data=place, workers=1)
    assert record.error is None
    assert len(record.clients) == 1
    assert record.clients[0].verdict == "trusted"
    assert record.robust_mean_norm != 0
    assert record.accuracy is not None
    assert 0 < record.accuracy < 1
