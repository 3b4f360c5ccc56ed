"""From recordings to a defence: which runs to learn from, which form, how it came out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from pydantic import ValidationError

from fedimmune.adaptive.defence import Defence, DefenceAbout, make_form
from fedimmune.adaptive.recordings import Recording, digest_of, of_attacks
from fedimmune.adaptive.training import Epoch, examples_of, train
from fedimmune.adaptive.validation import validate
from fedimmune.errors import InputError, ParameterError

__all__ = ["PRESETS", "make_defence"]

PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    # Wan and Chen's own program: one encoder without biases for both, leaky, twice as wide.
    "authors": {"shared": True, "bias": False, "leaky": True, "hidden": 2.0, "output": 21},
}
"""Settings of the paper's form."""

_LEARNING_RATES = {"relational": 1e-3, "paper": 1e-4}
_BATCH = 32
_MEMORY = 10.0
"""How much suspicion of earlier rounds counts: as much as c, so as a score of this round would."""


def make_defence(
    recordings: Sequence[Recording],
    *,
    form: str = "relational",
    preset: str | None = None,
    attacks: Sequence[str] | None = None,
    anchor: bool | None = None,
    memory: bool | None = None,
    epochs: int = 500,
    seed: int = 1,
    settings: Mapping[str, Any] | None = None,
    on_epoch: Callable[[Epoch], None] = lambda _: None,
) -> tuple[Defence, list[Epoch]]:
    """Train a defence: all runs but the last to learn from, the last to validate on.

    Parameters
    ----------
    recordings
        Of one model.
    form
        ``relational`` or ``paper``.
    preset
        Of the paper's form: ``paper`` or ``authors``.
    attacks
        Learn these kinds alone; by default all. It is validated on all.
    anchor
        Whether to compare clients with the server's own update; by default where it was recorded
        and the form can.
    memory
        Whether the rule adds suspicion up over rounds unless told otherwise; by default in our
        form and not in the paper's.
    epochs, seed
        Of the training.
    settings
        Of the form, besides.
    on_epoch
        Is told how it goes.

    Returns
    -------
    Defence
        Trained and validated.
    list of Epoch
        The learning curve.
    """
    if form not in _LEARNING_RATES:
        raise ParameterError(f"there is no form {form!r}; there are {', '.join(_LEARNING_RATES)}")
    if not recordings:
        raise InputError("there are no recordings to learn from")
    about = recordings[0].about
    for name in ("layers", "clients"):
        if name in (settings or {}):
            raise ParameterError(f"the {form} form: {name} follows from the recordings")
    chosen = {"layers": len(about.layers), **_preset(form, preset), **(settings or {})}
    if form == "relational":
        chosen["anchor"] = _anchor(anchor, recorded=about.has_anchor)
    elif anchor:
        raise ParameterError("the paper's form has no anchor")
    if chosen.get("attention") is False:
        chosen.setdefault("clients", about.clients)
    learned = recordings if attacks is None else of_attacks(recordings, attacks)
    last = max(recording.about.run for recording in recordings)
    to_train = [recording for recording in learned if recording.about.run < last]
    to_validate = [recording for recording in learned if recording.about.run == last]
    if not to_train or not to_validate:
        raise InputError(
            "two runs at least are needed, for no run may be trained on and validated on: "
            "record with --runs 3"
        )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            made = make_form(form, chosen)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"])
            raise ParameterError(f"the {form} form: {place}: {first['msg']}") from None
    with_anchor = bool(chosen.get("anchor", False))
    curve = train(
        made,
        examples_of(made, to_train, with_anchor=with_anchor),
        examples_of(made, to_validate, with_anchor=with_anchor),
        epochs=epochs,
        batch=_BATCH,
        lr=_LEARNING_RATES[form],
        seed=seed,
        on_epoch=on_epoch,
    )
    description = DefenceAbout(
        task=about.task,
        layers=about.layers,
        form=form,
        settings=made.settings.model_dump(),
        memory=_MEMORY if (form == "relational" if memory is None else memory) else 0.0,
        attacks=tuple(sorted({recording.about.attack for recording in learned} - {"none"})),
        training={"epochs": epochs, "batch": _BATCH, "lr": _LEARNING_RATES[form], "seed": seed},
        recordings=digest_of(learned),
    )
    apart = [recording for recording in recordings if recording.about.run == last]
    figures = validate(Defence(made, description), apart)
    return Defence(made, description.model_copy(update={"validation": tuple(figures)})), curve


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
