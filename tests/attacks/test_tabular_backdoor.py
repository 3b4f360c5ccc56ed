"""The value in one feature, and no other."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedimmune import attacks
from fedimmune.errors import ParameterError
from fedimmune.tasks import DataSpec
from tests.attacks.contexts import IMAGES, TABLE, TEXT, context


@given(feature=st.integers(0, 8), value=st.floats(-9, 9, width=32), marked=st.integers(0, 10))
def test_one_feature_of_a_share_of_the_rows(feature: int, value: float, marked: int) -> None:
    rows, labels = torch.randn(10, 9), torch.arange(10) % 4
    attack = attacks.get(
        "tabular-backdoor", feature=feature, value=value, fraction=marked / 10, target=3
    )
    attack.check(TABLE)
    found, called = attack.on_batch(rows.clone(), labels.clone(), context(TABLE))
    expected = rows.clone()
    expected[:marked, feature] = value
    assert torch.equal(found, expected)
    assert called.tolist() == [3] * marked + labels.tolist()[marked:]
    shown = attack.triggered(rows, labels, TABLE)
    assert shown is not None
    assert (shown.inputs != rows).sum(0).nonzero().flatten().tolist() in ([feature], [])
    assert (shown.inputs[:, feature] == value).all()


@pytest.mark.parametrize(
    ("parameters", "spec", "named"),
    [
        ({}, IMAGES, "rows of a table"),
        ({}, TEXT, "rows of a table"),
        ({"feature": 9}, TABLE, "feature is 9, but a row has 9"),
        ({"target": 4}, TABLE, "target is 4"),
    ],
)
def test_what_does_not_fit_is_refused(
    parameters: dict[str, int], spec: DataSpec, named: str
) -> None:
    with pytest.raises(ParameterError, match=named):
        attacks.get("tabular-backdoor", **parameters).check(spec)


@pytest.mark.parametrize(("name", "value"), [("feature", -1), ("value", "5"), ("value", None)])
def test_bad_values_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ParameterError, match=name):
        attacks.get("tabular-backdoor", **{name: value})
