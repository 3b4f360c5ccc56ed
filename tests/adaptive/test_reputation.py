"""Memory: suspicion by client id that fades, and trust that cannot be saved up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, save_file
from torch import Tensor

from fedimmune import Scenario, rules, simulate
from fedimmune.adaptive import train
from fedimmune.adaptive.reputation import Case, Memory
from fedimmune.errors import FedimmuneError, InputError
from fedimmune.io import described, read_description
from fedimmune.simulation import run_folder
from fedimmune.tasks.digits import DigitsNet
from tests.adaptive.rehearsed import honest_round, negated, recordings
from tests.rounds import needs_of

STRENGTH = 10.0


def held(memory: Memory, client: Any) -> float:
    return float(memory.evidence([client], STRENGTH)[0])


def after(*scores: float, memory: Memory | None = None, client: Any = "a") -> Memory:
    found = memory or Memory()
    for score in scores:
        found = found.after([client], torch.tensor([score], dtype=torch.float64))
    return found


class Server:
    """Plays rounds: who attacks, sends the negative of what it has learned."""

    def __init__(self, defense: Path) -> None:
        self.rule: Any = rules.get("adaptive", defense=defense, memory=True)
        self._random = torch.Generator().manual_seed(8)

    def play(self, clients: list[Any], attackers: set[Any] = frozenset()) -> Mapping[Any, float]:  # type: ignore[assignment]
        honest = dict(zip(clients, honest_round(len(clients), self._random), strict=True))
        sent = {c: negated(s) if c in attackers else s for c, s in honest.items()}
        weights: Mapping[Any, float] = self.rule.aggregate(sent).weights
        return weights


# -------------------------------------------------------------------- what it has to do


def test_an_honest_client_with_one_bad_round_has_its_weight_again_two_rounds_later(
    trained: Path,
) -> None:
    server, clients = Server(trained), list("abcdefgh")
    for _ in range(3):
        server.play(clients)
    assert server.play(clients, {"c"})["c"] < 0.02
    server.play(clients)
    assert server.play(clients)["c"] > 0.8 / len(clients)


def test_even_a_newcomer_that_begins_badly_is_heard_again_soon() -> None:
    bad = after(-1.0)
    assert held(bad, "a") < 0
    assert held(after(1.0, memory=bad), "a") == 0
    longer = after(*[-1.0] * 20)
    assert held(after(*[1.0] * 4, memory=longer), "a") == 0, "within four rounds, whatever was"


def test_an_attacker_that_goes_on_is_held_down_by_what_is_known_of_it(trained: Path) -> None:
    server, clients = Server(trained), list("abcdefgh")
    for _ in range(4):
        server.play(clients, {"b", "g"})
    assert held(server.rule.known, "b") < -4
    assert held(server.rule.known, "a") == 0


@given(good=st.integers(1, 50), bad=st.lists(st.floats(-1, 0), min_size=1, max_size=10))
def test_who_behaved_well_before_is_no_better_off_than_a_newcomer(
    good: int, bad: list[float]
) -> None:
    """In the round of the attack, and in every round of attack that follows."""
    veteran = after(*[1.0] * good)
    newcomer = Memory()
    for score in bad:
        assert held(veteran, "a") <= held(newcomer, "a") + 1e-12
        veteran = after(score, memory=veteran)
        newcomer = after(score, memory=newcomer)
    assert held(veteran, "a") <= held(newcomer, "a") + 1e-12


def test_trust_cannot_be_cashed_in(trained: Path) -> None:
    """The same, in weights: a sleeper and a newcomer send the same attack in the same rounds."""
    server = Server(trained)
    old = [*"abcdefgh", "sleeper"]
    for _ in range(10):
        server.play(old)
    for _ in range(4):
        honest = honest_round(10, server._random)
        sent = dict(zip([*old, "newcomer"], honest, strict=True))
        sent["sleeper"] = sent["newcomer"] = negated(sent["sleeper"])
        weights = server.rule.aggregate(sent).weights
        assert weights["sleeper"] <= weights["newcomer"] + 1e-9
        assert weights["sleeper"] < 0.02
        known = server.rule.known
        assert held(known, "sleeper") <= held(known, "newcomer") + 1e-9


# -------------------------------------------------------------------- log-odds

LOGITS = st.floats(-10, 10)


def summed(*logits: float, memory: Memory | None = None) -> Memory:
    """What is remembered of a client with these logits, one round each."""
    found = memory or Memory()
    for logit in logits:
        found = found.after_log_odds(["a"], found.log_odds(["a"]) + logit)
    return found


def odds(memory: Memory) -> float:
    return float(memory.log_odds(["a"]))


def test_a_doubtful_round_after_good_ones_is_held_against_nobody() -> None:
    known = summed(3.0, 2.0)
    assert odds(known) - 1.5 > 0, "it is still likelier honest than not"
    assert odds(summed(-1.5, 3.0, memory=known)) > 0, "and soon forgotten"


@given(before=st.lists(LOGITS, max_size=30))
def test_a_plain_attack_is_caught_whatever_was_before(before: list[float]) -> None:
    """Good rounds earn at most two: who attacks plainly is suspected at once."""
    assert odds(summed(*before)) - 3 < 0


@given(before=st.lists(LOGITS, max_size=30))
def test_whoever_stops_is_heard_again_after_a_few_rounds(before: list[float]) -> None:
    memory = summed(*before)
    assert -8 <= odds(memory) <= 2
    assert odds(summed(*[3.0] * 3, memory=memory)) > 0


@given(rounds=st.lists(LOGITS, max_size=30))
def test_log_odds_are_what_a_sum_says(rounds: list[float]) -> None:
    total = 0.0
    for logit in rounds:
        total = min(2.0, max(-8.0, 0.9 * (total + logit)))
    assert odds(summed(*rounds)) == pytest.approx(total, abs=1e-12)


def test_many_rounds_that_tell_little_tell_a_lot_together() -> None:
    """Honest clients and attackers whose logits differ by less than they scatter."""
    random, wrong = Random(5), Counter[str]()
    for who, mean in (("honest", 1.0), ("attacker", -1.0)):
        for _ in range(200):
            memory = summed(*(random.gauss(mean, 2.0) for _ in range(15)))
            wrong[who] += (odds(memory) > 0) != (who == "honest")
    # 31 % of single rounds are wrong: 62 of 200.
    assert wrong["honest"] < 50
    assert wrong["attacker"] < 15, "what is held against a client may grow, trust may not"


@given(
    means=st.dictionaries(st.sampled_from("abc"), st.sampled_from([0.0, -0.25, -0.5, -1.0])),
    caught=st.sets(st.sampled_from("abc")),
    skipped=st.booleans(),
)
def test_after_a_round_that_forgives_nobody_stands_worse(
    means: dict[str, float], caught: set[str], skipped: bool
) -> None:
    before = Memory(means, {"a": Case(since=1)}, rounds=7)
    for after in (
        before.after_log_odds(
            list("abc"),
            torch.tensor([-5.0 if who in caught else 1.0 for who in "abc"]),
            dict.fromkeys(caught, ()),
        ),
        before.after(list("abc"), torch.tensor([-1.0, 0.5, -0.1]), {"b": ()}),
    ):
        found = before.forgiving(after, skipped=skipped)
        assert all(found.means[who] >= means.get(who, 0.0) for who in "abc")
        assert all(found.means[who] >= min(after.means[who], 0.0) for who in "abc")
        assert all(found.means[who] <= max(means.get(who, 0.0), 0.0) for who in "abc")
        assert (found.cases, found.rounds) == (before.cases, 8)
        assert found.skipped == ((8,) if skipped else ())


def test_rounds_may_be_skipped_again_when_earlier_ones_are_long_past() -> None:
    memory, skipped = Memory(), []
    for number in range(1, 41):
        after = memory.after_log_odds(["a"], torch.ones(1))
        if memory.may_skip:
            skipped.append(number)
            memory = memory.forgiving(after, skipped=True)
        else:
            memory = after
        assert len(memory.skipped) <= 2
    assert skipped == [1, 2, 11, 12, 21, 22, 31, 32]


# -------------------------------------------------------------------- by id


def test_it_goes_by_id_and_not_by_position(trained: Path) -> None:
    server = Server(trained)
    server.play(list("abcdefgh"), {"b"})
    known = server.rule.known
    evidence = known.evidence(["h", "x", "b"], STRENGTH)
    assert evidence[0] == 0
    assert evidence[1] == 0
    assert evidence[2] < 0
    sent = dict(zip("abcdefgh", honest_round(8, server._random), strict=True))
    one, other = (rules.get("adaptive", defense=trained, memory=True) for _ in range(2))
    one.known = other.known = known  # type: ignore[attr-defined]
    straight = one.aggregate(sent).weights
    turned = other.aggregate(dict(reversed(sent.items()))).weights
    assert turned == pytest.approx(straight, abs=1e-9)


def test_clients_come_and_go(trained: Path) -> None:
    server = Server(trained)
    server.play(list("abcdef"), {"b"})
    suspicion = server.rule.known.means["b"]
    server.play(list("acdefgh"))
    assert server.rule.known.means["b"] == suspicion, "who is away keeps what is held against it"
    assert set(server.rule.known.means) == set("abcdefgh")
    weights = server.play(list("bgh"))
    assert set(weights) == set("bgh")


def test_a_round_that_fails_leaves_no_trace(trained: Path) -> None:
    server = Server(trained)
    server.play(list("abcd"), {"b"})
    before = server.rule.known
    broken = {c: {"conv.weight": torch.full((4, 5), torch.nan)} for c in "abcd"}
    with pytest.raises(FedimmuneError):
        server.rule.aggregate(broken)
    assert server.rule.known is before


def test_without_memory_nothing_is_remembered(trained: Path, tmp_path: Path) -> None:
    rule: Any = rules.get("adaptive", defense=trained)
    assert not rule.has_history
    rule.aggregate(dict(zip("abcd", honest_round(4, torch.Generator()), strict=True)))
    assert not rule.known.means
    for act in (rule.save, rule.restore):
        with pytest.raises(InputError, match="keeps no history"):
            act(tmp_path / "memory")
    assert not list(tmp_path.iterdir())


# -------------------------------------------------------------------- saved


@given(
    means=st.dictionaries(
        st.one_of(st.text(max_size=5), st.integers(-(2**62), 2**62)), st.floats(-1, 1), max_size=6
    )
)
def test_saved_and_restored_to_the_bit(means: dict[Any, float], tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("memory") / "memory"
    memory = Memory(means, rounds=9, skipped=(3, 8))
    memory.save(path)
    assert Memory.load(path) == memory


def test_a_memory_that_says_nothing_of_skipped_rounds_is_read(tmp_path: Path) -> None:
    Memory({"a": -0.5}, rounds=3).save(tmp_path / "memory")
    changed(skipped=None)(tmp_path / "memory")
    assert Memory.load(tmp_path / "memory") == Memory({"a": -0.5}, rounds=3)


def test_the_rule_goes_on_as_if_it_had_not_stopped(trained: Path, tmp_path: Path) -> None:
    server = Server(trained)
    for _ in range(3):
        server.play(list("abcdef"), {"b"})
    server.rule.save(tmp_path / "memory")
    again: Any = rules.get("adaptive", defense=trained, memory=True)
    again.restore(tmp_path / "memory")
    sent = dict(zip("abcdef", honest_round(6, torch.Generator().manual_seed(1)), strict=True))
    assert again.aggregate(sent).weights == server.rule.aggregate(sent).weights
    assert again.known == server.rule.known


def changed(
    tensors: Callable[[dict[str, Tensor]], dict[str, Tensor]] = lambda same: same,
    **changes: object,
) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        about = {**read_description(path), **changes}
        kept = {name: value for name, value in about.items() if value is not None}
        found = tensors(load(path.read_bytes()))
        save_file(found, path, described(found, **kept))

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-3]),
        lambda path: path.write_text("no memory"),
        changed(format="fedimmune-memory-7"),
        changed(clients=["a"]),
        changed(clients="["),
        changed(clients=7),
        changed(clients=[["a"], ["b"]]),
        changed(clients=None),
        changed(skipped=[-1]),
        changed(skipped=list(range(11))),
        changed(lambda tensors: {"means": tensors["means"] * torch.nan}),
        changed(lambda tensors: {"means": tensors["means"][0].clone()}),
        changed(lambda tensors: {"other": tensors["means"]}),
    ],
    ids=[
        *("cut off", "text", "version", "too few clients", "half a list", "a number"),
        *("lists for ids", "no clients", "round before the first", "too many skipped"),
        *("NaN", "one value", "no means"),
    ],
)
def test_damage_is_named_with_the_file(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    path = tmp_path / "broken.memory"
    Memory({"a": -0.5, "b": 0.25}).save(path)
    damage(path)
    with pytest.raises(InputError, match=r"broken\.memory"):
        Memory.load(path)


def test_ids_that_cannot_be_saved_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="client ids"):
        Memory({("a", 1): 0.5}).save(tmp_path / "memory")
    assert not list(tmp_path.iterdir())


# -------------------------------------------------------------------- in a simulation


def test_a_simulation_that_was_cut_off_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    rule = {"name": "adaptive", "memory": True, **needs_of("adaptive", DigitsNet().state_dict())}
    scenario = Scenario(
        rule=rule, attack="omniscient", attackers=2, clients=6, rounds=4, participation=0.7
    )

    def bare(records: Any) -> list[dict[str, Any]]:
        return [record.model_dump(exclude={"seconds"}) for record in records]

    whole = bare(simulate(scenario, runs=tmp_path / "whole", workers=1))
    cut = tmp_path / "cut"
    for count in (1, 3):
        records = simulate(scenario, runs=cut, workers=1)
        for _ in range(count):
            next(records)
        records.close()
    assert bare(simulate(scenario, runs=cut, workers=1)) == whole
    places = [run_folder(scenario, runs).path for runs in (tmp_path / "whole", cut)]
    for name in ("model.safetensors", "history-4.safetensors"):
        one, other = (load((place / name).read_bytes()) for place in places)
        assert all(torch.equal(one[key], other[key]) for key in one)
    forgetful = scenario.model_copy(update={"rule": Scenario(rule={**rule, "memory": False}).rule})
    assert bare(simulate(forgetful, workers=1)) != whole


@pytest.mark.parametrize(
    ("form", "wanted", "remembers"),
    [("relational", None, True), ("relational", False, False), ("paper", None, False)],
)
def test_our_form_remembers_unless_told_otherwise(
    form: str, wanted: bool | None, remembers: bool, tmp_path: Path
) -> None:
    made = train(recordings(rounds=2), form=form, memory=wanted, epochs=1)
    made.save(tmp_path / "made.defense")
    assert rules.get("adaptive", defense=tmp_path / "made.defense").has_history == remembers
    for chosen in (False, True):
        rule = rules.get("adaptive", defense=tmp_path / "made.defense", memory=chosen)
        assert rule.has_history == chosen
