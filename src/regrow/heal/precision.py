"""The number format in which a healing run multiplies matrices; trained weights are float32 in any case."""

from __future__ import annotations

from typing import Any

import torch

from regrow.errors import ConfigError, did_you_mean

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def choose_precision(precision: str, model: Any) -> torch.dtype:
    """Return the format for "auto", or the one named.

    "auto" is bfloat16 when the weights are bfloat16 already or the device multiplies bfloat16 matrices in hardware
    (measured on one core with avx512_bf16: twice the products per second of float32), else float32. It depends on the
    machine alone, never on a timing, so that a run can be repeated.
    """
    if precision != "auto":
        if precision not in PRECISIONS:
            raise ConfigError(f"unknown precision '{precision}'", hint=did_you_mean(precision, ["auto", *PRECISIONS]))
        return PRECISIONS[precision]
    weight = next(model.parameters())
    if weight.dtype == torch.bfloat16 or multiplies_bfloat16(weight.device):
        return torch.bfloat16
    return torch.float32


def multiplies_bfloat16(device: torch.device) -> bool:
    """Return whether ``device`` has instructions that multiply bfloat16 matrices (no emulation)."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    if device.type == "cpu":
        return any(_cpu_has(name) for name in ("_is_amx_tile_supported", "_is_avx512_bf16_supported"))
    return False


def _cpu_has(question: str) -> bool:
    ask = getattr(torch.cpu, question, None)
    return bool(ask()) if ask is not None else False
