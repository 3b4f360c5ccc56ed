"""Scenarios: written and read without loss, told apart by their digest, refused in plain words."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from fedimmune import Scenario, attacks, rules, simulate, tasks
from fedimmune.cli import app
from fedimmune.errors import InputError, ParameterError
from fedimmune.report import write_report
from fedimmune.simulation.components import (
    ComponentConfig,
    Optimizer,
    ResolvedOptimizer,
    Variation,
)
from fedimmune.simulation.scenario import ResolvedScenario, changed, read_toml
from tests.rounds import needs_of
from tests.simulation.test_client import BLOBS, WOBBLY

whole = st.integers(1, 10**6)
share = st.floats(0, 1, exclude_min=True)
positive = st.floats(1e-300, 1e300)

some_rules = st.one_of(
    st.sampled_from(rules.available()).map(lambda name: {"name": name, **needs_of(name)}),
    st.builds(lambda t: {"name": "trimmed-mean", "trim": t}, st.floats(0, 0.49)),
    st.builds(lambda f: {"name": "krum", "attackers": f}, st.integers(0, 50)),
    st.builds(lambda k, m: {"name": "multi-krum", "attackers": k, "keep": m}, whole, whole),
    st.builds(
        lambda k, h: {"name": "foolsgold", "confidence": k, "history": h}, positive, st.booleans()
    ),
    st.builds(lambda c: {"name": "mean", "by_samples": True, "cap": c}, positive),
)
some_attacks = st.one_of(
    st.sampled_from(attacks.available()).map(lambda name: {"name": name}),
    st.builds(lambda s: {"name": "sign-flip", "scale": s}, positive),
    st.builds(
        lambda y, g, f: {"name": "backdoor", "shift_y": y, "gap": g, "fraction": f},
        st.integers(0, 9),
        st.integers(0, 9),
        st.floats(0, 1),
    ),
    st.permutations(range(4)).map(lambda order: {"name": "label-flip", "permutation": order}),
    st.builds(
        lambda a, b: {"name": "label-flip", "kind": "map", "source": a, "target": b}, whole, whole
    ),
)
partitions = st.one_of(
    st.sampled_from(["iid", "dirichlet", "by-label"]),
    st.builds(lambda a: {"name": "dirichlet", "alpha": a}, positive),
    st.builds(lambda s: {"name": "by-label", "shards": s}, whole),
)
optimizers = st.one_of(
    st.sampled_from(["sgd", "adam"]),
    st.builds(lambda lr: {"lr": lr}, positive),
    st.builds(
        lambda lr, m, w: {"name": "sgd", "lr": lr, "momentum": m, "weight_decay": w},
        positive,
        st.floats(0, 1, exclude_max=True),
        st.floats(0, 1e9),
    ),
    st.builds(lambda lr: {"name": "adam", "lr": lr}, positive),
)
variations = st.fixed_dictionaries(
    {},
    optional={
        "share": share,
        **dict.fromkeys(("epochs", "lr", "samples"), st.floats(1, 1e9)),
        "odd": st.sampled_from(["one-class", "inverted", "brighter", "noisy"]),
        "odd_clients": whole,
    },
)
own_tasks = st.one_of(
    st.sampled_from([*tasks.available(), WOBBLY]),
    st.builds(lambda n: {"name": BLOBS, "samples": n, "breaks": [1, 2], "how": "raise"}, whole),
)


@st.composite
def scenarios(draw: st.DrawFn) -> ResolvedScenario:
    clients = draw(whole)
    fields: dict[str, Any] = {
        "task": own_tasks,
        "rule": some_rules,
        "attack": some_attacks,
        "attackers": st.integers(0, clients),
        "attacker_data": st.sampled_from(["own", "copied"]),
        "participation": share,
        "partition": partitions,
        "rounds": whole,
        "local_epochs": whole,
        "local_steps": whole,
        "test_every": whole,
        "batch": whole,
        "anchor": st.integers(0, 10**6),
        "optimizer": optimizers,
        "variation": variations,
        "seed": st.integers(0, 2**63 - 1),
        "device": st.sampled_from(["cpu", "cuda:1"]),
    }
    assert {"clients", *fields} == set(Scenario.model_fields)
    given_ones = draw(st.sets(st.sampled_from(sorted(fields))))
    chosen = {name: draw(fields[name]) for name in sorted(given_ones)}
    return Scenario(clients=clients, **chosen).resolve()


@given(scenario=scenarios())
def test_toml_and_back(scenario: ResolvedScenario) -> None:
    text = scenario.to_toml()
    again = Scenario(**tomllib.loads(text)).resolve()
    assert again == scenario
    assert again.digest == scenario.digest
    assert again.to_toml() == text
    written = {*tomllib.loads(text), "local_steps", "variation"}  # which may have no value
    assert written == set(Scenario.model_fields), "nothing is left to guess"


@given(scenario=scenarios())
def test_what_it_holds_makes_the_same_scenario(scenario: ResolvedScenario) -> None:
    dumped = Scenario(**scenario.model_dump()).resolve()
    handed = Scenario(**{name: getattr(scenario, name) for name in Scenario.model_fields}).resolve()
    assert dumped == handed == scenario
    assert dumped.digest == handed.digest == scenario.digest
    assert scenario.resolve() == scenario


@given(one=scenarios(), other=scenarios())
def test_digests_are_equal_exactly_for_equal_scenarios(
    one: ResolvedScenario, other: ResolvedScenario
) -> None:
    assert (one.digest == other.digest) == (one == other)
    assert len(one.digest) == 12
    assert set(one.digest) <= set("0123456789abcdef")


def test_read_from_a_file_and_from_a_runs_folder(tmp_path: Path) -> None:
    scenario = Scenario(rule="krum", attack="backdoor", seed=7)
    file = tmp_path / "scenario.toml"
    file.write_text(scenario.to_toml())
    assert Scenario.from_toml(file) == scenario
    assert Scenario.from_toml(tmp_path) == scenario
    assert Scenario.from_toml(str(file), {"rule": "median", "attack.gap": 1}) == Scenario(
        rule="median", attack={"name": "backdoor", "gap": 1}, seed=7
    )
    for name, content in (("torn", b"clients = "), ("binary", b"\xff\xfe\x00")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=name):
            Scenario.from_toml(tmp_path / name)
    for missing in (tmp_path / "missing.toml", tmp_path / "no" / "folder"):
        with pytest.raises(InputError, match="cannot read"):
            read_toml(missing)


# -------------------------------------------------------------------- every field counts

FULL: dict[str, Any] = {
    "task": {"name": BLOBS, "samples": 99, "breaks": [1], "how": "nan"},
    "rule": {"name": "foolsgold", "confidence": 2.0, "history": False},
    "attack": {
        "name": "backdoor",
        "shift_y": 1,
        "shift_x": 1,
        "gap": 1,
        "channel": 1,
        "target": 1,
        "fraction": 0.25,
        "chance": 0.25,
        "value": 1.0,
        "drawn_at": 32,
    },
    "clients": 20,
    "attackers": 3,
    "attacker_data": "own",
    "participation": 0.5,
    "partition": {"name": "dirichlet", "alpha": 0.5},
    "rounds": 7,
    "local_epochs": 2,
    "local_steps": 5,
    "test_every": 2,
    "batch": 9,
    "anchor": 10,
    "optimizer": {
        "name": "sgd",
        "lr": 0.5,
        "momentum": 0.25,
        "weight_decay": 0.125,
        "carried": False,
    },
    "variation": {
        "share": 0.5,
        "epochs": 2.0,
        "lr": 2.0,
        "samples": 2.0,
        "odd": "noisy",
        "odd_clients": 2,
    },
    "seed": 3,
    "device": "cpu",
}

OTHERWISE: dict[str, Any] = {
    "task": {"name": WOBBLY},
    "task.samples": 98,
    "task.breaks": [1, 2],
    "task.how": "raise",
    "rule": "mean",
    "rule.confidence": 2.0000001,
    "rule.history": True,
    "attack": "sign-flip",
    "attack.shift_y": 2,
    "attack.shift_x": 2,
    "attack.gap": 2,
    "attack.channel": 2,
    "attack.target": 2,
    "attack.fraction": 0.26,
    "attack.chance": 0.26,
    "attack.value": -1.0,
    "attack.drawn_at": 33,
    "clients": 21,
    "attackers": 4,
    "attacker_data": "copied",
    "participation": 0.51,
    "partition": "iid",
    "partition.alpha": 0.9,
    "rounds": 8,
    "local_epochs": 1,
    "local_steps": 6,
    "test_every": 1,
    "batch": 10,
    "anchor": 0,
    "optimizer.name": "adam",
    "optimizer.lr": 0.51,
    "optimizer.momentum": 0.0,
    "optimizer.weight_decay": 0.0,
    "optimizer.carried": True,
    "variation": None,
    "variation.share": 0.25,
    "variation.epochs": 3.0,
    "variation.lr": 3.0,
    "variation.samples": 3.0,
    "variation.odd": "inverted",
    "variation.odd_clients": 1,
    "seed": 4,
    "device": "cuda",
}


def test_the_lists_above_name_every_field() -> None:
    assert set(FULL) == set(Scenario.model_fields)
    inner = {
        f"{name}.{key}"
        for name, table in FULL.items()
        if isinstance(table, dict)
        for key in table
        if key != "name"
    }
    assert {*inner, *FULL} - {"optimizer"} <= set(OTHERWISE)
    assert set(FULL["optimizer"]) == set(Optimizer.model_fields)
    assert set(FULL["variation"]) == set(Variation.model_fields)


@pytest.mark.parametrize("path", OTHERWISE)
def test_the_digest_differs_where_anything_does(path: str) -> None:
    usual = Scenario(**FULL).resolve()
    other = Scenario(**changed(FULL, {path: OTHERWISE[path]})).resolve()
    assert other.digest != usual.digest
    assert other != usual
    assert Scenario(**tomllib.loads(other.to_toml())).digest == other.digest


@pytest.mark.parametrize(
    ("short", "full"),
    [
        ({}, {"task": "digits", "rule": "mean", "attack": "none", "clients": 10, "seed": 1}),
        ({"rule": "trimmed-mean"}, {"rule": {"name": "trimmed-mean", "trim": 1 / 3}}),
        ({"rule": "krum"}, {"rule": {"name": "krum", "attackers": None}}),
        ({"rule": "foolsgold"}, {"rule": {"name": "foolsgold", "confidence": 1}}),
        (
            {"attack": "backdoor"},
            {"attack": {"name": "backdoor", "target": 2.0, "fraction": 0.5}, "attackers": 4},
        ),
        ({"attack": "sign-flip"}, {"attack": {"name": "sign-flip", "scale": 1}}),
        ({"partition": "by-label"}, {"partition": {"name": "by-label", "shards": 2}}),
        ({"optimizer": "sgd"}, {"optimizer": {"lr": 0.1, "momentum": 0.5}}),
        ({"participation": 1}, {"participation": 1.0}),
        ({"optimizer": {"lr": 1}}, {"optimizer": {"lr": 1.0, "name": "sgd"}}),
        ({}, {"rounds": 20, "batch": 16, "local_epochs": 1, "anchor": 100, "optimizer": {}}),
        ({"attack": "none", "attackers": 3}, {"attackers": 0}),
        ({"rule": ComponentConfig(name="trimmed-mean")}, {"rule": "trimmed-mean"}),
        ({"partition": ComponentConfig(name="dirichlet")}, {}),
        (
            {"attack": {"name": "label-flip", "permutation": (1, 0)}},
            {"attack": {"name": "label-flip", "kind": "permutation", "permutation": [1, 0]}},
        ),
    ],
)
def test_left_out_or_given_defaults_are_the_same(
    short: dict[str, Any], full: dict[str, Any]
) -> None:
    assert Scenario(**short).resolve() == Scenario(**full).resolve()
    assert Scenario(**short).digest == Scenario(**full).digest


def test_what_is_left_out_is_the_tasks() -> None:
    for name in tasks.available():
        recipe, scenario = tasks.find(name).recipe, Scenario(task=name).resolve()
        assert scenario.rounds == recipe.rounds
        assert scenario.batch == recipe.batch
        assert scenario.local_epochs == recipe.local_epochs
        assert scenario.anchor == recipe.anchor
        assert scenario.optimizer == ResolvedOptimizer(
            lr=recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay
        )


@pytest.mark.parametrize(
    ("clients", "attackers"), [(1, 1), (2, 1), (5, 2), (10, 4), (14, 5), (100, 40)]
)
def test_four_in_ten_attack_where_an_attack_is_named(clients: int, attackers: int) -> None:
    assert Scenario(attack="backdoor", clients=clients).resolve().attackers == attackers
    assert Scenario(clients=clients).resolve().attackers == 0


# -------------------------------------------------------------------- bad input

NAN, INFINITY = float("nan"), float("inf")


BAD: list[tuple[dict[str, Any], list[str]]] = [
    ({"color": "red"}, ["no field 'color'", "clients", "optimizer"]),
    ({"task": "cifar11"}, ["task", "'cifar11'", "did you mean 'cifar10'?"]),
    ({"task": 5}, ["task", "5"]),
    ({"task": None}, ["task"]),
    ({"task": {"samples": 5}}, ["task", "digits has no parameter 'samples'"]),
    ({"optimizer": 3}, ["optimizer", "expected a name"]),
    ({"task": {"name": 5}}, ["task", "name"]),
    ({"task": {"name": "digits", "size": 5}}, ["task", "digits has no parameter 'size'"]),
    ({"task": "no.such.module:Task"}, ["task", "no.such.module"]),
    ({"task": "tests.simulation.own_task:Nothing"}, ["task", "Nothing"]),
    ({"task": "tests.simulation.own_task:CLASSES"}, ["task", "CLASSES", "Task"]),
    ({"task": "fedimmune.tasks:Task"}, ["task", "abstract", "load"]),
    ({"rule": "krumm"}, ["rule", "'krumm'", "krum"]),
    ({"rule": ["krum"]}, ["rule"]),
    ({"rule": {"name": "krum", "keep": 1}}, ["rule", "krum has no parameter 'keep'"]),
    ({"rule": {"name": "krum", "attackers": -1}}, ["rule", "attackers", "-1"]),
    ({"rule": {"name": "krum", "attackers": "3"}}, ["rule", "attackers", "'3'"]),
    ({"rule": {"name": "oracle", "attackers": [1]}}, ["rule", "oracle"]),
    ({"rule": {"name": "oracle", "benign": [1]}}, ["rule", "oracle"]),
    ({"rule": ComponentConfig(name="trimmed-mean", trim=7)}, ["rule", "trim"]),
    ({"rule": ComponentConfig(name="krum", color="red")}, ["rule", "color"]),
    ({"attack": "back-door"}, ["attack", "'back-door'", "backdoor"]),
    ({"attack": {"name": "backdoor", "shift_x": -1}}, ["attack", "shift_x"]),
    ({"attack": {"name": "sign-flip", "scale": 0}}, ["attack", "scale"]),
    ({"clients": 0}, ["clients", "1", "0"]),
    ({"clients": 1.5}, ["clients", "1.5"]),
    ({"clients": "10"}, ["clients", "'10'"]),
    ({"clients": True}, ["clients", "True"]),
    ({"attackers": -1, "attack": "sign-flip"}, ["attackers", "-1"]),
    ({"attackers": 11, "attack": "sign-flip"}, ["attackers", "11", "10"]),
    ({"attackers": 3, "clients": 2, "attack": "sign-flip"}, ["attackers", "3", "2"]),
    ({"participation": 0}, ["participation", "0"]),
    ({"participation": 1.1}, ["participation", "1.1"]),
    ({"participation": NAN}, ["participation", "nan"]),
    ({"participation": "half"}, ["participation", "half"]),
    ({"participation": True}, ["participation", "True"]),
    ({"partition": "by-hand"}, ["partition", "'by-hand'", "dirichlet"]),
    ({"partition": {"name": "dirichlet", "alpha": 0}}, ["partition", "alpha"]),
    ({"rounds": 0}, ["rounds", "0"]),
    ({"rounds": 3.0}, ["rounds", "3.0"]),
    ({"local_epochs": 0}, ["local_epochs"]),
    ({"batch": 0}, ["batch"]),
    ({"anchor": -1}, ["anchor", "-1"]),
    ({"optimizer": "rmsprop"}, ["optimizer", "rmsprop", "sgd"]),
    ({"optimizer": 0.1}, ["optimizer", "0.1"]),
    ({"optimizer": {"lr": 0}}, ["optimizer.lr", "0"]),
    ({"optimizer": {"lr": INFINITY}}, ["optimizer.lr", "inf"]),
    ({"optimizer": {"lr": "fast"}}, ["optimizer.lr", "fast"]),
    ({"optimizer": {"lr": True}}, ["optimizer.lr", "True"]),
    ({"optimizer": {"momentum": 1}}, ["optimizer.momentum", "1"]),
    ({"optimizer": {"momentum": NAN}}, ["optimizer.momentum", "nan"]),
    ({"optimizer": {"weight_decay": -1}}, ["optimizer.weight_decay", "-1"]),
    ({"optimizer": {"name": "adam", "momentum": 0.5}}, ["optimizer", "adam", "momentum"]),
    ({"optimizer": {"learning_rate": 1}}, ["optimizer", "'learning_rate'", "lr"]),
    ({"seed": -1}, ["seed", "-1"]),
    ({"seed": 2**63}, ["seed"]),
    ({"seed": 1.0}, ["seed", "1.0"]),
    ({"device": "abacus"}, ["device", "abacus"]),
    ({"device": 5}, ["device", "5"]),
    ({"clients": 0, "seed": -1}, ["clients", "seed"]),
]


@pytest.mark.parametrize(("fields", "named"), BAD, ids=str)
def test_bad_values_are_refused_by_name(fields: dict[str, Any], named: list[str]) -> None:
    with pytest.raises(ParameterError) as caught:
        Scenario(**fields).resolve()
    message = str(caught.value)
    assert message.startswith("scenario: ")
    assert all(part in message for part in named), message
    assert "pydantic" not in message
    assert "\n" not in message
    # One problem is one problem, not one of all that follows from it.
    assert message.count("; ") <= len(fields) + 1, message


def test_a_scenario_cannot_be_changed_behind_its_digest() -> None:
    scenario = Scenario()
    with pytest.raises(ValueError, match="frozen"):
        scenario.seed = 2  # type: ignore[misc]
    with pytest.raises(ValueError, match="frozen"):
        scenario.rule.name = "krum"  # type: ignore[misc]
    scenario.rule.parameters["cap"] = 99
    assert scenario.digest == Scenario().digest


# -------------------------------------------------------------------- changes


def test_changes_reach_into_tables_and_leave_the_given_one_alone() -> None:
    given_one = {"rule": {"name": "krum", "attackers": 3}, "attack": "backdoor", "seed": 2}
    before = {"rule": {"name": "krum", "attackers": 3}, "attack": "backdoor", "seed": 2}
    found = changed(
        given_one,
        {"rule.attackers": 1, "attack.gap": 2, "attack.shift_x": 3, "seed": 9, "rounds": 4},
    )
    assert found == {
        "rule": {"name": "krum", "attackers": 1},
        "attack": {"name": "backdoor", "gap": 2, "shift_x": 3},
        "seed": 9,
        "rounds": 4,
    }
    assert given_one == before
    assert changed(given_one, {}) == given_one


@pytest.mark.parametrize(
    "changes",
    [
        {"rule": "trimmed-mean", "rule.trim": 0.1},
        {"rule.trim": 0.1, "rule": "trimmed-mean"},
        {"rule.trim": 0.1, "rule.name": "trimmed-mean"},
        {"rule": {"name": "trimmed-mean", "trim": 0.3}, "rule.trim": 0.1},
    ],
)
def test_a_new_name_drops_the_old_ones_parameters(changes: dict[str, Any]) -> None:
    found = changed({"rule": {"name": "krum", "attackers": 3}}, changes)
    assert found == {"rule": {"name": "trimmed-mean", "trim": 0.1}}


def test_a_parameter_of_a_default_can_be_set_alone() -> None:
    assert Scenario(**changed({}, {"partition.alpha": 0.1})) == Scenario(
        partition={"name": "dirichlet", "alpha": 0.1}
    )
    assert Scenario(partition={"alpha": 0.1}).partition.name == "dirichlet"
    scenario = Scenario(**changed({}, {"optimizer.lr": 0.25})).resolve()
    assert scenario.optimizer.lr == 0.25
    assert scenario.optimizer.momentum == 0.5
    adam = Scenario(
        **changed({"optimizer": {"momentum": 0.9}}, {"optimizer.name": "adam"})
    ).resolve()
    assert adam.optimizer.name == "adam"
    assert adam.optimizer.momentum == 0


@pytest.mark.parametrize(
    ("fields", "near"),
    [
        ({"round": 3}, "rounds"),
        ({"Clients": 3}, "clients"),
        ({"rule": {"name": "krum", "attacker": 1}}, "attackers"),
        ({"attack": {"name": "backdoor", "shiftx": 1}}, "shift_x"),
        ({"attack": "sign_flip"}, "sign-flip"),
        ({"partition": "dirichlett"}, "dirichlet"),
        ({"optimizer": {"momentun": 0.1}}, "momentum"),
    ],
    ids=str,
)
def test_the_nearest_name_is_asked_for(fields: dict[str, Any], near: str) -> None:
    with pytest.raises(ParameterError, match=rf"did you mean '{near}'\?$"):
        Scenario(**fields).resolve()


def test_the_nearest_table_is_asked_for() -> None:
    with pytest.raises(ParameterError, match=r"'atack\.scale'; did you mean 'attack'\?"):
        changed({}, {"atack.scale": 2})


def test_an_alias_makes_no_other_scenario() -> None:
    flipped = Scenario(attack={"name": "omniscient", "scale": 2}).resolve()
    assert flipped == Scenario(attack={"name": "sign-flip", "scale": 2}).resolve()
    assert flipped.attack.name == "sign-flip"


@pytest.mark.parametrize("path", ["seed.x", "rule.attackers.first", "rules.name", "clients.name"])
def test_paths_that_lead_nowhere_are_refused(path: str) -> None:
    with pytest.raises(ParameterError, match=path.replace(".", r"\.")):
        changed({}, {path: 1})


def test_an_unknown_field_to_be_set_is_refused_in_the_end() -> None:
    with pytest.raises(ParameterError, match="color"):
        Scenario(**changed({}, {"color": "red"}))


def test_titles_are_for_people() -> None:
    assert Scenario().title == "digits-mean-none-seed1"
    hostile = Scenario(rule="krum", attack="backdoor", clients=5, attackers=2, seed=9)
    assert hostile.title == "digits-krum-backdoor-2of5-seed9"
    assert Scenario(task=BLOBS).title == "Blobs-mean-none-seed1"


def test_another_task_or_attack_leaves_what_followed_from_the_old_one_behind() -> None:
    def found(given: dict[str, Any], **changes: Any) -> ResolvedScenario:
        return Scenario(**changed(given, changes)).resolve()

    digits = Scenario(rounds=3).resolve().model_dump()
    assert found(digits, task="mnist") == Scenario(task="mnist").resolve()
    assert found(digits, task="mnist", rounds=2).rounds == 2
    assert found(digits, task="digits").rounds == 3
    assert found(digits, attack="backdoor").attackers == 4
    attacked = Scenario(attack="sign-flip", attackers=2).resolve().model_dump()
    assert found(attacked, **{"attack.scale": 2.0}).attackers == 2


# -------------------------------------------------------------------- inert


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that leaves a file behind when it is imported."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "trap_of_a_test", raising=False)
    sprung = tmp_path / "sprung"
    (tmp_path / "trap_of_a_test.py").write_text(f"open({str(sprung)!r}, 'w').close()")
    return sprung


@pytest.mark.parametrize("field", ["task", "rule", "attack"])
def test_building_and_reading_import_nobodys_code(field: str, trap: Path) -> None:
    named = {field: {"name": "trap_of_a_test:Trap", "x": 1}}
    scenario = Scenario(**named)
    folder = trap.parent / "run"
    folder.mkdir()
    (folder / "scenario.toml").write_text(scenario.to_toml())
    assert Scenario.from_toml(folder, trust_code=True) == scenario
    with pytest.raises(InputError, match=r"import the module 'trap_of_a_test'.*--trust-code"):
        Scenario.from_toml(folder)
    assert not trap.exists()
    with pytest.raises(ParameterError, match="trap_of_a_test"):
        scenario.resolve()
    assert trap.exists(), "the trap works"


def test_report_and_inspect_read_data_only(trap: Path) -> None:
    runs = trap.parent / "runs"
    list(simulate(Scenario(task=BLOBS, clients=3, rounds=1), runs=runs, workers=1))
    (folder,) = runs.iterdir()
    fields = {**read_toml(folder), **dict.fromkeys(("task", "rule", "attack"), NAMES_A_TRAP)}
    (folder / "scenario.toml").write_text(tomli_w.dumps(fields))
    write_report([runs], trap.parent / "report.html")
    result = CliRunner().invoke(app, ["inspect", str(folder), "--json"])
    assert result.exit_code == 0, result.output
    assert not trap.exists()
    assert "trap_of_a_test" in (trap.parent / "report.html").read_text()


NAMES_A_TRAP = {"name": "trap_of_a_test:Trap"}


def test_a_defense_is_not_looked_for_before_it_is_needed(tmp_path: Path) -> None:
    missing = Scenario(rule={"name": "adaptive", "defense": tmp_path / "missing"})
    assert missing.rule.parameters == {"defense": str(tmp_path / "missing")}
    with pytest.raises(ParameterError, match="missing"):
        missing.resolve()


@pytest.mark.parametrize("odd", [{"a": 1}, object(), torch.zeros(2), [object()], {1, 2}])
def test_parameters_are_plain_values(odd: object) -> None:
    with pytest.raises(ParameterError, match="krum: attackers must be a number"):
        Scenario(rule={"name": "krum", "attackers": odd})


def test_all_that_is_wrong_is_said_before_anything_is_run() -> None:
    with pytest.raises(ParameterError, match="no parameter 'keep'"):
        simulate(Scenario(rule={"name": "krum", "keep": 1}))
