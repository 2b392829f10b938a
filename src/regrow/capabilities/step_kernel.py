"""The loops of step_attention.py, compiled by numba when they are first used and kept on disk from then on.

A key head is read once for up to three of the query heads that share it, and a value for four keys at a time: a step
is then bound by how fast memory is read. Exponentials are polynomials of degree 6, right to 2e-7.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, cfunc, njit, types

from regrow.models.compiled_arguments import asked, floats_at, integers_at

_REORDERED = {"reassoc", "contract", "arcp", "nsz"}
"""Sums may be taken in any order; NaN and infinity keep their meaning."""

ARGUMENTS = 19

_LOG2_E = np.float32(1.4426950408889634)
_LEAST = np.float32(-126.0)
_ZERO, _ONE = np.float32(0), np.float32(1)
_P6, _P5, _P4, _P3, _P2, _P1 = (
    np.float32(each)
    for each in (
        1.5403530393381609e-4,
        1.3333558146428443e-3,
        9.618129107628477e-3,
        5.550410866482158e-2,
        2.402265069591007e-1,
        6.931471805599453e-1,
    )
)


@njit(fastmath=_REORDERED, cache=True)
def _exponentials(scores: Any, bits: Any, count: int, scale: Any) -> tuple[Any, Any]:
    """Turn scores into exp(scale * (score - largest)); return their sum, and its logarithm with the largest again."""
    powers = bits.view(np.float32)
    top = scores[0]
    for at in range(count):
        top = max(top, scores[at])
    for at in range(count):
        power = max((scores[at] - top) * (scale * _LOG2_E), _LEAST)
        whole = np.float32(np.rint(power))
        rest = power - whole
        bits[at] = (np.int32(whole) + np.int32(127)) << np.int32(23)
        scores[at] = (((((_P6 * rest + _P5) * rest + _P4) * rest + _P3) * rest + _P2) * rest + _P1) * rest + _ONE
    total = _ZERO
    for at in range(count):
        each = scores[at] * powers[at]
        scores[at] = each
        total += each
    return total, top * scale + np.float32(np.log(total))


@njit(fastmath=_REORDERED, cache=True)
def _one(query: Any, keys: Any, values: Any, count: int, scale: Any, out: Any, scores: Any, bits: Any) -> Any:
    for at in range(count):
        key, found = keys[at], _ZERO
        for each in range(query.shape[0]):
            found += query[each] * key[each]
        scores[at] = found
    total, logarithm = _exponentials(scores, bits, count, scale)
    out[:] = _ZERO
    for at in range(count):
        value, weight = values[at], scores[at] / total
        for each in range(out.shape[0]):
            out[each] += weight * value[each]
    return logarithm


@njit(fastmath=_REORDERED, cache=True)
def _three(
    queries: Any, keys: Any, values: Any, count: int, scale: Any, outs: Any, sums: Any, scores: Any, bits: Any
) -> None:
    query0, query1, query2 = queries[0], queries[1], queries[2]
    scores0, scores1, scores2 = scores[0], scores[1], scores[2]
    out0, out1, out2 = outs[0], outs[1], outs[2]
    for at in range(count):
        key, found0, found1, found2 = keys[at], _ZERO, _ZERO, _ZERO
        for each in range(queries.shape[1]):
            one = key[each]
            found0 += query0[each] * one
            found1 += query1[each] * one
            found2 += query2[each] * one
        scores0[at], scores1[at], scores2[at] = found0, found1, found2
    total0, sums[0] = _exponentials(scores0, bits, count, scale)
    total1, sums[1] = _exponentials(scores1, bits, count, scale)
    total2, sums[2] = _exponentials(scores2, bits, count, scale)
    outs[:3] = _ZERO
    # What stands after the last key weighs nothing, so keys can be taken in fours.
    scores[:3, count : count + 3] = _ZERO
    last = count - 1
    for at in range(0, count, 4):
        value0, value1 = values[at], values[min(at + 1, last)]
        value2, value3 = values[min(at + 2, last)], values[min(at + 3, last)]
        a0, a1, a2, a3 = scores0[at], scores0[at + 1], scores0[at + 2], scores0[at + 3]
        b0, b1, b2, b3 = scores1[at], scores1[at + 1], scores1[at + 2], scores1[at + 3]
        c0, c1, c2, c3 = scores2[at], scores2[at + 1], scores2[at + 2], scores2[at + 3]
        for each in range(outs.shape[1]):
            v0, v1, v2, v3 = value0[each], value1[each], value2[each], value3[each]
            out0[each] += a0 * v0 + a1 * v1 + a2 * v2 + a3 * v3
            out1[each] += b0 * v0 + b1 * v1 + b2 * v2 + b3 * v3
            out2[each] += c0 * v0 + c1 * v1 + c2 * v2 + c3 * v3
    for each in range(outs.shape[1]):
        out0[each] /= total0
        out1[each] /= total1
        out2[each] /= total2


@njit(nogil=True, cache=True)
def _share(
    query: Any,
    keys: Any,
    values: Any,
    new_keys: Any,
    new_values: Any,
    write: bool,
    row: Any,
    seen: Any,
    scale: Any,
    out: Any,
    sums: Any,
    first: int,
    step: int,
) -> None:
    """Do every ``step``-th of the pairs of a row and a key head, from the ``first`` on. Tokens of a row stand together;
    what a thread reads for one of them is still in its cache for the next. With ``write``, the keys and values of a
    token are first put where it sees its last column."""
    tokens, heads, shared = query.shape[:3]
    scores = np.empty((3, keys.shape[2] + 4), np.float32)
    bits = np.empty(keys.shape[2], np.int32)
    pair = begin = 0
    while begin < tokens:
        end = begin + 1
        while end < tokens and row[end] == row[begin]:
            end += 1
        for head in range(heads):
            if pair % step == first:
                own_keys, own_values = keys[row[begin], head], values[row[begin], head]
                if write:
                    for token in range(begin, end):
                        own_keys[seen[token] - 1] = new_keys[token, head]
                        own_values[seen[token] - 1] = new_values[token, head]
                for token in range(begin, end):
                    count = seen[token]
                    asked, written, summed = query[token, head], out[token, head], sums[token, head]
                    done = 0
                    while done + 3 <= shared:
                        _three(
                            asked[done:],
                            own_keys,
                            own_values,
                            count,
                            scale,
                            written[done:],
                            summed[done:],
                            scores,
                            bits,
                        )
                        done += 3
                    for at in range(done, shared):
                        summed[at] = _one(asked[at], own_keys, own_values, count, scale, written[at], scores[0], bits)
            pair += 1
        begin = end


@cfunc(types.void(types.CPointer(types.int64)), cache=True)
def kernel(arguments: Any) -> None:
    """The loops on one of several threads. ``arguments``: tokens, key heads, queries of each, width, rows, columns,
    whether new keys and values are written first; the addresses of the functions that tell a thread's number and how
    many there are, and of queries, keys, values, new keys, new values, rows, columns seen, scale, outputs and sums, all
    contiguous."""
    given = carray(arguments, (ARGUMENTS,))
    tokens, heads, shared, width, rows, columns = given[0], given[1], given[2], given[3], given[4], given[5]
    _share(
        carray(floats_at(given[9]), (tokens, heads, shared, width)),
        carray(floats_at(given[10]), (rows, heads, columns, width)),
        carray(floats_at(given[11]), (rows, heads, columns, width)),
        carray(floats_at(given[12]), (tokens, heads, width)),
        carray(floats_at(given[13]), (tokens, heads, width)),
        given[6] != 0,
        carray(integers_at(given[14]), (tokens,)),
        carray(integers_at(given[15]), (tokens,)),
        carray(floats_at(given[16]), (1,))[0],
        carray(floats_at(given[17]), (tokens, heads, shared, width)),
        carray(floats_at(given[18]), (tokens, heads, shared)),
        asked(given[7]),
        asked(given[8]),
    )
