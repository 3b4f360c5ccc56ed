"""Model replacement: the plain backdoor's update, scaled."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedimmune import attacks
from fedimmune.errors import ParameterError
from tests.attacks.contexts import SPECS, context
from tests.attacks.training import flat_update, sent_by_attackers


@pytest.mark.parametrize(
    ("parameters", "scale"), [({"scale": 3}, 3), ({}, 8 / 2), ({"scale": 0.5}, 0.5)]
)
def test_it_is_scale_times_what_the_backdoor_sends(
    parameters: dict[str, float], scale: float
) -> None:
    plain = sent_by_attackers({"name": "backdoor", "shift_x": 2, "fraction": 0.3})
    scaled = sent_by_attackers({"name": "scaling", "shift_x": 2, "fraction": 0.3, **parameters})
    for small, large in zip(plain, scaled, strict=True):
        assert flat_update(small).any()
        torch.testing.assert_close(flat_update(large), scale * flat_update(small))


def test_by_a_single_attacker_it_is_all_clients() -> None:
    (plain,), (scaled,) = (sent_by_attackers(name, attackers=1) for name in ("backdoor", "scaling"))
    torch.testing.assert_close(flat_update(scaled), 8 * flat_update(plain))


@pytest.mark.parametrize("bound", [0.1, 5.0])
def test_train_and_scale_fills_the_bound(bound: float) -> None:
    plain = sent_by_attackers("backdoor")
    scaled = sent_by_attackers({"name": "scaling", "bound": bound})
    for small, large in zip(map(flat_update, plain), map(flat_update, scaled), strict=True):
        torch.testing.assert_close(large, small * bound / small.norm())


def test_counters_are_sent_as_they_are_and_statistics_are_no_length() -> None:
    update = {
        "weight": torch.tensor([3.0, 4.0]),
        "bn.running_mean": torch.tensor([7.0]),
        "bn.num_batches_tracked": torch.tensor(7),
    }
    attacks.get("scaling", bound=10).on_update(update, context())
    assert update["weight"].tolist() == [6, 8]
    assert update["bn.running_mean"].tolist() == [14]
    assert update["bn.num_batches_tracked"] == 7
    nothing = {"weight": torch.zeros(2)}
    attacks.get("scaling", bound=10).on_update(nothing, context())
    assert nothing["weight"].tolist() == [0, 0]


@pytest.mark.parametrize("name", ["scaling", "constrain-and-scale", "pgd", "neurotoxin"])
def test_it_fits_images_text_and_tables_and_refuses_what_it_cannot_mark(name: str) -> None:
    rng = torch.Generator().manual_seed(0)
    for spec in SPECS:
        attacks.get(name).check(spec)
        attacks.get(name, **attacks.get(name).sample_parameters(spec, rng)).check(spec)
        with pytest.raises(ParameterError, match="target is 20"):
            attacks.get(name, target=20).check(spec)
    with pytest.raises(ParameterError, match=f"{name}: .*needs images"):
        attacks.get(name).check(type(SPECS[0])(classes=3, shape=(4, 4)))


@pytest.mark.parametrize(
    "parameters", [{"scale": 0}, {"scale": "2"}, {"bound": -1}, {"scale": 2, "bound": 2}]
)
def test_bad_parameters_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=r"scale|bound"):
        attacks.get("scaling", **parameters)
