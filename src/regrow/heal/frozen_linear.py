"""Frozen linear layers outside the adapters (the head, mostly), their weights cast once instead of at every call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import nn


@contextmanager
def cast_frozen_linears(model: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Let every frozen ``nn.Linear`` whose weight is not of ``dtype`` compute with a cast copy while the context lasts.

    The layer's own weight is left as it is. Layers inside LoRA modules are theirs and are not touched.
    """
    changed: list[nn.Module] = []
    inside = {id(part) for module in model.modules() if hasattr(module, "lora_A") for part in module.modules()}
    try:
        for module in model.modules():
            if type(module) is not nn.Linear or id(module) in inside or module.weight.dtype == dtype:
                continue
            if any(weight.requires_grad for weight in module.parameters()):
                continue
            module.forward = _forward_of(module, dtype)  # type: ignore[method-assign, assignment]
            changed.append(module)
        yield
    finally:
        for module in changed:
            del module.forward


def _forward_of(module: nn.Linear, dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    weight = module.weight.detach().to(dtype)
    bias = None if module.bias is None else module.bias.detach().to(dtype)

    def forward(x: torch.Tensor) -> torch.Tensor:
        return F.linear(x.to(dtype), weight, bias)

    return forward
