"""The corpus: rounds of many small federations, for a defense that fits any model.

Recording number k is determined by the corpus' seed, k, and which public data sets are at hand:
`draw` says what it is, and `make` carries it out.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedimmune import Scenario, attacks
from fedimmune.adaptive.recordings import SUFFIX, Recording
from fedimmune.errors import FedimmuneError, ParameterError
from fedimmune.simulation.rehearsal import Rehearsal, carry_out
from fedimmune.simulation.seeding import generator, seed_for
from fedimmune.simulation.workers import Pool
from fedimmune.tasks import Data, DataSpec, Task, TrainingConfig, load_data
from reproduction import corpus_data, corpus_models
from reproduction.corpus_models import FAMILIES, Shape

__all__ = [
    "FIELDS",
    "VERSION",
    "CorpusTask",
    "Draft",
    "draw",
    "make",
    "parse_only",
    "record",
    "selected",
]

FIELDS = ("dataset", "family", "attack")
"""What recordings can be selected by."""

VERSION = 1
"""Of `draw`: with another one, numbers mean other recordings."""

_TASK = "reproduction.corpus:CorpusTask"
_KINDS = {"image": 0.55, "text": 0.18, "table": 0.27}
_FAMILIES = {
    "linear": 1.0,
    "mlp": 2.0,
    "cnn": 2.0,
    "cnn-norm": 2.0,
    "residual": 1.5,
    "resnet18": 1.3,
    "recurrent": 1.0,
    "transformer": 1.0,
}
_STEP = {
    "linear": (0.3, 0.005),
    "mlp": (0.5, 0.01),
    "cnn": (1.0, 0.09),
    "cnn-norm": (1.3, 0.2),
    "residual": (2.5, 0.5),
    "resnet18": (10.0, 0.25),
    "recurrent": (1.2, 0.06),
    "transformer": (2.2, 0.2),
}
"""Milliseconds of one core per batch of training, roughly, and for each thousand pixels in it."""
_PHOTOGRAPHS = ("photographs", "cifar10", "cifar100")
_LEAST_ROUNDS = 6
_LIMIT_MB = 5.0
"""Of a recording: deep nets with many clients keep fewer rounds."""
_ATTACKS = {"backdoor": 2.0, "text-backdoor": 4.0, "tabular-backdoor": 4.0, "label-flip": 2.0} | {
    "sign-flip": 1.5
}
"""How often attacks are drawn that are not drawn once: those that fit one kind of data more."""
_NEEDS_CLASSES = frozenset({"edge-case"})
"""Attacks that do nothing at clients without a certain class."""
_QUIET = {
    "mean": 10.0,
    "median": 2.0,
    "geometric-median": 2.0,
    "trimmed-mean": 1.0,
    "multi-krum": 1.0,
    "krum": 1.0,
    "norm-bound": 1.0,
}
_ATTACKED = _QUIET | {"oracle": 12.0, "mean": 6.0, "centered-clipping": 1.0}
"""Rules whose global model is followed, and how often."""
_LEAST_FOR_KRUM = 7


class CorpusTask(Task):
    """A data set and a model of the corpus.

    Parameters
    ----------
    dataset
        Name of a set in `corpus_data`.
    data_seed
        What it is generated or drawn with.
    samples, server
        How many samples the clients have together, and the server.
    family
        Of the model: one of `corpus_models.FAMILIES`.
    width, depth, norm, variant, head
        As in `corpus_models.Shape`.
    warm_up
        Number of batches that the first model has been trained on already, centrally.
    """

    name = "corpus"
    summary = "small data sets and models of many kinds"
    recipe = TrainingConfig(rounds=10, lr=0.1)

    def __init__(
        self,
        *,
        dataset: str = "digits",
        family: str = "mlp",
        data_seed: int = 0,
        samples: int = 800,
        server: int = 200,
        width: int = 16,
        depth: int = 1,
        norm: str = "none",
        variant: str = "relu",
        head: int = 1,
        warm_up: int = 0,
    ) -> None:
        self.dataset, self.family, self.data_seed = dataset, family, data_seed
        self.samples, self.server, self.warm_up = samples, server, warm_up
        self.width, self.depth, self.norm = width, depth, norm
        self.variant, self.head = variant, head
        self._first: dict[str, Tensor] | None = None

    def load(self, place: Path) -> Data:
        return corpus_data.load_set(self.dataset, self.data_seed, self.samples, self.server, place)

    def model(self, data: Data) -> nn.Module:
        shape = Shape(self.width, self.depth, self.norm, self.variant, self.head)
        net = corpus_models.build(self.family, shape, data)
        if self.warm_up and self._first is None:
            _warm_up(net, data, self.warm_up)
            self._first = {name: each.clone() for name, each in net.state_dict().items()}
        elif self._first is not None:
            net.load_state_dict(self._first)
        return net


def _warm_up(net: nn.Module, data: Data, batches: int) -> None:
    optimizer = torch.optim.Adam(net.parameters(), 0.003, fused=True)
    net.train()
    for _ in range(batches):
        chosen = torch.randint(len(data.clients), (min(32, len(data.clients)),))
        batch = data.clients.only(chosen)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(batch.inputs), batch.labels).backward()
        optimizer.step()


# -------------------------------------------------------------------- what a recording is


@dataclass(frozen=True)
class Draft:
    """A recording that can be made.

    Parameters
    ----------
    number
        Which one of the corpus.
    dataset, family, attack
        What is learned, by which kind of model, under which attack.
    fields
        Of its scenario.
    keep
        How many of its rounds are kept, at most.
    """

    number: int
    dataset: str
    family: str
    attack: str
    fields: Mapping[str, Any]
    keep: int

    @property
    def file_name(self) -> str:
        """Of the recording."""
        names = "-".join((self.dataset, self.family, self.attack))
        return f"{self.number:05d}-{names}{SUFFIX}"

    @cached_property
    def scenario(self) -> Scenario:
        """What is simulated."""
        return Scenario(**self.fields)


def draw(seed: int, number: int, public: Sequence[str] = ()) -> Draft:
    """Decide what a recording of the corpus is.

    Parameters
    ----------
    seed
        The corpus'.
    number
        Which recording.
    public
        Public data sets that are at hand.
    """
    own = seed_for(seed, "recording", number)
    dataset, family, data_seed = _draw_task(random.Random(seed_for(own, "task")), public)
    spec = corpus_data.spec_of(dataset, data_seed)
    of = random.Random(seed_for(own, "federation"))
    fields, keep = _draw_federation(of, dataset, family, spec)
    attack = _draw_attack(own, spec, fields, family)
    name = str(attack["name"])
    of_rule = random.Random(seed_for(own, "rule"))
    fields |= {
        "attack": attack,
        "attackers": fields["attackers"] if name != "none" else 0,
        "rule": _draw_rule(of_rule, attack, fields),
        "seed": own,
    }
    # An odd client's data may not be the kind that can be changed so.
    odd = (fields.get("variation") or {}).get("odd")
    if odd == "brighter" and spec.words is not None:
        fields["variation"] |= {"odd": "noisy"}
    fields["task"] = {"name": _TASK, "data_seed": data_seed, **fields["task"]}
    return Draft(number, dataset, family, name, fields, keep)


def _draw_task(of: random.Random, public: Sequence[str]) -> tuple[str, str, int]:
    kind = _one_of(of, _KINDS)
    family = _one_of(of, {name: _FAMILIES[name] for name in FAMILIES[kind]})
    sets = dict.fromkeys(corpus_data.KINDS[kind], 1.0)
    if kind == "image":
        sets["digits"] = 2.0
    sets |= {name: 2.0 for name in public if corpus_data.PUBLIC[name] == kind}
    if family == "resnet18":  # it is made for photographs
        sets |= {name: 3 * sets[name] for name in _PHOTOGRAPHS if name in sets}
    dataset = _one_of(of, sets)
    return dataset, family, of.randrange(2**31)


def _draw_federation(
    of: random.Random, dataset: str, family: str, spec: DataSpec
) -> tuple[dict[str, Any], int]:
    """Draw all fields of the scenario but the attack and the rule, and how many rounds are kept."""
    shape = corpus_models.draw_shape(family, of)
    deep = family == "resnet18"
    if deep and spec.shape[-1] > 16:  # the other beginning takes ten times as long
        shape = replace(shape, variant="imagenet")
    most = corpus_data.most_samples(dataset)
    anchor = 0 if of.random() < 0.12 else _log_int(of, 16, min(200, most // 5))
    server = anchor + 8
    clients = _draw_clients(of, min(20 if deep else 60, (most - server) // 8))
    whole = clients < 10 or of.random() < (0.8 if clients <= 20 else 0.5)
    participation = 1.0 if whole else of.uniform(0.3, 0.9)
    batch = of.choice((8, 16, 16, 32, 32, 64, 128))
    epochs = of.choice((1, 1, 1, 1, 2, 2, 3, 4, 5, 6))
    local_steps = of.choice((1, 1, 2, 5, 10, 20)) if of.random() < 0.12 else None
    variation = _draw_variation(of, clients)
    samples = min(clients * _log_int(of, 10, 400), most - server)
    # What a round may take: longer runs are cheap for small models, and end nearer to convergence.
    milliseconds = 1000 * of.choice(
        (5.0, 8.0, 12.0) if deep else (0.7, 1.0, 1.5, 2.0, 2.0, 3.0, 5.0)
    )
    base, more = _STEP[family]
    step = base + (more * batch * spec.shape[-1] ** 2 / 1000 if spec.highest is not None else 0)
    longer = 1.0 if variation is None else (1 + variation.get("epochs", 1.0)) / 2
    work = clients * participation * longer * step
    affordable = max(1, int(milliseconds / _LEAST_ROUNDS / work))
    if local_steps is None:
        samples = min(samples, max(2 * clients, affordable * batch * clients))
        one_epoch = max(1, samples // clients // batch)
        epochs = min(epochs, max(1, affordable // one_epoch))
    steps = min(local_steps, affordable) if local_steps else epochs * one_epoch
    local_steps = steps if local_steps else None
    rounds = milliseconds / (work * steps + clients * participation * 1.5 + 10)
    rounds = int(min(max(rounds, _LEAST_ROUNDS), of.choice((8, 12, 15, 40, 80))))
    warm_up = 0
    if of.random() < 0.3:
        warm_up = min(_log_int(of, 20, 300), int(milliseconds / step / 2))
    fields = {
        "task": {
            "dataset": dataset,
            "family": family,
            "samples": samples,
            "server": server,
            "warm_up": warm_up,
            **asdict(shape),
        },
        "clients": clients,
        "attackers": max(1, int(of.uniform(0.05, 0.46) * clients)),
        "attacker_data": "copied" if of.random() < 0.15 else "own",
        "participation": round(participation, 3),
        "partition": _draw_partition(of),
        "rounds": rounds,
        "local_epochs": epochs,
        "local_steps": local_steps,
        "batch": batch,
        "anchor": anchor,
        "optimizer": _draw_optimizer(of, family),
        "variation": variation,
    }
    return fields, of.randint(6, 15)


def _draw_clients(of: random.Random, most: int) -> int:
    low, high = of.choices(((8, 20), (4, 7), (21, 60)), (0.72, 0.13, 0.15))[0]
    return max(4, min(of.randint(low, high), most))


def _draw_partition(of: random.Random) -> dict[str, Any]:
    name = of.choices(("iid", "dirichlet", "by-label", "gamma-similarity"), (3, 6, 1, 1))[0]
    if name == "dirichlet":
        return {"name": name, "alpha": round(_log(of, 0.05, 10.0), 3)}
    if name == "by-label":
        return {"name": name, "shards": of.choice((1, 2, 3))}
    return {"name": name} | ({"gamma": round(of.random(), 3)} if name != "iid" else {})


def _draw_optimizer(of: random.Random, family: str) -> dict[str, Any]:
    decay = round(_log(of, 1e-5, 1e-2), 6) if of.random() < 0.3 else 0.0
    if of.random() < (0.6 if family == "transformer" else 0.15):
        return {"name": "adam", "lr": round(_log(of, 3e-4, 1e-2), 6), "weight_decay": decay}
    momentum = of.choice((0.0, 0.0, 0.5, 0.5, 0.9))
    lr = _log(of, 0.01, 0.3) * (0.3 if momentum > 0.8 else 1.0)
    carried = momentum > 0 and of.random() < 0.15
    return {
        "name": "sgd",
        "lr": round(lr, 5),
        "momentum": momentum,
        "weight_decay": decay,
        "carried": carried,
    }


def _draw_variation(of: random.Random, clients: int) -> dict[str, Any] | None:
    """Draw how clients differ: honest ones who train longer, have less, or other data."""
    found: dict[str, Any] = {}
    if of.random() < 0.55:
        found["share"] = of.choice((1.0, 1.0, 0.5, round(of.uniform(0.1, 0.4), 2)))
        if of.random() < 0.55:
            found["epochs"] = round(_log(of, 1.5, 8.0), 2)
        if of.random() < 0.35:
            found["lr"] = round(_log(of, 1.2, 4.0), 2)
        if of.random() < 0.5:
            found["samples"] = round(_log(of, 1.5, 12.0), 2)
    if of.random() < 0.25:
        found["odd"] = of.choice(("one-class", "inverted", "brighter", "noisy"))
        found["odd_clients"] = of.randint(1, max(1, clients // 6))
    return found or None


def _draw_attack(
    own: int, spec: DataSpec, fields: Mapping[str, Any], family: str
) -> dict[str, Any]:
    of = random.Random(seed_for(own, "attack"))
    if of.random() < 0.5:
        return {"name": "none"}
    partition = fields["partition"]
    even = partition.get("alpha", 1) >= 0.5 and partition.get("gamma", 1) >= 0.5
    even = even and partition["name"] != "by-label"
    odds = {
        name: _ATTACKS.get(name, 1.0)
        for name in _fitting(spec)
        if even or name not in _NEEDS_CLASSES
    }
    name = _one_of(of, odds)
    drawn = attacks.get(name).sample_parameters(spec, generator(own, "attack's parameters"))
    if name in _MORE:
        drawn |= _MORE[name](of, spec, even)
    if name == "late-layers" and family == "linear":
        drawn["layers"] = 1
    if "kind" in drawn and drawn["kind"] in {"reverse", "permutation"}:
        drawn = {each: drawn[each] for each in ("kind", "permutation") if each in drawn}
    return {"name": name, **drawn}


def _fitting(spec: DataSpec) -> list[str]:
    return [name for name in attacks.available() if name != "none" and _fits(name, spec)]


def _fits(name: str, spec: DataSpec) -> bool:
    try:
        attacks.get(name).check(spec)
    except ParameterError:
        return False
    return True


def _flipped(of: random.Random, spec: DataSpec, even: bool) -> dict[str, Any]:
    """Draw a kind of label flip; where clients lack classes, one that moves every class."""
    kind = of.choice(("map", "map", "swap", "reverse", "permutation"))
    if not even and kind in {"map", "swap"}:
        kind = "permutation"
    if kind != "permutation":
        return {"kind": kind}
    by = of.randint(1, spec.classes - 1)
    return {
        "kind": kind,
        "permutation": [(label + by) % spec.classes for label in range(spec.classes)],
    }


_MORE: Mapping[str, Callable[[random.Random, DataSpec, bool], dict[str, Any]]] = {
    "label-flip": _flipped,
    "sign-flip": lambda of, *_: {"flip": of.choice(("own", "own", "own", "mean", "training"))},
    "alie": lambda of, *_: of.choice(({}, {}, {}, {}, {"z": "search"}, {"z": None})),
    "ipm": lambda of, *_: of.choice(
        ({}, {}, {}, {"scale": round(_log(of, 2.0, 100.0), 2)}, {"scale": "search"})
    ),
    "mimic": lambda of, *_: {"whom": of.choice(("first", "farthest"))},
    "min-sum": lambda of, *_: {"bound": of.choice(("max", "min"))},
    "gaussian": lambda of, *_: {"scale": round(_log(of, 0.5, 10.0), 3)},
    "constrain-and-scale": lambda of, *_: {"metric": of.choice(("euclidean", "cosine"))},
    "poisoned-fl": lambda of, *_: {"period": of.randint(5, 50)},
    "search": lambda of, spec, _: (
        {"keep": round(of.random(), 2)}
        | ({"direction": "backdoor"} if spec.highest is not None and of.random() < 0.3 else {})
    ),
}
"""What `Attack.sample_parameters` leaves at its default."""


def _draw_rule(
    of: random.Random, attack: Mapping[str, Any], fields: Mapping[str, Any]
) -> dict[str, Any]:
    odds = dict(_QUIET if attack["name"] == "none" else _ATTACKED)
    made = attacks.get(**attack)
    if made.knowledge == "defense":  # the oracle has no defense to be tried
        del odds["oracle"]
        odds["mean"] = 1.0
    if fields["participation"] * fields["clients"] < _LEAST_FOR_KRUM:
        odds = {name: odd for name, odd in odds.items() if "krum" not in name}
    return {"name": _one_of(of, odds)}


def _one_of(of: random.Random, odds: Mapping[str, float]) -> str:
    return of.choices(list(odds), list(odds.values()))[0]


def _log(of: random.Random, low: float, high: float) -> float:
    """Draw between two numbers on a logarithmic scale."""
    return float(low * (high / low) ** of.random())


def _log_int(of: random.Random, low: int, high: int) -> int:
    return max(low, round(_log(of, low, max(low, high))))


# -------------------------------------------------------------------- making it


def make(draft: Draft, place: Path) -> Recording:
    """Carry out a draft, and keep some of its rounds.

    Rounds in which half of the clients or more attack are left out: there is nothing to learn.

    Parameters
    ----------
    draft
        What to record.
    place
        Folder of data sets.

    Raises
    ------
    FedimmuneError
        No round is worth keeping, because the model has diverged, say.
    """
    scenario = draft.scenario.resolve()
    task = scenario.make_task()
    data = load_data(task, place)
    whole = carry_out(Rehearsal(scenario, draft.number, "clients"), task, data)
    clients = whole.attackers.shape[1]
    usable = (2 * whole.attackers.sum(1) < clients).nonzero().flatten()
    if not len(usable) or clients < 3:
        raise FedimmuneError(f"{len(whole)} rounds of {clients} clients are nothing to learn from")
    megabytes = whole.grams[0].numel() * 8 / 1e6
    count = min(draft.keep, max(2, int(_LIMIT_MB / megabytes)))
    random_order = torch.randperm(len(usable), generator=generator(scenario.seed, "kept rounds"))
    some = whole.take(usable[random_order[:count].sort().values])
    about = some.about.model_copy(update={"task": f"{draft.dataset}/{draft.family}"})
    return Recording(about, some.grams, some.attackers, some.median_distances)


def parse_only(given: Iterable[str]) -> dict[str, set[str]]:
    """Read what recordings are selected by, such as ``family=cnn,attack=none``.

    Raises
    ------
    ParameterError
        There is no such field, or a field has no such value.
    """
    families = {name for each in FAMILIES.values() for name in each}
    sets = {name for each in corpus_data.KINDS.values() for name in each}
    known = {
        "dataset": sets | set(corpus_data.PUBLIC),
        "family": families,
        "attack": set(attacks.available()),
    }
    found: dict[str, set[str]] = {}
    for part in (part for each in given for part in each.split(",")):
        field, equals, value = part.strip().partition("=")
        if field not in known or not equals:
            raise ParameterError(
                f"--only takes {', '.join(f'{name}=…' for name in FIELDS)}, not {part!r}"
            )
        value = attacks.resolve(value) if field == "attack" else value
        if value not in known[field]:
            listed = ", ".join(sorted(known[field]))
            raise ParameterError(f"there is no {field} {value!r}; there are {listed}")
        found.setdefault(field, set()).add(value)
    return found


def selected(drafts: Iterable[Draft], only: Mapping[str, set[str]]) -> list[Draft]:
    """Return the drafts that have one of the values asked for in every field."""
    return [
        each
        for each in drafts
        if all(getattr(each, field) in values for field, values in only.items())
    ]


def record(
    drafts: Sequence[Draft],
    folder: Path,
    place: Path,
    *,
    workers: int = 1,
    on_done: Callable[[Draft, str | None], None] = lambda *_: None,
) -> Counter[str]:
    """Make recordings that are not in a folder yet, one file each.

    One that fails, because training diverges, say, is left out.

    Parameters
    ----------
    drafts
        What to record.
    folder, place
        Of recordings and of data sets.
    workers
        How many processes, each making one recording at a time.
    on_done
        Called after each with what went wrong, if anything did; from several threads.

    Returns
    -------
    Counter
        How many were ``made``, ``failed``, or there ``before``.
    """
    missing = [each for each in drafts if not (folder / each.file_name).is_file()]
    counts = Counter({"before": len(drafts) - len(missing), "made": 0, "failed": 0})

    def done(draft: Draft, problem: str | None) -> None:
        counts["made" if problem is None else "failed"] += 1
        on_done(draft, problem)

    if workers == 1 or len(missing) < 2:
        maker = _maker(folder, place)
        for each in missing:
            done(each, maker.do(each))
    else:
        with Pool(min(workers, len(missing)), _maker, {"folder": folder, "place": place}) as pool:
            pool.do(missing, lambda number, problem: done(missing[number], problem))
    return counts


class _Maker:
    """Makes recordings, one at a time."""

    def __init__(self, folder: Path, place: Path) -> None:
        self._folder, self._place = folder, place

    def do(self, draft: Draft) -> str | None:
        log = logging.getLogger("fedimmune")
        usual = log.level
        log.setLevel(logging.ERROR)  # clients without data are meant
        try:
            make(draft, self._place).save(self._folder / draft.file_name)
        except (FedimmuneError, RuntimeError, ValueError) as error:
            return " ".join(str(error).split())[:200] or type(error).__name__
        finally:
            log.setLevel(usual)
        return None


def _maker(folder: Path, place: Path) -> _Maker:
    torch.set_num_threads(1)
    return _Maker(folder, place)
