"""Which device and number format a model gets when the user does not say."""

from __future__ import annotations

import psutil
import torch

from regrow.errors import ConfigError, did_you_mean

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_device(device: str) -> torch.device:
    """Return the device for "auto" (CUDA, else Apple's MPS, else CPU) or the one named; absent ones are refused."""
    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        if torch.backends.mps.is_available():
            return torch.device("mps")
        return torch.device("cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f"unknown device '{device}'", hint="use auto, cpu, cuda, cuda:0 or mps") from error
    present = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not present.get(chosen.type, False):
        raise ConfigError(f"there is no {chosen.type} device on this machine", hint="use --device cpu or --device auto")
    if chosen.type == "cuda" and chosen.index is not None and chosen.index >= torch.cuda.device_count():
        raise ConfigError(f"there is no {device}", hint=f"allowed: cuda:0 to cuda:{torch.cuda.device_count() - 1}")
    return chosen


def choose_dtype(dtype: str, device: torch.device, weight_bytes_float32: int) -> torch.dtype:
    """Return the number format for "auto" or the one named.

    On a CPU float32 is exact and trains stably, so it is taken unless the weights would fill more than two fifths of
    the free memory; accelerators get bfloat16 (float16 on MPS and on GPUs without bfloat16).
    """
    if dtype != "auto":
        if dtype not in DTYPES:
            raise ConfigError(f"unknown dtype '{dtype}'", hint=did_you_mean(dtype, ["auto", *DTYPES]))
        return DTYPES[dtype]
    if device.type == "cpu":
        roomy = weight_bytes_float32 <= 0.4 * psutil.virtual_memory().available
        return torch.float32 if roomy else torch.bfloat16
    if device.type == "cuda" and torch.cuda.is_bf16_supported():
        return torch.bfloat16
    return torch.float16
