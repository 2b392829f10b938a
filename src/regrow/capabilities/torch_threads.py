"""Compiled code on the threads that PyTorch keeps for its own operators.

PyTorch's threads go on turning for a while after an operator, waiting for the next one. A second pool would have to
share the cores with them, so compiled code is handed to the same pool: that of the GNU OpenMP library PyTorch runs on.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch


class ThreadPool(NamedTuple):
    """The library's functions: ``run(function, argument)`` calls the C function at an address once on each thread and
    returns when all are done. ``thread_number`` and ``thread_count`` are the addresses of the C functions that say
    which thread asks, and of how many: fewer than wanted, where a limit stands."""

    library: ctypes.CDLL
    thread_number: int
    thread_count: int

    def run(self, function: int, argument: int, threads: int) -> None:
        self.library.GOMP_parallel(ctypes.c_void_p(function), ctypes.c_void_p(argument), threads, 0)


@cache
def torch_threads() -> ThreadPool | None:
    """Return PyTorch's pool; None where it runs on another library (macOS, Windows, some builds)."""
    if not sys.platform.startswith("linux") or "OpenMP" not in torch.__config__.parallel_info():
        return None
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
        (path,) = {name for line in lines if "libgomp" in Path(name := line.split(maxsplit=5)[-1]).name}
        library = ctypes.CDLL(path)
        number, count = (
            ctypes.cast(function, ctypes.c_void_p).value
            for function in (library.omp_get_thread_num, library.omp_get_num_threads)
        )
    except (OSError, ValueError, AttributeError):
        # Two such libraries in one process: which of them is PyTorch's cannot be told.
        return None
    if number is None or count is None or any("libiomp" in line or "libomp" in line for line in lines):
        return None
    library.GOMP_parallel.restype = None
    library.GOMP_parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    return ThreadPool(library, number, count)
