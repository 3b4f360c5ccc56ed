"""What a single client of ten can do to the model; run as ``python -m benchmarks.one_client``.

Nine clients train a net with batch norms on the bundled digits, one sends something absurd in
every round: into buffers, of any length, any number that float64 holds. Prints a Markdown table of
the accuracy (ACC, %) after six rounds by rule.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from fedimmune import Data, Scenario, rules, simulate
from fedimmune._layers import Kind, layers_of
from fedimmune.adaptive import train
from fedimmune.adaptive.recordings import read_recordings
from fedimmune.attacks import Attack, Context
from fedimmune.results import Verdict
from fedimmune.simulation.rehearsal import plan, record
from fedimmune.tasks import data_folder, load_data
from fedimmune.tasks.digits import Digits

ROUNDS = 6


class BatchNormed(Digits):
    """Digits with a net that has batch norms."""

    name = "digits-batch-norm"

    def model(self, data: Data) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(256, 10),
        )


class Precise(BatchNormed):
    """The same in float64."""

    name = "digits-float64"

    def model(self, data: Data) -> nn.Module:
        return nn.Sequential(_Widen(), super().model(data).double())


class _Widen(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images.double()


def _trained(update: Mapping[str, Tensor]) -> list[Tensor]:
    """Return the parameters: who spoils the buffers too is found out by them."""
    layers = layers_of(update)
    return [update[layer.name] for layer in layers if layer.kind is Kind.PARAMETER]


class Buffers(Attack):
    """Adds to every running mean.

    Parameters
    ----------
    share
        What is left of the parameters' update: a short one is picked by Krum.
    """

    name = "buffers"
    summary = "adds 1e6 to every running mean"
    paper = "–"

    def __init__(self, *, share: float = 1.0) -> None:
        self.share = share

    def on_update(self, update: Mapping[str, Tensor], context: Context) -> None:
        for name, tensor in update.items():
            if name.endswith("running_mean"):
                tensor.add_(1e6)
        for tensor in _trained(update):
            tensor.mul_(self.share)


class Longer(Attack):
    """Sends its update times a number."""

    name = "longer"
    summary = "sends its update times a number"
    paper = "–"

    def __init__(self, *, times: float = 1000.0) -> None:
        self.times = times

    def on_update(self, update: Mapping[str, Tensor], context: Context) -> None:
        for tensor in _trained(update):
            tensor.mul_(self.times)


class Noise(Attack):
    """Sends noise instead of its update."""

    name = "noise"
    summary = "sends noise"
    paper = "–"

    def __init__(self, *, scale: float = 100.0) -> None:
        self.scale = scale

    def on_update(self, update: Mapping[str, Tensor], context: Context) -> None:
        random = torch.Generator().manual_seed(int(1e6 * float(next(iter(update.values())).sum())))
        for tensor in _trained(update):
            tensor.copy_(self.scale * torch.randn(tensor.shape, generator=random))


class Immense(Attack):
    """Writes one immense number into the last layer."""

    name = "immense"
    summary = "writes 1e153 into a bias"
    paper = "–"

    def on_update(self, update: Mapping[str, Tensor], context: Context) -> None:
        list(update.values())[-1].view(-1)[0] = 1e153


@dataclass(frozen=True)
class Harm:
    """One line of the table."""

    title: str
    task: str
    attack: Mapping[str, object]


_HERE = "benchmarks.one_client"
NORMED, PRECISE = f"{_HERE}:BatchNormed", f"{_HERE}:Precise"
HARMS = (
    Harm("nobody attacks", NORMED, {"name": "none"}),
    Harm("1e6 into every running mean", NORMED, {"name": f"{_HERE}:Buffers"}),
    Harm("the same, parameters halved", NORMED, {"name": f"{_HERE}:Buffers", "share": 0.5}),
    Harm("update × 1,000", NORMED, {"name": f"{_HERE}:Longer", "times": 1e3}),
    Harm("update × 10,000", NORMED, {"name": f"{_HERE}:Longer", "times": 1e4}),
    Harm("update × 1e10", NORMED, {"name": f"{_HERE}:Longer", "times": 1e10}),
    Harm("update × −10,000", NORMED, {"name": f"{_HERE}:Longer", "times": -1e4}),
    Harm("noise of 100", NORMED, {"name": f"{_HERE}:Noise"}),
    Harm("noise of 1e30", NORMED, {"name": f"{_HERE}:Noise", "scale": 1e30}),
    Harm("float64: 1e153 in a bias", PRECISE, {"name": f"{_HERE}:Immense"}),
)


def defense_for(task: str, folder: Path) -> Path:
    """Train a small defense for a task: backdoor and omniscient by one and four of ten."""
    file = folder / f"{task.rpartition(':')[2]}.defense"
    if file.exists():
        return file
    base = {"task": task, "rounds": ROUNDS}
    made = Scenario(**base).make_task()
    data = load_data(made, data_folder())
    rehearsals = plan(
        base, data.spec, attacks=("backdoor", "omniscient"), attackers=(0, 1, 4), runs=2,
        follow=("oracle",),
    )  # fmt: skip
    places = folder / f"{file.stem}-recordings"
    record(rehearsals, places, made, data, workers=1)
    defense = train(read_recordings([places]), epochs=60, kinds=False)
    defense.save(file)
    return file


def played(harm: Harm, rule: str, folder: Path, *, seed: int) -> tuple[float, float | None]:
    """Play a line under a rule: ACC, and the share of rounds in which the client was trusted."""
    chosen: dict[str, object] = {"name": rule}
    if rule == "adaptive":
        chosen["defense"] = str(defense_for(harm.task, folder))
    attackers = 0 if harm.attack["name"] == "none" else 1
    scenario = Scenario(
        task=harm.task, rule=chosen, attack=dict(harm.attack), attackers=attackers, clients=10,
        rounds=ROUNDS, seed=seed,
    )  # fmt: skip
    records = list(simulate(scenario, workers=1))
    verdicts = [
        client.verdict for record in records for client in record.clients if client.is_attacker
    ]
    trusted = sum(verdict == Verdict.TRUSTED for verdict in verdicts) / len(verdicts or [0])
    return records[-1].accuracy or 0.0, trusted if verdicts else None


def main(arguments: Sequence[str] | None = None) -> None:
    """Play everything and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.one_client", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="mean over seeds 1 to this")
    parser.add_argument("--folder", type=Path, help="where defenses are kept; by default nowhere")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        names = [name for name in rules.available() if name != "spectral"]  # needs a detector
        print(f"| one client of ten | {' | '.join(names)} |")
        print(f"|---|{'---|' * len(names)}")
        for harm in HARMS:
            cells = []
            for rule in names:
                found = [played(harm, rule, folder, seed=s + 1) for s in range(given.seeds)]
                accuracy = sum(each for each, _ in found) / len(found)
                cells.append(f"{100 * accuracy:.0f}")
            print(f"| {harm.title} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
