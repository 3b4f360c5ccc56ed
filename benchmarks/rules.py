"""Speed and memory of every rule, on rounds of ResNet-18; run as ``python -m benchmarks.rules``.

Prints a table and writes ``build/bench-rules.json``. Times are multiples of ``X.mean(0)`` on the
stacked matrix of the same round: what even the plainest aggregation costs. Rules that look at inner
products are set against Krum too. A missed bar is shown and fails nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

import fedimmune
from benchmarks.busy import measure_busy
from benchmarks.clients import Clients
from benchmarks.files import RULES as FILE_RULES
from benchmarks.files import measure_files
from benchmarks.memory import available_bytes, can_measure
from benchmarks.peers import Peer, load_peers
from benchmarks.probe import probe_memory
from benchmarks.report import progress, show
from benchmarks.resnet18 import Shapes, first_columns, resnet18, size
from benchmarks.rows import Row, is_compared_with_krum, time_bar, write
from benchmarks.subjects import SOURCES, THREADS, make_rule, reader, supplying
from benchmarks.timing import Effort, Timing, compare
from fedimmune import FedimmuneError, Rule, Updates

_BUILD = Path(__file__).resolve().parents[1] / "build"
_SLOW = {("residual", 50): 1_000_000}
"""What is measured on that many columns only, because it takes long."""
_PEER_NEEDS = 8
"""How many times the memory of the round ByzFL's sorts may take, all in all."""


@dataclass(frozen=True)
class _Plan:
    """What to measure and how hard."""

    rules: tuple[str, ...]
    peers: Mapping[str, Peer]
    effort: Effort


@dataclass(frozen=True)
class _Round:
    """One round from one source, beside the matrix whose mean is the measure."""

    source: str
    clients: Clients
    stacked: Tensor
    make_updates: Callable[[], Updates]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, show and write."""
    options = _parse(arguments)
    plan = _plan(options)
    if options.busy:
        measure_busy(plan.rules, options.threads, _BUILD / "bench-busy.json")
        return
    rows: list[Row] = []
    for n in (10,) if options.quick else (10, 50):
        for threads in options.threads:
            torch.set_num_threads(threads)
            # Peers and memory once: with the most threads.
            is_last = threads == options.threads[-1]
            timed = _time_round(n, plan if is_last else replace(plan, peers={}))
            # Memory comes second: by then this process has given its own copy of the round back.
            skips = options.no_memory or not is_last
            rows += timed if skips else [_with_memory(row) for row in timed]
    if not (options.quick or options.no_files):
        rows += measure_files([rule for rule in FILE_RULES if rule in plan.rules], options.folder)
    path = _BUILD / "bench-rules.json"
    write(rows, path)
    show(rows)
    print(f"Written to {path.relative_to(_BUILD.parent)}")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rules", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="10 clients, no files, less often")
    parser.add_argument("--no-files", action="store_true", help="no round from files")
    parser.add_argument("--no-peers", action="store_true", help="do not measure ByzFL beside")
    parser.add_argument("--no-memory", action="store_true", help="measure time alone")
    parser.add_argument("--rules", help="only these, separated by commas", metavar="A,B")
    parser.add_argument(
        "--gram", action="store_true", help="only rules that look at inner products, beside krum"
    )
    parser.add_argument(
        "--threads",
        default=f"1,{THREADS}",
        help=f"of PyTorch: one number or several (default: 1,{THREADS})",
        metavar="N,N",
    )
    parser.add_argument(
        "--cpu",
        action="store_true",
        help="count time on the processor: for a busy machine, and one thread",
    )
    parser.add_argument(
        "--busy",
        action="store_true",
        help="alone, and beside two busy processes; writes build/bench-busy.json instead",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=_BUILD / "bench-files",
        help="where to put 4.5 GB of files for a while (default: build/bench-files)",
    )
    options = parser.parse_args(arguments)
    options.rules = tuple(options.rules.split(",")) if options.rules else _measurable()
    for name in options.rules:
        if name not in fedimmune.rules.available():
            parser.error(
                f"there is no rule {name!r}; there are {', '.join(fedimmune.rules.available())}"
            )
    options.threads = tuple(int(each) for each in options.threads.split(","))
    if options.cpu and options.threads != (1,):
        parser.error("--cpu needs --threads 1: threads that wait for each other take time too")
    if options.gram:
        options.rules = tuple(name for name in options.rules if _looks_at_gram(name))
    return options


def _looks_at_gram(name: str) -> bool:
    return issubclass(fedimmune.rules.find(name), fedimmune.rules.GeometryRule)


def _measurable() -> tuple[str, ...]:
    """All rules but one that needs a file of somebody's rehearsals."""
    return tuple(name for name in fedimmune.rules.available() if name != "spectral")


def _plan(options: argparse.Namespace) -> _Plan:
    found = {} if options.no_peers else load_peers()
    if isinstance(found, str):
        print(found)
        found = {}
    if not (options.no_memory or can_measure()):
        print("This system does not tell how much memory is taken: that column stays empty.")
    usable = tuple(name for name in options.rules if _can_be_made(name))
    effort = Effort(most=5, seconds=1.0) if options.quick else Effort()
    return _Plan(usable, found, replace(effort, cpu=options.cpu))


def _can_be_made(name: str) -> bool:
    try:
        make_rule(name)
    except FedimmuneError as error:
        print(f"{name} is skipped: it cannot be made with its defaults ({error}).")
        return False
    return True


# -------------------------------------------------------------------- timing


def _time_round(n: int, plan: _Plan) -> list[Row]:
    """Time all rules on n clients, from both sources."""
    shapes = resnet18()
    slow = [rule for rule in plan.rules if (rule, n) in _SLOW]
    rows = _time_rules(n, shapes, replace(plan, rules=_without(plan.rules, slow)))
    for rule in slow:
        cut = first_columns(shapes, _SLOW[rule, n])
        rows += _time_rules(n, cut, replace(plan, rules=(rule,)))
    return sorted(rows, key=lambda row: (SOURCES.index(row.source), plan.rules.index(row.rule)))


def _without(rules: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    return tuple(rule for rule in rules if rule not in others)


def _time_rules(n: int, shapes: Shapes, plan: _Plan) -> list[Row]:
    if not plan.rules:
        return []
    progress(f"making {n} clients of {size(shapes):,} columns")
    clients = Clients(n, shapes)
    stacked = clients.matrix()
    from_matrix = _Round("matrix", clients, stacked, reader(clients, stacked))
    rows = [
        None if row is None else _with_peer(row, stacked, plan)
        for row in (_time_rule(rule, from_matrix, plan.effort) for rule in plan.rules)
    ]
    states = clients.states()  # after the peers, which take much memory
    from_states = _Round("state_dicts", clients, stacked, reader(clients, states))
    rows += [_time_rule(rule, from_states, plan.effort) for rule in plan.rules]
    return [row for row in rows if row is not None]


def _time_rule(name: str, given: _Round, effort: Effort) -> Row | None:
    n, source = given.clients.n, given.source
    progress(f"time: {name}, {n} clients, {source}")
    rule = make_rule(name)
    call = partial(_aggregate, rule, supplying(given.make_updates, rule, given.clients))
    beside_krum = None
    try:
        timing = compare(partial(given.stacked.mean, 0), call, effort)
        if is_compared_with_krum(name, n):
            krum = partial(_aggregate, make_rule("krum"), given.make_updates)
            beside_krum = compare(krum, call, effort)
    except FedimmuneError as error:
        print(f"{name} is skipped: it refuses {n} clients ({error}).")
        return None
    return Row(
        name,
        n,
        source,
        columns=given.stacked.shape[1],
        seconds=timing.seconds,
        times_mean=timing.times,
        mean_seconds=timing.baseline_seconds,
        bar=time_bar(name, n, source),
        times_krum=None if beside_krum is None else beside_krum.times,
        others=_more(timing.others, None if beside_krum is None else beside_krum.others),
        threads=torch.get_num_threads(),
    )


def _more(one: float | None, other: float | None) -> float | None:
    return one if other is None else other if one is None else max(one, other)


def _aggregate(rule: Rule, make_updates: Callable[[], Updates]) -> object:
    return rule.aggregate(make_updates())


# -------------------------------------------------------------------- peers


def _with_peer(row: Row, stacked: Tensor, plan: _Plan) -> Row:
    """Add what ByzFL takes for the same tensor, where it has the rule."""
    if row.rule not in plan.peers:
        return row
    title, make = plan.peers[row.rule]
    room = available_bytes()
    if room is not None and room < _PEER_NEEDS * stacked.nbytes:
        print(f"{title} is skipped for {row.n} clients: it may need more memory than there is.")
        return row
    progress(f"time: {title}, {row.n} clients")
    timing = _time_peer(title, make(row.n), stacked, cpu=plan.effort.cpu)
    return replace(row, peer=title, peer_times_mean=timing.times) if timing else row


def _time_peer(
    title: str, aggregator: Callable[[Tensor], object], stacked: Tensor, *, cpu: bool
) -> Timing | None:
    is_large = len(stacked) > 10
    effort = Effort(least=1, most=1, warm_up=False) if is_large else Effort(least=2, most=5)
    try:
        mean = partial(stacked.mean, 0)
        return compare(mean, partial(aggregator, stacked), replace(effort, cpu=cpu))
    except Exception as error:  # noqa: BLE001, RUF100 - a peer's failure is no reason to stop
        print(f"{title} is skipped for {len(stacked)} clients ({type(error).__name__}: {error}).")
        return None


# -------------------------------------------------------------------- memory


def _with_memory(row: Row) -> Row:
    """Add the peak of memory, measured on as many columns as were timed."""
    if not can_measure():
        return row
    progress(f"memory: {row.rule}, {row.n} clients, {row.source}")
    return replace(row, extra_bytes=probe_memory(row.rule, row.n, row.source, row.columns))


if __name__ == "__main__":
    main()
