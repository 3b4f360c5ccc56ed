"""Inner-product manipulation against its definition."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedimmune import Updates, attacks
from fedimmune.errors import ParameterError
from tests.attacks.contexts import context


def a_round(seed: int, clients: int = 7) -> list[dict[str, Tensor]]:
    random = torch.Generator().manual_seed(seed)
    return [
        {
            "w": torch.randn(3, 4, generator=random),
            "bn.running_mean": torch.randn(4, generator=random),
            "bn.num_batches_tracked": torch.tensor(client),
        }
        for client in range(clients)
    ]


@given(seed=st.integers(0, 999), hostile=st.integers(1, 6), epsilon=st.floats(0.01, 100))
def test_every_attacker_sends_minus_epsilon_times_the_honest_mean(
    seed: int, hostile: int, epsilon: float
) -> None:
    sent = a_round(seed)
    visible = Updates.from_states(sent)
    attack = attacks.get("ipm", epsilon=epsilon)
    mine = visible.only(range(hostile))
    answer = attack.on_round(mine, visible, context())
    assert answer.clients == tuple(range(hostile))
    for name in ("w", "bn.running_mean"):
        mean = torch.stack([state[name] for state in sent[hostile:]]).mean(0)
        for client in answer.clients:
            found = answer.state(client)[name]
            torch.testing.assert_close(found, -epsilon * mean, rtol=1e-5, atol=1e-6)
            assert float((found * mean).sum()) < 0, "the inner product is negative"
    assert [int(answer.state(c)["bn.num_batches_tracked"]) for c in answer.clients] == [
        *range(hostile)
    ]


@given(seed=st.integers(0, 99), hostile=st.integers(1, 6))
def test_the_mean_of_all_stands_still_at_the_ratio_of_honest_to_hostile(
    seed: int, hostile: int
) -> None:
    sent = a_round(seed)
    visible = Updates.from_states(sent)
    attack = attacks.get("ipm", epsilon=(7 - hostile) / hostile)
    answer = attack.on_round(visible.only(range(hostile)), visible, context())
    all_of_them = [answer.state(client)["w"] for client in range(hostile)]
    total = torch.stack([*all_of_them, *(state["w"] for state in sent[hostile:])]).sum(0)
    torch.testing.assert_close(total, torch.zeros(3, 4), rtol=0, atol=1e-4)


def test_without_anybody_honest_attackers_send_what_they_have() -> None:
    everyone = Updates.from_states(a_round(1))
    assert attacks.get("ipm").on_round(everyone, everyone, context()) is everyone


@pytest.mark.parametrize("epsilon", [0, -1, float("nan"), float("inf"), "2", True, None])
def test_bad_factors_are_refused(epsilon: object) -> None:
    with pytest.raises(ParameterError, match="epsilon"):
        attacks.get("ipm", epsilon=epsilon)
