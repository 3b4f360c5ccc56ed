"""Attacks that are made of the honest updates, each against its definition on whole vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedimmune import Updates, attacks
from fedimmune.errors import ParameterError
from tests.attacks.contexts import a_round, context, trained, vector

COLLUDING = ["alie", "blend", "fang", "gaussian", "ipm", "min-max", "min-sum"]
seeds = st.integers(0, 9999)
numbers = st.integers(1, 6)


def played(seed: int, hostile: int, attack: Any, clients: int = 9) -> tuple[Any, Any]:
    """Return the honest vectors and what attackers send, who are the last clients."""
    sent = a_round(seed, clients)
    visible = Updates.from_states(sent)
    made = attacks.get(attack) if isinstance(attack, str) else attacks.get(**attack)
    answer = made.on_round(
        visible.only(range(clients - hostile, clients)), visible, context(seed=seed)
    )
    return trained(sent[: clients - hostile]), trained(answer)


# -------------------------------------------------------------------- a little is enough


@given(seed=seeds, hostile=numbers, z=st.floats(0.01, 9))
def test_alie_is_z_deviations_below_the_mean_at_every_coordinate(
    seed: int, hostile: int, z: float
) -> None:
    honest, hostile_ones = played(seed, hostile, {"name": "alie", "z": z})
    mean = honest.mean(0)
    deviation = np.sqrt(((honest - mean) ** 2).mean(0))
    for row in hostile_ones:
        np.testing.assert_allclose(mean - row, z * deviation, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("n", "hostile", "z"),
    [(10, 1, 0), (10, 2, 0), (10, 3, 0.18), (10, 4, 0.43), (50, 10, 0.25), (50, 24, 1.43)],
)
def test_alies_formula(n: int, hostile: int, z: float) -> None:
    honest, (row, *_) = played(1, hostile, "alie", clients=n)
    found = (honest.mean(0) - row) / honest.std(0)
    np.testing.assert_allclose(found, z, atol=0.005)


@pytest.mark.parametrize("hostile", range(1, 9))
def test_alies_formula_is_finite_for_any_number_of_attackers(hostile: int) -> None:
    assert np.isfinite(played(1, hostile, "alie")[1]).all()


# -------------------------------------------------------------------- Min-Max and Min-Sum


def direction(honest: Any, name: str) -> Any:
    mean = honest.mean(0)
    return {"std": honest.std(0), "unit": mean / np.linalg.norm(mean), "sign": np.sign(mean)}[name]


directions = st.sampled_from(["std", "unit", "sign"])


@given(seed=seeds, hostile=numbers, towards=directions)
def test_min_max_touches_its_bound_and_goes_no_farther(
    seed: int, hostile: int, towards: str
) -> None:
    honest, sent = played(seed, hostile, {"name": "min-max", "direction": towards})
    most = max(float(np.linalg.norm(a - b)) for a in honest for b in honest)
    for row in sent:
        moved = honest.mean(0) - row
        along = direction(honest, towards)
        factor = float(moved @ along) / float(along @ along)
        assert factor > 0
        np.testing.assert_allclose(moved, factor * along, atol=1e-8)
        assert max(np.linalg.norm(row - a) for a in honest) == pytest.approx(most, rel=1e-6)
        for longer in (1.001, 1.1, 2, 10):
            beyond = honest.mean(0) - longer * moved
            assert max(np.linalg.norm(beyond - a) for a in honest) > most


@given(seed=seeds, hostile=numbers, towards=directions, bound=st.sampled_from(["max", "min"]))
def test_min_sum_touches_its_bound_and_goes_no_farther(
    seed: int, hostile: int, towards: str, bound: str
) -> None:
    attack = {"name": "min-sum", "direction": towards, "bound": bound}
    honest, sent = played(seed, hostile, attack)
    sums = [sum(float(((a - b) ** 2).sum()) for b in honest) for a in honest]
    most = max(sums) if bound == "max" else min(sums)
    for row in sent:
        assert sum(((row - a) ** 2).sum() for a in honest) == pytest.approx(most, rel=1e-6)
        along = honest.mean(0) - row
        assert float(along @ direction(honest, towards)) > 0
        beyond = honest.mean(0) - 1.001 * along
        assert sum(((beyond - a) ** 2).sum() for a in honest) > most


# -------------------------------------------------------------------- local model poisoning


@given(seed=seeds, hostile=numbers, scale=st.floats(1.1, 9))
def test_fang_lies_just_beyond_the_honest_against_the_means_sign(
    seed: int, hostile: int, scale: float
) -> None:
    honest, sent = played(seed, hostile, {"name": "fang", "scale": scale})
    mean, lowest, highest = honest.mean(0), honest.min(0), honest.max(0)
    for row in sent:
        for j, value in enumerate(row):
            if mean[j] > 0:
                end = lowest[j] / scale if lowest[j] > 0 else scale * lowest[j]
                assert end - 1e-9 <= value <= lowest[j] + 1e-9
            else:
                end = highest[j] / scale if highest[j] < 0 else scale * highest[j]
                assert highest[j] - 1e-9 <= value <= end + 1e-9
    assert hostile == 1 or not np.allclose(sent[0], sent[1]), "each draws its own"


def krum(rows: Any, f: int) -> int:
    squared = [[float(((a - b) ** 2).sum()) for b in rows] for a in rows]
    scores = []
    for i in range(len(rows)):
        others = sorted(squared[i][j] for j in range(len(rows)) if j != i)
        scores.append(sum(others[: len(rows) - f - 2]))
    return int(np.argmin(scores))


@given(seed=seeds, hostile=st.integers(2, 3))
def test_fang_against_krum_is_what_krum_chooses_against_its_honest_choice(
    seed: int, hostile: int
) -> None:
    honest, sent = played(seed, hostile, {"name": "fang", "against": "krum"})
    signs = np.sign(honest[krum(honest, 0)])
    factor = abs(sent[0][0])
    assert (sent == sent[0]).all()
    np.testing.assert_allclose(sent[0], -factor * signs, atol=1e-9)
    chosen = krum(np.concatenate([honest, sent]), hostile)
    assert (chosen >= len(honest)) or factor < 2e-5, "the least that is tried"
    twice = np.concatenate([honest, 2 * sent])
    d = np.sqrt(len(signs))
    bound = max(np.linalg.norm(honest, axis=1)) / d
    assert krum(twice, hostile) < len(honest) or 2 * factor > bound, "halved only if it had to be"


# -------------------------------------------------------------------- noise, blending


def test_noise_is_as_long_as_was_said_and_each_attackers_own() -> None:
    lengths = []
    for seed in range(60):
        honest, sent = played(seed, 3, {"name": "gaussian", "scale": 2})
        usual = np.linalg.norm(honest, axis=1).mean()
        lengths += [np.linalg.norm(row) / usual for row in sent]
        assert len({row.tobytes() for row in sent}) == 3
    assert np.mean(lengths) == pytest.approx(2, abs=0.1)


def test_noise_of_a_given_deviation_needs_nobody_else() -> None:
    updates = a_round(1, clients=400)
    attack = attacks.get("gaussian", deviation=0.25)
    for seed, update in enumerate(updates):
        kept = {n: update[n].clone() for n in ("bn.running_mean", "bn.num_batches_tracked")}
        attack.on_update(update, context(seed=seed))
        assert all((update[name] == kept[name]).all() for name in kept)
    values = trained(updates)
    assert values.std() == pytest.approx(0.25, rel=0.05)
    assert values.mean() == pytest.approx(0, abs=0.02)


@given(seed=seeds, hostile=numbers, share=st.floats(0, 1), scale=st.floats(0.1, 5))
def test_blend_lies_between_the_negated_update_and_the_honest_mean(
    seed: int, hostile: int, share: float, scale: float
) -> None:
    attack = {"name": "blend", "share": share, "scale": scale}
    honest, sent = played(seed, hostile, attack)
    own = [vector(state) for state in a_round(seed, 9)[9 - hostile :]]
    for row, mine in zip(sent, own, strict=True):
        expected = share * honest.mean(0) + (1 - share) * -scale * mine
        np.testing.assert_allclose(row, expected, atol=1e-9)


# -------------------------------------------------------------------- all of them


@pytest.mark.parametrize("attack", COLLUDING)
@pytest.mark.parametrize("honest", [0, 1, 2])
def test_few_honest_clients_are_no_obstacle(attack: str, honest: int) -> None:
    sent = a_round(5, clients=honest + 3)
    visible = Updates.from_states(sent)
    mine = visible.only(range(honest, honest + 3))
    answer = attacks.get(attack).on_round(mine, visible, context())
    assert (answer is mine) == (honest == 0)
    assert np.isfinite(trained(answer)).all()
    assert answer.checked().clients == mine.clients


@pytest.mark.parametrize("attack", COLLUDING)
def test_the_order_of_the_clients_does_not_matter(attack: str) -> None:
    sent = a_round(7, clients=8)
    one = Updates.from_states(sent)
    order = [5, 0, 6, 2, 1, 7, 4, 3]
    other = Updates.from_states({client: sent[client] for client in order})
    answers = []
    for visible in (one, other):
        mine = visible.only([6, 7])
        answers.append(attacks.get(attack).on_round(mine, visible, context()))
    for client in (6, 7):
        first, second = (vector(answer.state(client)) for answer in answers)
        np.testing.assert_allclose(first, second, atol=1e-9)


@pytest.mark.parametrize(
    "given",
    [
        {"name": "alie", "z": 0},
        {"name": "alie", "z": "much"},
        {"name": "min-max", "direction": "up"},
        {"name": "min-sum", "bound": "mean"},
        {"name": "fang", "against": "median"},
        {"name": "fang", "scale": 1},
        {"name": "gaussian", "scale": 0},
        {"name": "gaussian", "deviation": -1},
        {"name": "blend", "share": 1.1},
        {"name": "blend", "scale": 0},
        {"name": "search", "direction": "sign"},
        {"name": "search", "keep": 2},
    ],
)
def test_bad_parameters_are_refused_by_name(given: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=f"{given['name']}: {list(given)[1]}"):
        attacks.get(**given)
