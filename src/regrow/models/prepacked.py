"""Linear layers with their weights laid out for the processor before they are used, while nothing is trained.

A matrix product rearranges its weights into blocks first. For the few rows of a decoding step that takes as long as the
product, and it is the same work in every step. Done once, in float32 on x86, it makes the layers of SmolLM2-135M up to
three times as fast (benchmarks/prepacked.py): by compiled loops of our own on a processor with AVX2
(packed_product.py), by oneDNN on others. The products are those of PyTorch up to rounding. The price is a second copy
of the weights, so it is done only where memory is plentiful.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import torch
from torch.nn.functional import linear

from regrow.models.packed_product import packed_products

ROWS_HINT = 32
"""Rows of the products for which the layout is chosen: of 1, 32 and 512 the best or close to it for 1 to 2,048 rows."""

MEMORY_SHARE = 0.5
"""Part of the free memory that the second copy may take."""


@contextmanager
def prepacked(model: torch.nn.Module) -> Iterator[int]:
    """Run the block with prepacked linear layers where that helps; yields the number of layers concerned.

    Only plain ``torch.nn.Linear`` layers in float32 on an x86 processor are touched, each when it is first used, and
    only outside of training and autocast. Weights must not change inside the
    block, nor the model be copied. Within another such block: none.
    """
    layers = _eligible(model)
    try:
        for layer in layers:
            layer.forward = _forward(layer)  # type: ignore[method-assign, assignment]
        yield len(layers)
    finally:
        for layer in layers:
            del layer.forward


def _eligible(model: torch.nn.Module) -> list[torch.nn.Linear]:
    if not (torch.backends.mkldnn.is_available() and platform.machine() in ("x86_64", "AMD64")):
        return []
    if not (hasattr(torch.ops.mkldnn, "_reorder_linear_weight") and hasattr(torch.ops.mkldnn, "_linear_pointwise")):
        return []
    found = [
        layer
        for layer in model.modules()
        if type(layer) is torch.nn.Linear
        and "forward" not in layer.__dict__
        and layer.weight.device.type == "cpu"
        and layer.weight.dtype == torch.float32
        and layer.weight.numel() > 0
    ]
    size = sum(layer.weight.numel() * 4 for layer in found)
    return found if size <= MEMORY_SHARE * psutil.virtual_memory().available else []


def _forward(layer: torch.nn.Linear) -> Callable[[torch.Tensor], torch.Tensor]:
    compiled = packed_products()
    if compiled is not None and not compiled.suits(layer.weight):
        compiled = None
    packed: list[Any] = []

    def forward(input: torch.Tensor) -> torch.Tensor:
        weight = layer.weight
        # oneDNN reads a bias as if it had no strides.
        bias = layer.bias if layer.bias is None else layer.bias.contiguous()
        if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or input.numel() == 0:
            return linear(input, weight, bias)
        if compiled is not None:
            if not compiled.takes(input, weight, bias):
                return linear(input, weight, bias)
            if not packed:
                packed.append(compiled.packed(weight.detach()))
            return compiled.product(input, packed[0], bias)
        if not packed:
            packed.append(torch.ops.mkldnn._reorder_linear_weight(weight.detach(), ROWS_HINT))
        return torch.ops.mkldnn._linear_pointwise(input, packed[0], bias, "none", [], "")

    return forward
