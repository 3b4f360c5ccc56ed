"""Mimicry: every attacker sends the very update of one honest client."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedimmune import Updates, attacks
from fedimmune.errors import ParameterError
from tests.attacks.contexts import a_round, context, trained


@given(
    seed=st.integers(0, 999),
    hostile=st.sets(st.integers(0, 6), min_size=1, max_size=6),
    whom=st.sampled_from(["first", "farthest"]),
)
def test_all_attackers_copy_one_honest_client_to_the_bit(
    seed: int, hostile: set[int], whom: str
) -> None:
    sent = a_round(seed)
    visible = Updates.from_states(sent)
    answer = attacks.get("mimic", whom=whom).on_round(visible.only(hostile), visible, context())
    assert set(answer.clients) == hostile
    copied = {
        client
        for client in set(range(7)) - hostile
        if all(
            torch.equal(answer.state(one)[name], sent[client][name])
            for one in hostile
            for name in sent[client]
        )
    }
    assert len(copied) == 1
    if whom == "first":
        assert copied == {min(set(range(7)) - hostile)}


@given(seed=st.integers(0, 999))
def test_the_farthest_lies_at_the_end_of_the_principal_direction(seed: int) -> None:
    sent = a_round(seed)
    visible = Updates.from_states(sent)
    answer = attacks.get("mimic", whom="farthest").on_round(visible.only([0]), visible, context())
    rows = torch.from_numpy(trained(sent[1:]))
    centered = rows - rows.mean(0)
    direction = torch.linalg.svd(centered).Vh[0]
    expected = 1 + int((centered @ direction).abs().argmax())
    assert torch.equal(answer.state(0)["w"], sent[expected]["w"])


def test_without_anybody_honest_attackers_send_what_they_have() -> None:
    everyone = Updates.from_states(a_round(1))
    assert attacks.get("mimic").on_round(everyone, everyone, context()) is everyone


def test_whom_is_one_of_two() -> None:
    with pytest.raises(ParameterError, match="whom"):
        attacks.get("mimic", whom="me")
