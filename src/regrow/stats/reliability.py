"""Does confidence mean what it says? Reliability bins and the expected calibration error."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from regrow.errors import DataError


class ReliabilityBin(NamedTuple):
    """Items whose confidence lies in (``low``, ``high``]: number, mean confidence, share right (NaN when none)."""

    low: float
    high: float
    items: int
    confidence: float
    accuracy: float


class Reliability(NamedTuple):
    """Equal-width bins over 0..1 and the ``ece``: |accuracy - confidence| averaged over items."""

    ece: float
    bins: tuple[ReliabilityBin, ...]


def reliability(confidence: ArrayLike, right: ArrayLike, *, bins: int = 10) -> Reliability:
    """Return the reliability bins of ``confidence`` (items,) in 0..1 against ``right`` (items,), 0 or 1.

    The ECE is NaN without items.
    """
    sure, hit = np.asarray(confidence, np.float64), np.asarray(right, np.float64)
    if sure.shape != hit.shape or ((sure < 0) | (sure > 1)).any():
        raise DataError("confidences must lie in 0..1, one for each item", hint="check the knowledge scorer")
    place = np.clip(np.ceil(sure * bins).astype(int) - 1, 0, bins - 1)
    rows, gap = [], 0.0
    for index in range(bins):
        members = place == index
        count = int(members.sum())
        mean = float(sure[members].mean()) if count else math.nan
        share = float(hit[members].mean()) if count else math.nan
        gap += count * abs(mean - share) if count else 0.0
        rows.append(ReliabilityBin(index / bins, (index + 1) / bins, count, mean, share))
    return Reliability(gap / sure.size if sure.size else math.nan, tuple(rows))
