"""The universal form: what it must not depend on, and what it must get right."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedimmune.adaptive import Defense, train
from fedimmune.adaptive.defense import make_form
from fedimmune.adaptive.description import Calibration
from fedimmune.adaptive.explanation import explain, importance_of
from fedimmune.adaptive.models import universal
from fedimmune.adaptive.models.universal import Universal, UniversalSettings, describe_layers
from fedimmune.errors import InputError, ParameterError
from tests.adaptive.rehearsed import LAYERS, recording, recordings

SHAPES = [(4, 3, 3, 3), (4,), (7, 12), (7,)]


def form(seed: int = 1) -> Universal:
    torch.manual_seed(seed)
    return (
        Universal(UniversalSettings(hidden=16)).double().eval().requires_grad_(requires_grad=False)
    )


def updates(seed: int, n: int, layers: int = 4, width: int = 9) -> list[Tensor]:
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(n, width, generator=random).double() + 0.5 for _ in range(layers)]


def grams(layers: list[Tensor]) -> Tensor:
    return torch.stack([layer @ layer.T for layer in layers])[None]


def shares(made: Universal, layers: list[Tensor], *, anchored: bool = False) -> Tensor:
    found: Tensor = made(made.prepare(grams(layers), SHAPES, anchored=anchored)).shares[0]
    return found


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000), n=st.integers(1, 12), anchored=st.booleans())
def test_weights_sum_to_one_for_any_number_of_clients(seed: int, n: int, anchored: bool) -> None:
    found = shares(form(seed), updates(seed, n + anchored), anchored=anchored)
    assert found.shape == (n,)
    assert bool((found >= 0).all())
    assert float(found.sum()) == pytest.approx(1)


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000), anchored=st.booleans())
def test_the_order_of_clients_and_a_common_scale_do_not_matter(seed: int, anchored: bool) -> None:
    made, layers = form(seed), updates(seed, 7 + anchored)
    order = torch.randperm(7, generator=torch.Generator().manual_seed(seed))
    rows = torch.cat([order, torch.arange(7, 7 + anchored)])
    plain = shares(made, layers, anchored=anchored)
    shuffled = shares(made, [layer[rows] for layer in layers], anchored=anchored)
    torch.testing.assert_close(shuffled, plain[order], atol=1e-9, rtol=0)
    scaled = shares(made, [1e3 * layer for layer in layers], anchored=anchored)
    torch.testing.assert_close(scaled, plain, atol=1e-9, rtol=0)


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000))
def test_layers_may_come_in_any_order_if_their_descriptions_do(seed: int) -> None:
    made = form(seed)
    inputs = made.prepare(grams(updates(seed, 6)), SHAPES)
    order = torch.randperm(4, generator=torch.Generator().manual_seed(seed))
    again = made({name: each[:, order] for name, each in inputs.items()})
    torch.testing.assert_close(again.shares, made(inputs).shares, atol=1e-9, rtol=0)


def test_a_layer_that_nobody_changed_says_nothing() -> None:
    made, layers = form(), updates(3, 6)
    inputs = made.prepare(grams([*layers, torch.zeros(6, 9).double()]), [*SHAPES, (9,)])
    without = {name: each[:, :4] for name, each in inputs.items()}
    torch.testing.assert_close(made(inputs).shares, made(without).shares, atol=1e-9, rtol=0)
    nothing = made.prepare(torch.zeros(1, 4, 6, 6).double(), SHAPES)
    torch.testing.assert_close(made(nothing).shares[0], torch.full((6,), 1 / 6).double())


def test_an_anchor_of_nothing_is_no_anchor() -> None:
    made, layers = form(), updates(3, 6)
    plain = shares(made, layers)
    empty = [torch.cat([layer, torch.zeros(1, 9).double()]) for layer in layers]
    torch.testing.assert_close(shares(made, empty, anchored=True), plain, atol=1e-9, rtol=0)


def test_it_asks_what_the_layers_are() -> None:
    with pytest.raises(InputError, match="4 Gram matrices and 0 shapes"):
        form().prepare(grams(updates(1, 5)))
    rows = describe_layers(SHAPES)
    assert rows[:, 1].tolist() == [0, 1 / 3, 2 / 3, 1]
    assert rows[:, 2].tolist() == [0, 1, 0, 1]
    assert rows[:, 3].tolist() == [1, 0, 0, 0]
    assert rows[:, 4].tolist() == [0, 0, 1, 1]


def test_whoever_is_likely_honest_counts_nearly_alike() -> None:
    weights = form().attend(torch.tensor([[3.0, 6.0, -0.1, -9.0]]).double())
    assert weights[0, 2:].tolist() == [0, 0]
    assert float(weights[0, 0] / weights[0, 1]) > 0.95
    nobody = form().attend(torch.tensor([[-1.0, -9.0]]).double())
    assert float(nobody.sum()) == pytest.approx(1)
    assert nobody[0, 0] > nobody[0, 1]


def test_rounds_outside_the_range_seen_are_unfamiliar() -> None:
    made = form()
    seen = [made.prepare(grams(updates(seed, 8)), SHAPES) for seed in range(20)]
    assert all(bool(made.familiar(inputs)) for inputs in seen), "untrained, it has seen nothing"
    made.note_ranges(seen)
    assert all(bool(made.familiar(inputs)) for inputs in seen)
    opposed = [torch.cat([layer[:4], -layer[:4]]) for layer in updates(1, 8)]
    assert not bool(made.familiar(made.prepare(grams(opposed), SHAPES)))


# -------------------------------------------------------------------- trained


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a universal defense, of two models and two numbers of clients."""
    found = recordings(rounds=12, anchor=True)
    others = {"a": (5, 4), "b": (5,)}
    for run in range(3):
        for count in (0, 2):
            found.append(recording(run, attackers=count, n=6, rounds=12, layers=others))
    path = tmp_path_factory.mktemp("universal") / "universal.defense"
    train(found, form="universal", epochs=60, settings={"hidden": 32}).save(path)
    return path


def test_a_model_that_it_never_saw_is_defended(trained: Path) -> None:
    defense = Defense.load(trained)
    assert defense.is_universal
    assert defense.about.layers == {}
    defense.check_layers({"whatever": (3,)})
    unseen = {"x": (3, 3, 2), "y": (8, 3), "z": (8,), "zz": (2, 8)}
    attacked = recording(50, attackers=3, n=11, rounds=10, layers=unseen)
    weight, kept = 0.0, 0.0
    for one, attackers in zip(attacked.grams, attacked.attackers, strict=True):
        judged = defense.judge(one, shapes=list(unseen.values()))
        weight += float(judged.weights[attackers].sum()) / 10
        kept += float((judged.weights[~attackers] > 0).double().mean()) / 10
    assert weight < 0.05
    assert kept > 0.9


def test_the_threshold_moves_who_is_suspected_and_no_logit_is_lost(trained: Path) -> None:
    defense = Defense.load(trained)
    one = recording(51, attackers=2, rounds=1)
    shapes = list(LAYERS.values())
    usual = defense.judge(one.grams[0], shapes=shapes)
    strict = defense.judge(one.grams[0], shapes=shapes, threshold=-100.0)
    assert bool((usual.weights == 0).any())
    assert bool((strict.weights > 0).all())
    assert bool(((usual.logits < 0) == (usual.weights == 0)).all())


def test_its_calibration_says_what_logits_mean(trained: Path) -> None:
    known = Defense.load(trained).about.calibration
    assert known is not None
    likely = known.probability(torch.tensor([-8.0, 0.0, 8.0]).double())
    assert likely[0] > 0.8
    assert likely[2] < 0.2
    rates = [0.001, 0.01, 0.1]
    thresholds = [known.threshold(rate) for rate in rates]
    assert thresholds == sorted(thresholds)
    assert max(thresholds) <= 0


@pytest.mark.parametrize(
    "alarms", [((0.1, 0.0), (0.0, 1.0)), ((0.0, 1.0), (0.1, 0.0)), ((2.0, 0.0),), ()]
)
def test_a_calibration_from_a_strangers_file_is_checked(
    alarms: tuple[tuple[float, float], ...],
) -> None:
    with pytest.raises(ValueError, match="alarms"):
        Calibration(slope=1, offset=0, alarms=alarms, clients=1, attackers=0)


def test_a_client_is_explained_layer_by_layer(trained: Path) -> None:
    defense, one = Defense.load(trained), recording(52, attackers=2, rounds=1)
    bad = int(one.attackers[0].nonzero()[0])
    found = explain(defense, range(8), bad, one.grams[0], layers=LAYERS)
    assert [each.layer for each in found.layers] == list(LAYERS)
    blamed = sum(each.blame for each in found.layers)
    assert blamed == pytest.approx(found.ordinary.score - found.found.score, abs=1e-9)
    about = importance_of(defense)
    assert about.by_layer == {}
    assert "cosine to the estimate" in about.by_kind


def test_kinds_are_told_and_files_give_the_same_weights(trained: Path, tmp_path: Path) -> None:
    defense, one = Defense.load(trained), recording(53, attackers=2, rounds=1)
    judged = defense.judge(one.grams[0], shapes=list(LAYERS.values()))
    assert defense.kinds is not None
    assert judged.kinds is not None
    assert judged.kinds.shape == (8, len(defense.kinds.names))
    defense.save(tmp_path / "again")
    again = Defense.load(tmp_path / "again")
    assert torch.equal(
        again.judge(one.grams[0], shapes=list(LAYERS.values())).weights, judged.weights
    )


def test_a_tasks_own_defense_starts_from_it(trained: Path) -> None:
    parent = Defense.load(trained)
    own = train(recordings(rounds=4), start=parent, epochs=1)
    assert own.is_universal
    assert own.about.lineage[-1].digest == parent.digest
    assert own.about.settings == parent.about.settings
    with pytest.raises(ParameterError, match="universal defense alone"):
        train(recordings(rounds=2), form="paper", start=parent)


def test_its_settings_are_its_own() -> None:
    with pytest.raises(ParameterError, match="with an anchor and without"):
        train(recordings(rounds=2), form="universal", anchor=True)
    with pytest.raises(ValueError, match="layers"):
        make_form("universal", {"layers": 3})


def test_noise_has_no_more_in_common_with_anybody_than_chance_gives() -> None:
    random = torch.Generator().manual_seed(1)
    width = 4_000
    common = torch.randn(1, width, generator=random).double()
    honest = common + 3 * torch.randn(6, width, generator=random).double()
    noise = 3 * torch.randn(3, width, generator=random).double()
    sent = torch.cat([honest, noise])
    cosines = torch.nn.functional.cosine_similarity(sent[:, None], sent[None], dim=-1)
    others = cosines[~torch.eye(9, dtype=torch.bool)].reshape(1, 1, 9, 8)
    median, square = universal._by_chance(others, [(width,)])[0, 0].T
    assert float(median[6:].max()) < float(median[:6].min())
    assert float(square[6:].max()) < 0.2, "about 1 in units of chance, so a logarithm of about 0"
    assert float(square[:6].min()) > 0.3
