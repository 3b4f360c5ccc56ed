"""Training a form on recordings: epochs of Adam; the best on the held-out run is kept."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, overload

import torch
from pydantic import ValidationError
from torch import Tensor

from fedimmune.adaptive.attack_kinds import learn_kinds
from fedimmune.adaptive.defense import Defense, make_form
from fedimmune.adaptive.description import Ancestor, DefenseAbout, Epoch
from fedimmune.adaptive.detector import Detector, train_detector
from fedimmune.adaptive.evaluation import calibrate, validate
from fedimmune.adaptive.models.base import AttentionModel, Inputs
from fedimmune.adaptive.models.paper import Principal
from fedimmune.adaptive.models.relational import Relational
from fedimmune.adaptive.models.universal import Universal
from fedimmune.adaptive.recordings import About, Recording, digest_of
from fedimmune.adaptive.replay import sample
from fedimmune.adaptive.split import Split, hold_out
from fedimmune.adaptive.synthetic_attacks import improvise, lengthen, vary_honest
from fedimmune.errors import InputError, ParameterError
from fedimmune.untrusted import first_problem

__all__ = [
    "PRESETS",
    "Epoch",
    "Examples",
    "Rounds",
    "ancestor_of",
    "examples_of",
    "finished",
    "fit",
    "learn",
    "rounds_of",
    "train",
    "training_facts",
]

_IMPROVISED, _VARIED = 0.5, 0.25
"""Share of rounds that get a synthetic attack: of those without attack, and with one."""
_LONGEST_GRADIENT = 2.0
_WHOLE, _LEAST_PRESENT, _FEWEST_PRESENT, _MOST_ATTACKING = 0.2, 0.4, 4, 0.46
"""Share of batches with all clients; least share and number of clients in others; of attackers."""
_MOST_SHOWN = 16
"""Layers of a model that a batch shows."""
_LENGTHENED, _ODD = 0.08, 0.3
"""Share of rounds with updates of absurd length, and with odd honest clients."""


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

    def drawn(self, form: AttentionModel, random: torch.Generator) -> Examples:
        """Return them as they are learned from once."""
        return Examples(form.augmented(self.inputs, random), self.attackers)


@dataclass(frozen=True)
class Rounds:
    """Recorded rounds of one model and number of clients, out of which attacks are made anew.

    Parameters
    ----------
    grams, attackers
        Inner products, (rounds, layers, rows, rows), and who attacks, (rounds, n).
    shapes, anchored
        What the form's `prepare` is called with.
    """

    grams: Tensor
    attackers: Tensor
    shapes: Sequence[Sequence[int]]
    anchored: bool

    def __len__(self) -> int:
        return len(self.attackers)

    def take(self, rows: Tensor) -> Rounds:
        """Return some of the rounds."""
        return replace(self, grams=self.grams[rows], attackers=self.attackers[rows])

    def drawn(self, form: AttentionModel, random: torch.Generator) -> Examples:
        """Return them with synthetic attacks and honest oddities in some, as they are read once."""
        grams, attackers, shapes, anchored = self.grams, self.attackers, self.shapes, self.anchored
        if form.name == Universal.name:
            grams, attackers = _present(grams, attackers, random)
            grams, shapes, anchored = _shown(grams, shapes, random, anchored=anchored)

        def some(share: float) -> Tensor:
            return torch.rand(len(self), generator=random) < share

        sizes = [math.prod(shape) for shape in shapes]
        made, who = improvise(grams, attackers, random, sizes or None)
        quiet = ~attackers.any(-1)
        # Of rounds without attack half stay so: a false alarm has to cost something.
        attacked = torch.where(quiet, some(_IMPROVISED), some(_VARIED))
        grams = torch.where(attacked[:, None, None, None], made, grams)
        attackers = torch.where(attacked[:, None], who, attackers)
        made, who = lengthen(grams, attackers, random)
        longer = some(_LENGTHENED)
        grams = torch.where(longer[:, None, None, None], made, grams)
        attackers = torch.where(longer[:, None], who, attackers)
        odd = some(_ODD)[:, None, None, None]
        grams = torch.where(odd, vary_honest(grams, attackers, random), grams)
        return Examples(form.prepare(grams, shapes, anchored=anchored), attackers)


def _present(grams: Tensor, attackers: Tensor, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Leave some clients out of most batches, others in every round; attackers stay a minority.

    What is left is a round like any other, and the same ten clients are not learned by heart.
    """
    rounds, n = attackers.shape
    chance, share = torch.rand(2, generator=random).tolist()
    count = max(_FEWEST_PRESENT, round((_LEAST_PRESENT + (1 - _LEAST_PRESENT) * share) * n))
    if count >= n or chance < _WHOLE:
        return grams, attackers
    drawn = torch.rand(rounds, n, generator=random)
    # Attackers beyond the largest minority come last, in a random order of their own.
    turn = torch.where(attackers, drawn, 2.0).argsort(-1).argsort(-1)
    beyond = attackers & (turn >= int(_MOST_ATTACKING * count))
    rows = torch.where(beyond, 1 + drawn, drawn).argsort(-1)[:, :count].sort(-1).values
    rest = torch.arange(n, grams.shape[-1]).expand(rounds, -1)
    kept = torch.cat([rows, rest], -1)
    which = torch.arange(rounds)[:, None, None]
    some = grams.movedim(1, -1)[which, kept[:, :, None], kept[:, None, :]].movedim(-1, 1)
    return some, attackers.gather(-1, rows)


def _shown(
    grams: Tensor, shapes: Sequence[Sequence[int]], random: torch.Generator, *, anchored: bool
) -> tuple[Tensor, Sequence[Sequence[int]], bool]:
    """Hide some layers in half of the batches, and the anchor in half of them.

    Of a deep model there is never more than a part: it costs time, and teaches no more.
    """
    chance, share, anchor = torch.rand(3, generator=random).tolist()
    count = len(shapes)
    if chance < 0.5:
        count = round((0.5 + 0.5 * share) * count)
    count = min(max(count, 2), _MOST_SHOWN, len(shapes))
    if count < len(shapes):
        kept = torch.randperm(len(shapes), generator=random)[:count].sort().values
        grams, shapes = grams[:, kept], [shapes[row] for row in kept.tolist()]
    if anchored and anchor < 0.5:
        grams, anchored = grams[..., :-1, :-1], False
    return grams, shapes, anchored


def examples_of(
    form: AttentionModel,
    recordings: Sequence[Recording],
    *,
    random: torch.Generator | None = None,
) -> list[Examples]:
    """Prepare recordings for a form; rounds with the same clients and layers come together.

    With `random`, synthetic attacks and honest oddities are in them, as in training.

    Raises
    ------
    InputError
        There is no round that the form would learn from.
    """
    prepared = []
    for group in rounds_of(form, recordings):
        if random is None:
            inputs = form.prepare(group.grams, group.shapes, anchored=group.anchored)
            every = Examples(inputs, group.attackers)
        else:
            every = group.drawn(form, random)
        prepared.append(every.take(form.usable(every.inputs)))
    if recordings and not any(map(len, prepared)):
        raise InputError("every round has diverged beyond the form's `limit`: none is left")
    return [group for group in prepared if len(group)]


def rounds_of(form: AttentionModel, recordings: Sequence[Recording]) -> list[Rounds]:
    """Put rounds of the same clients, layers and references together."""
    groups: dict[tuple[Any, ...], list[tuple[Tensor, Tensor]]] = {}
    for recording in recordings:
        grams, about = recording.seen_by(form)
        shapes = tuple(map(tuple, about["shapes"]))
        key = (recording.attackers.shape[1], shapes, about["anchored"])
        groups.setdefault(key, []).append((grams, recording.attackers))
    return [
        Rounds(torch.cat([g for g, _ in found]), torch.cat([a for _, a in found]), *key[1:])
        for key, found in sorted(groups.items())
    ]


def fit(
    form: AttentionModel,
    to_train: Sequence[Examples | Rounds],
    to_validate: Sequence[Examples],
    *,
    epochs: int = 500,
    batch: int = 32,
    lr: float = 1e-3,
    decay: bool = False,
    seed: int = 1,
    on_epoch: Callable[[Epoch], None] = lambda _: None,
) -> list[Epoch]:
    """Train a form in place with Adam, leave it as at its best validation epoch; return the curve.

    Rounds to train and to validate on are of different runs. With `decay` the learning rate falls
    to nearly 0 along half a cosine, and gradients are clipped: batches are of one federation each,
    and some are odd. `on_epoch` is called after each epoch.
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
        if decay:
            cooled = 0.5 * (1 + math.cos(math.pi * (number - 1) / epochs))
            optimizer.param_groups[0]["lr"] = lr * max(cooled, 0.02)
        form.train()
        total, count = 0.0, 0
        for chosen in _batches(to_train, batch, random):
            examples = chosen.drawn(form, random)
            optimizer.zero_grad()
            loss = form.loss(examples.inputs, form(examples.inputs), examples.attackers)
            loss.backward()
            if decay:
                torch.nn.utils.clip_grad_norm_(form.parameters(), _LONGEST_GRADIENT)
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


def _batches(
    groups: Sequence[Examples | Rounds], size: int, random: torch.Generator
) -> Iterator[Examples | Rounds]:
    """Shuffle rounds and cut them into batches, each of one number of clients."""
    chosen = [(group, rows) for group in groups for rows in _order(group, size, random).split(size)]
    for position in torch.randperm(len(chosen), generator=random).tolist():
        group, rows = chosen[position]
        yield group.take(rows)


def _order(group: Examples | Rounds, size: int, random: torch.Generator) -> Tensor:
    """Shuffle a group; few rounds that are drawn anew are drawn several times in one batch."""
    times = max(1, size // len(group)) if isinstance(group, Rounds) else 1
    return torch.cat([torch.randperm(len(group), generator=random) for _ in range(times)])


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

_LEARNING_RATES = {Universal.name: 3e-3, Relational.name: 1e-3, Principal.name: 1e-4}
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
    synthetic: bool | None = ...,
    start: Defense | None = ...,
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
    synthetic: bool | None = None,
    start: Defense | None = None,
    epochs: int = 500,
    seed: int = 1,
    settings: Mapping[str, Any] | None = None,
    on_epoch: Callable[[Epoch], None] = lambda _: None,
) -> Defense | Detector:
    """Train a defense: all runs but the last to learn from, the last to validate on.

    Parameters
    ----------
    recordings
        From `rehearse` or `read_recordings`, of two runs at least; of one model, unless the form is
        universal.
    form
        ``relational``, ``universal`` for one that weighs clients of any model, or ``paper`` for
        that of Wan and Chen (2021). ``spectral`` makes a detector
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
    synthetic
        Whether it also learns attacks that nobody rehearsed, and that odd clients may be honest:
        both are made up on the recorded inner products, anew in every epoch. By default in our
        forms and not in the paper's.
    start
        A universal defense to start from, such as `universal()`: its form and settings.
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
    if start is not None:
        if not start.is_universal or form not in (Relational.name, Universal.name) or settings:
            raise ParameterError(
                "training starts from a universal defense alone, whose form and settings it keeps"
            )
        form = Universal.name
    if form == "spectral":
        given = {"preset": preset, "attacks": attacks, "anchor": anchor, "memory": memory}
        given["synthetic"] = synthetic
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
    chosen = _settings(form, preset, settings, anchor, about)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            made = make_form(form, chosen)
        except ValidationError as error:
            raise ParameterError(f"the {form} form: {first_problem(error)}") from None
    if start is not None:
        made = copy.deepcopy(start.form).float()
    made_up = form != Principal.name if synthetic is None else synthetic
    if made_up and form == Principal.name:
        raise ParameterError("the paper's form learns what was rehearsed and no synthetic attacks")
    curve = learn(made, form, split, epochs=epochs, seed=seed, synthetic=made_up, on_epoch=on_epoch)
    tasks = {recording.about.task for recording in recordings}
    description = DefenseAbout(
        task=about.task if len(tasks) == 1 else f"{len(tasks)} tasks",
        layers={} if form == Universal.name else about.layers,
        form=form,
        settings=made.settings.model_dump(),
        memory=_MEMORY if (form != Principal.name if memory is None else memory) else 0.0,
        attacks=tuple(sorted(split.kinds)),
        training=training_facts(form, epochs=epochs, seed=seed, synthetic=made_up),
        recordings=digest_of(split.every),
        lineage=() if start is None else (*start.about.lineage, ancestor_of(start)),
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
    synthetic: bool,
    on_epoch: Callable[[Epoch], None],
) -> list[Epoch]:
    """Train a form in place on recordings, from its present weights; return the learning curve.

    `name` is the form's, as for `make_form`; the other parameters are those of `train`.
    """
    held_out = examples_of(form, split.to_validate)
    to_train: Sequence[Examples | Rounds]
    if not synthetic:
        to_train = examples_of(form, split.to_train)
    else:
        to_train = rounds_of(form, split.to_train)
        held_out += examples_of(form, split.to_validate, random=_held_out_draws())
    curve = fit(
        form,
        to_train,
        held_out,
        epochs=epochs,
        batch=_BATCH,
        lr=_LEARNING_RATES[name],
        decay=isinstance(form, Universal),
        seed=seed,
        on_epoch=on_epoch,
    )
    if isinstance(form, Universal):
        form.note_ranges([each.inputs for each in held_out + examples_of(form, split.to_train)])
    return curve


def _held_out_draws() -> torch.Generator:
    """Return the randomness of synthetic attacks to validate on: the same for every defense."""
    return torch.Generator().manual_seed(0)


def training_facts(name: str, *, epochs: int, seed: int, synthetic: bool) -> dict[str, Any]:
    """Describe how `learn` trains, for the defense's file."""
    facts = {"epochs": epochs, "batch": _BATCH, "lr": _LEARNING_RATES[name], "seed": seed}
    return {**facts, "synthetic": synthetic}


def ancestor_of(defense: Defense) -> Ancestor:
    """Return what a defense that is trained on is remembered by."""
    about = defense.about
    return Ancestor(digest=defense.digest, attacks=about.attacks, version=about.version)


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
    found: dict[str, Any] = {}
    if len({tuple(recording.about.layers.items()) for recording in measured_on}) == 1:
        # A table of everything that many tasks have would be longer than anybody reads.
        found["validation"] = tuple(validate(Defense(form, about), measured_on))
    if isinstance(form, Universal):
        held_out = examples_of(form, measured_on)
        held_out += examples_of(form, measured_on, random=_held_out_draws())
        found["calibration"] = calibrate(form, [(e.inputs, e.attackers) for e in held_out])
    about = about.model_copy(update=found)
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


def _settings(
    form: str,
    preset: str | None,
    settings: Mapping[str, Any] | None,
    anchor: bool | None,
    about: About,
) -> dict[str, Any]:
    """Return a form's settings: what is given, and what follows from the recordings."""
    for name in ("layers", "clients"):
        if name in (settings or {}):
            raise ParameterError(f"the {form} form: {name} follows from the recordings")
    chosen = {**_preset(form, preset), **(settings or {})}
    if form == Universal.name:
        if anchor is not None:
            raise ParameterError("the universal form does with an anchor and without")
        return chosen
    chosen["layers"] = len(about.layers)
    if form == Relational.name:
        chosen["anchor"] = _anchor(anchor, recorded="anchor" in about.references)
    elif anchor:
        raise ParameterError("the paper's form has no anchor")
    if chosen.get("attention") is False:
        chosen.setdefault("clients", about.clients)
    return chosen


def _anchor(wanted: bool | None, *, recorded: bool) -> bool:
    if wanted and not recorded:
        raise InputError("the recordings have no anchor: set the scenario's `anchor` and record")
    return recorded if wanted is None else wanted
