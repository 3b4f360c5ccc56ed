"""The hot loops as numba compiles them: no torch, no objects, only addresses and arrays.

Every kernel works through some of the tasks of a read (see `fedimmune._fused`), without Python's
lock and without threads of its own. A task is some columns of one layer. Its rows are
brought into a small tile that stays in the cache, whatever their precision and wherever they lie;
so what is checked, what is compared with an earlier read and what is used are the same numbers.

`rows[layer, row]` is a row's address, its kind of number and the step between its columns: clients
first, then the base that is subtracted from them (if there is one), then references.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from fedimmune._sources import CHUNK

__all__ = ["check", "columns", "gram", "residual", "weighted_sum"]

WIDTH = 128
"""So many columns are sorted at a time. A constant: the compiler proves with it that rows of a tile
do not overlap."""
_SEGMENT = 2048
"""So many columns are added up at a time."""
_PANEL = 48
"""So many rows are multiplied with so many others while both are in the cache."""


def _compiled(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile on the first call, and keep the result on disk if there is a place for it."""

    def compile_later(function: Callable[..., Any]) -> Any:
        settings = {"nogil": True, "error_model": "numpy", **options}
        try:
            return njit(cache=True, **settings)(function)
        except RuntimeError:  # neither the package's folder nor the user's can be written to
            return njit(**settings)(function)

    return compile_later


@intrinsic
def _pointer(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), generate


# -------------------------------------------------------------------- reading


@_compiled()
def _load(row, start, width, halves, tile, place):
    """Bring columns of one row into a tile, in the tile's precision."""
    address, kind, step = row
    if kind == 2:
        singles = carray(_pointer(address + 4 * step * start), (1,), np.float32)
        if step == 1:
            for k in range(width):
                tile[place + k] = singles[k]
        else:
            for k in range(width):
                tile[place + k] = singles[k * step]
    elif kind == 3:
        doubles = carray(_pointer(address + 8 * step * start), (1,), np.float64)
        for k in range(width):
            tile[place + k] = doubles[k * step]
    else:
        table = halves[kind]
        words = carray(_pointer(address + 2 * step * start), (1,), np.uint16)
        for k in range(width):
            tile[place + k] = table[words[k * step]]


@_compiled()
def _load_clients(rows, n, has_base, start, width, halves, tile, pitch, base):
    """Bring the clients' columns into a tile, less the base; `base` is room for that."""
    if has_base:
        _load(rows[n], start, width, halves, base, 0)
    for row in range(n):
        place = row * pitch
        _load(rows[row], start, width, halves, tile, place)
        if has_base:
            for k in range(width):
                tile[place + k] -= base[k]


@_compiled(fastmath={"reassoc"})
def _is_finite(values, place, width):
    zero = values.dtype.type(0)
    total = zero
    for k in range(width):
        total += values[place + k] * zero  # NaN, if one is not finite
    return total == zero


@_compiled(fastmath={"reassoc", "contract"})
def _dot(a, at, b, start, width):
    total = a.dtype.type(0)
    for k in range(width):
        total += a[at + k] * b[start + k]
    return total


@_compiled()
def _watch(tile, n, pitch, width, direction, start, seen):
    """Add to clients' seen onto a direction, and to their squares, unless it is empty."""
    if len(direction):
        for row in range(n):
            seen[row, 0] += _dot(tile, row * pitch, direction, start, width)
            seen[row, 1] += _dot(tile, row * pitch, tile, row * pitch, width)


@_compiled()
def check(rows, tasks, first, last, n, has_base, halves, direction, seen, bad):
    """Say of each task which clients hold a value that is not finite: `bad`, (tasks, n)."""
    tile, base = np.zeros(n * CHUNK, direction.dtype), np.zeros(CHUNK, direction.dtype)
    for task in range(first, last):
        layer, begin, end = tasks[task]
        for start in range(begin, end, CHUNK):
            width = min(CHUNK, end - start)
            _load_clients(rows[layer], n, has_base, start, width, halves, tile, CHUNK, base)
            _watch(tile, n, CHUNK, width, direction, start - begin, seen[task])
            for row in range(n):
                if not _is_finite(tile, row * CHUNK, width):
                    bad[task, row] = True


# -------------------------------------------------------------------- inner products


@_compiled(fastmath={"reassoc", "contract", "nsz"})
def _multiply(tile, i, j, width, out):
    """Add the products of three rows with three others. All pairs of rows come out of this loop, so
    that a product does not depend on which rows are multiplied besides."""
    a0, a1, a2 = tile[i], tile[i + 1], tile[i + 2]
    b0, b1, b2 = tile[j], tile[j + 1], tile[j + 2]
    zero = tile.dtype.type(0)
    s00 = s01 = s02 = s10 = s11 = s12 = s20 = s21 = s22 = zero
    for k in range(width):
        x0, x1, x2, y0, y1, y2 = a0[k], a1[k], a2[k], b0[k], b1[k], b2[k]
        s00 += x0 * y0
        s01 += x0 * y1
        s02 += x0 * y2
        s10 += x1 * y0
        s11 += x1 * y1
        s12 += x1 * y2
        s20 += x2 * y0
        s21 += x2 * y1
        s22 += x2 * y2
    out[i, j] += s00
    out[i, j + 1] += s01
    out[i, j + 2] += s02
    out[i + 1, j] += s10
    out[i + 1, j + 1] += s11
    out[i + 1, j + 2] += s12
    out[i + 2, j] += s20
    out[i + 2, j + 1] += s21
    out[i + 2, j + 2] += s22


@_compiled()
def gram(
    rows, tasks, first, last, n, has_base, halves, direction, seen, others, pairs, out
):
    """Fill `out`, (tasks, padded rows, padded rows), float64, above the diagonal.

    After the clients come the `others` references. Without `pairs`, products of clients with each
    other may be missing.
    """
    padded = out.shape[1]
    tile = np.zeros((padded, CHUNK), direction.dtype)
    flat, base = tile.reshape(-1), np.zeros(CHUNK, direction.dtype)
    for task in range(first, last):
        layer, begin, end = tasks[task]
        for start in range(begin, end, CHUNK):
            width = min(CHUNK, end - start)
            _load_clients(rows[layer], n, has_base, start, width, halves, flat, CHUNK, base)
            _watch(flat, n, CHUNK, width, direction, start - begin, seen[task])
            for other in range(others):
                row = rows[layer, n + has_base + other]
                _load(row, start, width, halves, flat, (n + other) * CHUNK)
            for top in range(0, padded, _PANEL):
                for left in range(top, padded, _PANEL):
                    for i in range(top, min(top + _PANEL, padded), 3):
                        for j in range(max(i, left), min(left + _PANEL, padded), 3):
                            if pairs or i == j or j + 3 > n:
                                _multiply(tile, i, j, width, out[task])


# -------------------------------------------------------------------- sums


@_compiled()
def _read(rows, each, n, has_base, start, width, halves, watched, tile, base, place):
    """Return columns of a client or a reference: in place, or in the tile if that takes a step."""
    direction, offset, seen = watched
    row = rows[each if each < n else each + has_base]
    differs = has_base and each < n
    is_watched = len(direction) > 0 and each < n
    kind = 3 if tile.itemsize == 8 else 2
    if row[1] == kind and row[2] == 1 and not differs and not is_watched:
        return carray(_pointer(row[0] + tile.itemsize * start), (width,), tile.dtype)
    place *= _SEGMENT
    _load(row, start, width, halves, tile, place)
    if differs:
        for k in range(width):
            tile[place + k] -= base[k]
    if is_watched:
        seen[each, 0] += _dot(tile, place, direction, offset, width)
        seen[each, 1] += _dot(tile, place, tile, place, width)
    return tile[place : place + width]


@_compiled()
def weighted_sum(
    rows, tasks, first, last, n, has_base, halves, direction, seen, weights, outs, good
):
    """Add up rows, each times its weight; references follow the clients.

    `outs[layer]` is where the result of the layer's column 0 goes (or would), in the tile's
    precision. `good[task]` says whether all of it is finite: if a value of any row is not, then no
    sum that it is in.
    """
    count = len(weights)
    whole = count - count % 4
    tile, base = np.zeros(4 * _SEGMENT, direction.dtype), np.zeros(_SEGMENT, direction.dtype)
    zero = direction.dtype.type(0)
    for task in range(first, last):
        layer, begin, end = tasks[task]
        of = rows[layer]
        good[task] = True
        for start in range(begin, end, _SEGMENT):
            width = min(_SEGMENT, end - start)
            look = direction, start - begin, seen[task]
            if has_base:
                _load(of[n], start, width, halves, base, 0)
            out = carray(_pointer(outs[layer] + base.itemsize * start), (width,), base.dtype)
            for k in range(width):
                out[k] = zero
            for i in range(0, whole, 4):
                a = _read(of, i, n, has_base, start, width, halves, look, tile, base, 0)
                b = _read(of, i + 1, n, has_base, start, width, halves, look, tile, base, 1)
                c = _read(of, i + 2, n, has_base, start, width, halves, look, tile, base, 2)
                d = _read(of, i + 3, n, has_base, start, width, halves, look, tile, base, 3)
                u, v, w, x = weights[i], weights[i + 1], weights[i + 2], weights[i + 3]
                for k in range(width):
                    out[k] += (a[k] * u + b[k] * v) + (c[k] * w + d[k] * x)
            for i in range(whole, count):
                a = _read(of, i, n, has_base, start, width, halves, look, tile, base, 0)
                u = weights[i]
                for k in range(width):
                    out[k] += a[k] * u
            if not _is_finite(out, 0, width):
                good[task] = False


# -------------------------------------------------------------------- order statistics


@_compiled()
def _order(x, y):
    return (x, y) if x < y else (y, x)


@_compiled()
def _sort_eight(tile, at):
    """Sort eight rows that follow each other, in every column; 19 exchanges in registers."""
    for k in range(at, at + WIDTH):
        a, b = _order(tile[k], tile[k + WIDTH])
        c, d = _order(tile[k + 2 * WIDTH], tile[k + 3 * WIDTH])
        e, f = _order(tile[k + 4 * WIDTH], tile[k + 5 * WIDTH])
        g, h = _order(tile[k + 6 * WIDTH], tile[k + 7 * WIDTH])
        a, c = _order(a, c)
        b, d = _order(b, d)
        e, g = _order(e, g)
        f, h = _order(f, h)
        b, c = _order(b, c)
        f, g = _order(f, g)
        a, e = _order(a, e)
        d, h = _order(d, h)
        b, f = _order(b, f)
        c, g = _order(c, g)
        b, e = _order(b, e)
        d, g = _order(d, g)
        c, e = _order(c, e)
        d, f = _order(d, f)
        d, e = _order(d, e)
        tile[k] = a
        tile[k + WIDTH] = b
        tile[k + 2 * WIDTH] = c
        tile[k + 3 * WIDTH] = d
        tile[k + 4 * WIDTH] = e
        tile[k + 5 * WIDTH] = f
        tile[k + 6 * WIDTH] = g
        tile[k + 7 * WIDTH] = h


@_compiled()
def _select(tile, n, steps):
    """Put the wanted ranks of n rows where they belong, in every column.

    Eights of rows are sorted first; `steps` are the exchanges that are left: which rows, and which
    of the two results are needed (1 the smaller, 2 the larger, 3 both).
    """
    for row in range(0, n - 7, 8):
        _sort_eight(tile, row * WIDTH)
    for step in range(len(steps)):
        low, high, wants = steps[step]
        a = tile[low * WIDTH : (low + 1) * WIDTH]
        b = tile[high * WIDTH : (high + 1) * WIDTH]
        if wants == 3:
            for k in range(WIDTH):
                x, y = a[k], b[k]
                a[k] = x if x < y else y
                b[k] = y if x < y else x
        elif wants == 1:
            for k in range(WIDTH):
                x, y = a[k], b[k]
                a[k] = x if x < y else y
        else:
            for k in range(WIDTH):
                x, y = a[k], b[k]
                b[k] = y if x < y else x


@_compiled()
def _add_ranks(tile, ranks, coefficients, out, low, high):
    """Add up ranks, each times a coefficient; `low` and `high` are the outermost of them."""
    for k in range(WIDTH):
        out[k] = 0
    for place in range(len(ranks)):
        at, by = ranks[place] * WIDTH, coefficients[place]
        for k in range(WIDTH):
            out[k] += tile[at + k] * by
    first, last = ranks[0] * WIDTH, ranks[-1] * WIDTH
    for k in range(WIDTH):
        x, y = tile[first + k], tile[last + k]
        low[k] = x if x < y else y
        high[k] = y if x < y else x


@_compiled()
def _add_window(tile, n, keep, out, low, high):
    """Take the mean of the `keep` values nearest to the median; see `kernels.near_median`."""
    half, quarter, one = tile.dtype.type(0.5), tile.dtype.type(0.25), tile.dtype.type(1)
    by = one / tile.dtype.type(keep)
    first = np.zeros(WIDTH, tile.dtype)
    below, above = (n - 1) // 2 * WIDTH, n // 2 * WIDTH
    for rank in range(n - keep):
        lost, gained = rank * WIDTH, (rank + keep) * WIDTH
        for k in range(WIDTH):
            middle = tile[below + k] * quarter + tile[above + k] * quarter
            if tile[gained + k] * half - middle < middle - tile[lost + k] * half:
                first[k] += one
    for k in range(WIDTH):
        out[k] = 0
    for rank in range(n):
        at, here = rank * WIDTH, tile.dtype.type(rank)
        last = here - tile.dtype.type(keep - 1)
        for k in range(WIDTH):
            x = tile[at + k]
            if first[k] <= here and last <= first[k]:
                out[k] += x * by
            if first[k] == here:
                low[k] = x
            if first[k] == last:
                high[k] = x


@_compiled()
def columns(
    rows, tasks, first, last, n, has_base, halves, direction, seen, steps, ranks,
    coefficients, keep, outs, good, counts,
):  # fmt: skip
    """Fill `outs` with a sum of ranks of each column, or if `keep` is not 0 with a mean around it.

    `outs` and `good` are as for `weighted_sum`, except that `good` is about what was read. If
    `counts`, (tasks, n), is not empty, nothing is written to `outs`: it says at how many columns of
    a task each client's value was not outside of those that were added up.
    """
    is_counting = len(counts) > 0
    tile, base = np.zeros(n * WIDTH, direction.dtype), np.zeros(WIDTH, direction.dtype)
    before = np.zeros(n * WIDTH if is_counting else 1, direction.dtype)
    low, high, result = base.copy(), base.copy(), base.copy()
    for task in range(first, last):
        layer, begin, end = tasks[task]
        good[task] = True
        for start in range(begin, end, WIDTH):
            width = min(WIDTH, end - start)
            _load_clients(rows[layer], n, has_base, start, width, halves, tile, WIDTH, base)
            _watch(tile, n, WIDTH, width, direction, start - begin, seen[task])
            for row in range(n):
                if not _is_finite(tile, row * WIDTH, width):
                    good[task] = False
            if is_counting:
                before[:] = tile
            _select(tile, n, steps)
            if keep:
                _add_window(tile, n, keep, result, low, high)
            else:
                _add_ranks(tile, ranks, coefficients, result, low, high)
            if is_counting:
                for row in range(n):
                    used, at = 0, row * WIDTH
                    for k in range(width):
                        used += (before[at + k] >= low[k]) & (before[at + k] <= high[k])
                    counts[task, row] += used
            else:
                out = carray(_pointer(outs[layer] + base.itemsize * start), (width,), base.dtype)
                for k in range(width):
                    out[k] = result[k]


# -------------------------------------------------------------------- rule `residual`


@_compiled()
def _slopes(ordered, n, slopes):
    """Fill in the slope from rank i to i + lag, lag by lag; there are n - lag of each."""
    at = 0
    for lag in range(1, n):
        by = ordered.dtype.type(lag)
        for i in range(n - lag):
            a, b = i * WIDTH, (i + lag) * WIDTH
            for k in range(WIDTH):
                slopes[at + k] = (ordered[b + k] - ordered[a + k]) / by
            at += WIDTH


@_compiled()
def _place(n, i, j):
    """Where the slope between two ranks, i < j, is."""
    lag = j - i
    return ((lag - 1) * n - (lag - 1) * lag // 2 + i) * WIDTH


@_compiled()
def _middle(tile, ranks, out):
    """Take the mean of two ranks, or one rank."""
    half = tile.dtype.type(0.5)
    a, b = ranks[0] * WIDTH, ranks[-1] * WIDTH
    for k in range(WIDTH):
        x, y = tile[a + k], tile[b + k]
        out[k] = x * half + y * half if a != b else x


@_compiled()
def _repeated_median(ordered, n, of_all, of_others, slopes, work, medians, out):
    """The median over clients of the median slope to the others; `ordered` is ascending."""
    (all_steps, all_ranks), (other_steps, other_ranks) = of_all, of_others
    _slopes(ordered, n, slopes)
    for i in range(n):
        at = 0
        for j in range(n):
            if j != i:
                place = _place(n, min(i, j), max(i, j))
                for k in range(WIDTH):
                    work[at + k] = slopes[place + k]
                at += WIDTH
        _select(work, n - 1, other_steps)
        _middle(work, other_ranks, medians[i * WIDTH : (i + 1) * WIDTH])
    _select(medians, n, all_steps)
    _middle(medians, all_ranks, out)


@_compiled()
def _centered_ranks(values, n, rank):
    """Ranks less their mean; tied values share the mean of their ranks."""
    one, half, zero = values.dtype.type(1), values.dtype.type(0.5), values.dtype.type(0)
    rank[:] = 0
    for i in range(n):
        x = values[i * WIDTH : (i + 1) * WIDTH]
        mine = rank[i * WIDTH : (i + 1) * WIDTH]
        for j in range(n):
            y = values[j * WIDTH : (j + 1) * WIDTH]
            for k in range(WIDTH):
                mine[k] += (half if x[k] > y[k] else zero) - (half if x[k] < y[k] else zero)
    return one


@_compiled()
def residual(
    rows, tasks, first, last, n, has_base, halves, direction, seen, to_sort, of_all,
    of_others, of_deviations, believed, threshold, weights, outs, good, totals,
):  # fmt: skip
    """Fit a robust line to each column's values over their ranks; see `rules.residual`.

    Without `weights`, fill `outs` with slopes and add what tells clients apart to `totals`, (tasks,
    n). With them, `outs` holds the slopes, and the result takes their place.
    """
    sort_steps, _ = to_sort
    all_steps, all_ranks = of_all
    deviation_steps, deviation_ranks = of_deviations
    is_last = len(weights) > 0
    like = direction.dtype.type
    one, zero = like(1), like(0)
    values, base = np.zeros(n * WIDTH, direction.dtype), np.zeros(WIDTH, direction.dtype)
    work, rank, deviation, line = values.copy(), values.copy(), values.copy(), values.copy()
    medians = values.copy()
    slopes = np.zeros(1 if is_last else n * (n - 1) // 2 * WIDTH, direction.dtype)
    middle, slope, usual, total = base.copy(), base.copy(), base.copy(), base.copy()
    spread = like(-12.0 / (n * (n * n - 1.0)))
    reach_of_all, count, others = like(1 - 1 / n), like(n), like(n - 1)
    for task in range(first, last):
        layer, begin, end = tasks[task]
        good[task] = True
        for start in range(begin, end, WIDTH):
            width = min(WIDTH, end - start)
            _load_clients(rows[layer], n, has_base, start, width, halves, values, WIDTH, base)
            _watch(values, n, WIDTH, width, direction, start - begin, seen[task])
            for row in range(n):
                if not _is_finite(values, row * WIDTH, width):
                    good[task] = False
            out = carray(_pointer(outs[layer] + base.itemsize * start), (width,), base.dtype)
            work[:] = values
            if is_last:
                _select(work, n, all_steps)
                _middle(work, all_ranks, middle)
                for k in range(width):
                    slope[k] = out[k]
            else:
                _select(work, n, sort_steps)
                _middle(work, all_ranks, middle)
                # `deviation` and `line` are room that is not needed yet.
                _repeated_median(
                    work, n, of_all, of_others, slopes, deviation, medians, slope
                )
                for k in range(width):
                    out[k] = slope[k]
            _centered_ranks(values, n, rank)
            for row in range(n):
                at = row * WIDTH
                for k in range(WIDTH):
                    fitted = middle[k] + rank[at + k] * slope[k]
                    line[at + k] = fitted
                    deviation[at + k] = abs(values[at + k] - fitted)
            work[:] = deviation
            _select(work, n, deviation_steps)
            _middle(work, deviation_ranks, usual)
            for row in range(n):
                at = row * WIDTH
                for k in range(WIDTH):
                    # The leverage of a rank: 1/n + rank² / Σ rank², with ranks centered.
                    free = rank[at + k] * rank[at + k] * spread + reach_of_all
                    reach = np.sqrt(free if free > zero else zero) * (usual[k] * believed)
                    far = deviation[at + k]
                    work[at + k] = one if far <= reach else reach / far
            total[:] = 0
            if is_last:
                for row in range(n):
                    at, by = row * WIDTH, weights[row]
                    for k in range(WIDTH):
                        x = values[at + k] if work[at + k] >= threshold else line[at + k]
                        total[k] += x * by
                for k in range(width):
                    out[k] = total[k]
                continue
            for row in range(n):
                at = row * WIDTH
                for k in range(WIDTH):
                    total[k] += work[at + k]
            usual[:] = 0
            for row in range(n):
                at = row * WIDTH
                for k in range(WIDTH):
                    apart = work[at + k] - total[k] / count
                    usual[k] += apart * apart
            for k in range(width):
                usual[k] = np.sqrt(usual[k] / others)
            for row in range(n):
                totals[task, row] += _dot(work, row * WIDTH, usual, 0, width)
