"""The sign flip: the update times −scale."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedimmune import attacks
from fedimmune.errors import ParameterError
from fedimmune.tasks import DataSpec
from tests.attacks.contexts import context

UPDATE = {
    "weight": torch.tensor([[1.5, -2.0], [0.0, 4.0]]),
    "bias": torch.tensor(3.0, dtype=torch.float64),
    "half": torch.tensor([0.5], dtype=torch.bfloat16),
    "bn.running_var": torch.tensor([2.0]),
    "bn.num_batches_tracked": torch.tensor(7),
    "flag": torch.tensor([True, False]),
}


@given(scale=st.sampled_from([0.5, 1, 2.0, 8]))
def test_every_float_times_minus_scale_and_no_other(scale: float) -> None:
    update = {name: tensor.clone() for name, tensor in UPDATE.items()}
    attacks.get("sign-flip", scale=scale).on_update(update, context())
    for name, tensor in UPDATE.items():
        changed = name not in {"bn.num_batches_tracked", "flag"}
        expected = tensor * -scale if changed else tensor
        assert update[name].dtype == tensor.dtype
        assert torch.equal(update[name], expected)


def test_what_is_spared_is_sent_as_it_is() -> None:
    update = {name: tensor.clone() for name, tensor in UPDATE.items()}
    attacks.get("sign-flip", spare=["*running_*"]).on_update(update, context())
    turned = {name for name, tensor in UPDATE.items() if not torch.equal(update[name], tensor)}
    floats = {name for name, tensor in UPDATE.items() if tensor.is_floating_point()}
    assert turned == {name for name in floats if "running" not in name}
    assert turned != floats


@pytest.mark.parametrize("spare", ["*running_*", [1]])
def test_bad_patterns_are_refused(spare: object) -> None:
    with pytest.raises(ParameterError, match="spare"):
        attacks.get("sign-flip", spare=spare)


def test_by_default_the_length_stays() -> None:
    update = {name: tensor.clone() for name, tensor in UPDATE.items()}
    attacks.get("sign-flip").on_update(update, context())
    assert torch.equal(update["weight"], -UPDATE["weight"])


def test_data_is_left_alone_and_there_is_no_target() -> None:
    attack = attacks.get("sign-flip")
    spec = DataSpec(classes=2, shape=(3,))
    attack.check(spec)
    inputs, labels = torch.randn(4, 3), torch.tensor([0, 1, 1, 0])
    found = attack.on_batch(inputs.clone(), labels.clone(), context(spec))
    assert torch.equal(found[0], inputs)
    assert torch.equal(found[1], labels)
    assert attack.triggered(inputs, labels, spec) is None


@pytest.mark.parametrize("scale", [0, -1, float("nan"), float("inf"), "2", True, None])
def test_bad_scales_are_refused(scale: object) -> None:
    with pytest.raises(ParameterError, match="scale"):
        attacks.get("sign-flip", scale=scale)
