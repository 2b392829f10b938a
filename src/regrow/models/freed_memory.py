"""Memory that was freed stays with the process for the next tensor, while a model runs on a CPU.

The activations of a forward pass are a few large tensors that come and go a thousand times. glibc hands such memory
back to the system as soon as it is freed and asks for it again in the next layer; the system then clears it page by
page, which took a fifth of the time of likelihoods on SmolLM2-135M (700,000 page faults in 13 s, benchmarks/README.md).
"""

from __future__ import annotations

import ctypes
import os
from functools import cache

KEPT_BYTES = 512 << 20
"""Free memory at the end of the heap beyond which it is handed back."""

LARGEST_BYTES = 256 << 20
"""Larger tensors are handed back as before when they are freed."""

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
"""glibc's numbers of the settings (mallopt(3))."""

_GROWTH_BYTES = 64 << 20


@cache
def keep_freed_memory() -> bool:
    """Let this process keep freed memory from now on; return whether it does. Where the C library is not glibc, or the
    user has set it otherwise (MALLOC_..., GLIBC_TUNABLES), nothing is changed."""
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return False
    try:
        library = ctypes.CDLL("libc.so.6")
        settings = ((_MMAP_THRESHOLD, LARGEST_BYTES), (_TRIM_THRESHOLD, KEPT_BYTES), (_TOP_PAD, _GROWTH_BYTES))
        return all(library.mallopt(name, value) for name, value in settings)
    except (OSError, AttributeError):
        return False
