"""Several processes that train one model together, started by torchrun: who does what, and sums over all of them.

One process is the same code with nobody else. The cut of an update into micro-batches, and with it every dropout mask,
does not depend on how many processes there are; they only share the micro-batches out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import nn

from regrow.errors import ConfigError

PATIENCE = timedelta(hours=12)
"""How long others wait for the first process, which answers pools and writes checkpoints."""


@dataclass(frozen=True)
class Processes:
    """``rank`` counts from 0; process 0 writes and speaks. ``even``: every process must run as many micro-batches as
    the others, because each takes part in every forward (sharded weights)."""

    rank: int = 0
    count: int = 1
    even: bool = False

    @property
    def gradient_scale(self) -> float:
        """What a loss is multiplied with before its backward pass: sharded gradients are averaged over processes, but
        the loss is divided by all response tokens of an update already and wants a sum."""
        return float(self.count) if self.even else 1.0

    @property
    def first(self) -> bool:
        return self.rank == 0

    def share(self, sizes: Sequence[int]) -> list[tuple[int, float]]:
        """Return (number, weight) of the micro-batches that this process runs, given how large each is.

        The largest go first, each to the process with the least work so far. Weights are 1, and 0 where an ``even``
        process has nothing left to do and repeats the smallest.
        """
        if self.count == 1:
            return [(number, 1.0) for number in range(len(sizes))]
        loads = [0] * self.count
        shares: list[list[int]] = [[] for _ in range(self.count)]
        for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
            least = min(range(self.count), key=loads.__getitem__)
            loads[least] += sizes[number]
            shares[least].append(number)
        mine = [(number, 1.0) for number in sorted(shares[self.rank])]
        if self.even:
            smallest = min(range(len(sizes)), key=sizes.__getitem__)
            mine += [(smallest, 0.0)] * (max(map(len, shares)) - len(mine))
        return mine

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum of ``values`` over all processes."""
        if self.count > 1:
            device = _device_of_group()
            moved = values.to(device)
            torch.distributed.all_reduce(moved)
            values = moved.to(values.device)
        return values

    def any(self, asked: bool) -> bool:
        """Return whether any process says yes."""
        return bool(self.total(torch.tensor([float(asked)]))[0] > 0)

    def wait(self) -> None:
        """Return when every process has come here."""
        if self.count > 1:
            torch.distributed.barrier()

    def tell(self, value: Any) -> Any:
        """Return the first process's ``value`` everywhere."""
        if self.count == 1:
            return value
        box = [value]
        torch.distributed.broadcast_object_list(box, src=0, device=_device_of_group())
        return box[0]

    def add_gradients(self, weights: Sequence[nn.Parameter]) -> None:
        """Make the gradient of every weight the sum over all processes. Sharded weights have been summed already."""
        if self.count == 1 or self.even:
            return
        for weight in weights:
            # A process without a micro-batch has no gradient, and none of a frozen branch has one.
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
        flat = torch.cat([weight.grad.reshape(-1) for weight in weights if weight.grad is not None])
        torch.distributed.all_reduce(flat)
        for weight, part in zip(weights, flat.split([weight.numel() for weight in weights]), strict=True):
            assert weight.grad is not None
            weight.grad.copy_(part.view_as(weight.grad))


ALONE = Processes()


def asked_for() -> int:
    """Return how many processes torchrun has started (1 without it)."""
    try:
        return int(os.environ.get("WORLD_SIZE", "1"))
    except ValueError:
        return 1


@contextmanager
def together() -> Iterator[Processes]:
    """Yield the processes that torchrun started, connected with each other; :data:`ALONE` without torchrun.

    NCCL connects CUDA devices, gloo CPUs. Raises ConfigError when torchrun's variables are incomplete.
    """
    if asked_for() <= 1:
        yield ALONE
        return
    if torch.distributed.is_initialized():
        yield current()
        return
    missing = [name for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise ConfigError(
            f"WORLD_SIZE asks for {asked_for()} processes, but {missing[0]} is not set",
            hint="start them with torchrun --nproc-per-node N -m regrow heal ..., or unset WORLD_SIZE",
        )
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(local_rank() % torch.cuda.device_count())
    torch.distributed.init_process_group("nccl" if cuda else "gloo", timeout=PATIENCE)
    try:
        yield current()
    finally:
        torch.distributed.destroy_process_group()


def current() -> Processes:
    """Return the processes of the group that is open now."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return Processes(torch.distributed.get_rank(), torch.distributed.get_world_size())
    return ALONE


def local_rank() -> int:
    """Return the number of this process on its machine."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def device_of_process(asked: str) -> str:
    """Return the device that "auto" means for this process: with several of them, the CUDA device of its number."""
    if asked != "auto" or asked_for() <= 1 or not torch.cuda.is_available():
        return asked
    return f"cuda:{local_rank() % torch.cuda.device_count()}"


def _device_of_group() -> torch.device:
    if torch.distributed.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
