"""One round of federated learning under attack, aggregated by every rule side by side.

Ten clients train the same small network, each on its own made-up pictures; three of them send the
negative of their update (the omniscient attack of Blanchard et al.). Nothing is downloaded.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn

from fedimmune.aggregation import Aggregation
from fedimmune.errors import FedimmuneError
from fedimmune.rules import Rule, create, names

__all__ = ["Round", "make_round", "show"]

_CLIENTS, _ATTACKERS = 10, 3
_CLASSES, _PIXELS, _HIDDEN = 10, 784, 1024
_SAMPLES, _TEST_SAMPLES = 300, 1000
_NOISE = 4.0
_LONG = 0.2


@dataclass(frozen=True)
class Round:
    """One round, with the truth that a server would not have.

    Parameters
    ----------
    updates
        The clients' updates, (n, d).
    attackers
        Which clients attack.
    accuracy
        Measures the model that an aggregated update leads to.
    """

    updates: Tensor
    attackers: frozenset[int]
    accuracy: Callable[[Tensor], float]


def make_round(seed: int) -> Round:
    """Train ten clients for one epoch each, and let three of them attack."""
    random = torch.Generator().manual_seed(seed)
    prototypes = torch.randn(_CLASSES, _PIXELS, generator=random)

    def pictures(count: int, shares: Tensor) -> tuple[Tensor, Tensor]:
        labels = torch.multinomial(shares, count, replacement=True, generator=random)
        noise = torch.randn(count, _PIXELS, generator=random)
        return prototypes[labels] + _NOISE * noise, labels

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Linear(_PIXELS, _HIDDEN),
            nn.ReLU(),
            nn.Linear(_HIDDEN, _HIDDEN),
            nn.ReLU(),
            nn.Linear(_HIDDEN, _CLASSES),
        )
    start = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    attackers = frozenset(torch.randperm(_CLIENTS, generator=random)[:_ATTACKERS].tolist())
    updates = torch.empty(_CLIENTS, len(start))
    for client in range(_CLIENTS):
        shares = torch.rand(_CLASSES, generator=random) + 0.2  # every client sees other classes
        change = _trained(model, start, *pictures(_SAMPLES, shares)) - start
        updates[client] = -change if client in attackers else change
    test_pictures, test_labels = pictures(_TEST_SAMPLES, torch.ones(_CLASSES))

    def accuracy(update: Tensor) -> float:
        nn.utils.vector_to_parameters(start + update, model.parameters())
        with torch.no_grad():
            return float((model(test_pictures).argmax(1) == test_labels).float().mean())

    return Round(updates, attackers, accuracy)


def _trained(model: nn.Module, start: Tensor, pictures: Tensor, labels: Tensor) -> Tensor:
    nn.utils.vector_to_parameters(start.clone(), model.parameters())
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    for batch in torch.arange(len(labels)).split(20):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(pictures[batch]), labels[batch]).backward()
        optimiser.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def show(console: Console, seed: int) -> None:
    """Aggregate one round by every rule and print the table."""
    with console.status("ten clients train, three of them attack …"):
        made = make_round(seed)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # times can only be compared where no thread waits for another
    try:
        _compare(console, made)
    finally:
        torch.set_num_threads(threads)


def _compare(console: Console, made: Round) -> None:
    truth = create("oracle", attackers=made.attackers)(made.updates)
    plain = _seconds(lambda: made.updates.mean(0))
    table = _empty_table(made)
    answers: dict[str, tuple[float, float]] = {}
    for name in names():
        rule = _made(name, made)
        if rule is None:
            continue
        aggregation = rule.aggregate(made.updates)
        far = float((aggregation.update - truth).norm() / truth.norm())
        accuracy = made.accuracy(aggregation.update)
        answers[name] = (far, accuracy)
        seconds = _seconds(partial(rule.aggregate, made.updates))
        table.add_row(*_row(aggregation, made, far, accuracy, seconds / plain))
    console.print(table)
    for sentence in _in_words(answers, made):
        console.print(sentence, highlight=False)


def _made(name: str, made: Round) -> Rule | None:
    try:
        return create(name, attackers=made.attackers) if name == "oracle" else create(name)
    except FedimmuneError:
        return None  # a rule that cannot be made without a file, say


def _seconds(work: Callable[[], object]) -> float:
    """The shortest of several calls, or the first where that takes long."""
    best, calls = float("inf"), 0
    while calls < 4 and (calls == 0 or best < _LONG):
        start = time.perf_counter()
        work()
        best, calls = min(best, time.perf_counter() - start), calls + 1
    return best


def _empty_table(made: Round) -> Table:
    n, d = made.updates.shape
    table = Table(
        title=f"One round, {n} clients, {len(made.attackers)} of them attackers, "
        f"{d / 1e6:.1f} million parameters: each client's weight in percent",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("rule", no_wrap=True)
    for client in range(n):
        attacks = client in made.attackers
        heading = Text(f"{client}{'!' if attacks else ''}", style="bold red" if attacks else "bold")
        table.add_column(heading, justify="right", min_width=3)
    table.add_column("from the\noracle", justify="right")
    table.add_column("accuracy\nafterwards", justify="right")
    table.add_column("time ×\nmean", justify="right")
    return table


def _row(
    aggregation: Aggregation, made: Round, far: float, accuracy: float, times: float
) -> list[Text]:
    cells = [Text(aggregation.rule, style="cyan")]
    for client in range(len(made.updates)):
        weight = None if aggregation.weights is None else aggregation.weights[client]
        cells.append(_weight_cell(weight, client in made.attackers))
    distance_style = "green" if far < 0.25 else "yellow" if far < 0.5 else "red"
    return [
        *cells,
        Text(f"{far:.3f}", style=distance_style),
        Text(f"{accuracy:.1%}"),
        Text(f"{times:.1f}"),
    ]


def _weight_cell(weight: float | None, attacks: bool) -> Text:
    if weight is None:
        return Text("·", style="dim")
    if weight == 0:
        return Text("0", style="dim")
    return Text(f"{100 * weight:.0f}", style="bold red" if attacks else "green")


def _in_words(answers: dict[str, tuple[float, float]], made: Round) -> list[str]:
    rivals = {name: answer for name, answer in answers.items() if name not in ("oracle", "mean")}
    nearest = min(rivals, key=lambda name: rivals[name][0])
    best = max(rivals, key=lambda name: rivals[name][1])
    marked = ", ".join(str(client) for client in sorted(made.attackers))
    (mean_far, mean_accuracy), limit = answers["mean"], answers["oracle"][1]
    return [
        f"Clients {marked} (marked !) sent the negative of what they had learned. "
        "No rule is told so, but the oracle.",
        f"The plain mean leads to a model of {mean_accuracy:.1%} accuracy where {limit:.1%} could "
        f"be had; {best} comes closest to that with {rivals[best][1]:.1%}.",
        "[bold]from the oracle[/]: the distance to the mean of the honest clients, in units of its "
        f"length. The plain mean is {mean_far:.2f} away; {nearest} is nearest "
        f"({rivals[nearest][0]:.2f}).",
        "A · stands for rules that look at single coordinates and weigh nobody. Times are of one "
        "thread. Another round: [cyan]fedimmune demo --seed 2[/]",
    ]
