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
from llvmlite import ir
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from fedimmune._sources import CHUNK

__all__ = ["FEW", "PAIRS", "PANEL", "add_noise", "check", "columns", "gram", "load"]
__all__ += ["multiply", "residual", "weighted_sum"]

WIDTH = 128
"""So many columns are sorted at a time. A constant: the compiler proves with it that rows of a tile
do not overlap."""
FEW = 16
"""Up to so many clients are multiplied by twos, more by threes. References do not count: what is
measured of clients does not depend on them."""
PAIRS = 512
"""So many pairs of normal numbers are drawn at a time; see `kernels.add_noise`."""
_SEGMENT = 8192
"""So many columns are added up at a time."""
PANEL = 48
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


@intrinsic
def _prefetch(typing_context: Any, address: Any) -> Any:
    """Have the memory at an address fetched into the cache; any address will do."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], cgutils.voidptr_t)
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        read, keep, data = (number(value) for value in (0, 3, 1))
        builder.call(function, [pointer, read, keep, data])
        return context.get_dummy_value()

    return types.void(address), generate


# -------------------------------------------------------------------- reading


@_compiled()
def _load(rows, row, start, width, halves, out):
    """Bring columns of one row into the tile, in its precision."""
    address, kind, step = rows[row, 0], rows[row, 1], rows[row, 2]
    if kind == 2:
        singles = carray(_pointer(address + 4 * step * start), (1,), np.float32)
        if step == 1:
            for k in range(width):
                out[k] = singles[k]
            # The next columns come while these are computed with: rows are too many, and what is
            # read of each at a time too short, for the processor to foresee it.
            after = address + 4 * (start + width)
            for k in range(0, 4 * width, 64):
                _prefetch(after + k)
        else:
            for k in range(width):
                out[k] = singles[k * step]
    elif kind == 3:
        doubles = carray(_pointer(address + 8 * step * start), (1,), np.float64)
        for k in range(width):
            out[k] = doubles[k * step]
    else:
        table = halves[kind]
        words = carray(_pointer(address + 2 * step * start), (1,), np.uint16)
        for k in range(width):
            out[k] = table[words[k * step]]


@_compiled()
def _load_clients(rows, n, has_base, start, width, halves, tile, base):
    """Bring the clients' columns into a tile, less the base; `base` is room for that."""
    if has_base:
        _load(rows, n, start, width, halves, base)
    for row in range(n):
        out = tile[row]
        _load(rows, row, start, width, halves, out)
        if has_base:
            for k in range(width):
                out[k] -= base[k]


@_compiled(fastmath={"reassoc"})
def _is_finite(values, width):
    zero = values.dtype.type(0)
    total = zero
    for k in range(width):
        total += values[k] * zero  # NaN, if one is not finite
    return total == zero


@_compiled(fastmath={"reassoc", "contract"})
def _dot(a, b, width):
    total = a.dtype.type(0)
    for k in range(width):
        total += a[k] * b[k]
    return total


@_compiled()
def _watch(tile, n, width, direction, start, seen):
    """Add to clients' seen onto a direction, and to their squares, unless it is empty."""
    if len(direction):
        for row in range(n):
            values = tile[row]
            seen[row, 0] += _dot(values, direction[start:], width)
            seen[row, 1] += _dot(values, values, width)


@_compiled()
def check(rows, tasks, first, last, n, has_base, halves, direction, seen, bad):
    """Say of each task which clients hold a value that is not finite: `bad`, (tasks, n)."""
    tile, base = np.zeros((n, CHUNK), direction.dtype), np.zeros(CHUNK, direction.dtype)
    for task in range(first, last):
        layer, begin, end = tasks[task]
        for start in range(begin, end, CHUNK):
            width = min(CHUNK, end - start)
            _load_clients(rows[layer], n, has_base, start, width, halves, tile, base)
            _watch(tile, n, width, direction, start - begin, seen[task])
            for row in range(n):
                if not _is_finite(tile[row], width):
                    bad[task, row] = True


# -------------------------------------------------------------------- inner products


@_compiled()
def _aligned(rows, like):
    """Return a tile at the start of a cache line: a load across two of them is two loads."""
    room = np.zeros(rows * CHUNK + 64 // like.itemsize, like.dtype)
    start = -room.ctypes.data % 64 // like.itemsize
    return room[start : start + rows * CHUNK].reshape(rows, CHUNK)


@_compiled(fastmath={"reassoc", "contract", "nsz"})
def _multiply(tile, i, j, width, out):
    """Add the products of three rows with three others.

    All pairs of rows come out of this loop, so that a product does not depend on which rows are
    multiplied besides.
    """
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


@_compiled(fastmath={"reassoc", "contract", "nsz"})
def _multiply_two(tile, i, j, width, out):
    """Do the same with two rows and two others: less is wasted where there are few."""
    a0, a1, b0, b1 = tile[i], tile[i + 1], tile[j], tile[j + 1]
    zero = tile.dtype.type(0)
    s00 = s01 = s10 = s11 = zero
    for k in range(width):
        x0, x1, y0, y1 = a0[k], a1[k], b0[k], b1[k]
        s00 += x0 * y0
        s01 += x0 * y1
        s10 += x1 * y0
        s11 += x1 * y1
    out[i, j] += s00
    out[i, j + 1] += s01
    out[i + 1, j] += s10
    out[i + 1, j + 1] += s11


@_compiled(fastmath={"reassoc", "contract", "nsz"})
def _multiply_four(tile, i, j, width, out):
    """Do the same with four rows and one other, a reference: it is not to cost as much as two."""
    a0, a1, a2, a3, b = tile[i], tile[i + 1], tile[i + 2], tile[i + 3], tile[j]
    zero = tile.dtype.type(0)
    s0 = s1 = s2 = s3 = zero
    for k in range(width):
        y = b[k]
        s0 += a0[k] * y
        s1 += a1[k] * y
        s2 += a2[k] * y
        s3 += a3[k] * y
    out[i, j] += s0
    out[i + 1, j] += s1
    out[i + 2, j] += s2
    out[i + 3, j] += s3


@_compiled()
def gram(rows, tasks, first, last, n, has_base, halves, direction, seen, others, pairs, out):
    """Fill `out`, (tasks, padded rows, padded rows), float64, above the diagonal.

    The padded rows are a multiple of 4 up to `FEW` clients, else of 3. After the clients come the
    `others` references. Without `pairs`, products of clients with each other may be missing.
    """
    padded = out.shape[1]
    by_twos = n + n % 2
    tile, base = _aligned(padded, direction), np.zeros(CHUNK, direction.dtype)
    for task in range(first, last):
        layer, begin, end = tasks[task]
        of, products = rows[layer], out[task]
        for start in range(begin, end, CHUNK):
            width = min(CHUNK, end - start)
            _load_clients(of, n, has_base, start, width, halves, tile, base)
            _watch(tile, n, width, direction, start - begin, seen[task])
            for other in range(others):
                _load(of, n + has_base + other, start, width, halves, tile[n + other])
            if n <= FEW:
                for i in range(0, by_twos, 2):
                    for j in range(i, by_twos, 2):
                        if pairs or i == j or j + 2 > n:
                            _multiply_two(tile, i, j, width, products)
                for j in range(by_twos, n + others):
                    for i in range(0, j + 1, 4):
                        _multiply_four(tile, i, j, width, products)
                continue
            for top in range(0, padded, PANEL):
                for left in range(top, padded, PANEL):
                    _multiply_panel(tile, top, left, n, pairs, width, products)


@_compiled()
def _multiply_panel(tile, top, left, n, pairs, width, out):
    """Add the products of some rows with some others, above the diagonal."""
    padded = len(tile)
    for i in range(top, min(top + PANEL, padded), 3):
        for j in range(max(i, left), min(left + PANEL, padded), 3):
            if pairs or i == j or j + 3 > n:
                _multiply(tile, i, j, width, out)


@_compiled()
def load(rows, first, last, n, has_base, start, width, halves, direction, offset, seen, tile):
    """Bring columns of some rows, clients and then references, into the tile of all of them."""
    base = np.zeros(CHUNK, tile.dtype)
    if has_base:
        _load(rows, n, start, width, halves, base)
    for row in range(first, last):
        out = tile[row]
        _load(rows, row if row < n else row + has_base, start, width, halves, out)
        if row < n:
            if has_base:
                for k in range(width):
                    out[k] -= base[k]
            _watch(tile[row : row + 1], 1, width, direction, offset, seen[row : row + 1])


@_compiled()
def multiply(panels, first, last, n, pairs, width, tile, out):
    """Add the products of some panels of the tile's rows to `out`, as `gram` does."""
    for panel in range(first, last):
        _multiply_panel(tile, panels[panel, 0], panels[panel, 1], n, pairs, width, out)


# -------------------------------------------------------------------- sums


@_compiled()
def _read(rows, each, n, has_base, start, width, halves, watched, tile, base, place):
    """Return columns of a client or a reference: in place, or in the tile if that takes a step."""
    direction, offset, seen = watched
    row = each if each < n else each + has_base
    differs = has_base and each < n
    is_watched = len(direction) > 0 and each < n
    kind = 3 if tile.itemsize == 8 else 2
    if rows[row, 1] == kind and rows[row, 2] == 1 and not differs and not is_watched:
        return carray(_pointer(rows[row, 0] + tile.itemsize * start), (width,), tile.dtype)
    out = tile[place * _SEGMENT : place * _SEGMENT + width]
    _load(rows, row, start, width, halves, out)
    if differs:
        for k in range(width):
            out[k] -= base[k]
    if is_watched:
        seen[each, 0] += _dot(out, direction[offset:], width)
        seen[each, 1] += _dot(out, out, width)
    return out


@_compiled()
def weighted_sum(
    rows, tasks, first, last, n, has_base, halves, direction, seen, weights, outs, good
):
    """Add up rows, each times its weight; references follow the clients.

    `outs[layer]` is where the result of the layer's column 0 goes (or would), in the tile's
    precision. `good[task]` says whether all of it is finite: if a value of any row is not, then no
    sum that it is in.
    """
    count, by = len(weights), np.zeros(5, weights.dtype)
    tile, base = np.zeros(5 * _SEGMENT, direction.dtype), np.zeros(_SEGMENT, direction.dtype)
    zero = direction.dtype.type(0)
    for task in range(first, last):
        layer, begin, end = tasks[task]
        of = rows[layer]
        good[task] = True
        for start in range(begin, end, _SEGMENT):
            width = min(_SEGMENT, end - start)
            look = direction, start - begin, seen[task]
            if has_base:
                _load(of, n, start, width, halves, base)
            out = carray(_pointer(outs[layer] + base.itemsize * start), (width,), base.dtype)
            for i in range(0, count, 5):
                # What is missing of the last five is the first of them again, times 0.
                by[:] = zero
                by[: min(5, count - i)] = weights[i : i + 5]
                u, v, w, x, y = by[0], by[1], by[2], by[3], by[4]
                a = _read(of, i, n, has_base, start, width, halves, look, tile, base, 0)
                b = c = d = e = a
                if i + 1 < count:
                    b = _read(of, i + 1, n, has_base, start, width, halves, look, tile, base, 1)
                if i + 2 < count:
                    c = _read(of, i + 2, n, has_base, start, width, halves, look, tile, base, 2)
                if i + 3 < count:
                    d = _read(of, i + 3, n, has_base, start, width, halves, look, tile, base, 3)
                if i + 4 < count:
                    e = _read(of, i + 4, n, has_base, start, width, halves, look, tile, base, 4)
                if i == 0:
                    for k in range(width):
                        sums = (a[k] * u + b[k] * v) + (c[k] * w + d[k] * x)
                        out[k] = sums + (e[k] * y + zero)
                else:
                    for k in range(width):
                        sums = (a[k] * u + b[k] * v) + (c[k] * w + d[k] * x)
                        out[k] += sums + e[k] * y
            if not _is_finite(out, width):
                good[task] = False


# -------------------------------------------------------------------- noise


@_compiled(fastmath={"contract"})
def _draw(first, words, some, others):
    """Fill in pairs of normal numbers; `words` is room for bits, which `first` is the number of.

    Logarithm, sine and cosine are series, so that the compiler can take many numbers at a time;
    what is left out of them is below single precision. Numbers have types, because a plain 1 would
    make doubles.
    """
    single, word, signed = np.float32, np.uint64, np.int32
    for k in range(PAIRS):
        bits = (first + word(k)) * word(0x9E3779B97F4A7C15)
        bits = (bits ^ (bits >> word(30))) * word(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> word(27))) * word(0x94D049BB133111EB)
        words[k] = bits ^ (bits >> word(31))
    halves, one = words.view(signed), single(1)
    for k in range(PAIRS):
        share = single(halves[k] & signed(0x7FFFFFFF)) * single(2**-31) + single(2**-32)
        # share = 2^power * part, with part between the roots of 1/2 and 2.
        digits = single(share).view(signed)
        power = signed(signed(digits - signed(0x3F3504F3)) >> signed(23))
        part = signed(digits - signed(power << signed(23))).view(single)
        x = (part - one) / (part + one)
        y = x * x
        series = single(2) + y * (single(2 / 3) + y * (single(2 / 5) + y * single(2 / 7)))
        length = np.sqrt(single(-2) * (single(power) * single(np.log(2)) + x * series))
        turn = halves[PAIRS + k]
        x = single(signed(turn << signed(2))) * single(np.pi * 2**-33)
        y = x * x
        series = single(1 / 6) - y * (single(1 / 120) - y * single(1 / 5040))
        up = length * (x * (one - y * series))
        series = single(1 / 24) - y * (single(1 / 720) - y * single(1 / 40320))
        across = length * (one - y * (single(1 / 2) - y * series))
        across = -across if turn < signed(0) else across
        is_odd = signed(turn << signed(1)) < signed(0)
        some[k] = up if is_odd else across
        others[k] = across if is_odd else up


@_compiled()
def add_noise(tasks, first, last, starts, deviation, outs):
    """Add normal noise to results; `starts[layer]` is the number of the layer's first pair.

    `outs[layer]` is where the layer's column 0 is; the precision is that of `deviation`, (1,).
    """
    words, drawn = np.zeros(PAIRS, np.uint64), np.zeros(2 * PAIRS, np.float32)
    by = deviation[0]
    for task in range(first, last):
        layer, begin, end = tasks[task]
        for start in range(begin, end, 2 * PAIRS):
            _draw(starts[layer] + np.uint64(start // 2), words, drawn[:PAIRS], drawn[PAIRS:])
            width = min(2 * PAIRS, end - start)
            at = _pointer(outs[layer] + deviation.itemsize * start)
            out = carray(at, (width,), deviation.dtype)
            for k in range(width):
                out[k] += by * drawn[k]


# -------------------------------------------------------------------- order statistics


@_compiled()
def _lower(x, y):
    return x if x < y else y


@_compiled()
def _upper(x, y):
    return y if x < y else x


@_compiled()
def _row(tile, row):
    return tile[row * WIDTH : (row + 1) * WIDTH]


@_compiled()
def _sort_eight(tile):
    """Sort eight rows that follow each other, in every column; 19 exchanges in registers."""
    for k in range(WIDTH):
        a, b, c, d = tile[k], tile[k + WIDTH], tile[k + 2 * WIDTH], tile[k + 3 * WIDTH]
        e, f, g, h = (
            tile[k + 4 * WIDTH],
            tile[k + 5 * WIDTH],
            tile[k + 6 * WIDTH],
            tile[k + 7 * WIDTH],
        )
        a, b = _lower(a, b), _upper(a, b)
        c, d = _lower(c, d), _upper(c, d)
        e, f = _lower(e, f), _upper(e, f)
        g, h = _lower(g, h), _upper(g, h)
        a, c = _lower(a, c), _upper(a, c)
        b, d = _lower(b, d), _upper(b, d)
        e, g = _lower(e, g), _upper(e, g)
        f, h = _lower(f, h), _upper(f, h)
        b, c = _lower(b, c), _upper(b, c)
        f, g = _lower(f, g), _upper(f, g)
        a, e = _lower(a, e), _upper(a, e)
        d, h = _lower(d, h), _upper(d, h)
        b, f = _lower(b, f), _upper(b, f)
        c, g = _lower(c, g), _upper(c, g)
        b, e = _lower(b, e), _upper(b, e)
        d, g = _lower(d, g), _upper(d, g)
        c, e = _lower(c, e), _upper(c, e)
        d, f = _lower(d, f), _upper(d, f)
        d, e = _lower(d, e), _upper(d, e)
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
        _sort_eight(tile[row * WIDTH : (row + 8) * WIDTH])
    for step in range(len(steps)):
        low, high, wants = steps[step]
        a, b = _row(tile, low), _row(tile, high)
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
        values, by = _row(tile, ranks[place]), coefficients[place]
        for k in range(WIDTH):
            out[k] += values[k] * by
    a, b = _row(tile, ranks[0]), _row(tile, ranks[-1])
    for k in range(WIDTH):
        low[k] = _lower(a[k], b[k])
        high[k] = _upper(a[k], b[k])


@_compiled()
def _add_window(tile, n, keep, out, low, high):
    """Take the mean of the `keep` values nearest to the median; see `kernels.NearMedian`."""
    half, one = tile.dtype.type(0.5), tile.dtype.type(1)
    zero, by = tile.dtype.type(0), one / tile.dtype.type(keep)
    first = np.zeros(WIDTH, tile.dtype)
    below, above = _row(tile, (n - 1) // 2), _row(tile, n // 2)
    for rank in range(n - keep):
        lost, gained = _row(tile, rank), _row(tile, rank + keep)
        for k in range(WIDTH):
            both = below[k] * half + above[k] * half
            is_nearer = gained[k] * half + lost[k] * half < both
            first[k] += one if is_nearer else zero
    for k in range(WIDTH):
        out[k] = zero
    for rank in range(n):
        values, here = _row(tile, rank), tile.dtype.type(rank)
        last = here - tile.dtype.type(keep - 1)
        for k in range(WIDTH):
            x, begins = values[k], first[k]
            is_used = (begins <= here) & (last <= begins)
            out[k] += x * by if is_used else zero
            low[k] = x if begins == here else low[k]
            high[k] = x if begins == last else high[k]


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
    loaded, base = np.zeros((n, WIDTH), direction.dtype), np.zeros(WIDTH, direction.dtype)
    tile = loaded.reshape(-1)
    before = np.zeros(n * WIDTH if is_counting else 1, direction.dtype)
    low, high, result = base.copy(), base.copy(), base.copy()
    for task in range(first, last):
        layer, begin, end = tasks[task]
        good[task], of = True, rows[layer]
        for start in range(begin, end, WIDTH):
            width = min(WIDTH, end - start)
            _load_clients(of, n, has_base, start, width, halves, loaded, base)
            _watch(loaded, n, width, direction, start - begin, seen[task])
            for row in range(n):
                if not _is_finite(loaded[row], width):
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
                    used, values = 0, _row(before, row)
                    for k in range(width):
                        used += (values[k] >= low[k]) & (values[k] <= high[k])
                    counts[task, row] += used
            else:
                out = carray(_pointer(outs[layer] + base.itemsize * start), (width,), base.dtype)
                for k in range(width):
                    out[k] = result[k]


# -------------------------------------------------------------------- rule `residual`


@_compiled()
def _fill_slopes(ordered, n, slopes):
    """Fill in the slope from rank i to i + lag, lag by lag; there are n - lag of each."""
    place = 0
    for lag in range(1, n):
        by = ordered.dtype.type(lag)
        for i in range(n - lag):
            a, b, out = _row(ordered, i), _row(ordered, i + lag), _row(slopes, place)
            for k in range(WIDTH):
                out[k] = (b[k] - a[k]) / by
            place += 1


@_compiled()
def _slope(slopes, n, i, j):
    """The slope between two ranks, i < j."""
    lag = j - i
    return _row(slopes, (lag - 1) * n - (lag - 1) * lag // 2 + i)


@_compiled()
def _middle(tile, ranks, out):
    """Take the mean of two ranks, or one rank."""
    half = tile.dtype.type(0.5)
    a, b = _row(tile, ranks[0]), _row(tile, ranks[-1])
    if ranks[0] == ranks[-1]:
        for k in range(WIDTH):
            out[k] = a[k]
    else:
        for k in range(WIDTH):
            out[k] = a[k] * half + b[k] * half


@_compiled()
def _repeated_median(ordered, n, of_all, of_others, slopes, work, medians, out):
    """The median over clients of the median slope to the others; `ordered` is ascending."""
    (all_steps, all_ranks), (other_steps, other_ranks) = of_all, of_others
    _fill_slopes(ordered, n, slopes)
    for i in range(n):
        for j in range(n):
            if j != i:
                between = _slope(slopes, n, min(i, j), max(i, j))
                to = _row(work, j if j < i else j - 1)
                for k in range(WIDTH):
                    to[k] = between[k]
        _select(work, n - 1, other_steps)
        _middle(work, other_ranks, _row(medians, i))
    _select(medians, n, all_steps)
    _middle(medians, all_ranks, out)


@_compiled()
def _rank(values, n, rank):
    """Fill in ranks less their mean; tied values share the mean of their ranks."""
    half, zero = values.dtype.type(0.5), values.dtype.type(0)
    rank[:] = zero
    for i in range(n):
        x, mine = _row(values, i), _row(rank, i)
        for j in range(n):
            y = _row(values, j)
            for k in range(WIDTH):
                mine[k] += (half if x[k] > y[k] else zero) - (half if x[k] < y[k] else zero)


@_compiled()
def _fit(values, n, middle, slope, of_deviations, believed, rank, deviation, line, confidence):
    """Fill in the line through each column, and how much each value is believed."""
    steps, ranks = of_deviations
    kind = values.dtype.type
    zero, one = kind(0), kind(1)
    spread, free_of_all = kind(-12.0 / (n * (n * n - 1.0))), kind(1 - 1 / n)
    _rank(values, n, rank)
    for row in range(n):
        x, place, fitted, far = (
            _row(values, row),
            _row(rank, row),
            _row(line, row),
            _row(deviation, row),
        )
        for k in range(WIDTH):
            fitted[k] = middle[k] + place[k] * slope[k]
        for k in range(WIDTH):
            far[k] = abs(x[k] - fitted[k])
    confidence[:] = deviation
    _select(confidence, n, steps)
    usual = np.empty(WIDTH, values.dtype)
    _middle(confidence, ranks, usual)
    for row in range(n):
        place, far, out = _row(rank, row), _row(deviation, row), _row(confidence, row)
        for k in range(WIDTH):
            # The leverage of a rank: 1/n + rank² / Σ rank², with ranks centered.
            free = place[k] * place[k] * spread + free_of_all
            reach = np.sqrt(_upper(zero, free)) * (usual[k] * believed)
            share = reach / far[k]
            out[k] = one if far[k] <= reach else share


@_compiled()
def _deviation(values, n, out):
    """Fill in the standard deviation of each column."""
    kind = values.dtype.type
    mean = np.zeros(WIDTH, values.dtype)
    for row in range(n):
        x = _row(values, row)
        for k in range(WIDTH):
            mean[k] += x[k]
    for k in range(WIDTH):
        mean[k] /= kind(n)
        out[k] = kind(0)
    for row in range(n):
        x = _row(values, row)
        for k in range(WIDTH):
            out[k] += (x[k] - mean[k]) * (x[k] - mean[k])
    for k in range(WIDTH):
        out[k] = np.sqrt(out[k] / kind(n - 1))


@_compiled()
def residual(
    rows, tasks, first, last, n, has_base, halves, direction, seen, to_sort, of_all, of_others,
    of_deviations, believed, threshold, weights, outs, totals,
):  # fmt: skip
    """Fit a robust line to each column's values over their ranks; see `rules.residual`.

    Without `weights`, fill `outs` with slopes and add what tells clients apart to `totals`, (tasks,
    n), NaN for clients with values that are not finite. With them, `outs` holds the slopes, and the
    result takes their place.
    """
    sort_steps, _ = to_sort
    all_steps, all_ranks = of_all
    is_last = len(weights) > 0
    loaded, base = np.zeros((n, WIDTH), direction.dtype), np.zeros(WIDTH, direction.dtype)
    values = loaded.reshape(-1)
    work, rank, deviation, line = values.copy(), values.copy(), values.copy(), values.copy()
    slopes = np.zeros(1 if is_last else n * (n - 1) // 2 * WIDTH, direction.dtype)
    middle, slope, total = base.copy(), base.copy(), base.copy()
    for task in range(first, last):
        layer, begin, end = tasks[task]
        for start in range(begin, end, WIDTH):
            width = min(WIDTH, end - start)
            _load_clients(rows[layer], n, has_base, start, width, halves, loaded, base)
            _watch(loaded, n, width, direction, start - begin, seen[task])
            out = carray(_pointer(outs[layer] + base.itemsize * start), (width,), base.dtype)
            work[:] = values
            if is_last:
                _select(work, n, all_steps)
                _middle(work, all_ranks, middle)
                slope[:width] = out
            else:
                _select(work, n, sort_steps)
                _middle(work, all_ranks, middle)
                # `deviation` and `line` are room that is not needed yet.
                _repeated_median(work, n, of_all, of_others, slopes, deviation, line, slope)
                out[:] = slope[:width]
            _fit(values, n, middle, slope, of_deviations, believed, rank, deviation, line, work)
            if is_last:
                total[:] = 0
                for row in range(n):
                    x, fitted, believe = _row(values, row), _row(line, row), _row(work, row)
                    by = weights[row]
                    for k in range(WIDTH):
                        chosen = x[k] if believe[k] >= threshold else fitted[k]
                        total[k] += chosen * by
                out[:] = total[:width]
            else:
                _deviation(work, n, total)
                for row in range(n):
                    totals[task, row] += _dot(_row(work, row), total, width)
                    if not _is_finite(_row(values, row), width):
                        totals[task, row] = np.nan
