"""Projected gradient descent: what is sent lies in the ball, and so does the model on its way."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedimmune import attacks
from fedimmune.attacks import Context
from fedimmune.attacks.pgd import ProjectedGradientDescent
from fedimmune.errors import ParameterError
from tests.attacks.contexts import context
from tests.attacks.training import flat_update, sent_by_attackers


@pytest.mark.parametrize("every", [1, 4, 1000])
@pytest.mark.parametrize("radius", [0.05, 0.2])
def test_it_never_leaves_its_ball(
    radius: float, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: dict[int, list[float]] = {}
    project = ProjectedGradientDescent.on_step

    def watched(self: ProjectedGradientDescent, model: nn.Module, told: Context) -> None:
        project(self, model, told)
        if told.moment == "after":
            away = [(p - told.global_model[n]).flatten() for n, p in model.named_parameters()]
            lengths.setdefault(told.step, []).append(float(torch.cat(away).norm()))

    monkeypatch.setattr(ProjectedGradientDescent, "on_step", watched)
    attack = {"name": "pgd", "radius": radius, "every": every}
    sent = sent_by_attackers(attack, local_epochs=2)
    for update in sent:
        assert float(flat_update(update).norm()) == pytest.approx(radius, rel=1e-4)
    assert max(lengths) >= 10
    for step, found in lengths.items():
        if step % every == 0:
            assert max(found) <= radius * (1 + 1e-4)
    if every > 1:
        assert any(max(found) > radius for found in lengths.values()), "or nothing was tested"


def test_inside_the_ball_it_is_the_backdoor_itself() -> None:
    plain, wide = (sent_by_attackers(a) for a in ("backdoor", {"name": "pgd", "radius": 1e3}))
    for one, other in zip(plain, wide, strict=True):
        assert torch.equal(flat_update(one), flat_update(other))


def test_the_projected_update_is_scaled() -> None:
    sent = sent_by_attackers({"name": "pgd", "radius": 0.1, "scale": 4})
    for update in sent:
        assert float(flat_update(update).norm()) == pytest.approx(0.4, rel=1e-4)


def test_the_projection_is_the_nearest_point_of_the_ball() -> None:
    model = nn.Linear(2, 1, bias=False)
    told = context(global_model={"weight": torch.tensor([[1.0, 1.0]])}, moment="after", step=10)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[4.0, 5.0]]))
        attacks.get("pgd", radius=2.5).on_step(model, told)
    torch.testing.assert_close(model.weight.data, torch.tensor([[2.5, 3.0]]))


@pytest.mark.parametrize(
    ("name", "value"), [("radius", 0), ("every", 0), ("every", 1.5), ("scale", 0)]
)
def test_bad_parameters_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ParameterError, match=name):
        attacks.get("pgd", **{name: value})
