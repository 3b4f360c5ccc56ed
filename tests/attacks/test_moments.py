"""When the engine calls an attack, what it shows to it, and what it takes from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedimmune import Scenario, Updates, rules, simulate
from fedimmune.attacks import Attack
from fedimmune.errors import InputError
from fedimmune.simulation import run_folder
from fedimmune.simulation.federation import Federation
from fedimmune.simulation.seeding import generator
from fedimmune.tasks import data_folder
from tests.attacks.own_attacks import Drifting, Spy
from tests.simulation.own_task import Blobs
from tests.simulation.test_client import BLOBS, nobody

OWN = "tests.attacks.own_attacks"
ATTACKERS = 2


def federation(attack: Any, **fields: Any) -> Federation:
    usual: dict[str, Any] = {"task": BLOBS, "clients": 5, "attackers": ATTACKERS}
    scenario = Scenario(attack=attack, **(usual | fields))
    return Federation(scenario, Blobs(), Blobs().load(data_folder()), workers=1)


def trained(attack: Any, **fields: Any) -> tuple[Federation, Updates]:
    made = federation(attack, **fields)
    return made, made.train(1, nobody).updates


def honest_ones() -> Updates:
    return trained("none", attackers=0)[1]


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def test_gradients_are_masked_before_the_step() -> None:
    made, sent = trained(f"{OWN}:Masked")
    for client in sent.clients:
        moved = bool(sent.state(client)["fc.weight"].any())
        assert moved == (client not in made.attackers)
        assert bool(sent.state(client)["fc.bias"].any())


def test_weights_are_projected_after_the_step() -> None:
    made, sent = trained({"name": f"{OWN}:Clipped", "radius": 0.01})
    lengths = {client: float(sent.state(client)["fc.weight"].norm()) for client in sent.clients}
    for client, length in lengths.items():
        assert (length <= 0.0101) == (client in made.attackers)


def test_the_loss_is_replaced() -> None:
    made, sent = trained(f"{OWN}:Lazy")
    for client in sent.clients:
        assert bool(sent.state(client)["fc.weight"].any()) == (client not in made.attackers)


def test_an_attackers_randomness_is_of_the_seed_the_round_and_the_client() -> None:
    made, sent = trained(f"{OWN}:Noisy", seed=4)
    for client in made.attackers:
        random = generator(4, "attack", 1, client)
        layers = sent.state(client)
        expected = {n: torch.randn(t.shape, generator=random) for n, t in layers.items()}
        assert same(layers, expected)


@pytest.mark.parametrize("workers", [1, 2])
def test_an_attacker_knows_its_number_its_step_and_its_samples(workers: int) -> None:
    scenario = Scenario(task=BLOBS, clients=5, attackers=3, attack=f"{OWN}:Telling", local_epochs=2)
    data = Blobs().load(data_folder())
    with Federation(scenario, Blobs(), data, workers=workers) as made:
        sent = made.train(1, nobody).updates
        for number, client in enumerate(sorted(made.attackers)):
            part = made.parts[client]
            told = sent.state(client)
            assert told["fc.weight"][0, :4].tolist() == [number, 3, 5, 2 * (len(part) // 8)]
            labels = data.clients.labels[part]
            assert told["fc.bias"].tolist() == labels.bincount(minlength=4).tolist()


def test_what_is_not_overridden_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    before = honest_ones()

    def never(*_: object) -> None:
        raise AssertionError("it was called")

    for moment in ("on_batch", "on_loss", "on_step", "on_round"):
        monkeypatch.setattr(Attack, moment, never)
    made, sent = trained("sign-flip")
    for client in sent.clients:
        sign = -1 if client in made.attackers else 1
        expected = {name: sign * tensor for name, tensor in before.state(client).items()}
        assert same(sent.state(client), expected)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_model_before_is_kept_and_survives_an_interruption(
    workers: int, tmp_path: Path
) -> None:
    scenario = Scenario(
        task=BLOBS, clients=4, attackers=2, rounds=4, attack=f"{OWN}:Drifting", seed=2
    )
    whole = [*simulate(scenario, workers=workers)]
    stopped = simulate(scenario, workers=workers, runs=tmp_path)
    next(stopped), next(stopped)
    stopped.close()
    again = [*simulate(scenario, workers=workers, runs=tmp_path)]
    assert [r.accuracy for r in again] == [r.accuracy for r in whole]
    assert [r.distance for r in again] == [r.distance for r in whole]
    assert run_folder(scenario, tmp_path).is_finished


def test_the_model_before_is_that_of_the_round_before() -> None:
    made = federation(f"{OWN}:Drifting")
    first = {name: tensor.clone() for name, tensor in made.global_model.items()}
    sent = made.train(1, nobody).updates
    assert not any(t.any() for c in made.attackers for t in sent.state(c).values())
    made.set_global_model({name: tensor + 0.25 for name, tensor in first.items()})
    for _ in range(2):  # what is not aggregated does not move the model
        sent = made.train(2, nobody).updates
        moved = {name: made.global_model[name] - first[name] for name in first}
        assert all(same(sent.state(client), moved) for client in made.attackers)
        first = {name: tensor.clone() for name, tensor in made.global_model.items()}
    assert Drifting.needs_previous_model


# -------------------------------------------------------------------- in concert


def spied(knowledge: str, **options: Any) -> tuple[Federation, Spy, Updates]:
    made = federation({"name": f"{OWN}:Spy", "knowledge": knowledge})
    sent = made.train(1, nobody, **options).updates
    attack = made._setup.attack
    assert isinstance(attack, Spy)
    return made, attack, sent


@pytest.mark.parametrize("knowledge", ["colluders", "everyone", "defense"])
def test_an_attack_sees_what_its_knowledge_allows(knowledge: str) -> None:
    rule = rules.get("foolsgold", history=True)
    made, spy, sent = spied(knowledge, rule=rule)
    ((mine, visible, told),) = spy.seen
    assert set(mine.clients) == made.attackers
    everyone = set(range(5))
    assert set(visible.clients) == (made.attackers if knowledge == "colluders" else everyone)
    assert (told.rule is None) == (knowledge != "defense")
    assert told.rule is not rule
    honest = honest_ones()
    for client in visible.clients:
        assert same(visible.state(client), honest.state(client))
    assert all(same(sent.state(client), honest.state(client)) for client in everyone)
    if told.rule is not None:  # the spy has used its copy
        seen, fresh = vars(told.rule), vars(rules.get("foolsgold", history=True))
        assert repr(seen) != repr(fresh)
        assert repr(vars(rule)) == repr(fresh)


@pytest.mark.parametrize(("knowledge", "known"), [("everyone", False), ("defense", True)])
def test_only_who_knows_the_defense_sees_the_servers_own_update(
    knowledge: str, known: bool
) -> None:
    _, spy, sent = spied(knowledge, needs={"anchor"})
    ((mine, visible, _),) = spy.seen
    assert bool(visible.references) == known
    assert not mine.references
    assert "anchor" in sent.references


def test_rounds_without_attackers_are_not_shown() -> None:
    made = federation(f"{OWN}:Spy", attackers=0)
    made.train(1, nobody)
    attack = made._setup.attack
    assert isinstance(attack, Spy)
    assert attack.seen == []


def test_who_trains_into_the_void_is_neither_shown_nor_asked() -> None:
    """Class 1 breaks whoever has it: NaN is not shown, and such an attacker sends it as it is."""
    scenario = Scenario(
        task={"name": BLOBS, "breaks": [1]},
        clients=4,
        attackers=2,
        attack=f"{OWN}:Spy",
        partition={"name": "by-label", "shards": 1},
    )
    task = Blobs(breaks=[1])
    made = Federation(scenario, task, task.load(data_folder()), workers=1)
    sent = made.train(1, nobody).updates
    attack = made._setup.attack
    assert isinstance(attack, Spy)
    valid = set(sent.checked().clients)
    assert len(valid) == 3
    assert [set(visible.clients) for _, visible, _ in attack.seen] == [valid]
    assert [set(mine.clients) for mine, _, _ in attack.seen] == [made.attackers & valid]
    assert set(sent.clients) == set(range(4))


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("none", "Updates, not NoneType"),
        ("raise", "ZeroDivisionError: by nothing"),
        ("few", "but the attackers are"),
        ("more", "clients .*x"),
        ("nan", "NaN or infinite"),
        ("layer", "'fc.bias' has the shape None"),
        ("shape", r"'fc.weight' has the shape \(256,\), not \(4, 64\)"),
    ],
)
def test_what_breaks_the_contract_is_refused_by_the_attacks_name(how: str, words: str) -> None:
    with pytest.raises(InputError, match=f"attack 'rogue': on_round: .*{words}"):
        trained({"name": f"{OWN}:Rogue", "how": how})


def test_copies_are_not_the_honest_clients_own_memory() -> None:
    made = federation("mimic")
    sent = made.train(1, nobody).updates
    honest = honest_ones()
    first = min(set(range(5)) - made.attackers)
    assert all(same(sent.state(c), honest.state(first)) for c in made.attackers)
    for tensor in made._executor.arena.updates[list(sent.clients).index(first)].values():
        tensor.fill_(7)
    assert all(same(sent.state(c), honest.state(first)) for c in made.attackers)


def the_mean(updates: Updates) -> Tensor:
    found: Tensor = rules.get("mean").aggregate(updates).update["fc.weight"]
    return found


@pytest.mark.parametrize("attack", ["ipm", "mimic"])
def test_the_same_with_any_number_of_workers(attack: str) -> None:
    scenario = Scenario(task=BLOBS, clients=6, attackers=2, rounds=2, attack=attack)
    one, two = ([r.accuracy for r in simulate(scenario, workers=count)] for count in (1, 2))
    assert one == two


def test_ipm_turns_the_mean_round() -> None:
    honest = honest_ones()
    made, sent = trained({"name": "ipm", "scale": 10})
    truth = the_mean(honest.only(set(range(5)) - made.attackers))
    assert float((the_mean(sent) * truth).sum()) < 0


def rounds_of(attack: str) -> list[Any]:
    scenario = Scenario(task=BLOBS, clients=4, attackers=1, rounds=2, attack=attack)
    return [(r.accuracy, r.distance) for r in simulate(scenario, workers=1)]


def test_omniscient_is_the_sign_flip() -> None:
    assert rounds_of("omniscient") == rounds_of("sign-flip")
