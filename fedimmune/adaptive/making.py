"""From recordings to a defence: which runs to learn from, which form, how it came out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from pydantic import ValidationError

from fedimmune.adaptive.defence import Defence, make_form
from fedimmune.adaptive.description import DefenceAbout, Epoch
from fedimmune.adaptive.forms import Form
from fedimmune.adaptive.kinds import learn_kinds
from fedimmune.adaptive.parting import Parted, part
from fedimmune.adaptive.recordings import Recording, digest_of
from fedimmune.adaptive.replay import sample
from fedimmune.adaptive.training import examples_of, fit
from fedimmune.adaptive.validation import validate
from fedimmune.errors import InputError, ParameterError

__all__ = ["PRESETS", "finished", "learn", "train", "training_facts"]

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
"""How much suspicion of earlier rounds counts: as much as c, so as a score of this round would."""


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
) -> Defence:
    """Train a defence: all runs but the last to learn from, the last to validate on.

    Parameters
    ----------
    recordings
        Of one model, from `rehearse` or `read_recordings`; of two runs at least.
    form
        ``relational``, or ``paper`` for that of Wan and Chen (2021).
    preset
        Of the paper's form: one of `PRESETS`.
    attacks
        Learn these kinds alone; by default all. It is validated on all.
    anchor
        Whether to compare clients with the server's own update; by default if it was recorded and
        the form can.
    memory
        Whether the rule adds suspicion up over rounds unless told otherwise; by default in our
        form and not in the paper's.
    kinds
        Whether it learns to tell kinds of attack apart, too.
    epochs
        How often all rounds are gone through; the best on the held-out run is kept.
    seed
        Random seed: the same recordings and seed give the same defence.
    settings
        Further settings of the form, such as ``{"c": 5}``.
    on_epoch
        Called after every epoch.

    Returns
    -------
    Defence
        Trained and validated (`Defence.about`), with its learning curve. `Defence.save` writes it.

    Raises
    ------
    InputError
        There are no recordings, or of one run alone.
    ParameterError
        There is no such form, preset or setting.

    Examples
    --------
    >>> from fedimmune import adaptive
    >>> recordings = adaptive.rehearse("digits", ["omniscient"], attackers=[0, 3], runs=2, rounds=2)
    >>> defence = adaptive.train(recordings, epochs=5)
    >>> defence.about.attacks
    ('omniscient',)
    """
    if form not in _LEARNING_RATES:
        raise ParameterError(f"there is no form {form!r}; there are {', '.join(_LEARNING_RATES)}")
    parted = part(recordings, attacks)
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
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"])
            raise ParameterError(f"the {form} form: {place}: {first['msg']}") from None
    curve = learn(made, form, parted, epochs=epochs, seed=seed, on_epoch=on_epoch)
    description = DefenceAbout(
        task=about.task,
        layers=about.layers,
        form=form,
        settings=made.settings.model_dump(),
        memory=_MEMORY if (form == "relational" if memory is None else memory) else 0.0,
        attacks=tuple(sorted(parted.kinds)),
        training=training_facts(form, epochs=epochs, seed=seed),
        recordings=digest_of(parted.every),
    )
    apart = part(recordings).to_validate
    return finished(made, description, parted, apart, kinds=kinds, curve=curve)


def learn(
    form: Form,
    name: str,
    parted: Parted,
    *,
    epochs: int,
    seed: int,
    on_epoch: Callable[[Epoch], None],
) -> list[Epoch]:
    """Train a form, as it is now, on recordings.

    Parameters
    ----------
    form
        What learns, in place.
    name
        Of the form, as `make_form` has it.
    parted
        What to learn from, and what to choose the epoch on.
    epochs, seed
        Of the training.
    on_epoch
        Called after every epoch.

    Returns
    -------
    list of Epoch
        The learning curve.
    """
    # The paper's form learns what was rehearsed and nothing else.
    random = torch.Generator().manual_seed(seed) if name == "relational" else None
    return fit(
        form,
        examples_of(form, parted.to_train, random=random),
        examples_of(form, parted.to_validate),
        epochs=epochs,
        batch=_BATCH,
        lr=_LEARNING_RATES[name],
        seed=seed,
        on_epoch=on_epoch,
    )


def training_facts(name: str, *, epochs: int, seed: int) -> dict[str, Any]:
    """Say how `learn` trains, for the defence's file."""
    return {"epochs": epochs, "batch": _BATCH, "lr": _LEARNING_RATES[name], "seed": seed}


def finished(
    form: Form,
    about: DefenceAbout,
    learned: Parted,
    measured_on: Sequence[Recording],
    *,
    kinds: bool = True,
    curve: Sequence[Epoch] = (),
) -> Defence:
    """Make a defence of a form that has learned: measured, and with a replay to patch it with.

    Parameters
    ----------
    form
        What has learned.
    about
        What it was made for and from; figures are added.
    learned
        What it has learned from: a sample of it travels along.
    measured_on
        What it is validated on.
    kinds
        Whether it learns to tell kinds of attack apart, too.
    curve
        Of the training.
    """
    figures = validate(Defence(form, about), measured_on)
    about = about.model_copy(update={"validation": tuple(figures)})
    told_apart = None
    if kinds:
        seed = int(about.training["seed"])
        told_apart = learn_kinds(form, learned.to_train, learned.to_validate, seed=seed)
    return Defence(form, about, replay=sample(learned), kinds=told_apart, curve=curve)


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
