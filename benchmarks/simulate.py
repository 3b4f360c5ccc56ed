"""Speed of simulated training beside a bare PyTorch loop; run as ``python -m benchmarks.simulate``.

Prints a table and writes ``build/bench-simulate.json``. The bare loop is what one would write by
hand for the same batches of the same clients: the same model with its channels last, gradient
descent with momentum, one thread. Bare loop, one worker and two workers take turns, round by round,
so that noise of the machine meets all of them. A missed bar is shown and fails nothing.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from fedimmune import Scenario, simulate
from fedimmune.attacks import Context
from fedimmune.kernels import num_threads
from fedimmune.simulation.client import batches
from fedimmune.simulation.federation import Federation
from fedimmune.simulation.scenario import ResolvedScenario
from fedimmune.simulation.seeding import generator
from fedimmune.tasks import data_folder

_BUILD = Path(__file__).resolve().parents[1] / "build"
_ONE_WORKER_BAR = 0.9
_TWO_WORKERS_BAR = 1.7


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, show and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulate", description=__doc__)
    parser.add_argument("--task", default="mnist", help="what is trained")
    parser.add_argument("--rounds", type=int, default=5, help="how many are measured")
    parser.add_argument("--data", type=Path, help="folder of data sets")
    options = parser.parse_args(arguments)
    scenario = Scenario(task=options.task, attack="backdoor", rounds=options.rounds).resolve()
    found = _throughputs(scenario, options.data)
    found |= {
        f"share_not_training_{workers}": _share_not_training(scenario, options.data, workers)
        for workers in (1, 2)
    }
    path = _BUILD / "bench-simulate.json"
    path.parent.mkdir(exist_ok=True)
    about = {
        "task": options.task,
        "rounds": options.rounds,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": platform.processor() or platform.machine(),
    }
    path.write_text(json.dumps({**about, **found}, indent=2) + "\n", encoding="utf-8")
    _show(options.task, found)
    print(f"Written to {path.relative_to(_BUILD.parent)}")


def _throughputs(scenario: ResolvedScenario, place: Path | None) -> dict[str, float]:
    """Measure samples a second, and ratios of pairs that were measured right after each other."""
    task = scenario.make_task()
    with num_threads(1):
        data = task.load(data_folder(place))
        with (
            Federation(scenario, task, data, workers=1) as alone,
            Federation(scenario, task, data, workers=2) as pair,
        ):
            subjects: dict[str, Callable[[int], object]] = {
                "bare": lambda number: _bare_round(alone, scenario, number),
                "one": lambda number: alone.train(number, _ignore),
                "two": lambda number: pair.train(number, _ignore),
            }
            for play in subjects.values():  # once unmeasured: memory, code and data get warm
                play(1)
            seconds: dict[str, list[float]] = {name: [] for name in subjects}
            for number in range(1, scenario.rounds + 1):
                for name, play in subjects.items():
                    seconds[name].append(_seconds(play, number))
            samples = _samples(alone, scenario)
    return {
        **{f"samples_a_second_{n}": samples / statistics.median(s) for n, s in seconds.items()},
        "one_worker_of_bare": _ratio(seconds["bare"], seconds["one"]),
        "two_workers_of_one": _ratio(seconds["one"], seconds["two"]),
    }


def _bare_round(federation: Federation, scenario: ResolvedScenario, number: int) -> None:
    """Train every client by hand, each from the global model."""
    clients, attack, facts = federation.data.clients, scenario.make_attack(), federation.data.spec
    model = scenario.make_task().model(federation.data)
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    model.train()
    for client in federation.participants(number):
        model.load_state_dict(federation.global_model)
        optimizer = torch.optim.SGD(
            model.parameters(), lr=scenario.optimizer.lr, momentum=scenario.optimizer.momentum
        )
        random = generator(scenario.seed, "batches", number, client)
        told = Context(facts, number, federation.global_model, random)
        for batch in batches(federation.parts[client], scenario.batch, random):
            inputs, labels = clients.inputs[batch], clients.labels[batch]
            if client in federation.attackers:
                inputs, labels = attack.on_batch(inputs, labels, told)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()


def _samples(federation: Federation, scenario: ResolvedScenario) -> int:
    """How many samples a round trains on: incomplete last batches are dropped."""
    sizes = [len(federation.parts[client]) for client in federation.participants(1)]
    return sum(size // scenario.batch * scenario.batch or size for size in sizes)


def _share_not_training(scenario: Scenario, place: Path | None, workers: int) -> float:
    """Measure which part of whole rounds, writing included, is not training."""
    shares = []
    with tempfile.TemporaryDirectory() as runs:
        before = None
        for record in simulate(scenario, data=place, runs=runs, workers=workers):
            now = time.perf_counter()
            if before is not None:  # the first round has the start in it
                shares.append(1 - record.seconds.training / (now - before))
            before = now
    return statistics.median(shares)


def _seconds(play: Callable[[int], object], number: int) -> float:
    start = time.perf_counter()
    play(number)
    return time.perf_counter() - start


def _ratio(above: Sequence[float], below: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def _ignore(done: int, total: int) -> None:
    pass


def _show(task: str, found: dict[str, float]) -> None:
    table = Table(title=f"Training {task} in simulation", title_justify="left")
    for heading in ("", "samples/s", "ratio", "bar", ""):
        table.add_column(heading, justify="left" if not heading else "right")
    table.add_row("bare PyTorch loop", f"{found['samples_a_second_bare']:,.0f}", "", "", "")
    for name, words, ratio, bar in (
        ("one", "one worker, × bare loop", "one_worker_of_bare", _ONE_WORKER_BAR),
        ("two", "two workers, × one worker", "two_workers_of_one", _TWO_WORKERS_BAR),
    ):
        value = found[ratio]
        holds = "[green]holds[/]" if value >= bar else "[red]missed[/]"
        speed = f"{found[f'samples_a_second_{name}']:,.0f}"
        table.add_row(words, speed, f"{value:.2f}", f"≥ {bar}", holds)
    for workers in (1, 2):
        share = f"{found[f'share_not_training_{workers}']:.1%}"
        table.add_row(f"of a round not training, {workers} worker(s)", "", share, "", "")
    Console().print(table)


if __name__ == "__main__":
    main()
