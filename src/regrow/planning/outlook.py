"""Slow or stuck: would a capability that the pilots did not bring back come back with more tokens?"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regrow.planning.curves import CEILING, SHAPES
from regrow.planning.likelihood import CurveDraws

Floats = NDArray[np.float64]

HORIZON = 10
"""More tokens: this many times the largest pilot, all from the capability's own pool."""
WORTHWHILE = 0.1
"""Retention that must still be gained up to the horizon for a capability to be slow."""
BACK = 0.9
"""Retention at which a capability counts as recovered."""


class Outlook(NamedTuple):
    """Probabilities that sum to one. ``slow``: at least 0.1 of retention is still gained between the largest pilot and
    ten times its tokens; ``recovered``: not slow, and 0.9 or more is reached there; ``stuck``: neither.
    ``slow_not_stuck`` is slow / (slow + stuck), NaN when both are 0."""

    capability: str
    slow: float
    stuck: float
    recovered: float
    slow_not_stuck: float


def outlooks(drawn: CurveDraws) -> list[Outlook]:
    """Return one Outlook a capability; NaN for one without a retention.

    Where the pilots say little the prior speaks: a curve that has not begun to rise may still do so, at any tau.
    """
    pilots = drawn.pilots
    now, later = (own_pool_retention(drawn, times * pilots.largest) for times in (1, HORIZON))
    found = []
    for c, name in enumerate(pilots.capabilities):
        if not pilots.usable[c]:
            found.append(Outlook(name, np.nan, np.nan, np.nan, np.nan))
            continue
        is_slow = later[:, c] - now[:, c] >= WORTHWHILE
        is_stuck = ~is_slow & (later[:, c] < BACK)
        slow, stuck = float(is_slow.mean()), float(is_stuck.mean())
        either = slow + stuck
        found.append(Outlook(name, slow, stuck, 1 - either, slow / either if either > 0 else np.nan))
    return found


def own_pool_retention(drawn: CurveDraws, tokens: float) -> Floats:
    """Return the drawn retention of each capability after ``tokens`` of its own pool, (draws, C)."""
    curves = drawn.curves
    return np.minimum(CEILING, curves.start + curves.gain * SHAPES[curves.shape].rise(tokens / curves.tau))
