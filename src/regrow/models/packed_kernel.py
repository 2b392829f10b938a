"""The loops of packed_product.py, compiled by numba when they are first used and kept on disk from then on.

The innermost loop is written in LLVM's own terms: six rows by sixteen columns of the product stay in twelve vector
registers while it runs along the weights' columns, two vectors of which serve all six rows. That leaves four of the
sixteen registers of AVX2, and gives its two units a multiplication and addition each in every cycle.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, cfunc, njit, types
from numba.extending import intrinsic

from regrow.models.compiled_arguments import asked

ARGUMENTS = 9

PANEL = 16
"""Columns of the product that are computed together; a panel holds their weights, one vector pair per input."""

DEPTH = 4
"""Inputs for which the innermost loop is unrolled; the number of a layer's inputs must be divisible by it."""

_TILE_ROWS = 6
_VECTOR = 8
_STRETCH = 256
"""Inputs that are summed in one go, so that their weights (16 KB) stay in the first cache for all rows; the sums of
several stretches are added up, which rounds less than one long sum."""

_BLOCK_ROWS, _BLOCK_NUMBERS = 48, 72 << 10
"""Rows that pass over all weights before the next rows do: as many as a second cache of 512 KB holds, 48 at least."""

_FLOAT, _VECTOR_TYPE, _LONG = ir.FloatType(), ir.VectorType(ir.FloatType(), _VECTOR), ir.IntType(64)
_INT = ir.IntType(32)
_BYTES_PER_NUMBER = 4


def _tile(rows: int) -> Any:
    """Return a function for compiled code: ``rows`` x 16 numbers of the product, over a stretch of the inputs.

    Its arguments are 64-bit numbers: the address of the first row's first input, the inputs between two rows, the
    addresses of the weights and of the first result, the results between two rows, the length of the stretch, an
    address from which on as many bytes will be wanted soon as it takes here, and whether to add to what stands there.
    """

    def tile(
        context: Any,
        states: Any,
        width: Any,
        weights: Any,
        out: Any,
        columns: Any,
        depth: Any,
        ahead: Any,
        add: Any,
    ) -> Any:
        return types.void(*[types.int64] * 8), code

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        states, width, weights, out, columns, depth, ahead, add = arguments
        function = _declared(builder.module, "llvm.fma.v8f32", _VECTOR_TYPE, [_VECTOR_TYPE] * 3)
        byte = ir.IntType(8).as_pointer()
        prefetch = _declared(builder.module, "llvm.prefetch.p0", ir.VoidType(), [byte, _INT, _INT, _INT])
        # Addresses whose relation the compiler cannot see: it would compute each from the one before, in every step.
        opaque = ir.InlineAsm(ir.FunctionType(_LONG, [_LONG]), "", "=r,0")
        undefined = ir.Constant(_VECTOR_TYPE, ir.Undefined)
        everywhere = ir.Constant(ir.VectorType(_INT, _VECTOR), [0] * _VECTOR)

        def after(address: Any, numbers: Any) -> Any:
            return builder.add(address, builder.mul(numbers, _LONG(_BYTES_PER_NUMBER)))

        def vector_at(address: Any, vector: int) -> Any:
            shifted = builder.add(address, _LONG(_BYTES_PER_NUMBER * _VECTOR * vector))
            return builder.inttoptr(shifted, _VECTOR_TYPE.as_pointer())

        starts, ends = [states], [out]
        for _ in range(rows - 1):
            starts.append(after(starts[-1], width))
            ends.append(after(ends[-1], columns))
        starts = [builder.call(opaque, [start]) for start in starts]
        before = builder.block
        loop, done, fresh, more, last = (
            builder.append_basic_block(f"tile.{name}") for name in ("loop", "done", "fresh", "more", "last")
        )
        builder.branch(loop)

        builder.position_at_end(loop)
        at = builder.phi(_LONG)
        at.add_incoming(_LONG(0), before)
        carried = [[builder.phi(_VECTOR_TYPE) for _ in range(2)] for _ in range(rows)]
        sums: list[list[Any]] = [list(pair) for pair in carried]
        # The weights of four inputs are four cache lines, of which a tile fetches the next stretch's one.
        wanted = builder.inttoptr(after(ahead, builder.mul(at, _LONG(DEPTH))), byte)
        builder.call(prefetch, [wanted, _INT(0), _INT(2), _INT(1)])
        for step in range(DEPTH):
            place = builder.add(at, _LONG(step))
            line = after(weights, builder.mul(place, _LONG(PANEL)))
            pair = [builder.load(vector_at(line, vector), align=_BYTES_PER_NUMBER) for vector in range(2)]
            for row in range(rows):
                number = builder.load(builder.gep(builder.inttoptr(starts[row], _FLOAT.as_pointer()), [place]))
                one = builder.insert_element(undefined, number, _INT(0))
                spread = builder.shuffle_vector(one, undefined, everywhere)
                sums[row] = [
                    builder.call(function, [spread, each, total]) for each, total in zip(pair, sums[row], strict=True)
                ]
        following = builder.add(at, _LONG(DEPTH))
        at.add_incoming(following, loop)
        for row in range(rows):
            for vector in range(2):
                carried[row][vector].add_incoming(ir.Constant(_VECTOR_TYPE, [0.0] * _VECTOR), before)
                carried[row][vector].add_incoming(sums[row][vector], loop)
        builder.cbranch(builder.icmp_signed("<", following, depth), loop, done)

        builder.position_at_end(done)
        builder.cbranch(builder.icmp_signed("!=", add, _LONG(0)), more, fresh)
        for block in (fresh, more):
            builder.position_at_end(block)
            for row in range(rows):
                for vector in range(2):
                    place, found = vector_at(ends[row], vector), sums[row][vector]
                    if block is more:
                        found = builder.fadd(builder.load(place, align=_BYTES_PER_NUMBER), found)
                    builder.store(found, place, align=_BYTES_PER_NUMBER)
            builder.branch(last)
        builder.position_at_end(last)
        return context.get_dummy_value()

    return intrinsic(tile)


def _declared(module: Any, name: str, result: Any, arguments: list[Any]) -> Any:
    found = module.globals.get(name)
    return ir.Function(module, ir.FunctionType(result, arguments), name) if found is None else found


_tile1, _tile2, _tile3, _tile4, _tile5, _tile6 = (_tile(rows) for rows in range(1, _TILE_ROWS + 1))


@njit(nogil=True, cache=True)
def _panel(
    states: int, weights: int, out: int, first: int, last: int, inputs: int, outputs: int, panel: int, add: int
) -> None:
    """Compute the columns of a panel for the rows ``first`` to ``last``."""
    rows = last - first
    tiles = (rows + _TILE_ROWS - 1) // _TILE_ROWS
    stretches = (inputs + _STRETCH - 1) // _STRETCH
    groups = inputs // DEPTH
    for stretch in range(stretches):
        begin, end = DEPTH * (groups * stretch // stretches), DEPTH * (groups * (stretch + 1) // stretches)
        depth = end - begin
        own = weights + 4 * PANEL * (panel * inputs + begin)
        plus = 1 if stretch > 0 else add
        for tile in range(tiles):
            row, until = first + rows * tile // tiles, first + rows * (tile + 1) // tiles
            ahead = own + 4 * PANEL * depth + PANEL * depth * (tile & 3)
            read, written = states + 4 * (row * inputs + begin), out + 4 * (row * outputs + panel * PANEL)
            count = until - row
            if count == 6:
                _tile6(read, inputs, own, written, outputs, depth, ahead, plus)
            elif count == 5:
                _tile5(read, inputs, own, written, outputs, depth, ahead, plus)
            elif count == 4:
                _tile4(read, inputs, own, written, outputs, depth, ahead, plus)
            elif count == 3:
                _tile3(read, inputs, own, written, outputs, depth, ahead, plus)
            elif count == 2:
                _tile2(read, inputs, own, written, outputs, depth, ahead, plus)
            else:
                _tile1(read, inputs, own, written, outputs, depth, ahead, plus)


@cfunc(types.void(types.CPointer(types.int64)), cache=True)
def kernel(arguments: Any) -> None:
    """The product on one of several threads. ``arguments``: the addresses of the inputs, the packed weights and the
    results, the numbers of rows, inputs and outputs, whether to add to what stands in the results, and the addresses of
    the functions that tell a thread's number and how many there are."""
    given = carray(arguments, (ARGUMENTS,))
    states, weights, out, rows, inputs, outputs, add = (
        given[0],
        given[1],
        given[2],
        given[3],
        given[4],
        given[5],
        given[6],
    )
    thread, threads = np.int64(asked(given[7])), np.int64(asked(given[8]))
    most = max(_BLOCK_ROWS, _BLOCK_NUMBERS // inputs)
    blocks, panels = (rows + most - 1) // most, outputs // PANEL
    for unit in range(blocks * panels * thread // threads, blocks * panels * (thread + 1) // threads):
        block = unit // panels
        _panel(
            states,
            weights,
            out,
            rows * block // blocks,
            rows * (block + 1) // blocks,
            inputs,
            outputs,
            unit % panels,
            add,
        )
