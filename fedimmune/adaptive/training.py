"""Training a form on recordings: epochs of Adam; the best on the held-out run is kept."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

import torch
from pydantic import ValidationError
from torch import Tensor

from fedimmune.adaptive.attack_kinds import learn_kinds
from fedimmune.adaptive.defense import Defense, make_form
from fedimmune.adaptive.description import DefenseAbout, Epoch
from fedimmune.adaptive.detector import Detector, train_detector
from fedimmune.adaptive.evaluation import validate
from fedimmune.adaptive.models.base import AttentionModel, Inputs
from fedimmune.adaptive.recordings import Recording, digest_of
from fedimmune.adaptive.replay import sample
from fedimmune.adaptive.split import Split, hold_out
from fedimmune.adaptive.synthetic_attacks import lengthen
from fedimmune.errors import InputError, ParameterError
from fedimmune.untrusted import first_problem

__all__ = [
    "PRESETS",
    "Epoch",
    "Examples",
    "examples_of",
    "finished",
    "fit",
    "learn",
    "train",
    "training_facts",
]

_LENGTHENED = 0.25


@dataclass(frozen=True)
class Examples:
    """Rounds with the same number of clients, ready to be learned from.

    Parameters
    ----------
    inputs
        What the form reads, one row per round.
    attackers
        Who attacks, (rounds, n).
    """

    inputs: Inputs
    attackers: Tensor

    def __len__(self) -> int:
        return len(self.attackers)

    def take(self, rows: Tensor) -> Examples:
        """Return some of the rounds."""
        inputs = {name: tensor[rows] for name, tensor in self.inputs.items()}
        return Examples(inputs, self.attackers[rows])


def examples_of(
    form: AttentionModel,
    recordings: Sequence[Recording],
    *,
    random: torch.Generator | None = None,
) -> list[Examples]:
    """Prepare recordings for a form; rounds with the same number of clients come together.

    With `random`, a quarter of the rounds is added a second time, with other lengths (`lengthen`).

    Raises
    ------
    InputError
        There is no round that the form would learn from.
    """
    by_clients: dict[int, list[Recording]] = {}
    for recording in recordings:
        by_clients.setdefault(recording.attackers.shape[1], []).append(recording)
    prepared = []
    for _, group in sorted(by_clients.items()):
        grams = torch.cat([recording.grams_with(*form.references) for recording in group])
        attackers = torch.cat([recording.attackers for recording in group])
        if random is not None:
            some = torch.rand(len(grams), generator=random) < _LENGTHENED
            longer, attack = lengthen(grams[some], attackers[some], random)
            grams, attackers = torch.cat([grams, longer]), torch.cat([attackers, attack])
        every = Examples(form.prepare(grams), attackers)
        prepared.append(every.take(form.usable(every.inputs)))
    if recordings and not any(map(len, prepared)):
        raise InputError("every round has diverged beyond the form's `limit`: none is left")
    return [group for group in prepared if len(group)]


def fit(
    form: AttentionModel,
    to_train: Sequence[Examples],
    to_validate: Sequence[Examples],
    *,
    epochs: int = 500,
    batch: int = 32,
    lr: float = 1e-3,
    seed: int = 1,
    on_epoch: Callable[[Epoch], None] = lambda _: None,
) -> list[Epoch]:
    """Train a form in place with Adam, leave it as at its best validation epoch; return the curve.

    Rounds to train and to validate on are of different runs. `on_epoch` is called after each.
    """
    if not to_train or not to_validate:
        raise InputError(
            "there have to be rounds to train on, and rounds of another run to validate on"
        )
    random = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(form.parameters(), lr=lr, fused=True)
    best, best_state = float("inf"), copy.deepcopy(form.state_dict())
    curve = []
    for number in range(1, epochs + 1):
        form.train()
        total, count = 0.0, 0
        for examples in _batches(to_train, batch, random):
            optimizer.zero_grad()
            inputs = form.augmented(examples.inputs, random)
            loss = form.loss(inputs, form(inputs), examples.attackers)
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(examples)
            count += len(examples)
        curve.append(Epoch(number, total / count, _validate(form, to_validate)))
        if curve[-1].validation < best:
            best, best_state = curve[-1].validation, copy.deepcopy(form.state_dict())
        on_epoch(curve[-1])
    form.load_state_dict(best_state)
    form.eval()
    return curve


def _batches(groups: Sequence[Examples], size: int, random: torch.Generator) -> Iterator[Examples]:
    """Shuffle rounds and cut them into batches, each of one number of clients."""
    chosen = [
        (group, rows)
        for group in groups
        for rows in torch.randperm(len(group), generator=random).split(size)
    ]
    for position in torch.randperm(len(chosen), generator=random).tolist():
        group, rows = chosen[position]
        yield group.take(rows)


@torch.no_grad()
def _validate(form: AttentionModel, groups: Sequence[Examples]) -> float:
    form.eval()
    losses = [
        float(form.choosing_loss(g.inputs, form(g.inputs), g.attackers)) * len(g) for g in groups
    ]
    return sum(losses) / sum(len(g) for g in groups)


# Wan and Chen's own program: one encoder without biases for both, leaky, twice as wide. Its older
# branch cuts off at 0.005 whatever the number of clients: of ten, 0.05 / n.
_ENCODER = {"shared": True, "bias": False, "leaky": True, "hidden": 2.0, "output": 21}
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    "authors": {
        **_ENCODER,
        "start": "mean",
        "random_start": True,
        "weight_term": 0.01,
        "jitter": 0.1,
        "limit": 5.0,
        "chosen_by": "weights",
    },
    "authors-2020": {**_ENCODER, "eps": 0.05, "chosen_by": "weights"},
}
"""Settings of the paper's form."""

_LEARNING_RATES = {"relational": 1e-3, "paper": 1e-4}
_BATCH = 32
_MEMORY = 10.0
"""How much suspicion of earlier rounds counts: as much as c, so like a score of this round."""


@overload
def train(  # type: ignore[overload-overlap]  # a form that is known only later makes a defense
    recordings: Sequence[Recording],
    *,
    form: Literal["spectral"],
    epochs: int = ...,
    seed: int = ...,
    settings: Mapping[str, Any] | None = ...,
    on_epoch: Callable[[Epoch], None] = ...,
) -> Detector: ...


@overload
def train(
    recordings: Sequence[Recording],
    *,
    form: str = ...,
    preset: str | None = ...,
    attacks: Sequence[str] | None = ...,
    anchor: bool | None = ...,
    memory: bool | None = ...,
    kinds: bool = ...,
    epochs: int = ...,
    seed: int = ...,
    settings: Mapping[str, Any] | None = ...,
    on_epoch: Callable[[Epoch], None] = ...,
) -> Defense: ...


def train(
    recordings: Sequence[Recording],
    *,
    form: str = "relational",
    preset: str | None = None,
    attacks: Sequence[str] | None = None,
    anchor: bool | None = None,
    memory: bool | None = None,
    kinds: bool = True,
    epochs: int = 500,
    seed: int = 1,
    settings: Mapping[str, Any] | None = None,
    on_epoch: Callable[[Epoch], None] = lambda _: None,
) -> Defense | Detector:
    """Train a defense: all runs but the last to learn from, the last to validate on.

    Parameters
    ----------
    recordings
        Of one model, from `rehearse` or `read_recordings`; of two runs at least.
    form
        ``relational``, or ``paper`` for that of Wan and Chen (2021). ``spectral`` makes a detector
        for the rule of that name (Li et al., 2020) from recordings with ``save_updates``; it learns
        from honest clients alone, so it takes only `epochs`, `seed`, `settings` and `on_epoch`.
    preset
        Of the paper's form: one of `PRESETS`.
    attacks
        Learn only these kinds; by default all. It is validated on all.
    anchor
        Whether to compare clients with the server's own update; by default if it was recorded and
        the form can.
    memory
        Whether the rule adds suspicion up over rounds unless told otherwise; by default in our
        form and not in the paper's.
    kinds
        Whether it also learns to tell kinds of attack apart.
    epochs
        Passes over all rounds; the best on the held-out run is kept.
    seed
        Random seed: the same recordings and seed give the same defense.
    settings
        Further settings of the form, such as ``{"c": 5}``.
    on_epoch
        Called after every epoch.

    Returns
    -------
    Defense or Detector
        Trained and validated (`about`), with its learning curve. `save` writes it.

    Raises
    ------
    InputError
        There are no recordings, or only of one run.
    ParameterError
        There is no such form, preset or setting.

    Examples
    --------
    >>> from fedimmune import adaptive
    >>> recordings = adaptive.rehearse("digits", ["sign-flip"], attackers=[0, 3], runs=2, rounds=2)
    >>> defense = adaptive.train(recordings, epochs=5)
    >>> defense.about.attacks
    ('sign-flip',)
    """
    if form == "spectral":
        given = {"preset": preset, "attacks": attacks, "anchor": anchor, "memory": memory}
        for name in [name for name, value in given.items() if value is not None]:
            raise ParameterError(f"the spectral form takes no {name}")
        return train_detector(
            recordings, epochs=epochs, seed=seed, settings=settings, on_epoch=on_epoch
        )
    if form not in _LEARNING_RATES:
        known = ", ".join((*_LEARNING_RATES, "spectral"))
        raise ParameterError(f"there is no form {form!r}; there are {known}")
    split = hold_out(recordings, attacks)
    about = recordings[0].about
    for name in ("layers", "clients"):
        if name in (settings or {}):
            raise ParameterError(f"the {form} form: {name} follows from the recordings")
    chosen = {"layers": len(about.layers), **_preset(form, preset), **(settings or {})}
    if form == "relational":
        chosen["anchor"] = _anchor(anchor, recorded="anchor" in about.references)
    elif anchor:
        raise ParameterError("the paper's form has no anchor")
    if chosen.get("attention") is False:
        chosen.setdefault("clients", about.clients)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            made = make_form(form, chosen)
        except ValidationError as error:
            raise ParameterError(f"the {form} form: {first_problem(error)}") from None
    curve = learn(made, form, split, epochs=epochs, seed=seed, on_epoch=on_epoch)
    description = DefenseAbout(
        task=about.task,
        layers=about.layers,
        form=form,
        settings=made.settings.model_dump(),
        memory=_MEMORY if (form == "relational" if memory is None else memory) else 0.0,
        attacks=tuple(sorted(split.kinds)),
        training=training_facts(form, epochs=epochs, seed=seed),
        recordings=digest_of(split.every),
    )
    held_out = hold_out(recordings).to_validate
    return finished(made, description, split, held_out, kinds=kinds, curve=curve)


def learn(
    form: AttentionModel,
    name: str,
    split: Split,
    *,
    epochs: int,
    seed: int,
    on_epoch: Callable[[Epoch], None],
) -> list[Epoch]:
    """Train a form in place on recordings, from its present weights; return the learning curve.

    `name` is the form's, as for `make_form`.
    """
    # The paper's form learns nothing but what was rehearsed.
    random = torch.Generator().manual_seed(seed) if name == "relational" else None
    return fit(
        form,
        examples_of(form, split.to_train, random=random),
        examples_of(form, split.to_validate),
        epochs=epochs,
        batch=_BATCH,
        lr=_LEARNING_RATES[name],
        seed=seed,
        on_epoch=on_epoch,
    )


def training_facts(name: str, *, epochs: int, seed: int) -> dict[str, Any]:
    """Describe how `learn` trains, for the defense's file."""
    return {"epochs": epochs, "batch": _BATCH, "lr": _LEARNING_RATES[name], "seed": seed}


def finished(
    form: AttentionModel,
    about: DefenseAbout,
    learned: Split,
    measured_on: Sequence[Recording],
    *,
    kinds: bool = True,
    curve: Sequence[Epoch] = (),
) -> Defense:
    """Make a defense of a trained form: validated, and with a replay to patch it with.

    A sample of what it has `learned` from becomes the replay. With `kinds` it also learns to tell
    kinds of attack apart.
    """
    figures = validate(Defense(form, about), measured_on)
    about = about.model_copy(update={"validation": tuple(figures)})
    told_apart = None
    if kinds:
        seed = int(about.training["seed"])
        told_apart = learn_kinds(form, learned.to_train, learned.to_validate, seed=seed)
    return Defense(form, about, replay=sample(learned), kinds=told_apart, curve=curve)


def _preset(form: str, preset: str | None) -> dict[str, Any]:
    if preset is None:
        return {}
    if form != "paper" or preset not in PRESETS:
        raise ParameterError(f"there is no preset {preset!r} of the {form} form")
    return PRESETS[preset]


def _anchor(wanted: bool | None, *, recorded: bool) -> bool:
    if wanted and not recorded:
        raise InputError("the recordings have no anchor: set the scenario's `anchor` and record")
    return recorded if wanted is None else wanted
