"""Inner-product manipulation against its definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedimmune import Updates, attacks
from fedimmune.errors import ParameterError
from tests.attacks.contexts import a_round, context, trained


@given(seed=st.integers(0, 999), hostile=st.integers(1, 6), scale=st.floats(0.01, 100))
def test_every_attacker_sends_minus_scale_times_the_honest_mean(
    seed: int, hostile: int, scale: float
) -> None:
    sent = a_round(seed)
    visible = Updates.from_states(sent)
    attack = attacks.get("ipm", scale=scale)
    answer = attack.on_round(visible.only(range(hostile)), visible, context())
    assert answer.clients == tuple(range(hostile))
    mean = trained(sent[hostile:]).mean(0)
    for found in trained(answer):
        np.testing.assert_allclose(found, -scale * mean, rtol=1e-9, atol=1e-9)
        assert float(found @ mean) < 0, "the inner product is negative"


def test_buffers_are_the_honest_mean_and_counters_the_honest_median() -> None:
    sent = a_round(3)
    visible = Updates.from_states(sent)
    answer = attacks.get("ipm").on_round(visible.only([0, 4]), visible, context())
    honest = [sent[client]["bn.running_mean"] for client in (1, 2, 3, 5, 6)]
    for client in (0, 4):
        state = answer.state(client)
        torch.testing.assert_close(state["bn.running_mean"], torch.stack(honest).mean(0))
        assert int(state["bn.num_batches_tracked"]) == 3
        assert not bool(state["flag"])


@given(seed=st.integers(0, 99), hostile=st.integers(1, 6))
def test_the_mean_of_all_stands_still_at_the_ratio_of_honest_to_hostile(
    seed: int, hostile: int
) -> None:
    sent = a_round(seed)
    visible = Updates.from_states(sent)
    attack = attacks.get("ipm", scale=(7 - hostile) / hostile)
    answer = attack.on_round(visible.only(range(hostile)), visible, context())
    total = trained(answer).sum(0) + trained(sent[hostile:]).sum(0)
    np.testing.assert_allclose(total, 0, atol=1e-9)


def test_without_anybody_honest_attackers_send_what_they_have() -> None:
    everyone = Updates.from_states(a_round(1))
    assert attacks.get("ipm").on_round(everyone, everyone, context()) is everyone


@pytest.mark.parametrize("scale", [0, -1, float("nan"), float("inf"), "2", True, None])
def test_bad_factors_are_refused(scale: object) -> None:
    with pytest.raises(ParameterError, match="scale"):
        attacks.get("ipm", scale=scale)
