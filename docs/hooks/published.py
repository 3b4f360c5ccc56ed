"""Put the pages of published experiments (docs/results/*.md) into the navigation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["on_config"]

_HEADING = "Results"


def on_config(config: Any) -> Any:
    """List whatever is there; MkDocs calls this before it looks for pages."""
    folder = Path(config["docs_dir"]) / "results"
    pages = [f"results/{page.name}" for page in sorted(folder.glob("*.md"))]
    for section in config["nav"]:
        if _HEADING in section:
            known = section[_HEADING]
            known += [page for page in pages if page not in known]
    return config
