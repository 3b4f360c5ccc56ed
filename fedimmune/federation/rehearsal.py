"""Rehearsal: federated training on the server's own data, under a known attack, kept as recordings.

The server parts its samples over simulated clients, lets some of them attack, and keeps of each
round what a defence learns from: the inner products of the updates, and who attacked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from fedimmune.adaptive.recordings import About, Recording
from fedimmune.errors import FedimmuneError, InputError
from fedimmune.federation.federation import Federation, set_aside
from fedimmune.federation.scenario import Scenario
from fedimmune.federation.workbench import one_thread
from fedimmune.geometry import measure
from fedimmune.layers import Kind
from fedimmune.tasks import Data, Samples, Task
from fedimmune.updates import NonFiniteError

__all__ = ["rehearse", "server_as_clients"]


def server_as_clients(data: Data, tested: torch.Tensor) -> Data:
    """Give the data of a rehearsal: what the server tests on is now the clients'."""
    clients = Samples(
        data.server.inputs.index_select(0, tested), data.server.labels.index_select(0, tested)
    )
    return replace(data, clients=clients, file=None)


def rehearse(
    scenario: Scenario,
    run: int,
    task: Task,
    data: Data,
    on_round: Callable[[int], None] = lambda _: None,
) -> Recording:
    """Play a scenario on the server's own data and record it.

    Parameters
    ----------
    scenario
        What to rehearse; its rule is the one whose global model is followed.
    run
        Which repetition this is.
    task, data
        Of the scenario.
    on_round
        Is told the number of each finished round.
    """
    anchored = scenario.anchor > 0
    _, tested = set_aside(len(data.server), scenario.anchor)
    grams, attackers, rounds = [], [], []
    with one_thread(), Federation(scenario, task, server_as_clients(data, tested), 1) as federation:
        rule = scenario.make_rule(federation.attackers)
        for number in range(1, scenario.rounds + 1):
            sent = federation.train(number, lambda *_: None, with_anchor=anchored)
            try:
                geometry = measure(sent.updates.with_anchor_row())
                grams.append(geometry.grams())
                attackers.append(
                    [client in federation.attackers for client in sent.updates.clients]
                )
                rounds.append(number)
                federation.move(rule.aggregate(sent.updates).apply(federation.global_model))
            except (FedimmuneError, NonFiniteError):
                break  # the attack has driven the model beyond numbers: nothing more to learn
            on_round(number)
        layers = {layer.name: layer.shape for layer in sent.updates.of_kind(Kind.PARAMETER)}
    if not rounds:
        raise InputError(f"the rehearsal of {scenario.title} gave no valid round")
    about = About(
        task=scenario.task.name,
        layers=layers,
        attack=scenario.attack.name if scenario.attackers else "none",
        attackers=scenario.attackers,
        clients=scenario.clients,
        run=run,
        trajectory=scenario.rule.name,
        has_anchor=anchored,
        scenario=scenario.model_dump(),
    )
    return Recording(about, torch.stack(grams), torch.tensor(attackers), torch.tensor(rounds))
