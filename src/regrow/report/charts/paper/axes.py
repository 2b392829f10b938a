"""Ticks of logarithmic axes."""

from __future__ import annotations

import math


def decades(low: float, high: float) -> list[float]:
    """Return 1, 3, 10, 30, ... times a power of ten between two positive limits; also 2 and 5 where they are close."""
    steps = (1, 3) if high / low > 30 else (1, 2, 5)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [float(step * 10**power) for power in powers for step in steps if low <= step * 10**power <= high]
