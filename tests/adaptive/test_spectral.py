"""The detector and the rule ``spectral``: by definition, from file to file, and on digits."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save_file
from torch import Tensor

from fedimmune import Scenario, Updates, adaptive, rules, simulate
from fedimmune.adaptive.detector import Detector
from fedimmune.adaptive.recordings import read_recordings
from fedimmune.errors import InputError, ParameterError
from fedimmune.io import described, read_description
from fedimmune.results import Verdict
from tests.adaptive.rehearsed import honest_round, negated, recordings

SMALL: dict[str, Any] = {"epochs": 40, "settings": {"hidden": [16, 8], "latent": 4}}


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("detectors") / "a.detector"
    made = adaptive.train(recordings(save_updates=12, rounds=10), form="spectral", **SMALL)
    made.save(path)
    return path


def naive_error(path: Path, values: list[float]) -> float:
    """Compute the reconstruction error with plain loops over what the file holds."""
    tensors = {name: tensor.tolist() for name, tensor in load(path.read_bytes()).items()}
    centers, widths = tensors["mean"], tensors["deviation"]
    seen = [(v - m) / s for v, m, s in zip(values, centers, widths, strict=True)]

    def through(part: str, row: list[float]) -> list[float]:
        steps = sorted({int(n.split(".")[1]) for n in tensors if n.startswith(part)})
        for step in steps:
            weight, bias = tensors[f"{part}.{step}.weight"], tensors[f"{part}.{step}.bias"]
            row = [
                b + sum(w * x for w, x in zip(ws, row, strict=True))
                for ws, b in zip(weight, bias, strict=True)
            ]
            if step != steps[-1]:
                row = [max(0.0, x) for x in row]
        return row

    found = through("encoder", seen)
    again = through("decoder", found[: len(found) // 2])
    return math.fsum((a - b) ** 2 for a, b in zip(again, seen, strict=True)) / len(seen)


@pytest.mark.parametrize("seed", range(5))
def test_by_its_definition(detector: Path, seed: int) -> None:
    sent = honest_round(9, torch.Generator().manual_seed(seed))
    sent[:3] = [negated(state) for state in sent[:3]]
    indices = Detector.load(detector).about.sampled.indices
    flat = [state["fc.weight"].flatten().tolist() for state in sent]
    errors = [naive_error(detector, [row[i] for i in indices]) for row in flat]
    threshold = sum(errors) / len(errors)
    kept = [i for i, error in enumerate(errors) if error <= threshold]
    expected = {name: sum(sent[i][name] for i in kept) / len(kept) for name in sent[0]}
    answer = rules.get("spectral", detector=detector).aggregate(sent)
    assert list((answer.scores or {}).values()) == pytest.approx(errors)
    assert [i for i, weight in (answer.weights or {}).items() if weight] == kept
    for name, tensor in expected.items():
        torch.testing.assert_close(answer.update[name], tensor)
    for one in answer.clients:
        assert (one.verdict is Verdict.TRUSTED) == (one.client in kept)
        assert ("times the round's mean" in one.reason) == (one.client not in kept)


def test_neither_the_order_in_memory_nor_that_of_the_layers_matters(detector: Path) -> None:
    sent = honest_round(7, torch.Generator().manual_seed(3))
    rule = rules.get("spectral", detector=detector)
    turned = [
        {n: each.mT.contiguous().mT if each.ndim > 1 else each for n, each in reversed(s.items())}
        for s in sent
    ]
    assert turned[0]["fc.weight"].stride() != sent[0]["fc.weight"].stride()
    assert rule.aggregate(turned).scores == pytest.approx(rule.aggregate(sent).scores)


def test_one_huge_error_hides_smaller_ones(detector: Path) -> None:
    """What the mean as a threshold costs; documented, as the paper has it."""
    sent = honest_round(8, torch.Generator().manual_seed(4))
    sent[0] = {name: 30 * tensor for name, tensor in sent[0].items()}
    rule = rules.get("spectral", detector=detector)
    assert rule.aggregate(sent).weights[0] == 0  # type: ignore[index]
    sent[1] = {name: 1e6 * tensor for name, tensor in sent[1].items()}
    weights = rule.aggregate(sent).weights or {}
    assert weights[1] == 0
    assert weights[0] > 0


def test_the_same_recordings_and_seed_give_the_same_detector(tmp_path: Path) -> None:
    found = recordings(2, save_updates=4, rounds=2)
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        made = adaptive.train(found, form="spectral", epochs=2, seed=seed)
        made.save(tmp_path / name)
        assert [epoch.number for epoch in made.curve] == [1, 2]
    one, two, three = ((tmp_path / name).read_bytes() for name in "abc")
    assert one == two != three
    assert Detector.load(tmp_path / "c").about == made.about


def test_it_is_validated_by_attack_on_the_last_run(detector: Path) -> None:
    about = Detector.load(detector).about
    by_attack = {(row["attack"], row["attackers"]): row for row in about.validation}
    assert set(by_attack) == {("none", 0), ("omniscient", 2), ("omniscient", 3)}
    assert by_attack["none", 0]["attacker_weight"] is None
    assert 0 < by_attack["none", 0]["benign_kept"] < 1, "somebody is above the mean"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"attacks": ["omniscient"]}, "takes no attacks"),
        ({"preset": "paper"}, "takes no preset"),
        ({"anchor": True}, "takes no anchor"),
        ({"memory": False}, "takes no memory"),
        ({"settings": {"c": 5}}, "spectral form: c"),
        ({"settings": {"latent": 0}}, "spectral form: latent"),
        ({"settings": {"hidden": [10**9]}}, "spectral form: hidden"),
    ],
)
def test_what_it_does_not_take_is_refused(options: dict[str, Any], said: str) -> None:
    train: Any = adaptive.train
    with pytest.raises(ParameterError, match=said):
        train(recordings(2, save_updates=4, rounds=1), form="spectral", epochs=1, **options)


def test_recordings_without_values_or_with_others_are_refused() -> None:
    plain, some, more = (recordings(2, save_updates=k, rounds=1) for k in (0, 4, 5))
    for found, said in ((plain, "no values"), (some[:3] + plain[3:], "no values")):
        with pytest.raises(InputError, match=f"has {said} of updates: .*--save-updates"):
            adaptive.train(found, form="spectral", epochs=1)
    with pytest.raises(InputError, match="has other values"):
        adaptive.train(some[:3] + more[3:], form="spectral", epochs=1)


# -------------------------------------------------------------------- the file


def rewritten(tensor: str = "", change: Any = None, **about: Any) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        tensors: dict[str, Tensor] = load(path.read_bytes())
        description = read_description(path)
        if tensor:
            tensors[tensor] = change(tensors[tensor])
        description["about"] |= about
        save_file(tensors, path, described(tensors, **description))

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-3]),
        lambda path: path.write_text("no detector"),
        Path.unlink,
        rewritten("mean", lambda mean: mean * math.nan),
        rewritten("mean", lambda mean: mean[1:].clone()),
        rewritten("deviation", torch.zeros_like),
        rewritten("deviation", lambda deviation: -deviation),
        rewritten("encoder.0.weight", lambda weight: weight.half()),
        rewritten("encoder.0.weight", lambda weight: weight + math.inf),
        rewritten(shape=[2, 2]),
        rewritten(sampled={"layer": "fc.weight", "indices": [1, 2]}),
        rewritten(settings={"hidden": [10**6], "latent": 4}),
        rewritten(settings={"hidden": [16, 8], "latent": 5}),
    ],
)
def test_a_damaged_file_is_refused(
    detector: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    path = tmp_path / "broken.detector"
    path.write_bytes(detector.read_bytes())
    rules.get("spectral", detector=path)
    damage(path)
    with pytest.raises(ParameterError, match=r"spectral: .*broken\.detector"):
        rules.get("spectral", detector=path)


def test_other_files_and_digests_are_refused(detector: Path, trained: Path) -> None:
    with pytest.raises(
        ParameterError, match="is not a detector: `fedimmune train --form spectral`"
    ):
        rules.get("spectral", detector=trained)
    with pytest.raises(ParameterError, match="is not a defense"):
        rules.get("adaptive", defense=detector)
    with pytest.raises(ParameterError, match="give it a detector"):
        rules.get("spectral")
    digest = Detector.load(detector).digest
    assert rules.get("spectral", detector=detector, digest=digest).digest == digest  # type: ignore[attr-defined]
    with pytest.raises(ParameterError, match="another detector"):
        rules.get("spectral", detector=detector, digest="0" * 16)


def test_another_model_is_refused_before_anything_is_trained(detector: Path) -> None:
    scenario = Scenario(rule={"name": "spectral", "detector": str(detector)}, rounds=1)
    with pytest.raises(
        InputError, match=r"another model \(synthetic\): this one lacks 'fc.weight'"
    ):
        next(simulate(scenario, workers=1))
    rule = rules.get("spectral", detector=detector)
    with pytest.raises(InputError, match=r"'fc.weight' of shape \(5, 6\), not \(6, 5\)"):
        rule.aggregate(Updates.from_vectors(torch.ones(4, 30), layers={"fc.weight": (5, 6)}))


# -------------------------------------------------------------------- on digits


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rehearsed")
    options: dict[str, Any] = {"attackers": [0, 4], "runs": 2, "rounds": 8, "workers": 1}
    adaptive.rehearse("digits", ["sign-flip"], output=folder, save_updates=200, **options)
    return folder


def test_rehearsals_keep_values_and_resume(rehearsed: Path, tmp_path: Path) -> None:
    files = sorted(rehearsed.iterdir())
    stamps = [file.stat().st_mtime_ns for file in files]
    options: dict[str, Any] = {"attackers": [0, 4], "runs": 2, "rounds": 8, "workers": 1}
    again = adaptive.rehearse(
        "digits", ["sign-flip"], output=rehearsed, save_updates=200, **options
    )
    assert [file.stat().st_mtime_ns for file in files] == stamps
    for found in again:
        assert found.about.sampled is not None
        assert found.about.sampled.layer == "fc2.weight"
        assert found.values is not None
        assert found.values.shape == (len(found), 10, 200)
        assert float(found.values.abs().max()) > 0
    with pytest.raises(InputError, match=r"without these values of updates: .* another folder"):
        adaptive.rehearse("digits", ["sign-flip"], output=rehearsed, save_updates=100, **options)
    quick: dict[str, Any] = {"attackers": [0], "runs": 1, "rounds": 1, "local_epochs": [1]}
    adaptive.rehearse("digits", ["sign-flip"], output=tmp_path, workers=1, **quick)
    with pytest.raises(InputError, match="without these values"):
        adaptive.rehearse(
            "digits", ["sign-flip"], output=tmp_path, workers=1, save_updates=9, **quick
        )


def test_long_updates_are_left_out_on_digits_and_nobody_honest(
    rehearsed: Path, tmp_path: Path
) -> None:
    """Sign flips of an ordinary length it does not see there (docs/rules.md)."""
    made = adaptive.train(read_recordings([rehearsed]), form="spectral", epochs=60)
    made.save(tmp_path / "digits.detector")
    rule = {"name": "spectral", "detector": str(tmp_path / "digits.detector")}
    attack = {"name": "sign-flip", "scale": 10}
    found = []
    for seed in (1, 2, 3):
        scenario = Scenario(rule=rule, attack=attack, attackers=4, rounds=4, seed=seed)
        found += list(simulate(scenario, workers=1))
    assert {record.precision for record in found} == {1}
    assert sum(record.recall or 0 for record in found) / len(found) > 0.6
