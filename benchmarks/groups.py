"""What groups of clients cost a rule; run as ``python -m benchmarks.groups``.

Thirty clients on the bundled digits in ten groups of three, six of them attackers: one in each of
six groups, or all in two. The server sees every client, or robust aggregates of groups, or only
sums of groups as under secure aggregation. Prints a Markdown table: accuracy (ACC, %) after 12
rounds of a sign flip, and the success of a backdoor (ASR, %), means over seeds.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection
from statistics import mean

from fedimmune import Scenario, rules
from fedimmune.aggregation import aggregate_safely
from fedimmune.hierarchy import Hierarchy
from fedimmune.kernels import num_threads
from fedimmune.rules import Rule
from fedimmune.simulation.client import Counts
from fedimmune.simulation.federation import Federation
from fedimmune.tasks import data_folder, load_data

CLIENTS, ATTACKERS, SIZE = 30, 6, 3
SERVER = ("mean", "median", "multi-krum", "adaptive")
ATTACKS = ("sign-flip", "backdoor")


def grouped(attackers: Collection[int], *, together: bool) -> dict[int, str]:
    """Put clients into groups: attackers one after the other, or dealt out like cards."""
    order = sorted(range(CLIENTS), key=lambda client: (client not in attackers, client))
    groups = CLIENTS // SIZE
    return {
        client: f"group-{place // SIZE if together else place % groups}"
        for place, client in enumerate(order)
    }


def rule_for(how: str, name: str, groups: dict[int, str]) -> Rule:
    """Make the server's rule: it sees clients, aggregates of groups, or sums of groups."""
    if how == "clients":
        return rules.get(name)
    edge = "mean" if how == "sums" else name
    return Hierarchy(rules=[edge, name], groups=groups, sums_only=how == "sums")


def final(how: str, name: str, attack: str, seed: int, rounds: int, *, together: bool) -> Counts:
    """Play a federation and test its last model."""
    scenario = Scenario(
        task="digits",
        clients=CLIENTS,
        attackers=ATTACKERS,
        attack=attack,
        partition="iid",
        seed=seed,
        rounds=rounds,
        local_epochs=3,
        batch=8,
    ).resolve()
    task = scenario.make_task()
    with (
        num_threads(1),
        Federation(scenario, task, load_data(task, data_folder()), 1) as federation,
    ):
        rule = rule_for(how, name, grouped(federation.attackers, together=together))
        for number in range(1, rounds + 1):
            sent = federation.train(number, lambda *_: None, needs=rule.needs, rule=rule)
            outcome = aggregate_safely(rule, sent.updates, federation.global_model)
            if outcome.model is not None:
                federation.set_global_model(outcome.model)
        return federation.test(lambda *_: None)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--rules", nargs="+", default=SERVER)
    given = parser.parse_args()
    columns = [
        ("clients", False),
        ("groups", False),
        ("groups", True),
        ("sums", False),
        ("sums", True),
    ]
    heads = ["groups, spread", "groups, together", "sums, spread", "sums, together"]
    print("|", " | ".join(["attack", "rule", "every client", *heads]), "|")
    print("|", " | ".join(["---"] * 7), "|")
    for attack in ATTACKS:
        for name in given.rules:
            cells = []
            for how, together in columns:
                counts = [
                    final(how, name, attack, seed, given.rounds, together=together)
                    for seed in range(1, given.seeds + 1)
                ]
                shares = [
                    each.accuracy if attack == "sign-flip" else each.asr_others for each in counts
                ]
                cells.append(f"{100 * mean(share or 0.0 for share in shares):.0f}")
            said = "sign flip, ACC" if attack == "sign-flip" else "backdoor, ASR"
            print("|", " | ".join([said, f"`{name}`", *cells]), "|", flush=True)


if __name__ == "__main__":
    main()
