"""Compiled code on the threads that PyTorch keeps for its own operators.

PyTorch's threads go on turning for a while after an operator, waiting for the next one. A second pool would have to
share the cores with them, so compiled code is handed to the same pool, by GNU OpenMP's entry point (GOMP_parallel).
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

    openmp: ctypes.CDLL
    thread_number: int
    thread_count: int

    def run(self, function: int, argument: int, threads: int) -> None:
        self.openmp.GOMP_parallel(function, argument, threads, 0)


@cache
def torch_threads() -> ThreadPool | None:
    """Return PyTorch's pool; None where it does not run on such a library (macOS, Windows, some builds).

    A process may hold several OpenMP libraries (scikit-learn brings one): the functions are looked up as PyTorch's own
    library finds them, and must know the number of threads that PyTorch was told.
    """
    if not sys.platform.startswith("linux") or "OpenMP" not in torch.__config__.parallel_info():
        return None
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        number, count = (
            ctypes.cast(function, ctypes.c_void_p).value
            for function in (library.omp_get_thread_num, library.omp_get_num_threads)
        )
        library.GOMP_parallel.restype = None
        library.GOMP_parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        most = library.omp_get_max_threads()
    except (OSError, AttributeError):
        return None
    if number is None or count is None or most != torch.get_num_threads():
        return None
    return ThreadPool(library, number, count)
