"""Inner-product manipulation: attackers send the honest mean, negated.

Xie, Koyejo, Gupta, *Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product
Manipulation*, UAI 2019 (PMLR 115, 2020). The aggregate need not be far from the honest mean to do
harm: it is enough that their inner product is negative.
"""

from __future__ import annotations

from fedimmune._layers import Kind
from fedimmune.attacks.base import Attack, Context
from fedimmune.rules.mean import Mean
from fedimmune.updates import Updates
from fedimmune.validation import check_float

__all__ = ["InnerProductManipulation"]


class InnerProductManipulation(Attack):
    """Send −`epsilon` times the mean of the honest clients' updates, every attacker the same.

    Floating-point buffers too; counters are sent as they are. If nobody is honest, attackers send
    what they have trained.

    Parameters
    ----------
    epsilon
        Factor. Up to 1 the result is as short as an honest update, and gets past the median and
        Krum if there are enough attackers; (n−f)/f makes the mean of all 0.
    """

    name = "ipm"
    summary = "sends −epsilon times the mean of the honest updates"
    paper = "Xie et al. 2020"
    label = "inner-product manipulation"
    knowledge = "everyone"
    advice = (
        "check the sign and the size of what you send, and that it is your own model after training"
    )
    symbols = {"epsilon": "ε"}
    ranges = {"epsilon": (0.1, 2.0)}

    def __init__(self, *, epsilon: float = 0.5) -> None:
        self.epsilon = check_float(self.name, "epsilon", epsilon, 0)

    def on_round(self, attackers: Updates, visible: Updates, context: Context) -> Updates:
        honest = visible.only(set(visible.clients) - set(attackers.clients))
        if not len(honest):
            return attackers
        mean = Mean().aggregate(honest).update
        floats = attackers.of_kind(Kind.PARAMETER, Kind.BUFFER)
        hostile = {layer.name: -self.epsilon * mean[layer.name] for layer in floats}
        return Updates.from_states(
            {client: attackers.state(client) | hostile for client in attackers.clients}
        )
