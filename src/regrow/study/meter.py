"""What a step used, children included: wall and CPU seconds, peak memory."""

from __future__ import annotations

import os
import sys
import time

from regrow.records.results import Cost


class Meter:
    """Counts from its making to :meth:`cost`."""

    def __init__(self) -> None:
        self._wall = time.monotonic()
        self._cpu = _cpu_seconds()

    def cost(self, *, training_tokens: int = 0, of: Cost | None = None, flops: float = 0.0) -> Cost:
        """Return the cost so far; tokens and FLOPs of an evaluation in it are taken from ``of``."""
        part = of or Cost(flops=0.0)
        return Cost(
            wall_seconds=time.monotonic() - self._wall,
            cpu_seconds=_cpu_seconds() - self._cpu,
            training_tokens=training_tokens,
            prompt_tokens=part.prompt_tokens,
            generated_tokens=part.generated_tokens,
            flops=flops + part.flops,
            peak_memory_bytes=max(_peak_bytes(), part.peak_memory_bytes),
        )


def _cpu_seconds() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _peak_bytes() -> int:
    try:
        import resource
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) * unit
