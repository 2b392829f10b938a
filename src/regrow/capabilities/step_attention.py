"""Attention of a decoding step on a CPU: a few new tokens of each row, each over all that its row holds.

PyTorch's kernel computes squares of many queries by many keys. A step has a handful of queries for hundreds of keys,
and rows of different lengths, which it must pad: it reads keys and values at a third of the rate that memory allows.
This one reads each once, up to the row's own length (benchmarks/step_attention.py), on PyTorch's own threads.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch

from regrow.capabilities.partial_attention import Part
from regrow.models.torch_threads import ThreadPool, torch_threads

FEW = 16
"""New tokens of a row up to which it is used; a square of more is PyTorch's."""


class StepAttention:
    """Attention by compiled loops; see :func:`step_attention`."""

    def __init__(self, pool: ThreadPool, kernel: Any, arguments: int) -> None:
        self.pool, self.kernel, self.arguments = pool, kernel, ctypes.c_int64 * arguments

    def __call__(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        row_T: torch.Tensor,
        seen_T: torch.Tensor,
        scale: float,
        new: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> Part:
        """Return the attention's output, tokens x heads x sharing heads x width, and the logarithms of its sums.

        ``query`` is tokens x heads x sharing heads x width, ``keys`` and ``values`` rows x heads x columns x width, all
        float32. Token t belongs to row ``row_T[t]`` and sees its first ``seen_T[t]`` columns, one at least; tokens of a
        row stand together, each with a last column of its own. ``new`` are the tokens' own keys and values, tokens x
        heads x width, which are put into their last columns first.
        """
        query = query.contiguous()
        tokens, heads, shared, width = query.shape
        rows, _, columns, _ = keys.shape
        out, sums = torch.empty_like(query), query.new_empty(tokens, heads, shared)
        factor = torch.tensor([scale], dtype=torch.float32)
        written = (query, query) if new is None else tuple(each.contiguous() for each in new)
        told = [tokens, heads, shared, width, rows, columns, new is not None]
        told += [self.pool.thread_number, self.pool.thread_count]
        told += [each.data_ptr() for each in (query, keys, values, *written, row_T, seen_T, factor, out, sums)]
        arguments = self.arguments(*told)
        self.pool.run(self.kernel.address, ctypes.addressof(arguments), torch.get_num_threads())
        return out, sums


@cache
def step_attention() -> StepAttention | None:
    """Return the compiled attention; None where there is no numba or PyTorch's threads are of another kind. The first
    call of all compiles for a few seconds, and keeps the result on disk."""
    pool = torch_threads()
    if pool is None:
        return None
    try:
        from regrow.capabilities.step_kernel import ARGUMENTS, kernel
    # No numba, no folder for what it compiles, a damaged file in that folder: each has an error of its own, and
    # PyTorch's kernel gives the same answers.
    except Exception:
        return None
    return StepAttention(pool, kernel, ARGUMENTS)


def suits(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> bool:
    """Return whether the compiled attention reads tensors of this kind."""
    return (
        keys.shape == values.shape
        and all(each.device.type == "cpu" and each.dtype == torch.float32 for each in (query, keys, values))
        and keys.is_contiguous()
        and values.is_contiguous()
    )
