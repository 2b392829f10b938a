"""What a bridge costs in time: its own call against that of one block, measured in running models."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from regrow.models.bridges import bridges_of
from regrow.models.families import backbone_of, blocks_of


@dataclass(frozen=True)
class Latency:
    """Median seconds of one call over ``tokens`` tokens: of a block, and of all bridges together (0.0 without)."""

    tokens: int
    block_seconds: float
    bridge_seconds: float

    @property
    def share(self) -> float:
        """The bridges' time in blocks."""
        return self.bridge_seconds / self.block_seconds


@torch.inference_mode()
def measure_latency(model: Any, *, tokens: int = 256, repeats: int = 9) -> Latency:
    """Return how long the blocks and the bridges of ``model`` take within one forward pass over ``tokens`` tokens."""
    device = next(model.parameters()).device
    vocabulary = model.config.get_text_config().vocab_size
    ids = torch.arange(tokens, device=device)[None] * 37 % vocabulary
    attached = bridges_of(model)
    # The call of a block includes that of the bridge that it ends in, not that of one before it.
    within = {entry.after_block: entry.bridge for entry in attached}
    blocks = list(blocks_of(model))
    of_blocks: list[float] = []
    of_bridges: list[float] = []
    with _timed([*blocks, *(entry.bridge for entry in attached)], device) as spent:
        for number in range(repeats + 1):
            spent.clear()
            backbone_of(model)(input_ids=ids, use_cache=False)
            if number:  # the first pass warms up
                own = [spent[id(block)] - spent.get(id(within.get(at)), 0.0) for at, block in enumerate(blocks)]
                of_blocks.append(statistics.median(own))
                of_bridges.append(sum(spent[id(entry.bridge)] for entry in attached))
    return Latency(tokens, statistics.median(of_blocks), statistics.median(of_bridges))


@contextmanager
def _timed(modules: Sequence[nn.Module], device: torch.device) -> Iterator[dict[int, float]]:
    began: dict[int, float] = {}
    spent: dict[int, float] = {}

    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    def start(module: nn.Module, args: Any) -> None:
        began[id(module)] = now()

    def stop(module: nn.Module, args: Any, output: Any) -> None:
        spent[id(module)] = spent.get(id(module), 0.0) + now() - began[id(module)]

    handles = [module.register_forward_pre_hook(start) for module in modules]
    handles += [module.register_forward_hook(stop) for module in modules]
    try:
        yield spent
    finally:
        for handle in handles:
            handle.remove()
