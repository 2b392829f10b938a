"""How far a model's confidence can be trusted."""

from __future__ import annotations

import math
from collections.abc import Sequence


def expected_calibration_error(confidences: Sequence[float], right: Sequence[float], *, bins: int = 10) -> float:
    """Return the ECE: the mean, weighted by count, over equal bins of |share right - mean confidence|.

    Bin k of n holds confidences in (k/n, (k+1)/n], the first one 0 as well. NaN when there are no answers (Naeini et
    al. 2015; Guo et al. arXiv 1706.04599). Raises ValueError when the lengths differ or a confidence is not in 0..1.
    """
    if len(confidences) != len(right):
        raise ValueError(f"{len(confidences)} confidences for {len(right)} answers")
    if not all(0.0 <= confidence <= 1.0 for confidence in confidences):
        raise ValueError("a confidence lies outside 0..1")
    if not confidences:
        return math.nan
    sums: dict[int, list[float]] = {}
    for confidence, correct in zip(confidences, right):
        place = max(0, math.ceil(confidence * bins) - 1)
        held = sums.setdefault(place, [0.0, 0.0])
        held[0] += confidence
        held[1] += correct
    return math.fsum(abs(correct - sure) for sure, correct in sums.values()) / len(confidences)
