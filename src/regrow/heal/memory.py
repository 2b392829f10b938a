"""How much memory an update takes, told from one small forward pass before any update is made."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

COMFORTABLE_SHARE = 0.8
"""Share of the free memory that an update may be predicted to take before activations are recomputed instead."""

ADAM_BYTES = 4 + 8
"""Gradient and two moments of a trained float32 weight."""


def kept_bytes(run: Callable[[], torch.Tensor], weights: Iterable[nn.Parameter]) -> int:
    """Return how many bytes of activations autograd keeps between ``run()`` and its backward pass.

    Every storage counts once, and the model's ``weights`` do not count.
    """
    own = {weight.untyped_storage().data_ptr() for weight in weights}
    seen: dict[int, int] = {}
    alive: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own and tensor.numel():
            seen[storage.data_ptr()] = storage.nbytes()
            # A freed storage's address may be given out again.
            alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = run()
    del result
    return sum(seen.values())


def optimizer_bytes(weights: Iterable[nn.Parameter]) -> int:
    """Return what gradients and Adam's moments of the trained weights take."""
    return sum(ADAM_BYTES * weight.numel() for weight in weights)


def resident_bytes(device: torch.device) -> int:
    """Return how much memory is in use now: by this process, or on its CUDA device."""
    if device.type == "cuda":
        return int(torch.cuda.memory_allocated(device))
    import psutil

    return int(psutil.Process().memory_info().rss)


def peak_bytes(device: torch.device) -> int:
    """Return the most memory that this process, or its CUDA device, has had in use so far."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    try:
        import resource
    except ImportError:
        # Windows keeps no such record for Python to read.
        return resident_bytes(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def free_bytes(device: torch.device) -> int:
    """Return how much memory can still be had on ``device``."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    import psutil

    return int(psutil.virtual_memory().available)


def choose_checkpointing(asked: Any, predicted_bytes: Callable[[], int], device: torch.device) -> bool:
    """Return whether activations are recomputed: as asked (True or False), or with "auto" when an update is predicted
    to take more than a comfortable share of the free memory. It changes speed and memory alone."""
    if asked != "auto":
        return bool(asked)
    return predicted_bytes() > COMFORTABLE_SHARE * free_bytes(device)
