"""What a piece of work with a model costs: time, tokens run, memory."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

import torch

from regrow.models.capture import stream_of_input
from regrow.models.families import blocks_of, parameter_count
from regrow.records.results import Cost


class CostMeter:
    """Counts from entering the context to leaving it. ``tokens_run`` are the tokens that went through the blocks,
    padding included: a prefix that is run once counts once, whatever the number of prompts that begin with it."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.tokens_run = 0

    def __enter__(self) -> CostMeter:
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        device = next(self.model.parameters()).device
        self._cuda = device if device.type == "cuda" else None
        if self._cuda is not None:
            torch.cuda.reset_peak_memory_stats(self._cuda)
        self._hook = blocks_of(self.model)[0].register_forward_pre_hook(self._count, with_kwargs=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hook.remove()

    def cost(self, *, prompt_tokens: int, generated_tokens: int) -> Cost:
        """Return the cost so far. FLOPs: 2 per weight and token run; scores of attention are not counted.

        ``peak_memory_bytes`` is the process's peak so far, or on CUDA the peak of allocated device memory since the
        context was entered.
        """
        return Cost(
            wall_seconds=time.perf_counter() - self._wall,
            cpu_seconds=time.process_time() - self._cpu,
            prompt_tokens=prompt_tokens,
            generated_tokens=generated_tokens,
            flops=2.0 * parameter_count(self.model) * self.tokens_run,
            peak_memory_bytes=peak_process_bytes()
            if self._cuda is None
            else torch.cuda.max_memory_allocated(self._cuda),
        )

    def _count(self, block: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        stream_BTD = stream_of_input(args, kwargs)
        self.tokens_run += stream_BTD.shape[0] * stream_BTD.shape[1]


class WallMeter:
    """The cost of work that another process or machine does: wall time and tokens; the rest is not known."""

    def __enter__(self) -> WallMeter:
        self._wall = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def cost(self, *, prompt_tokens: int, generated_tokens: int) -> Cost:
        """Return the cost so far."""
        return Cost(
            wall_seconds=time.perf_counter() - self._wall,
            prompt_tokens=prompt_tokens,
            generated_tokens=generated_tokens,
        )


def peak_process_bytes() -> int:
    """Return the largest resident memory this process has had, 0 where the system does not tell (Windows)."""
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
