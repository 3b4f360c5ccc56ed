from __future__ import annotations

from rich.console import Console

from fedimmune import create, names
from fedimmune.demo import make_round, show


def test_the_round_is_what_it_says() -> None:
    made = make_round(seed=3)
    assert made.updates.shape[0] == 10
    assert len(made.attackers) == 3
    again = make_round(seed=3)
    assert bool((made.updates == again.updates).all())
    oracle = create("oracle", attackers=made.attackers)(made.updates)
    assert made.accuracy(oracle) > made.accuracy(made.updates.mean(0)) > 0


def test_every_rule_has_its_line() -> None:
    console = Console(width=120)
    with console.capture() as captured:
        show(console, seed=1)
    for name in names():
        # The demo has rehearsed nothing, so there is no defence that the learned rule could use.
        assert (f" {name} " in captured.get()) == (name != "adaptive")
