from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from rich.console import Console
from safetensors.numpy import load_file as load_arrays
from safetensors.torch import load, save_file
from torch import Tensor
from typer.testing import CliRunner, Result

import fedimmune
import fedimmune.aggregation
import fedimmune.io
from fedimmune import Aggregation, Updates, rules
from fedimmune.adaptive.defense import Defense
from fedimmune.cli import app, main
from fedimmune.io import described, read_description, read_metadata
from fedimmune.rules import Residual, WeightRule
from tests.adaptive.judging import untrained_file
from tests.adaptive.naive import shares
from tests.rounds import needs_of
from tests.rules.test_references import foolsgold_weights, krum_scores, residual

Vector = npt.NDArray[np.float64]
Arrays = Mapping[str, npt.NDArray[Any]]
Refusal = Callable[..., str]

PARAMETERS = ("bn.weight", "fc.bias", "fc.weight")
SHAPES = {"bn.weight": (4,), "fc.bias": (4,), "fc.weight": (4, 5)}
BUFFERS = ("bn.running_mean", "bn.running_var")
COUNTER = "bn.num_batches_tracked"

BASE = "base.safetensors"
NEXT = "next.safetensors"
FILES = [f"client-{index:02}.safetensors" for index in range(10)]
IDS = [Path(file).stem for file in FILES]
OWN = FILES[9]
"""Stands for the server's own model."""
DEFINED = {
    *("mean", "oracle", "geometric-median", "krum", "multi-krum", "foolsgold", "residual"),
    "adaptive",
}
"""Rules with weights whose definition is here."""
ON_FILES = [name for name in rules.available() if "server_loss" not in rules.find(name).needs]
"""Rules that files alone are enough for: no file says how good a model is."""
FROM_BASE = ("aggregate", "--global", BASE)

pytestmark = pytest.mark.usefixtures("folder")


# ---------------------------------------------------------------- a round on disk


def global_model(dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(0)
    floats = {
        "fc.weight": torch.randn(4, 5, generator=random),
        "fc.bias": torch.randn(4, generator=random),
        "bn.weight": torch.ones(4),
        "bn.running_mean": torch.randn(4, generator=random),
        "bn.running_var": torch.rand(4, generator=random) + 1,
    }
    return {name: tensor.to(dtype) for name, tensor in floats.items()} | {COUNTER: torch.tensor(9)}


def trained(base: Mapping[str, Tensor], seed: int) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(1000 + seed)
    model = {
        name: (tensor + 0.1 + 0.1 * torch.randn(tensor.shape, generator=random)).to(tensor.dtype)
        for name, tensor in base.items()
        if name != COUNTER
    }
    return model | {COUNTER: base[COUNTER] + 3 + seed % 4}


def write_round(folder: Path, dtype: torch.dtype = torch.float32, seed: int = 0) -> None:
    base = global_model(dtype)
    save_file(base, folder / BASE, {"made by": "a test"})
    for index, file in enumerate(FILES):
        save_file(trained(base, seed + index), folder / file)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: a global model and ten clients."""
    write_round(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load_file(path: str | Path) -> dict[str, Tensor]:
    """Read a model into memory: a mapped file must not be written to."""
    return load(Path(path).read_bytes())


def change(path: Path, **layers: Tensor | None) -> None:
    """Set layers of a file (a ``__`` stands for the dot), or take them out."""
    state: dict[str, Tensor | None] = {**load_file(path)}
    state |= {name.replace("__", "."): tensor for name, tensor in layers.items()}
    save_file({name: tensor for name, tensor in state.items() if tensor is not None}, path)


def contents(folder: Path) -> dict[str, bytes]:
    """All that is in a folder, hidden files too."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
    }


# ---------------------------------------------------------------- calling it


def run(*words: object) -> Result:
    """Call in this process; whatever is not an orderly exit fails the test."""
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)


def aggregate(*words: object) -> dict[str, Any]:
    """Give what ``aggregate --json`` printed, which must be one JSON object and nothing else."""
    result = run(*FROM_BASE, "--json", *words)
    assert result.exit_code == 0, result.output
    printed: dict[str, Any] = json.loads(result.stdout)
    return printed


def clients(printed: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {client["client"]: client[key] for client in printed["clients"]}


def rejected(printed: Mapping[str, Any]) -> dict[str, str]:
    odd = [client for client in printed["clients"] if client["verdict"] == "rejected"]
    return {client["client"]: client["reason"] for client in odd}


@pytest.fixture
def refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Refusal:
    """Call what must fail: exit code 1 or 2, one line of reason, and not a byte changed on disk."""

    def ask(*words: object) -> str:
        before = contents(tmp_path)
        monkeypatch.setattr(sys, "argv", ["fedimmune", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            main()
        said = capsys.readouterr()
        lines = [line for line in said.err.splitlines() if line]
        assert stopped.value.code in {1, 2}, said.err
        assert (said.out, len(lines)) == ("", 1), said.err
        assert lines[0].startswith("fedimmune: ")
        assert contents(tmp_path) == before
        return lines[0].removeprefix("fedimmune: ")

    return ask


# ---------------------------------------------------------------- what should be written


def rows(models: Sequence[Arrays], layers: Sequence[str]) -> Vector:
    flat = [np.concatenate([model[name].ravel() for name in layers]) for model in models]
    return np.stack(flat).astype(np.float64)


def krum_weights(matrix: Vector, keep: int) -> Vector:
    n = len(matrix)
    scores = krum_scores(matrix, (n - 3) // 2)
    to_all = [float(((matrix - row) ** 2).sum()) for row in matrix]
    order = sorted(range(n), key=lambda i: (round(scores[i], 6), to_all[i]))
    return np.array([1 / keep if i in order[:keep] else 0.0 for i in range(n)])


def weiszfeld_weights(matrix: Vector) -> Vector:
    weights = np.full(len(matrix), 1 / len(matrix))
    for _ in range(2000):
        inverse = 1 / np.linalg.norm(matrix - weights @ matrix, axis=1)
        weights = inverse / inverse.sum()
    return weights


def weights_by_definition(rule: str, matrix: Vector) -> Vector:
    n = len(matrix)
    match rule:
        case "mean":
            return np.full(n, 1 / n)
        case "oracle":  # told that the second client attacks
            return np.array([0.0 if i == 1 else 1 / (n - 1) for i in range(n)])
        case "geometric-median":
            return weiszfeld_weights(matrix)
        case "krum":
            return krum_weights(matrix, 1)
        case "multi-krum":
            return krum_weights(matrix, max(1, n // 2 - 2))
        case "foolsgold":
            return np.array(foolsgold_weights(matrix, 1.0))
        case "residual":
            return np.array(residual(matrix, 2.0, 0.1)[1])
        case "adaptive":
            sizes = [global_model()[name].numel() for name in PARAMETERS]
            layers = np.split(matrix, np.cumsum(sizes)[:-1], axis=1)
            return shares(Defense.load(needs_of(rule, PARAMETERS)["defense"]), layers)
    weights = by_the_library(rule, matrix).weights or {}
    return np.array(list(weights.values()))


def by_the_library(rule: str, matrix: Vector) -> Aggregation:
    """Aggregate in memory; tests/rules holds the rule against its definition."""
    shapes = {name: global_model()[name].shape for name in PARAMETERS}
    updates = Updates.from_vectors(matrix, layers=shapes)
    made = rules.get(rule, **noiseless(rule), **needs_of(rule, shapes))
    if "anchor" in made.needs:
        own = {k: v - global_model()[k] for k, v in load_file(OWN).items() if k in PARAMETERS}
        updates = updates.with_anchor({name: own[name].double() for name in PARAMETERS})
    if "model" in made.needs:
        base = {name: global_model()[name].double() for name in PARAMETERS}
        updates = updates.with_reference("model", base)
    return made.aggregate(updates)


def change_by_definition(rule: str, trained: Vector, tracked: Vector) -> tuple[Vector, list[int]]:
    """Compute the change of parameters and buffers, and say which clients the counters are of."""
    everyone = list(range(len(trained)))
    settled = np.median(tracked, axis=0)
    if rule == "median":
        return np.hstack([np.median(trained, axis=0), settled]), everyone
    if rule == "trimmed-mean":
        cut = len(trained) // 3
        kept = np.sort(trained, axis=0)[cut : len(trained) - cut]
        return np.hstack([kept.mean(0), settled]), everyone
    if rule not in DEFINED:
        return np.hstack([by_the_library(rule, trained).update, settled]), everyone
    weights = weights_by_definition(rule, trained)
    if rule in {"mean", "oracle"}:  # which promise nothing: buffers follow the weights
        counting = [int(i) for i in np.flatnonzero(weights)]
        return weights @ np.hstack([trained, tracked]), counting
    if rule == "residual":
        return np.hstack([residual(trained, 2.0, 0.1)[0], settled]), everyone
    if rule == "adaptive":
        lengths = np.linalg.norm(trained, axis=1)
        trained = trained * np.minimum(1, np.median(lengths) / lengths)[:, None]
    return np.hstack([weights @ trained, settled]), everyone


def assert_follows(rule: str, written: Path, files: Sequence[str]) -> None:
    """Compare a written model with the rule's definition, computed here from the files."""
    base, models = load_arrays(BASE), [load_arrays(file) for file in files]
    found = load_arrays(written)
    layers = (*PARAMETERS, *BUFFERS)
    changes = [rows(models, kind) - rows([base], kind) for kind in (PARAMETERS, BUFFERS)]
    step, counting = change_by_definition(rule, *changes)
    np.testing.assert_allclose(
        rows([found], layers), rows([base], layers) + step, rtol=1e-5, atol=2e-6
    )
    counters = sorted(int(models[i][COUNTER]) for i in counting)
    assert int(found[COUNTER]) == counters[(len(counters) - 1) // 2]
    assert {name: (a.shape, a.dtype) for name, a in found.items()} == {
        name: (a.shape, a.dtype) for name, a in base.items()
    }


def settings_of(rule: str) -> tuple[str, ...]:
    told = ("--set", "attackers=client-01") if rule == "oracle" else ()
    needed = (
        word
        for name, value in needs_of(rule, SHAPES).items()
        for word in (
            [f"--{name}", value] if name == "defense" else ["--set", f"{name}={value}".lower()]
        )
    )
    anchor = ("--anchor", OWN) if "anchor" in rules.find(rule).needs else ()
    quiet = [f"--set={name}={value}" for name, value in noiseless(rule).items()]
    return ("--rule", rule, *told, *needed, *anchor, *quiet)


def noiseless(rule: str) -> dict[str, float]:
    return {"noise": 0} if "noise" in rules.find(rule).parameters() else {}


# ---------------------------------------------------------------- results


@pytest.mark.parametrize("n", [3, 10])
@pytest.mark.parametrize("rule", ON_FILES)
def test_the_written_model_is_the_global_one_plus_the_rules_update(
    folder: Path, rule: str, n: int
) -> None:
    before = contents(folder)
    printed = aggregate(*settings_of(rule), *FILES[:n], "-o", NEXT)
    assert_follows(rule, folder / NEXT, FILES[:n])
    assert contents(folder).keys() - before.keys() == {NEXT}
    assert printed["rule"] == rule
    assert [client["client"] for client in printed["clients"]] == IDS[:n]
    assert not rejected(printed)


@pytest.mark.parametrize(
    "rule",
    [name for name in ON_FILES if issubclass(rules.find(name), WeightRule | Residual)],
)
def test_the_printed_weights_are_the_rules(folder: Path, rule: str) -> None:
    printed = aggregate(*settings_of(rule), *FILES)
    base, models = load_arrays(folder / BASE), [load_arrays(folder / file) for file in FILES]
    expected = weights_by_definition(rule, rows(models, PARAMETERS) - rows([base], PARAMETERS))
    weights = clients(printed, "weight")
    assert list(weights.values()) == pytest.approx(expected, rel=1e-4, abs=1e-9)
    for client, verdict in clients(printed, "verdict").items():
        assert (verdict == "trusted") == (weights[client] > 0)


def test_the_printed_scores_are_krums(folder: Path) -> None:
    printed = aggregate("--rule", "krum", "--set", "attackers=2", *FILES)
    base, models = load_arrays(folder / BASE), [load_arrays(folder / file) for file in FILES]
    expected = krum_scores(rows(models, PARAMETERS) - rows([base], PARAMETERS), 2)
    assert list(clients(printed, "score").values()) == pytest.approx(expected, rel=1e-4)


def test_rules_of_coordinates_print_no_weights() -> None:
    assert set(clients(aggregate(*FILES), "weight").values()) == {None}


def test_the_json_object_has_these_keys() -> None:
    printed = aggregate("--rule", "krum", *FILES[:4], "nosuch", "-o", NEXT)
    assert {"rule", "clients", "output"} <= printed.keys()
    assert printed["output"] == NEXT
    for client in printed["clients"]:
        assert {"client", "weight", "verdict", "reason"} <= client.keys()
    assert clients(printed, "reason")[IDS[1]] == "krum gave it no weight"
    assert {type(reason) for reason in clients(printed, "reason").values()} == {str, type(None)}


def test_the_default_rule_is_the_median(folder: Path) -> None:
    assert aggregate(*FILES[:4], "-o", NEXT)["rule"] == "median"
    assert_follows("median", folder / NEXT, FILES[:4])


def test_settings_reach_the_rule() -> None:
    printed = aggregate("--rule", "multi-krum", "--set", "keep=4", "--set", "attackers=1", *FILES)
    assert sorted(clients(printed, "weight").values()) == [0.0] * 6 + [0.25] * 4
    printed = aggregate("--rule", "oracle", "--set", "attackers=client-00,client-03", *FILES[:4])
    assert list(clients(printed, "weight").values()) == [0, 0.5, 0.5, 0]
    printed = aggregate("--rule", "oracle", "--set", "benign=client-02", *FILES[:4])
    assert list(clients(printed, "weight").values()) == [0, 0, 1, 0]


def test_a_universal_defense_fits_and_is_named(folder: Path) -> None:
    place = untrained_file(folder / "any.defense")
    words = ("--rule", "adaptive", "--defense", str(place), "--set", "on_majority=keep")
    printed = aggregate(*words, *FILES)
    assert printed["defense"].startswith("any.defense (")
    assert all(0 <= likely <= 1 for likely in clients(printed, "probability").values())
    shown = run("aggregate", "--global", BASE, *words, *FILES).stdout
    assert "P(attack)" in shown
    assert "any.defense" in shown
    anchored = aggregate(*words, "--anchor", OWN, *FILES)
    assert clients(anchored, "score") != clients(printed, "score"), "an anchor is looked at"
    without = aggregate(*words, "--anchor", OWN, "--set", "anchor=false", *FILES)
    assert clients(without, "score") == clients(printed, "score")


def test_a_knob_that_the_defense_does_not_have_is_refused(refused: Callable[..., str]) -> None:
    words = ("--set", "max_false_alarms=0.01", "--global", BASE, *FILES)
    needed = settings_of("adaptive")
    assert "needs a calibrated defense" in refused("aggregate", *needed, *words)


def test_blanks_between_the_oracles_ids_do_not_matter() -> None:
    printed = aggregate("--rule", "oracle", "--set", "attackers=client-00, client-03", *FILES[:4])
    assert list(clients(printed, "weight").values()) == [0, 0.5, 0.5, 0]


def test_layers_named_as_buffers_are_not_measured(folder: Path) -> None:
    change(folder / FILES[0], fc__weight=torch.full((4, 5), 5.0))
    outlier = aggregate("--rule", "geometric-median", *FILES[:5])
    assert clients(outlier, "weight")[IDS[0]] < 0.05
    spared = aggregate("--rule", "geometric-median", "--buffers", "fc.w*", *FILES[:5])
    assert clients(spared, "weight")[IDS[0]] > 0.1


@pytest.mark.parametrize("rule", ON_FILES)
def test_updates_and_models_lead_to_the_same(folder: Path, rule: str) -> None:
    base = load_file(folder / BASE)
    aggregate(*settings_of(rule), *FILES[:5], "-o", "by-models")
    for file in (*FILES[:5], OWN):
        change(folder / file, **{
            name.replace(".", "__"): tensor - base[name]
            for name, tensor in load_file(folder / file).items()
        })  # fmt: skip
    aggregate("--updates", *settings_of(rule), *FILES[:5], "-o", "by-updates")
    by_models, by_updates = load_file("by-models"), load_file("by-updates")
    for name, tensor in by_models.items():
        torch.testing.assert_close(by_updates[name], tensor, rtol=1e-6, atol=1e-6)


def test_updates_without_a_global_model_give_the_update_itself() -> None:
    result = run("aggregate", "--updates", "--rule", "mean", *FILES[:3], "-o", NEXT)
    assert result.exit_code == 0
    sent = [load_arrays(file)["fc.weight"].astype(np.float64) for file in FILES[:3]]
    np.testing.assert_allclose(load_arrays(NEXT)["fc.weight"], sum(sent) / 3, atol=1e-6)


def test_a_variance_does_not_fall_below_0(folder: Path) -> None:
    for file in FILES[:3]:
        change(folder / file, bn__running_var=torch.tensor([-9.0, 0.0, 1.0, 2.0]))
    aggregate(*FILES[:3], "-o", NEXT)
    assert load_file(NEXT)["bn.running_var"].tolist() == pytest.approx([0, 0, 1, 2], abs=1e-6)
    aggregate("--updates", *FILES[:3], "-o", NEXT)
    sums = load_file(BASE)["bn.running_var"] + torch.tensor([-9.0, 0.0, 1.0, 2.0])
    found = load_file(NEXT)["bn.running_var"]
    torch.testing.assert_close(found, sums.clamp(min=0))
    assert float(found.min()) > 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("rule", ["mean", "median", "krum", "residual"])
def test_models_keep_their_precision(folder: Path, rule: str, dtype: torch.dtype) -> None:
    write_round(folder, dtype)
    aggregate("--rule", rule, *FILES[:5], "-o", NEXT)
    written = load_file(NEXT)
    assert {tensor.dtype for name, tensor in written.items() if name != COUNTER} == {dtype}
    if rule == "mean":
        sent = [load_file(file)["fc.weight"].double() for file in FILES[:5]]
        mean = torch.stack(sent).mean(0)
        off_by = (written["fc.weight"].double() - mean).abs() / mean.abs().clamp(min=0.1)
        assert float(off_by.max()) < 2 * torch.finfo(dtype).eps


def test_a_half_precision_model_does_not_become_infinite(folder: Path) -> None:
    write_round(folder, torch.float16)
    change(folder / BASE, fc__bias=torch.full((4,), -60000.0).half())
    change(folder / FILES[0], fc__bias=torch.full((4,), 60000.0).half())
    aggregate("--rule", "mean", FILES[0], "-o", NEXT)
    # The update itself, 120,000, is beyond float16: it goes as far as float16 does.
    assert load_file(NEXT)["fc.bias"].tolist() == [-60000.0 + 65504.0] * 4


# ---------------------------------------------------------------- clients that are rejected


@pytest.mark.parametrize("rule", ON_FILES)
@pytest.mark.parametrize("layer", ["fc__weight", "bn__running_var"])
def test_a_client_with_nan_is_named_and_of_no_influence(
    folder: Path, rule: str, layer: str
) -> None:
    aggregate(*settings_of(rule), *FILES[:6], "-o", "without")
    state = load_file(FILES[6])[layer.replace("__", ".")]
    state.view(-1)[1] = torch.nan
    change(folder / FILES[6], **{layer: state})
    printed = aggregate(*settings_of(rule), FILES[6], *FILES[:6], "-o", "with")
    name = layer.replace("__", ".")
    assert rejected(printed) == {IDS[6]: f"layer '{name}' holds NaN or infinite values"}
    assert Path("with").read_bytes() == Path("without").read_bytes()


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def pickled(path: Path) -> None:
    torch.save(load_file(path), path)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (truncated, "cannot be read as safetensors"),
        (lambda path: path.write_bytes(b""), "cannot be read as safetensors"),
        (lambda path: path.write_text("no model\n" * 99), "cannot be read as safetensors"),
        (pickled, "cannot be read as safetensors"),
        (Path.unlink, "cannot be read: no such file"),
        (as_folder, "cannot be read: is not a file"),
        (lambda path: save_file({}, path), "is empty: it holds no layers"),
        (
            lambda path: change(path, fc__weight=torch.ones(5, 4)),
            "layer 'fc.weight' has shape (5, 4), expected (4, 5)",
        ),
        (lambda path: change(path, fc__bias=None), "lacks layer 'fc.bias'"),
        (
            lambda path: change(path, extra=torch.ones(1)),
            "has a layer that the model has not: 'extra'",
        ),
        (
            lambda path: change(path, fc__bias=torch.ones(4, dtype=torch.int32)),
            "layer 'fc.bias' holds int32, expected float32",
        ),
        (
            lambda path: change(path, bn__num_batches_tracked=torch.tensor(9.0)),
            "layer 'bn.num_batches_tracked' holds float32, expected int64",
        ),
    ],
)
def test_a_bad_file_is_rejected_and_the_rest_aggregated(
    folder: Path, damage: Callable[[Path], object], reason: str
) -> None:
    damage(folder / FILES[0])
    printed = aggregate("--rule", "mean", *FILES[:4], "-o", NEXT)
    assert list(rejected(printed)) == [IDS[0]]
    assert rejected(printed)[IDS[0]].startswith(reason)
    assert clients(printed, "weight") == {
        IDS[1]: pytest.approx(1 / 3),
        IDS[2]: pytest.approx(1 / 3),
        IDS[3]: pytest.approx(1 / 3),
        IDS[0]: None,
    }
    assert_follows("mean", folder / NEXT, FILES[1:4])


def test_a_name_too_long_for_the_disk_is_one_more_missing_file() -> None:
    assert list(rejected(aggregate(*FILES[:3], "x" * 300))) == ["x" * 300]


def test_the_first_of_two_files_with_one_stem_counts(folder: Path) -> None:
    other = folder / "other"
    other.mkdir()
    save_file(trained(global_model(), 77), other / FILES[0])
    printed = aggregate("--rule", "mean", *FILES[:3], other / FILES[0], "-o", NEXT)
    assert [client["client"] for client in printed["clients"]] == [*IDS[:3], IDS[0]]
    assert rejected(printed) == {IDS[0]: "its id is there twice; only the first is counted"}
    assert_follows("mean", folder / NEXT, FILES[:3])


def test_where_the_first_of_two_files_is_damaged_the_reason_says_so(folder: Path) -> None:
    other = folder / "other"
    other.mkdir()
    save_file(trained(global_model(), 77), other / FILES[0])
    truncated(folder / FILES[0])
    printed = aggregate("--rule", "mean", *FILES[:3], other / FILES[0])
    assert "cannot be read" in str([client["reason"] for client in printed["clients"]])


# ---------------------------------------------------------------- no result


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--rule", "nosuch"], "there is no rule 'nosuch'; there are adaptive, "),
        (["--rule", "krum", "--set", "foo=1"], "krum has no parameter 'foo'; it takes attackers"),
        (["--set", "trim=0.1"], "median has no parameter 'trim'; it takes buffers"),
        (["--rule", "krum", "--set", "attackers"], "--set takes NAME=VALUE, not 'attackers'"),
        (["--rule", "krum", "--set", "=1"], "--set takes NAME=VALUE, not '=1'"),
        (["--rule", "krum", "--set", "attackers=many"], "krum: attackers must be a whole number"),
        (["--rule", "krum", "--set", "attackers=-1"], "krum: attackers must be a whole number"),
        (["--rule", "krum", "--set", "attackers=1.5"], "krum: attackers must be a whole number"),
        (["--rule", "krum", "--set", "attackers=[1]"], "krum: attackers must be a whole number"),
        (["--rule", "krum", "--set", "attackers=9"], "krum needs at least 21 valid clients"),
        (["--rule", "trimmed-mean", "--set", "trim=NaN"], "trimmed-mean: trim must be a share"),
        (["--rule", "trimmed-mean", "--set", "trim=0.5"], "trimmed-mean: trim must be a share"),
        (["--rule", "mean", "--set", "cap=1e999"], "mean: cap must be a number above 0"),
        (["--rule", "oracle", "--set", "benign="], "oracle needs at least 1 valid client"),
        (["--rule", "mean", "--set", "by_samples=true"], "mean by samples needs sample counts"),
        (["--history", "h"], "median keeps no history"),
        (["--samples", "nosuch.json"], "cannot read the sample counts in nosuch.json"),
        (["--groups", "nosuch.json"], "cannot read the groups in nosuch.json"),
        (["--groups", "0"], "hierarchy: groups must be a whole number of at least 1"),
        (["--groups", "2", *2 * ["--group-rule", "mean"]], "2 group rules, but 1 levels"),
        (["--groups", "2", "--sums-only", "--group-rule", "krum"], "hierarchy: of sums alone"),
        (["--sums-only"], "--group-rule and --sums-only are for groups"),
        (["-o", "missing/next"], "cannot write missing/next: there is no folder"),
        (["-o", "."], "cannot write .: it is a folder"),
        (["-o", FILES[1]], f"the output {FILES[1]} is one of the client files"),
    ],
)
def test_what_cannot_be_done_is_refused(refusal: Refusal, words: list[str], reason: str) -> None:
    assert refusal(*FROM_BASE, "-o", NEXT, *words, *FILES[:4]).startswith(reason)


@pytest.mark.parametrize(
    ("rule", "setting"),
    [
        ("krum", "attackers=" + "9" * 5000),
        ("mean", "cap=" + "9" * 400),
        ("krum", "attackers=" + "[" * 100_000),
        ("mean", "by_samples=nonsense"),
        ("foolsgold", "history=nonsense"),
    ],
    ids=["too many digits", "more than a float", "too deep", "by_samples", "history"],
)
def test_nonsense_for_a_parameter_is_refused(
    folder: Path, refusal: Refusal, rule: str, setting: str
) -> None:
    counts = folder / "counts.json"
    counts.write_text(json.dumps(dict.fromkeys(IDS, 1)))
    name = setting.partition("=")[0]
    words = ("--rule", rule, "--set", setting, "--samples", counts)
    assert refusal(*FROM_BASE, *words, *FILES[:4]).startswith(f"{rule}: {name} must be")


def test_client_models_need_a_global_one(refusal: Refusal) -> None:
    assert "add --global FILE, or --updates" in refusal("aggregate", *FILES[:3], "-o", NEXT)


@pytest.mark.parametrize("sent", [(), ("--updates",)], ids=["models", "updates"])
@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (Path.unlink, "the global model cannot be read: no such file"),
        (as_folder, "the global model cannot be read: is not a file"),
        (truncated, "the global model cannot be read as safetensors"),
        (lambda path: save_file({}, path), "the global model is empty"),
        (
            lambda path: change(path, fc__bias=torch.tensor([0, torch.nan, 0, 0])),
            "the global model's layer 'fc.bias' holds NaN or infinite values",
        ),
    ],
    ids=["missing", "folder", "truncated", "empty", "nan"],
)
def test_a_bad_global_model_is_refused_by_name(
    folder: Path,
    refusal: Refusal,
    damage: Callable[[Path], object],
    reason: str,
    sent: tuple[str, ...],
) -> None:
    damage(folder / BASE)
    said = refusal(*FROM_BASE, *sent, *FILES[:3], "-o", NEXT)
    assert said.startswith("the global model" if sent else reason)


@pytest.mark.parametrize("shape", [(5, 4), (1, 5)], ids=["other", "broadcasts"])
def test_updates_of_another_shape_than_the_global_model_give_nothing(
    folder: Path, refusal: Refusal, shape: tuple[int, int]
) -> None:
    change(folder / BASE, fc__weight=torch.ones(shape))
    assert "fc.weight" in refusal(*FROM_BASE, "--updates", *FILES[:3], "-o", NEXT)


def test_a_missing_global_model_is_refused_even_where_nothing_is_written(refusal: Refusal) -> None:
    words = ("aggregate", "--updates", "--global", "nosuch", *FILES[:3])
    assert "nosuch" in refusal(*words)


def test_where_all_clients_are_rejected_the_first_reasons_are_given(
    folder: Path, refusal: Refusal
) -> None:
    truncated(folder / FILES[0])
    said = refusal(*FROM_BASE, FILES[0], "a", "b", "c", "-o", NEXT)
    assert said.startswith("median needs at least 1 valid client; there were 0 (4 rejected: ")
    assert f"{IDS[0]}: cannot be read as safetensors" in said
    assert said.endswith("; and 1 more)")


def test_rejected_clients_do_not_count_towards_what_a_rule_needs(refusal: Refusal) -> None:
    said = refusal(*FROM_BASE, "--rule", "krum", *FILES[:2], "nosuch")
    assert said.startswith("krum needs at least 3 valid clients; there were 2 (1 rejected: nosuch")


@pytest.mark.parametrize("words", [("aggregate",), (*FROM_BASE, "-o", NEXT), ("nosuch",)])
def test_wrong_usage_has_exit_code_2(folder: Path, words: tuple[str, ...]) -> None:
    before = contents(folder)
    result = run(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "FILES" in result.stderr or "nosuch" in result.stderr
    assert contents(folder) == before


# ---------------------------------------------------------------- the output file


def test_the_global_model_can_be_replaced_in_place(folder: Path) -> None:
    aggregate("--rule", "mean", *FILES[:4], "-o", NEXT)
    (folder / BASE).chmod(0o640)
    aggregate("--rule", "mean", *FILES[:4], "-o", BASE)
    assert (folder / BASE).read_bytes() == (folder / NEXT).read_bytes()
    assert (folder / BASE).stat().st_mode & 0o777 == 0o640
    assert read_metadata(BASE) == {"made by": "a test"}


def test_a_link_to_a_client_file_is_not_overwritten_either(folder: Path, refusal: Refusal) -> None:
    (folder / "link").symlink_to(FILES[2])
    assert "is one of the client files" in refusal(*FROM_BASE, *FILES[:4], "-o", "link")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no such files here")
def test_what_is_no_ordinary_file_is_not_replaced(folder: Path, refusal: Refusal) -> None:
    os.mkfifo(folder / "pipe")  # stands for /dev/null, which root could lose
    assert "pipe" in refusal(*FROM_BASE, *FILES[:4], "-o", "pipe")
    assert (folder / "pipe").is_fifo()


def test_a_link_in_a_circle_cannot_be_written(folder: Path, refusal: Refusal) -> None:
    (folder / "circle").symlink_to("circle")
    assert "circle" in refusal(*FROM_BASE, *FILES[:4], "-o", "circle")


def test_a_name_too_long_for_the_disk_cannot_be_written(refusal: Refusal) -> None:
    assert refusal(*FROM_BASE, *FILES[:4], "-o", "x" * 300).startswith("cannot write xxx")


def test_a_full_disk_leaves_the_old_output_and_nothing_else(
    folder: Path, refusal: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(_: object, path: str, **__: object) -> None:
        Path(path).write_bytes(b"half of it")
        raise OSError(28, "No space left on device")

    (folder / NEXT).write_bytes(b"old")
    monkeypatch.setattr(fedimmune.io, "save_file", fill)
    words = ("--rule", "foolsgold", "--history", "h", *FILES[:4], "-o", NEXT)
    assert "No space left on device" in refusal(*FROM_BASE, *words)


def test_without_an_output_nothing_is_written(folder: Path) -> None:
    before = contents(folder)
    result = run(*FROM_BASE, *FILES[:4])
    assert result.exit_code == 0
    assert "nothing written: -o FILE writes the next model" in result.stderr
    assert contents(folder) == before


def test_an_interrupt_is_one_line_and_exit_code_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fedimmune.aggregation, "aggregate_files", interrupt)
    monkeypatch.setattr(sys, "argv", ["fedimmune", *FROM_BASE, *FILES[:4]])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 130
    said = "fedimmune: stopped; no file is half-written, and the same command starts over"
    assert capsys.readouterr().err.strip() == said


# ---------------------------------------------------------------- sample counts


def test_groups_by_file_and_by_size() -> None:
    where = {client: [f"edge-{n % 3}", "far" if n % 3 else "near"] for n, client in enumerate(IDS)}
    Path("groups.json").write_text(json.dumps(where))
    printed = aggregate("--rule", "mean", "--groups", "groups.json", "-o", NEXT, *FILES)
    assert [[one["client"] for one in level] for level in printed["groups"]] == [
        ["edge-0", "edge-1", "edge-2"],
        ["far", "near"],
    ]
    assert printed["members"] == where
    weights = {n: (1 / 2 / 4 if n % 3 == 0 else 1 / 2 / 2 / 3) for n in range(10)}
    assert list(clients(printed, "weight").values()) == pytest.approx(list(weights.values()))
    base, found = load_file(BASE), load_file(NEXT)
    moved = sum(weights[n] * load_file(file)["fc.weight"] for n, file in enumerate(FILES))
    torch.testing.assert_close(found["fc.weight"], moved)
    assert found[COUNTER].dtype == base[COUNTER].dtype
    printed = aggregate("--rule", "median", "--groups", "5", "--sums-only", *FILES)
    assert [one["client"] for one in printed["groups"][0]] == ["group-1", "group-2"]
    shown = run(*FROM_BASE, "--rule", "mean", "--groups", "5", *FILES)
    assert "level 1: 2 groups, 2 trusted" in shown.output


@pytest.mark.parametrize(
    "content",
    ["[]", "{}", '{"client-00": 3}', '{"client-00": []}', '{"a": ["e"], "b": ["e", "n"]}'],
)
def test_a_file_of_groups_that_cannot_be_read_is_refused(refusal: Refusal, content: str) -> None:
    Path("groups.json").write_text(content)
    said = refusal(*FROM_BASE, "--groups", "groups.json", *FILES)
    assert said.startswith("groups.json must hold")
    Path("groups.json").write_text('{"a": ["e", "n"], "b": ["e", "s"]}')
    said = refusal(*FROM_BASE, "--groups", "groups.json", *FILES)
    assert "'e' is in both 'n' and 's'" in said
    Path("groups.json").write_text('{"client-00": "e"}')
    assert "'client-01' is in no group" in refusal(*FROM_BASE, "--groups", "groups.json", *FILES)


def weights_by_samples(counts: str) -> tuple[list[float | None], dict[str, str]]:
    Path("counts.json").write_text(counts)
    by_samples = ("--set", "by_samples=true", "--samples", "counts.json")
    printed = aggregate("--rule", "mean", *by_samples, *FILES[:6])
    weights = clients(printed, "weight")
    return [weights[client] for client in IDS[:6]], rejected(printed)


def test_sample_counts_weigh_up_to_twice_the_median() -> None:
    counts = dict(zip(IDS, [100, 50, 150, 100, 1e300, 100], strict=False))
    weights, _ = weights_by_samples(json.dumps(counts))
    assert weights == pytest.approx([1 / 7, 0.5 / 7, 1.5 / 7, 1 / 7, 2 / 7, 1 / 7])


def test_sample_counts_that_are_none_are_rejected() -> None:
    counts = '{"client-00": -5, "client-01": NaN, "client-02": "many", "client-03": 1e999'
    weights, why = weights_by_samples(counts + ', "client-05": 10}')
    assert weights == [None, None, None, None, None, 1.0]
    assert why == {
        IDS[0]: "its sample count is not a number from 0 on: -5",
        IDS[1]: "its sample count is not a number from 0 on: nan",
        IDS[2]: "its sample count is no number: 'many'",
        IDS[3]: "its sample count is not a number from 0 on: inf",
        IDS[4]: "sent no sample count",
    }


def test_sample_counts_near_the_end_of_the_range_weigh_the_same() -> None:
    weights, _ = weights_by_samples(json.dumps(dict.fromkeys(IDS, 1e308)))
    assert weights == pytest.approx([1 / 6] * 6)


def test_a_client_without_samples_is_not_suspected() -> None:
    counts = dict(zip(IDS, [0, 10, 10, 10, 10], strict=False))
    Path("counts.json").write_text(json.dumps(counts))
    words = ("--rule", "mean", "--set", "by_samples=true", "--samples", "counts.json")
    assert clients(aggregate(*words, *FILES[:5]), "verdict")[IDS[0]] != "suspected"


def test_sample_counts_are_not_believed_without_being_told_to() -> None:
    Path("counts.json").write_text(json.dumps(dict(zip(IDS, [1e9, 1, 1, 1], strict=False))))
    printed = aggregate("--rule", "mean", "--samples", "counts.json", *FILES[:4])
    assert list(clients(printed, "weight").values()) == [0.25] * 4


@pytest.mark.parametrize("text", ["", "[1, 2]", "3", "no JSON", "[" * 100_000, '{"a": 1'])
def test_a_file_without_sample_counts_is_refused(refusal: Refusal, text: str) -> None:
    Path("counts.json").write_text(text)
    words = ("--rule", "mean", "--samples", "counts.json", *FILES[:4])
    assert "counts.json" in refusal(*FROM_BASE, *words)


# ---------------------------------------------------------------- history


def test_foolsgold_weighs_the_sums_of_all_rounds_by_client_id(folder: Path) -> None:
    words = ("--rule", "foolsgold", "--history", "history.safetensors")
    sums = dict.fromkeys(IDS, np.zeros(28))
    for number, takes_part in enumerate([[0, 1, 2, 3], [3, 2, 5], [5, 1, 0, 4, 3, 2]]):
        write_round(folder, seed=100 * number)
        base = rows([load_arrays(BASE)], PARAMETERS)[0]
        files = [FILES[index] for index in takes_part]
        for file in files:
            stem = Path(file).stem
            sums[stem] = sums[stem] + rows([load_arrays(file)], PARAMETERS)[0] - base
        found = clients(aggregate(*words, *files), "weight")
        matrix = np.stack([sums[client] for client in found])
        assert list(found.values()) == pytest.approx(foolsgold_weights(matrix, 1.0), abs=1e-4)
    alone = clients(aggregate("--rule", "foolsgold", *files), "weight")
    assert list(alone.values()) != pytest.approx(list(found.values()), abs=1e-2)


def test_a_round_without_a_result_leaves_the_history_as_it_was(refusal: Refusal) -> None:
    words = ("--rule", "foolsgold", "--history", "h")
    aggregate(*words, *FILES[:4])
    refusal(*FROM_BASE, *words, "nosuch")
    refusal(*FROM_BASE, *words, *FILES[:4], "-o", "missing/next")


def test_a_rejected_client_leaves_no_trace_in_the_history(folder: Path) -> None:
    words = ("--rule", "foolsgold", "--history", "h")
    change(folder / FILES[0], fc__bias=torch.full((4,), torch.nan))
    aggregate(*words, *FILES[:4])
    assert read_description("h")["clients"] == IDS[1:4]


@pytest.mark.parametrize("history", ["missing/history", NEXT])
def test_a_history_that_cannot_be_kept_is_refused_before_anything_is_written(
    refusal: Refusal, history: str
) -> None:
    words = ("--rule", "foolsgold", "--history", history, *FILES[:4], "-o", NEXT)
    assert history in refusal(*FROM_BASE, *words)


def nan_in_history(path: Path) -> None:
    state, about = load_file(path), read_description(path)
    state["fc.bias"][0] = torch.nan
    save_file(state, path, described(state, **about))


def of_another_model(path: Path) -> None:
    state, about = load_file(path), read_description(path)
    state["fc.bias"] = torch.ones(4, 5)
    save_file(state, path, described(state, **about))


@pytest.mark.parametrize(
    "damage",
    [truncated, lambda path: save_file(global_model(), path), nan_in_history, of_another_model],
    ids=["truncated", "a model", "nan", "of another model"],
)
def test_a_damaged_history_is_refused(
    folder: Path, refusal: Refusal, damage: Callable[[Path], object]
) -> None:
    words = ("--rule", "foolsgold", "--history", "old-history")
    aggregate(*words, *FILES[:4])
    damage(folder / "old-history")
    assert "history" in refusal(*FROM_BASE, *words, *FILES[:4], "-o", NEXT)


# ---------------------------------------------------------------- what is shown


def test_the_table_names_every_client_and_its_verdict() -> None:
    result = run(*FROM_BASE, "--rule", "krum", *FILES[:4], "nosuch", "-o", NEXT)
    assert result.exit_code == 0
    assert "krum: 5 clients, 1 trusted, 3 unused, 1 rejected" in result.stdout
    for client in [*IDS[:4], "nosuch"]:
        assert f" {client} " in result.stdout
    assert "cannot be read: no such file (nosuch)" in result.stdout
    assert result.stderr.strip() == f"wrote {NEXT}"


def test_without_a_terminal_there_are_no_colors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    result = run(*FROM_BASE, "--rule", "geometric-median", *FILES[:4], "nosuch")
    assert "\x1b" not in result.output
    assert all(client in result.stdout for client in [*IDS[:4], "nosuch"])


def test_a_narrow_terminal_does_not_cut_the_ids_off() -> None:
    answer = rules.get("krum").aggregate({client: torch.rand(9) for client in IDS})
    console = Console(width=60)
    with console.capture() as capture:
        console.print(answer)
    assert all(client in capture.get() for client in IDS)


def test_ids_are_shown_as_they_are(folder: Path) -> None:
    (folder / FILES[0]).rename(folder / "[red]é[.safetensors")
    printed = run(*FROM_BASE, *FILES[1:3], "[red]é[.safetensors").stdout
    assert " [red]é[ " in printed


def test_standard_error_is_empty_beside_json() -> None:
    assert run(*FROM_BASE, "--json", *FILES[:4]).stderr == ""


def test_the_reason_is_all_that_is_on_standard_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fedimmune", *FROM_BASE, "--rule", "krum", *FILES[:2]])
    with pytest.raises(SystemExit):
        main()
    said = capsys.readouterr().err
    assert said == "fedimmune: krum needs at least 3 valid clients; there were 2\n"


def test_a_terminal_without_unicode_gets_a_table_too() -> None:
    result = CliRunner(charset="ascii").invoke(app, [*FROM_BASE, "--rule", "mean", *FILES[:4]])
    assert result.exit_code == 0, repr(result.exception)
    assert IDS[3] in result.stdout


def test_rules_lists_every_rule() -> None:
    result = run("rules")
    assert result.exit_code == 0
    assert all(f"\n{name} " in result.stdout for name in rules.available())
    assert "attackers (f) = by the number" in result.stdout
    assert "trim (β) = 0.333" in result.stdout


def test_rules_as_json_has_the_defaults() -> None:
    listed = {rule["name"]: rule for rule in json.loads(run("rules", "--json").stdout)}
    assert tuple(listed) == rules.available()
    assert listed["multi-krum"]["parameters"] == {
        "attackers": None,
        "keep": None,
        "buffers": "median",
        "before": "",
    }
    assert listed["mean"]["parameters"] == {"by_samples": False, "cap": 2.0, "before": ""}
    assert "AISTATS" in listed["mean"]["paper"]


def test_version() -> None:
    assert run("--version").stdout == f"fedimmune {fedimmune.__version__}\n"


# ---------------------------------------------------------------- as a program of its own


def call(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedimmune", *words]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)


def test_the_program_gives_a_result(folder: Path) -> None:
    done = call(*FROM_BASE, "--rule", "mean", "--json", *FILES[:4], "nosuch", "-o", NEXT)
    assert done.returncode == 0
    assert list(rejected(json.loads(done.stdout))) == ["nosuch"]
    assert_follows("mean", folder / NEXT, FILES[:4])


def test_the_program_fails_with_a_reason_and_no_traceback(folder: Path) -> None:
    before = contents(folder)
    done = call(*FROM_BASE, "nosuch", "-o", NEXT)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.strip().startswith("fedimmune: median needs at least 1 valid client")
    assert "Traceback" not in done.stderr
    assert contents(folder) == before


# ---------------------------------------------------------------- odd rounds


@pytest.mark.usefixtures("folder")
def test_an_odd_round_is_announced_in_the_table_and_in_json() -> None:
    stems = [Path(file).stem for file in FILES[:6]]
    words = ("--rule", "oracle", "--set", f"attackers={','.join(stems)}", *FILES)
    said = "6 of 10 valid clients are suspected"
    shown = run(*FROM_BASE, *words)
    assert shown.stdout.count(f"warning: {said}") == 1
    assert said not in shown.stderr
    assert said in aggregate(*words)["warnings"][0]
    assert aggregate("--rule", "krum", *FILES)["warnings"] == [], "it picks one by design"
