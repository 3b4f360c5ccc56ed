"""``fedimmune train --sweep``: many defenses, and the one that detects attackers best."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedimmune.cli._signals import ANEW
from fedimmune.cli._ui import counter, make_table, read_setting, say, share, showing_epochs
from fedimmune.errors import ParameterError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from fedimmune.adaptive.defense import Defense
    from fedimmune.adaptive.recordings import Recording
    from fedimmune.adaptive.sweep import Outcome, Search, TrainOptions

__all__ = ["Sweep", "read_grid", "searched_table"]


class Sweep:
    """Searches settings and trains the best; intermediate results are kept next to the defense.

    Parameters
    ----------
    grid
        The options `--grid`; the usual grid if there are none.
    output
        File for the defense.
    files
        The recordings, for worker processes to read.
    workers
        Number of processes, each training one defense at a time; by default one per core.
    notes
        Console for progress.
    """

    def __init__(
        self,
        grid: Sequence[str],
        output: Path,
        files: Sequence[Path],
        workers: int | None,
        notes: Console,
    ) -> None:
        from fedimmune.adaptive.sweep import GRID, OutcomeFile
        from fedimmune.io import writable

        self._grid = read_grid(grid) or GRID
        self._file = OutcomeFile(f"{output}.sweep.jsonl")
        self.picture = Path(f"{output}.sweep.svg")
        writable(self.picture)
        self._files, self._workers, self._notes = files, workers, notes
        self._search: Search | None = None

    def train(self, recordings: Sequence[Recording], options: TrainOptions) -> Defense:
        """Search, draw the heat map, and train the best again: the same bits, because it is seeded.

        `options` are what all points have in common.
        """
        from fedimmune.adaptive.sweep import Search, described_search
        from fedimmune.kernels import num_threads
        from fedimmune.report.charts import save, sweep_map

        with num_threads(1):  # as worker processes do
            self._search = Search(recordings, options, self._grid, self._file)
            outcomes = self._carried_out(self._search, recordings, options)
            searched = described_search(self._grid, outcomes)
            save(sweep_map(searched), self.picture.with_suffix(""), ["svg"])
            with showing_epochs(self._notes, options.epochs) as tell:
                defense = options.train(recordings, searched["best"], tell)
        defense.about = defense.about.model_copy(update={"searched": searched})
        return defense

    def kept(self) -> str:
        """Describe what is kept if it ends now."""
        if self._search is None:
            return ANEW
        done = f"{self._search.done} of {len(self._search.points)} points are searched"
        return f"{done}, and the same command resumes with the others"

    def _carried_out(
        self, search: Search, recordings: Sequence[Recording], options: TrainOptions
    ) -> list[Outcome]:
        from fedimmune.adaptive.recordings import digest_of
        from fedimmune.adaptive.sweep import point_runner
        from fedimmune.simulation.workers import Pool, usable_cores

        before, total = search.done, len(search.points)
        if before:
            say(self._notes, f"{before} of {total} points are searched already")
        with counter(self._notes, "points") as bar:
            task = bar.add_task("", total=total, completed=before)

            def tell(outcome: Outcome) -> None:
                line = f"{_settings(outcome.settings)}: accuracy {share(outcome.accuracy)}"
                bar.update(task, advance=1, description=line)
                if bar.disable:
                    say(self._notes, line)

            workers = min(self._workers or usable_cores(), total - before)
            if workers < 2:
                return search.carry_out(on_done=tell)
            given = {"files": self._files, "digest": digest_of(recordings), "options": options}
            with Pool(workers, point_runner, given) as pool:
                return search.carry_out(pool, tell)


def read_grid(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Read ``c=5,10,20`` and the like; a setting given twice has the values of both."""
    grid: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        parts = [part.strip() for part in values.split(",")]
        if not name.strip() or not equals or not all(parts):
            raise ParameterError(f"--grid takes NAME=VALUE,VALUE,…, such as c=5,10, not {text!r}")
        known = grid.setdefault(name.strip(), [])
        for part in parts:
            _, value = read_setting(f"{name}={part}")
            if _written(value) not in map(_written, known):  # True is not 1 here
                known.append(value)
    return grid


def searched_table(searched: Mapping[str, Any]) -> Table:
    """Show the settings that were searched, with the chosen ones marked."""
    names = list(searched["grid"])
    figures = ("accuracy", "rounds\nall right", "honest\nkept", "weight on\nattackers", "epoch")
    table = make_table("Settings searched, on held-out rehearsals", (), (*names, *figures))
    table.add_column("")
    for point in searched["points"]:
        chosen = _settings(point["settings"]) == _settings(searched["best"])  # True is not 1 here
        table.add_row(
            *(_written(point["settings"][name]) for name in names),
            *(share(point[n]) for n in ("accuracy", "exact", "benign_kept", "attacker_weight")),
            str(point["epoch"]),
            "← chosen" if chosen else "",
            style="bold" if chosen else None,
        )
    return table


def _settings(point: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {_written(value)}" for name, value in point.items())


def _written(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
