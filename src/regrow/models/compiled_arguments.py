"""How a compiled C function reads what it is told: an array of 64-bit numbers, some of which are addresses."""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import intrinsic


@intrinsic
def floats_at(context: Any, address: Any) -> Any:
    """The address as a pointer to float32 numbers."""
    return _pointer(types.float32)


@intrinsic
def integers_at(context: Any, address: Any) -> Any:
    """The address as a pointer to int64 numbers."""
    return _pointer(types.int64)


def _pointer(kind: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(kind)(types.int64), code


@intrinsic
def asked(context: Any, address: Any) -> Any:
    """The number that the C function at the address, one without arguments, returns."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        from llvmlite import ir

        function = ir.FunctionType(ir.IntType(32), [])
        return builder.call(builder.inttoptr(arguments[0], function.as_pointer()), [])

    return types.int32(types.int64), code
