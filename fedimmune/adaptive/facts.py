"""What a defence says about itself, as names and values for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedimmune.adaptive.defence import DefenceAbout

__all__ = ["facts_of"]

_TOLD = {
    *("task", "layers", "form", "settings", "memory", "attacks", "training", "recordings"),
    *("version", "lineage", "searched", "validation"),
}
"""Fields that `facts_of` words itself, and the validation, which is a table of its own."""

_LONGEST = 60


def facts_of(about: DefenceAbout) -> list[tuple[str, str]]:
    """Give what a defence was made for and from; fields that are not known here come last."""
    facts = [
        ("made for", f"{about.task} ({len(about.layers)} layers)"),
        ("form", about.form),
        ("has seen", ", ".join(about.attacks) or "no attack"),
        ("compares with the server's own update", "yes" if about.settings.get("anchor") else "no"),
        ("memory", f"yes, {about.memory:g} times a score" if about.memory else "no"),
        ("settings", _written(about.settings)),
        ("training", _written(about.training)),
        ("recordings", about.recordings or "–"),
        ("made by", f"fedimmune {about.version}"),
    ]
    if about.lineage:
        known = [f"{one.digest} ({', '.join(one.attacks) or 'no attack'})" for one in about.lineage]
        facts.append(("patched from", ", then ".join(known)))
    if about.searched:
        points, grid = (about.searched.get(name) or () for name in ("points", "grid"))
        facts.append(("settings searched", f"{len(points)}, over {', '.join(grid)}"))
    others = about.model_dump(mode="json", exclude=_TOLD)
    return facts + [
        (name.replace("_", " "), _written(value))
        for name, value in others.items()
        if value not in (None, "", [], {})
    ]


def _written(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} = {_written(each)}" for name, each in value.items()) or "–"
    if isinstance(value, list | tuple):
        return ", ".join(_written(each) for each in value) or "–"
    text = str(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
