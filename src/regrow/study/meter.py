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

    def cost(self, *parts: Cost) -> Cost:
        """Return the cost so far: time and memory as measured here, tokens and FLOPs summed over the ``parts`` that the
        work consisted of (NaN when one of them is)."""
        total = total_cost(*parts)
        here = {
            "wall_seconds": time.monotonic() - self._wall,
            "cpu_seconds": _cpu_seconds() - self._cpu,
            "peak_memory_bytes": max(peak_bytes(), total.peak_memory_bytes),
        }
        return total.model_copy(update=here)


def total_cost(*parts: Cost) -> Cost:
    """Return what works that were done one after another used together; memory is that of the largest."""
    return Cost(
        wall_seconds=sum(part.wall_seconds for part in parts),
        cpu_seconds=sum(part.cpu_seconds for part in parts),
        training_tokens=sum(part.training_tokens for part in parts),
        prompt_tokens=sum(part.prompt_tokens for part in parts),
        generated_tokens=sum(part.generated_tokens for part in parts),
        flops=float(sum(part.flops for part in parts)),
        peak_memory_bytes=max((part.peak_memory_bytes for part in parts), default=0),
    )


def _cpu_seconds() -> float:
    used = os.times()  # in hundredths of a second, which is too coarse for this process's own part
    return time.process_time() + used.children_user + used.children_system


def peak_bytes() -> int:
    """Return the largest resident memory of this process and of its children so far, 0 where it is not told."""
    try:
        import resource
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) * unit
