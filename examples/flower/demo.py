"""FedAvg is taken over, the learned rule is not: the same federation twice, run by Flower.

    python examples/flower/demo.py [FOLDER]

Ten nodes learn handwritten digits in Flower's simulation; four of them plant a backdoor. Rehearsals
and the defense are those of ``fedimmune demo`` and are made once; the runs are made anew each time.
Everything that is started here is stopped here, on Ctrl-C too.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Sequence
from math import isnan
from pathlib import Path

from deploy.processes import stop_on_signals
from deploy.simulation import Simulation

from fedimmune import Results, load_runs
from fedimmune.demo import Demo
from fedimmune.errors import FedimmuneError
from fedimmune.report import write_report

_APP = Path(__file__).parent
_RULES = ("mean", "adaptive")
_CLIENTS = 10
_ATTACKERS = 4


def main(arguments: Sequence[str] | None = None) -> int:
    """Rehearse, learn, run twice, compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path("build/flower-demo"))
    parser.add_argument("--defense", type=Path, help="one for `digits`, instead of learning one")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args(arguments)
    folder = chosen.folder.resolve()
    stop_on_signals()
    try:
        defense = chosen.defense or _learned(Path("build/demo"))
        shutil.rmtree(folder / "runs", ignore_errors=True)
        play(folder, defense.resolve(), chosen.rounds, chosen.seed)
        runs = [folder / "runs" / rule for rule in _RULES]
        print(compared(load_runs(runs)))
        report = folder / "report.html"
        title = f"Flower: {_ATTACKERS} of {_CLIENTS} nodes plant a backdoor"
        write_report(runs, report, title=title)
        print(f"The whole story, to look at: {report}")
    except (FedimmuneError, RuntimeError, TimeoutError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped, with all that was started", file=sys.stderr)
        return 130
    return 0


def _learned(folder: Path) -> Path:
    """Give the defense of ``fedimmune demo``, which is made where there is none."""
    made = Demo(folder)
    _tell("rehearsing attacks on the server's data (once, a minute or two)")
    made.rehearse(_in_silence)
    _tell("training the defense on them (once)")
    made.learn(_in_silence)
    return made.defense


def play(folder: Path, defense: Path, rounds: int, seed: int) -> None:
    """Start a SuperLink, have Flower run the app once a rule, and stop the SuperLink.

    Parameters
    ----------
    folder
        Logs go there, and run folders to its ``runs``.
    defense
        File of the rule `adaptive`.
    rounds, seed
        Of both runs.
    """
    _tell("starting a SuperLink in simulation mode")
    with Simulation(folder) as flower:
        for rule in _RULES:
            _tell(f"{rounds} rounds by {_CLIENTS} nodes, {_ATTACKERS} of them attackers: {rule}")
            began = time.perf_counter()
            settings: dict[str, str | int] = {
                "rule": rule,
                "defense": str(defense) if rule == "adaptive" else "",
                "attack": "backdoor",
                "attackers": _ATTACKERS,
                "clients": _CLIENTS,
                "rounds": rounds,
                "seed": seed,
                "runs": str(folder / "runs"),
                "name": rule,
            }
            log = flower.run(_APP, f"run-{rule}", settings, _CLIENTS)
            if not (folder / "runs" / rule / "model.safetensors").is_file():
                raise RuntimeError(f"the run did not come to its end: see {log}")
            _tell(f"    {time.perf_counter() - began:.0f} seconds")


def compared(results: Results) -> str:
    """Say what became of the model by each rule, and whom the learned rule suspected.

    Parameters
    ----------
    results
        One run per rule, called like it.
    """
    lines = ["", f"{'rule':<10}{'ACC':>9}{'ASR':>9}{'weight on attackers':>22}{'s a round':>12}"]
    pace = results.rounds["seconds_training"] + results.rounds["seconds_aggregating"]
    paces = pace.groupby(results.rounds["run"]).last()
    figures = results.figures.fillna({"accuracy": 0.0, "asr": 0.0})
    for run in figures.to_dict("records"):
        share = run["attacker_weight"]
        weight = "–" if isnan(share) else f"{share:.1%}"
        lines.append(
            f"{run['rule']:<10}{run['accuracy']:>9.1%}{run['asr']:>9.1%}{weight:>22}"
            f"{paces[run['run']]:>12.2f}"
        )
    lines += ["", "By adaptive:"]
    clients = results.clients[results.clients["run"] == "adaptive"]
    for node, seen in clients.groupby("client"):
        accused = seen[seen["verdict"] == "suspected"]
        kinds = accused["kind"].value_counts()
        of_what = ", ".join(f"{kind} ({count})" for kind, count in kinds.items())
        who = "attacker" if seen["is_attacker"].any() else "honest"
        lines.append(
            f"  node {node:<20}  {who:<8}  suspected in {len(accused):>2} of {len(seen)} rounds"
            + (f", looked most like {of_what}" if of_what else "")
        )
    return "\n".join([*lines, ""])


def _in_silence(_: int, __: int) -> None:
    """Hear how far it is, and say nothing."""


def _tell(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
