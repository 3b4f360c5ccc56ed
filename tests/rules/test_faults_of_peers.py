"""What other systems get wrong (see the docs), each as a test of ours."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedimmune import Updates, rules
from fedimmune.errors import InputError, ParameterError
from fedimmune.rules import Rule, find, register
from tests.rounds import rule_for


@pytest.mark.parametrize("n", [10, 30, 60])
def test_krum_picks_no_far_attacker_on_raw_weights(n: int) -> None:
    """Squared distances of 4e-3 between vectors of squared norm 1e5 vanish in float32."""
    for trial in range(20):
        random = torch.Generator().manual_seed(trial)
        weights = torch.randn(100_000, generator=random)
        spread = math.sqrt(2e-3 / 100_000)
        clients = weights + spread * torch.randn(n, 100_000, generator=random)
        clients[0] = weights + 20 * spread * torch.randn(100_000, generator=random)
        answer = rules.get("krum").aggregate(clients)
        assert answer.weights is not None
        assert answer.weights[0] == 0
        assert answer.scores is not None
        assert answer.scores[0] == max(answer.scores.values())


@pytest.mark.parametrize("claim", [1e9, 1e12, 10**400 // 10**390])
def test_a_claimed_sample_count_does_not_buy_the_model(claim: float) -> None:
    updates = Updates.from_vectors(torch.eye(5), samples=[100, 120, 80, 100, claim])
    ignored = rules.get("mean").aggregate(updates)
    assert ignored.weights == pytest.approx(dict.fromkeys(range(5), 0.2))
    capped = rules.get("mean", by_samples=True).aggregate(updates)
    assert capped.weights is not None
    assert capped.weights[4] == pytest.approx(200 / 600)
    assert capped.weights[1] == pytest.approx(120 / 600)
    tight = rules.get("mean", by_samples=True, cap=1).aggregate(updates)
    assert tight.weights is not None
    assert tight.weights[4] == pytest.approx(100 / 480)


@pytest.mark.parametrize("count", [-30, math.nan, math.inf, -math.inf, "many", None, 10**400])
def test_a_nonsense_sample_count_rejects_its_client_alone(count: Any) -> None:
    samples = dict(enumerate([100, 100, count, 100]))
    updates = Updates.from_vectors(torch.eye(4), samples=samples)
    answer = rules.get("mean", by_samples=True).aggregate(updates)
    assert set(answer.rejected) == {2}
    assert "sample count" in answer.rejected[2]
    assert answer.update.tolist() == pytest.approx([1 / 3, 1 / 3, 0, 1 / 3])
    assert not rules.get("mean").aggregate(updates).rejected


def test_sample_counts_of_zero_give_no_nan() -> None:
    updates = Updates.from_vectors(torch.eye(3), samples=[0, 10, 10])
    some = rules.get("mean", by_samples=True).aggregate(updates)
    assert some.update.tolist() == [0, 0.5, 0.5]
    none = Updates.from_vectors(torch.eye(3), samples=[0, 0, 0])
    assert rules.get("mean", by_samples=True)(none).tolist() == pytest.approx([1 / 3] * 3)
    with pytest.raises(InputError, match="needs sample counts"):
        rules.get("mean", by_samples=True)(torch.eye(3))


def test_geometric_median_does_not_depend_on_the_origin() -> None:
    matrix = torch.randn(9, 40, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rule = rules.get("geometric-median")
    torch.testing.assert_close(rule(matrix + 1000) - 1000, rule(matrix), rtol=0, atol=1e-7)


def test_foolsgold_trusts_the_one_that_differs() -> None:
    """A true property of the rule: nine aligned honest clients and one sign-flipper."""
    row = torch.linspace(1, 2, 20)
    answer = rules.get("foolsgold").aggregate(torch.stack([row] * 9 + [-row]))
    assert answer.weights == {**dict.fromkeys(range(9), 0.0), 9: 1.0}


def history_rounds() -> list[dict[str, torch.Tensor]]:
    random = torch.Generator().manual_seed(4)
    sybil = torch.randn(50, generator=random)
    rounds = []
    for members in ("abcst", "tbsca", "sbt", "cabts"):
        fresh = {client: torch.randn(50, generator=random) for client in members}
        for client in "st":  # alike over the rounds, but not in any single one
            if client in fresh:
                fresh[client] = sybil + fresh[client]
        rounds.append(fresh)
    return rounds


def test_foolsgold_remembers_by_client_not_by_position() -> None:
    rule = rules.get("foolsgold", history=True)
    answers = [rule.aggregate(clients) for clients in history_rounds()]
    last = answers[-1]
    sums: dict[str, torch.Tensor] = {}
    for clients in history_rounds():
        for client, update in clients.items():
            sums[client] = sums.get(client, torch.zeros(50)) + update
    expected = rules.get("foolsgold").aggregate({client: sums[client] for client in "cabts"})
    assert last.weights == pytest.approx(expected.weights)
    forgetful = rules.get("foolsgold").aggregate(history_rounds()[-1])
    assert last.weights != pytest.approx(forgetful.weights)


def test_foolsgold_history_is_saved_and_restored(tmp_path: Path) -> None:
    whole = rules.get("foolsgold", history=True)
    part = rules.get("foolsgold", history=True)
    first, second, third, fourth = history_rounds()
    for clients in (first, second):
        whole.aggregate(clients)
        part.aggregate(clients)
    part.save(tmp_path / "h.safetensors")
    resumed = rules.get("foolsgold", history=True)
    resumed.restore(tmp_path / "h.safetensors")
    for clients in (third, fourth):
        expected, found = whole.aggregate(clients), resumed.aggregate(clients)
        assert found.weights == expected.weights
        assert torch.equal(found.update, expected.update)


def test_a_damaged_or_foreign_history_is_refused(tmp_path: Path) -> None:
    rule: Any = rules.get("foolsgold", history=True)
    rule.aggregate({"a": torch.ones(3), "b": torch.eye(3)[0]})
    path = tmp_path / "h.safetensors"
    rule.save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="the history cannot be read"):
        rule.restore(path)
    path.write_bytes(whole)
    with pytest.raises(InputError, match="keeps no history"):
        rules.get("foolsgold").restore(path)
    rule.restore(path)
    with pytest.raises(InputError, match="history of client a is of another model"):
        rule.aggregate({"a": torch.ones(4), "b": torch.ones(4)})
    other = rules.get("foolsgold", history=True)
    other.aggregate({("a", 1): torch.ones(3), "b": torch.eye(3)[0]})
    with pytest.raises(InputError, match="client ids"):
        other.save(path)
    assert path.read_bytes() == whole


def test_a_failed_round_leaves_no_trace_in_the_history() -> None:
    rule: Any = rules.get("foolsgold", history=True)
    rule.aggregate({"a": torch.ones(3), "b": torch.eye(3)[0]})
    before = rule.memory
    bad = {"a": torch.full((3,), torch.nan), "b": torch.full((3,), torch.nan)}
    with pytest.raises(ValueError, match="needs at least"):
        rule.aggregate(bad)
    assert rule.memory is before
    rule.aggregate({**bad, "b": torch.ones(3)})
    assert rule.memory.sums["a"] is before.sums["a"]


def test_the_callers_data_is_never_changed() -> None:
    matrix = np.random.default_rng(0).standard_normal((8, 3000)).astype(np.float32)
    matrix.flags.writeable = False
    for name in rules.available():
        rule_for(name, range(8))(matrix)


def test_registry_errors_list_what_there_is() -> None:
    with pytest.raises(ParameterError, match="there is no rule 'xyz'; there are adaptive, "):
        rules.get("xyz")
    with pytest.raises(ParameterError, match=r"has no parameter 'beta'; it takes trim \(β\)"):
        rules.get("trimmed-mean", beta=0.1)
    with pytest.raises(ParameterError, match="there is a rule 'krum' already"):
        register(type("Other", (find("krum"),), {}))
    with pytest.raises(ParameterError, match="abstract"):
        register(Rule)  # type: ignore[type-abstract]
    assert register(find("krum")) is find("krum")


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("krum", {"attackers": -1}),
        ("krum", {"attackers": 1.5}),
        ("krum", {"attackers": True}),
        ("multi-krum", {"keep": 0}),
        ("trimmed-mean", {"trim": 0.5}),
        ("trimmed-mean", {"trim": -0.1}),
        ("trimmed-mean", {"trim": math.nan}),
        ("trimmed-mean", {"trim": "a lot"}),
        ("foolsgold", {"confidence": 0}),
        ("residual", {"bound": math.inf}),
        ("residual", {"threshold": 1}),
        ("geometric-median", {"steps": 0}),
        ("mean", {"cap": 0}),
        ("oracle", {"attackers": "abc"}),
        ("oracle", {"attackers": 3}),
        ("oracle", {"attackers": [1], "benign": [2]}),
    ],
)
def test_parameters_are_checked_at_construction(name: str, parameters: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=f"^{name}: "):
        rules.get(name, **parameters)


def test_ints_do_where_floats_are_meant() -> None:
    assert repr(rules.get("residual", bound=2)) == "Residual(bound=2.0, threshold=0.1)"
    assert repr(rules.get("krum", attackers=2.0)) == "Krum(attackers=2)"
    assert repr(rules.get("trimmed-mean", trim=0)) == "TrimmedMean(trim=0.0)"


def test_krum_says_how_many_clients_its_attackers_need() -> None:
    with pytest.raises(ValueError, match="krum needs at least 9 valid clients; there were 8"):
        rules.get("krum", attackers=3)(torch.randn(8, 2))


def test_ties_of_krum_do_not_go_by_position() -> None:
    """Of three clients the two nearest are each other's only neighbor: always a tie."""
    rows = torch.tensor([[0.0], [1.0], [10.0]])
    for order in ([0, 1, 2], [2, 1, 0], [1, 0, 2], [1, 2, 0]):
        assert rules.get("krum")(rows[order]).tolist() == [1.0]
