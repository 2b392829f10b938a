"""What work inside a model costs: every block that runs is counted where it runs, so that passes over a part count as
a part.

The same unit as in an evaluation (2 FLOPs per weight and token, attention scores not counted): a pass over the whole
model costs 2 per parameter and token in both. A block that runs to be differentiated costs three times as much, as in
training (6 per weight and token).
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import torch
from torch import nn

from regrow.models.families import blocks_of, head_of, parameter_count
from regrow.planning.cost import READ_FLOPS, TRAIN_FLOPS
from regrow.records.results import Cost
from regrow.study.meter import peak_bytes


class WorkMeter:
    """Counts FLOPs, wall and CPU seconds of what ``models`` do from entering the context to leaving it."""

    def __init__(self, *models: nn.Module) -> None:
        self._models = models
        self._hooks = ExitStack()
        self.flops = 0.0

    def __enter__(self) -> WorkMeter:
        self._wall, self._cpu = time.monotonic(), time.process_time()
        for model in self._models:
            blocks = list(blocks_of(model))
            sizes = [parameter_count(block) for block in blocks]
            for block, size in zip(blocks, sizes, strict=True):
                self._hooks.callback(block.register_forward_hook(self._counting(size)).remove)
            rest = parameter_count(model) - sum(sizes)
            self._hooks.callback(head_of(model).register_forward_hook(self._counting(rest)).remove)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hooks.close()

    def cost(self, *, prompt_tokens: int = 0, generated_tokens: int = 0) -> Cost:
        """Return the cost so far; ``prompt_tokens`` are the tokens of the text that was read, once each."""
        return Cost(
            wall_seconds=time.monotonic() - self._wall,
            cpu_seconds=time.process_time() - self._cpu,
            prompt_tokens=prompt_tokens,
            generated_tokens=generated_tokens,
            flops=self.flops,
            peak_memory_bytes=peak_bytes(),
        )

    def _counting(self, weights: int) -> Any:
        def count(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            state = output[0] if isinstance(output, tuple) else output
            if not isinstance(state, torch.Tensor) or state.dim() < 2:
                return
            tokens = state[..., 0].numel()
            self.flops += float((TRAIN_FLOPS if state.requires_grad else READ_FLOPS) * weights * tokens)

        return count
