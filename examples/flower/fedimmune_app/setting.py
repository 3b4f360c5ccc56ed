"""What server and clients agree on: the run's config, read as a scenario of fedimmune's.

Data, clients, attackers, first model and batches are then those that ``fedimmune simulate`` has for
the same seed, so that a run here can be held against one there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from fedimmune.attacks import Attack
from fedimmune.errors import ParameterError
from fedimmune.simulation import Scenario
from fedimmune.simulation.federation import set_aside
from fedimmune.simulation.scenario import ResolvedScenario
from fedimmune.simulation.seeding import generator
from fedimmune.tasks import Data, Samples, Task, data_folder, load_data

__all__ = ["Setting", "setting_of"]


@dataclass(frozen=True)
class Setting:
    """Who has which data, and who attacks.

    Parameters
    ----------
    scenario
        Everything but the rule.
    task, data, attack
        Of the scenario.
    """

    scenario: ResolvedScenario
    task: Task
    data: Data
    attack: Attack

    @cached_property
    def parts(self) -> list[Tensor]:
        """Numbers of each client's samples."""
        scenario = self.scenario
        return scenario.make_partition().divide(
            self.data.clients.labels, scenario.clients, generator(scenario.seed, "partition")
        )

    @cached_property
    def attackers(self) -> frozenset[int]:
        """Numbers of the clients that attack."""
        scenario = self.scenario
        order = torch.randperm(scenario.clients, generator=generator(scenario.seed, "attackers"))
        return frozenset(order[: scenario.attackers].tolist())

    @cached_property
    def anchor(self) -> Samples:
        """The server's samples for an update of its own."""
        return self._of_the_server(set_aside(len(self.data.server), self.scenario.anchor)[0])

    @cached_property
    def tested(self) -> Samples:
        """The server's samples that models are tested on."""
        return self._of_the_server(set_aside(len(self.data.server), self.scenario.anchor)[1])

    def _of_the_server(self, indices: Tensor) -> Samples:
        held = self.data.server
        return Samples(held.inputs[indices], held.labels[indices])


def setting_of(config: Mapping[str, Any]) -> Setting:
    """Read a run's config; what was loaded for it is kept for the next message."""
    fields = ("task", "clients", "attack", "attackers", "rounds", "seed")
    return _setting(tuple((field, config[field]) for field in fields))


@lru_cache(maxsize=1)
def _setting(fields: tuple[tuple[str, Any], ...]) -> Setting:
    scenario = Scenario(**dict(fields)).resolve()
    task, attack = scenario.make_task(), scenario.make_attack()
    data = load_data(task, data_folder())
    attack.check(data.spec)
    if attack.overrides("on_round"):
        raise ParameterError(
            f"{attack.name} looks at other clients' updates, which a node does not see: use "
            "`fedimmune simulate`"
        )
    return Setting(scenario, task, data, attack)
