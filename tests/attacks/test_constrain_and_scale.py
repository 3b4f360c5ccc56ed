"""The loss is the stated sum, with a gradient in both of its terms."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedimmune import attacks
from fedimmune.errors import ParameterError
from tests.attacks.contexts import context
from tests.attacks.training import flat_update, sent_by_attackers


def numbers(model: nn.Module) -> list[float]:
    return [x for p in model.parameters() for x in p.detach().double().flatten().tolist()]


@given(seed=st.integers(0, 99), alpha=st.sampled_from([0.0, 0.3, 0.7, 1.0]))
@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_the_loss_is_the_stated_sum(metric: str, seed: int, alpha: float) -> None:
    torch.manual_seed(seed)
    model, start, before = nn.Linear(3, 2), nn.Linear(3, 2), nn.Linear(3, 2)
    loss = model(torch.ones(1, 3)).square().sum()
    told = context(global_model=start.state_dict(), previous_model=before.state_dict())
    attack = attacks.get("constrain-and-scale", alpha=alpha, metric=metric)
    found = attack.on_loss(loss, model, told)
    value, whole = float(loss.detach()), float(found.detach())
    own = [a - b for a, b in zip(numbers(model), numbers(start), strict=True)]
    last = [a - b for a, b in zip(numbers(start), numbers(before), strict=True)]
    inner = sum(a * b for a, b in zip(own, last, strict=True))
    distance = math.sqrt(sum(a * a for a in own))
    cosine = inner / distance / math.sqrt(sum(b * b for b in last))
    anomaly = distance if metric == "euclidean" else 1 - cosine
    assert whole == pytest.approx(alpha * value + (1 - alpha) * anomaly, rel=1e-4)
    # A step down the anomaly's gradient lowers it.
    if alpha == 0:
        found.backward()
        with torch.no_grad():
            for weight in model.parameters():
                assert weight.grad is not None
                weight.sub_(0.01 * weight.grad)
        assert float(attack.on_loss(loss.detach(), model, told).detach()) < whole


@pytest.mark.parametrize("moved", [False, True])
def test_without_an_update_to_compare_there_is_no_cosine(moved: bool) -> None:
    model = nn.Linear(3, 2)
    start = {name: tensor + moved for name, tensor in model.state_dict().items()}
    before = None if moved else {name: tensor + 1 for name, tensor in start.items()}
    told = context(global_model=start, previous_model=before)
    attack = attacks.get("constrain-and-scale", alpha=0.7, metric="cosine")
    loss = attack.on_loss(torch.tensor(2.0, requires_grad=True), model, told)
    assert float(loss.detach()) == pytest.approx(1.4)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_the_constraint_changes_what_is_sent(metric: str) -> None:
    """With alpha = 1 it is the plain backdoor; a Euclidean constraint makes it shorter."""
    free, bound = (
        sent_by_attackers(
            {"name": "constrain-and-scale", "alpha": alpha, "metric": metric, "scale": 1},
            rounds=2,
            local_epochs=2,
        )
        for alpha in (1.0, 0.2)
    )
    plain = sent_by_attackers({"name": "scaling", "scale": 1}, rounds=2, local_epochs=2)
    for one, other, backdoor in zip(free, bound, plain, strict=True):
        torch.testing.assert_close(flat_update(one), flat_update(backdoor))
        assert not torch.equal(flat_update(other), flat_update(one))
        if metric == "euclidean":
            assert flat_update(other).norm() < flat_update(one).norm()


@pytest.mark.parametrize(
    ("name", "value"), [("alpha", 1.5), ("alpha", None), ("metric", "l1"), ("scale", -1)]
)
def test_bad_parameters_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ParameterError, match=name):
        attacks.get("constrain-and-scale", **{"scale": 1, name: value})
