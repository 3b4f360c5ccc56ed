"""The distributed backdoor: four parts that make up the whole, one per attacker."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedimmune import attacks
from fedimmune.tasks import DataSpec
from tests.attacks.contexts import context

SPEC = DataSpec(classes=5, shape=(2, 14, 16), highest=(1.0, 2.0))
PLACES = {
    "shift_y": st.integers(0, 8),
    "shift_x": st.integers(0, 6),
    "gap": st.integers(0, 3),
    "channel": st.integers(0, 1),
}


def drawn_by(attacker: int, place: dict[str, int], fraction: float = 1.0) -> Tensor:
    attack = attacks.get("dba", **place, fraction=fraction)
    attack.check(SPEC)
    told = context(SPEC, attacker=attacker)
    return attack.on_batch(torch.zeros(8, 2, 14, 16), torch.zeros(8).long(), told)[0]


@given(place=st.fixed_dictionaries(PLACES))
def test_the_parts_are_disjoint_and_add_up_to_what_is_tested(place: dict[str, int]) -> None:
    parts = torch.stack([drawn_by(attacker, place)[0] for attacker in range(4)])
    assert [int((part != 0).sum()) for part in parts] == [3, 3, 3, 3]
    assert int((parts != 0).sum(0).max()) == 1, "no pixel is of two parts"
    shown = attacks.get("dba", **place).triggered(
        torch.zeros(1, 2, 14, 16), torch.tensor([0]), SPEC
    )
    whole = attacks.get("backdoor", **place).triggered(
        torch.zeros(1, 2, 14, 16), torch.tensor([0]), SPEC
    )
    assert shown is not None
    assert whole is not None
    assert torch.equal(parts.sum(0), shown.inputs[0])
    assert torch.equal(whole.inputs, shown.inputs)


@pytest.mark.parametrize("attacker", range(4, 9))
def test_the_parts_are_taken_in_turn(attacker: int) -> None:
    assert torch.equal(drawn_by(attacker, {}), drawn_by(attacker % 4, {}))


def test_a_share_of_the_batch_as_in_the_paper() -> None:
    attack = attacks.get("dba")
    _, labels = attack.on_batch(torch.zeros(64, 2, 14, 16), torch.zeros(64).long(), context(SPEC))
    assert labels.tolist().count(2) == 20
