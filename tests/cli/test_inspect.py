"""`fedimmune inspect`: a defense, a run, a round, a client, and why."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

from fedimmune import Scenario, simulate
from fedimmune.adaptive import train
from fedimmune.adaptive.defense import Ancestor, Defense, DefenseAbout
from fedimmune.adaptive.models.relational import Relational, RelationalSettings
from fedimmune.cli import app
from fedimmune.results import ClientResult, Verdict
from fedimmune.runs.folder import RunFolder
from fedimmune.runs.records import RoundRecord, Seconds
from fedimmune.runs.traces import Trace
from fedimmune.simulation import run_folder
from tests.adaptive.judging import untrained_file
from tests.adaptive.rehearsed import LAYERS, grams_of, honest_round, negated, recordings
from tests.report.making import make_run

BLOBS = "tests.simulation.own_task:Blobs"


def call(*words: str | Path) -> Result:
    result = CliRunner().invoke(app, ["inspect", *map(str, words)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def read(*words: str | Path) -> Any:
    return json.loads(call(*words, "--json").stdout)


@pytest.fixture(scope="module")
def defense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Has learned to see updates turned round."""
    path = tmp_path_factory.mktemp("defense") / "made.defense"
    made = train(recordings(rounds=16), epochs=60, settings={"hidden": 32})
    made.save(path)
    return path


@pytest.fixture
def run(defense: Path, tmp_path: Path) -> RunFolder:
    """Two rounds by the learned rule: clients a and b attack; memory alone holds d back in 2."""
    folder = RunFolder(tmp_path / "run")
    loaded = Defense.load(defense)
    folder.path.mkdir()
    (folder.path / "scenario.toml").write_text(
        f'rounds = 3\n[rule]\nname = "adaptive"\ndefense = "{defense}"\n'
        f'digest = "{loaded.digest}"\n'
    )
    clients = ("a", "b", "c", "d", "e", "f", "g", 8)
    for number in (1, 2):
        sent = honest_round(8, torch.Generator().manual_seed(number))
        states = [negated(state) if i < 2 else state for i, state in enumerate(sent)]
        grams = grams_of(states, list(LAYERS))
        evidence = torch.zeros(8, dtype=torch.float64)
        evidence[3] = -9.0 if number == 2 else 0.0
        weights, scores = loaded.weigh(grams, evidence)
        folder.traces.write(Trace(number, clients, tuple(LAYERS), grams, evidence))
        records = [
            ClientResult(
                str(client),
                Verdict.TRUSTED if weight > 0 else Verdict.SUSPECTED,
                weight=weight,
                score=score,
                is_attacker=i < 2,
            )
            for i, (client, weight, score) in enumerate(
                zip(clients, weights.tolist(), scores.tolist(), strict=True)
            )
        ]
        records.append(ClientResult("late", Verdict.REJECTED, reason="it holds NaN"))
        seconds = Seconds(training=1, aggregating=1, testing=1)
        folder.append(
            RoundRecord(round=number, accuracy=0.5, clients=tuple(records), seconds=seconds)
        )
    return folder


# -------------------------------------------------------------------- a defense


def test_a_defense_tells_where_it_is_from_how_good_it_is_and_what_it_looks_at(
    defense: Path,
) -> None:
    shown = call(defense).stdout
    loaded = Defense.load(defense)
    for words in ("synthetic", "relational", "omniscient", loaded.digest, "epochs = 60"):
        assert words in shown
    assert "3 of 8" in shown, "the table of `train`"
    for name in LAYERS:
        assert name in shown
    assert "cosine to the estimate" in shown
    assert "█" in shown
    facts = read(defense)
    assert facts["digest"] == loaded.digest
    assert facts["bytes"] == defense.stat().st_size
    assert facts["about"] == loaded.about.model_dump(mode="json")
    assert list(facts["importance"]["by_layer"]) == list(LAYERS)
    sums = [sum(found.values()) for found in facts["importance"].values()]
    assert sums[0] == pytest.approx(sums[1])
    assert facts["parameters"] == sum(p.numel() for p in loaded.form.parameters())


def test_the_papers_form_is_shown_by_component(tmp_path: Path) -> None:
    made = train(recordings(2, rounds=2), form="paper", epochs=1)
    made.save(tmp_path / "paper.defense")
    assert "component 10" in call(tmp_path / "paper.defense").stdout


def test_what_a_later_version_says_of_a_defense_is_shown_as_it_is() -> None:
    class Later(DefenseAbout):
        origin: tuple[str, ...] = ()
        looked_for: dict[str, Any] | None = None

    fields: dict[str, Any] = {"task": "t", "layers": {}, "form": "paper", "settings": {}}
    plain = dict(Later(**fields).describe())
    assert not plain.keys() & {"origin", "looked for"}, "what is empty is left out"
    found = dict(Later(**fields, origin=("a", "b"), looked_for={"c": [1, 2]}).describe())
    assert found["origin"] == "a, b"
    assert found["looked for"] == "c = 1, 2"


def test_a_patched_defense_names_what_it_was_made_of() -> None:
    before = Ancestor(digest="0123", attacks=("omniscient",), version="1")
    about = DefenseAbout(task="t", layers={}, form="paper", settings={}, lineage=(before,))
    assert dict(about.describe())["patched from"] == "0123 (omniscient)"


# -------------------------------------------------------------------- a run


def test_a_run_shows_whom_it_accused_most_first(run: RunFolder) -> None:
    facts = read(run.path)
    assert facts["rounds"] == 2
    assert facts["traces"] == [1, 2]
    by_id = {client["client"]: client for client in facts["clients"]}
    assert by_id["a"]["accused"] == [1, 2]
    assert by_id["d"]["accused"] == [2]
    assert by_id["8"]["accused"] == []
    counts = [len(client["accused"]) for client in facts["clients"]]
    assert counts == sorted(counts, reverse=True)
    lines = call(run.path).stdout.splitlines()
    assert sum("▲ yes" in line for line in lines) == 2


def test_a_round_and_a_client(run: RunFolder) -> None:
    assert read(run.path, "--round", "2")["clients"] == [
        client.to_json() for client in run.records()[1].clients
    ]
    assert "it holds NaN" in call(run.path, "--round", "2").stdout
    found = read(run.path, "--client", "8")
    assert [row["round"] for row in found["rounds"]] == [1, 2]
    assert found["client"] == "8"
    assert call(run.path, "--client", "8").stdout.count("trusted") == 2


def test_runs_of_other_rules_and_without_truth_are_shown_too(tmp_path: Path) -> None:
    make_run(tmp_path / "run", truth=False)
    shown = call(tmp_path / "run").stdout
    assert "attacks" not in shown
    assert "--client" not in shown, "nothing there to be asked"


# -------------------------------------------------------------------- why


def test_which_layers_made_a_client_suspect(run: RunFolder) -> None:
    found = read(run.path, "--round", "1", "--client", "a")
    assert found["client"]["verdict"] == "suspected"
    why = found["explanation"]
    assert {one["layer"] for one in why["layers"]} == set(LAYERS)
    whole = why["ordinary"]["score"] - why["found"]["score"]
    assert sum(one["blame"] for one in why["layers"]) == pytest.approx(whole)
    assert why["stand_in"] not in {"a", "b"}
    shown = call(run.path, "--round", "1", "--client", "a").stdout
    assert "Client a in round 1: suspected" in shown
    assert "It does attack." in shown
    assert f"a twin of {why['stand_in']}" in shown
    assert "emory" not in shown
    worst = max(why["layers"], key=lambda one: one["blame"])["layer"]
    assert f"{worst} makes" in shown


def test_memory_that_accuses_alone_is_said(run: RunFolder) -> None:
    found = read(run.path, "--round", "2", "--client", "d")
    assert found["client"]["verdict"] == "suspected"
    assert found["explanation"]["is_memory_alone"] is True
    assert found["explanation"]["found"]["weight"] > 0
    shown = call(run.path, "--round", "2", "--client", "d").stdout
    assert "Memory alone accuses it" in shown
    assert "This round does not accuse it." in shown


def test_who_was_rejected_has_its_reason_for_an_answer(run: RunFolder) -> None:
    shown = call(run.path, "--round", "1", "--client", "late").stdout
    assert "rejected, and was not weighed: it holds NaN." in shown
    assert read(run.path, "--round", "1", "--client", "late")["explanation"] is None


def test_a_simulated_run_from_end_to_end(tmp_path: Path) -> None:
    settings = RelationalSettings(layers=2, hidden=8)
    layers: dict[str, tuple[int, ...]] = {"fc.weight": (4, 64), "fc.bias": (4,)}
    about = DefenseAbout(
        task="blobs", layers=layers, form="relational", settings=settings.model_dump()
    )
    torch.manual_seed(1)
    Defense(Relational(settings), about).save(tmp_path / "blobs.defense")
    rule = {"name": "adaptive", "defense": str(tmp_path / "blobs.defense")}
    scenario = Scenario(task=BLOBS, clients=4, rounds=2, rule=rule)
    records = list(simulate(scenario, runs=tmp_path, workers=1))
    place = run_folder(scenario, tmp_path).path
    found = read(place, "--round", "2", "--client", "1")
    assert found["explanation"]["with_memory"]["score"] == records[1].clients[1].score
    assert found["explanation"]["found"]["score"] == pytest.approx(records[1].clients[1].score)


def test_a_universal_defense_explains_itself_as_the_rule_used_it(tmp_path: Path) -> None:
    """With its anchor, its threshold and the shapes of a model that it has never seen."""
    place = untrained_file(tmp_path / "any.defense")
    rule = {"name": "adaptive", "defense": str(place), "anchor": True, "max_false_alarms": 0.05}
    scenario = Scenario(
        task=BLOBS, clients=4, rounds=2, rule={**rule, "on_majority": "keep"}, anchor=8
    )
    records = list(simulate(scenario, runs=tmp_path, workers=1))
    folder = run_folder(scenario, tmp_path).path
    for one in records[1].clients:
        found = read(folder, "--round", "2", "--client", one.client)["explanation"]
        assert found["with_memory"]["score"] == one.score
        assert found["with_memory"]["weight"] == pytest.approx(one.weight)
        assert {layer["layer"] for layer in found["layers"]} == {"fc.weight", "fc.bias"}
    shown = call(folder, "--round", "2", "--client", "1").stdout
    assert "with a probability of" in " ".join(shown.split())
    whole = call(folder, "--round", "2").stdout
    assert "P(attack)" in whole
    assert "Judged by the defense any.defense" in whole
    assert "P(attack)" in call(folder).stdout
    assert read(folder)["clients"][0]["probability"] is not None


def test_a_universal_defense_looks_at_all_layers_alike(tmp_path: Path) -> None:
    shown = call(untrained_file(tmp_path / "any.defense")).stdout
    assert "Which layers" not in shown
    assert "cosine to the estimate" in shown
    assert "on 1000 clients in rounds held out" in shown


# -------------------------------------------------------------------- refusals

Refused = Callable[..., str]


def test_what_cannot_be_looked_at(defense: Path, tmp_path: Path, refused: Refused) -> None:
    assert "does not exist" in refused("inspect", tmp_path / "nowhere")
    assert "no scenario.toml" in refused("inspect", tmp_path)
    assert "is not a run" in refused("inspect", defense, "--round", "1")
    make_run(tmp_path / "begun", played=0)
    assert "no round of" in refused("inspect", tmp_path / "begun")
    (tmp_path / "text").write_text("text")
    assert "defense" in refused("inspect", tmp_path / "text")


def test_rounds_and_clients_that_are_not_there(run: RunFolder, refused: Refused) -> None:
    told = refused("inspect", run.path, "--round", "3")
    assert "no round 3: rounds 1 to 2 are finished" in told
    told = refused("inspect", run.path, "--round", "1", "--client", "z")
    assert "client z took no part in round 1; there were a, b, c, d, e, f, g, 8, late" in told
    assert "has a client z" in refused("inspect", run.path, "--client", "z")


def test_other_rules_cannot_say_which_layers(tmp_path: Path, refused: Refused) -> None:
    make_run(tmp_path / "run")
    told = refused("inspect", tmp_path / "run", "--round", "1", "--client", "1")
    assert "aggregated by krum" in told
    assert "only the rule adaptive" in told


def test_a_round_without_its_trace(run: RunFolder, refused: Refused) -> None:
    (run.traces.path / "round-0001.safetensors").unlink()
    told = refused("inspect", run.path, "--round", "1", "--client", "a")
    assert "round 1" in told
    assert "left no trace" in told
    file = run.traces.path / "round-0002.safetensors"
    file.write_bytes(file.read_bytes()[:-9])
    assert file.name in refused("inspect", run.path, "--round", "2", "--client", "a")


def test_a_defense_that_is_gone_or_another_one(
    run: RunFolder, defense: Path, tmp_path: Path, refused: Refused
) -> None:
    asked = ("inspect", run.path, "--round", "1", "--client", "a")
    scenario = run.path / "scenario.toml"
    kept = tmp_path / "kept.defense"
    shutil.copy(defense, kept)
    scenario.write_text(scenario.read_text().replace(str(defense), str(tmp_path / "moved.defense")))
    told = refused(*asked)
    assert "moved.defense" in told
    assert "--defense" in told
    assert read(*asked[1:], "--defense", kept)["explanation"] is not None
    other = train(recordings(2, rounds=2), epochs=1)
    other.save(tmp_path / "moved.defense")
    told = refused(*asked)
    assert "another defense" in told
    assert Defense.load(defense).digest in told
    assert "there is no defense" in refused(*asked, "--defense", tmp_path / "nowhere")
