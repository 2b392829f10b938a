"""PEFT's LoRA layers, computed with fewer passes over memory while a run trains.

The adapters stay PEFT modules (initialised, saved and merged by PEFT); only their forward is replaced inside a context.
y = x W' + b + s dropout(x) A' B' with one autograd node per layer: the frozen W is cast to the number format of the run
once instead of at every call, the product with B is added into y in place, and of the input only x itself is kept for
the backward pass. Gradients of A and B are float32, as their masters are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from regrow.heal.lora_dropout import apply_mask, keep_mask, survival


@dataclass
class DropoutKey:
    """Where the run is: masks are drawn from (seed, update, micro-batch, layer), so that a resumed run draws the same
    and a recomputed forward (gradient checkpointing) draws them again."""

    seed: int
    update: int = 0
    microbatch: int = 0

    def of(self, layer: int) -> tuple[int, ...]:
        return (self.seed, self.update, self.microbatch, layer)


@dataclass
class _LastCast:
    """The last input in the run's number format: query, key and value (gate and up) read one and the same tensor."""

    dtype: torch.dtype
    given: torch.Tensor | None = None
    version: int = -1
    cast: torch.Tensor | None = None

    def __call__(self, given: torch.Tensor) -> torch.Tensor:
        if given.dtype == self.dtype:
            return given
        if self.cast is None or given is not self.given or given._version != self.version:
            self.given, self.version, self.cast = given, given._version, given.to(self.dtype)
        return self.cast

    def forget(self) -> None:
        self.given = self.cast = None


class _LoraProduct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        a: torch.Tensor,
        b: torch.Tensor,
        scale: float,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        a_cast, b_cast = a.to(weight.dtype), (b * scale).to(weight.dtype)
        y = F.linear(rows, weight, bias)
        inner = F.linear(rows if mask is None else apply_mask(rows, mask), a_cast)
        y.addmm_(inner, b_cast.t())
        ctx.save_for_backward(rows, weight, a_cast, b_cast, inner, mask)
        ctx.scale, ctx.shape = scale, x.shape
        return y.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[torch.Tensor | None, ...]:
        rows, weight, a_cast, b_cast, inner, mask = ctx.saved_tensors
        dy = grads[0].reshape(-1, grads[0].shape[-1]).to(weight.dtype)
        d_inner = dy @ b_cast
        d_b = (dy.t() @ inner).float().mul_(ctx.scale)
        d_a = (d_inner.t() @ (rows if mask is None else apply_mask(rows, mask))).float()
        d_x = None
        if ctx.needs_input_grad[0]:
            d_x = dy @ weight
            if mask is None:
                d_x.addmm_(d_inner, a_cast)
            else:
                d_x.add_(apply_mask(d_inner @ a_cast, mask))
            d_x = d_x.view(ctx.shape)
        return d_x, None, None, d_a, d_b, None, None


@dataclass
class FusedLora:
    """What :func:`fused_lora` put in place; ``layers`` are the modules whose forward it replaced."""

    key: DropoutKey
    layers: list[nn.Module] = field(default_factory=list)


@contextmanager
def fused_lora(model: nn.Module, dtype: torch.dtype, *, dropout: float, seed: int) -> Iterator[FusedLora]:
    """Replace, while the context lasts, the forward of every plain LoRA layer below ``model``.

    Layers of other kinds (quantised bases, DoRA) keep PEFT's own forward. ``yielded.key`` must be moved on by the
    caller for every micro-batch.
    """
    last = _LastCast(dtype)
    fused = FusedLora(DropoutKey(seed))
    try:
        for module in model.modules():
            if _is_plain(module):
                module.forward = _forward_of(module, dtype, dropout, len(fused.layers), fused.key, last)
                fused.layers.append(module)
        yield fused
    finally:
        last.forget()
        for module in fused.layers:
            del module.forward


def _is_plain(module: Any) -> bool:
    from peft.tuners.lora.layer import Linear

    if type(module) is not Linear or len(module.active_adapters) != 1:
        return False
    # PEFT wraps a base in four bits in the same class; its weight is packed bytes of another shape and type.
    if type(module.get_base_layer().weight) is not nn.Parameter:
        return False
    name = module.active_adapters[0]
    return (
        name in module.lora_A and name not in module.lora_variant and not module.lora_bias[name] and not module.merged
    )


def _forward_of(
    module: Any, dtype: torch.dtype, dropout: float, index: int, key: DropoutKey, last: _LastCast
) -> Callable[[torch.Tensor], torch.Tensor]:
    name = module.active_adapters[0]
    base = module.get_base_layer()
    weight = base.weight.detach().to(dtype)
    if module.fan_in_fan_out:
        weight = weight.t()
    bias = None if base.bias is None else base.bias.detach().to(dtype)
    a, b = module.lora_A[name].weight, module.lora_B[name].weight
    scale = module.scaling[name] / survival(dropout)

    def forward(x: torch.Tensor) -> torch.Tensor:
        x = last(x)
        mask = None
        if dropout:
            mask = keep_mask((x.numel() // x.shape[-1], x.shape[-1]), dropout, key.of(index), x)
        return _LoraProduct.apply(x, weight, bias, a, b, scale, mask)

    return forward
