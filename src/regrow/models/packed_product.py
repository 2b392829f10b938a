"""Products of a few rows with a linear layer's weights, laid out once for compiled loops (packed_kernel.py).

PyTorch's libraries lay the weights out anew in every product, or, where oneDNN is given them laid out (prepacked.py),
reach two thirds of what a processor with AVX2 computes at most. These loops read each weight once from memory and
compute at eight to nine tenths of that from 16 rows on (benchmarks/prepacked.py), on PyTorch's own threads.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch

from regrow.models.torch_threads import ThreadPool, torch_threads


class PackedProducts:
    """Products by compiled loops; see :func:`packed_products`."""

    def __init__(self, pool: ThreadPool, room: Any) -> None:
        self.pool, self.kernel = pool, room.kernel
        self.panel, self.depth = room.PANEL, room.DEPTH
        self._arguments = ctypes.c_int64 * room.ARGUMENTS

    def suits(self, weight: torch.Tensor) -> bool:
        """Return whether a layer's weights, outputs x inputs, are of a size that the loops compute."""
        outputs, inputs = weight.shape
        return outputs % self.panel == 0 and inputs % self.depth == 0

    def takes(self, states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
        """Return whether tensors are of the kind that the loops read; they look at nothing but addresses."""
        return states.shape[-1] == weight.shape[1] and all(
            each is None or (each.dtype == torch.float32 and each.device.type == "cpu") for each in (states, bias)
        )

    def packed(self, weight: torch.Tensor) -> torch.Tensor:
        """Return a copy of a layer's weights, outputs x inputs, as panels x inputs x outputs of a panel."""
        outputs, inputs = weight.shape
        return weight.reshape(outputs // self.panel, self.panel, inputs).transpose(1, 2).contiguous()

    def product(self, states: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Return what the layer makes of ``states``, ... x inputs, as float32 of ... x outputs."""
        panels, inputs, panel = packed.shape
        outputs = panels * panel
        states = states.contiguous()
        shape = (*states.shape[:-1], outputs)
        out = torch.empty(shape)
        if bias is not None:
            out.copy_(bias)
        told = (states.data_ptr(), packed.data_ptr(), out.data_ptr(), states.numel() // inputs, inputs, outputs)
        arguments = self._arguments(*told, bias is not None, self.pool.thread_number, self.pool.thread_count)
        self.pool.run(self.kernel.address, ctypes.addressof(arguments), torch.get_num_threads())
        return out


@cache
def packed_products() -> PackedProducts | None:
    """Return the compiled products; None where oneDNN is to be preferred or they cannot be had: a processor without
    AVX2, or with AVX-512, whose wider registers the loops do not use; no numba; threads of another kind. The first
    call of all compiles for a few seconds, and keeps the result on disk."""
    pool = torch_threads()
    if pool is None or torch.backends.cpu.get_cpu_capability() != "AVX2":
        return None
    try:
        from regrow.models import packed_kernel
    # No numba, no folder for what it compiles, a damaged file in that folder: each has an error of its own, and
    # PyTorch computes the same.
    except Exception:
        return None
    return PackedProducts(pool, packed_kernel)
