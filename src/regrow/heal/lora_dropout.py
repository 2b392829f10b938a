"""Dropout masks that are cheap to draw and depend on a key alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

_STEPS = 1 << 16
_INTEGER = {2: torch.int16, 4: torch.int32}


def keep_mask(shape: Sequence[int], dropout: float, key: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    """Return an integer mask of ``shape`` for values of the type and device of ``like``: all bits set where a value is
    kept, none where it is dropped.

    The probability is a multiple of 1/65536, the nearest to ``dropout``. The same key gives the same mask (on CPUs: on
    every machine and number of threads), so nothing has to be stored to draw it again. On a CPU, sixteen random bits a
    value, taken from whole machine words, cost a tenth of torch's Bernoulli draws; other devices draw where they are.
    """
    bits = (
        _bits_from_words(shape, dropout, key)
        if like.device.type == "cpu"
        else _bits_on(like.device, shape, dropout, key)
    )
    return bits.to(_INTEGER[like.element_size()]).neg_()


def _bits_from_words(shape: Sequence[int], dropout: float, key: Sequence[int]) -> torch.Tensor:
    count = math.prod(shape)
    words = np.random.Generator(np.random.SFC64(list(key))).integers(
        0, 2**64, size=-(-count // 4), dtype=np.uint64, endpoint=False
    )
    kept = words.view(np.uint16)[:count] >= round(dropout * _STEPS)
    return torch.from_numpy(kept.view(np.int8)).view(tuple(shape))


def _bits_on(device: torch.device, shape: Sequence[int], dropout: float, key: Sequence[int]) -> torch.Tensor:
    seed = int(np.random.SeedSequence(list(key)).generate_state(1, np.uint64)[0] >> np.uint64(1))
    generator = torch.Generator(device).manual_seed(seed)
    drawn = torch.randint(0, _STEPS, tuple(shape), generator=generator, device=device, dtype=torch.int32)
    return drawn >= round(dropout * _STEPS)


def apply_mask(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the values with the dropped ones set to zero (bitwise, so it is as fast as a copy)."""
    return (values.view(mask.dtype) & mask).view(values.dtype)


def survival(dropout: float) -> float:
    """Return the exact probability that :func:`keep_mask` keeps a value."""
    return 1.0 - round(dropout * _STEPS) / _STEPS
