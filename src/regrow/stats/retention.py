"""Retention: what part of the unpruned score a model still has, and its two summaries over capabilities."""

from __future__ import annotations

from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


@overload
def retention(score: float, base: float) -> float: ...
@overload
def retention(score: ArrayLike, base: ArrayLike) -> Any: ...
def retention(score: ArrayLike, base: ArrayLike) -> Any:
    """Return score / base: 1 where nothing was lost, above 1 where the model got better.

    ``score`` and ``base`` (the unpruned score) are numbers or arrays that broadcast. NaN where ``base`` is 0 or not
    finite; :func:`undefined_reason` says why.
    """
    return chance_corrected(score, base, 0.0)


@overload
def chance_corrected(score: float, base: float, floor: float) -> float: ...
@overload
def chance_corrected(score: ArrayLike, base: ArrayLike, floor: ArrayLike) -> Any: ...
def chance_corrected(score: ArrayLike, base: ArrayLike, floor: ArrayLike) -> Any:
    """Return (score - floor) / (base - floor): retention of what lies above guessing.

    ``floor`` is the score of a model that knows nothing (.25 with four choices, .5 for a balanced refusal score, 0
    where nothing can be guessed). Negative when the score fell below guessing. NaN where the unpruned score does not
    exceed the floor: there was then nothing to keep.
    """
    s, b, k = np.broadcast_arrays(*(np.asarray(part, np.float64) for part in (score, base, floor)))
    above = b - k
    defined = np.isfinite(above) & np.isfinite(s) & (above > 0)
    kept = np.full(s.shape, np.nan)
    np.divide(s - k, above, out=kept, where=defined)
    return kept if kept.ndim else float(kept)


def undefined_reason(score: float, base: float, floor: float = 0.0) -> str:
    """Return why a retention is NaN, in words that fit a table's footnote; "" when it is defined."""
    if not np.isfinite(score):
        return "the model has no score"
    if not np.isfinite(base):
        return "the unpruned model has no score"
    if base - floor <= 0:
        return "the unpruned score is 0" if floor == 0 else f"the unpruned score does not exceed chance ({floor:g})"
    return ""


def capped_mean(retentions: ArrayLike, axis: int = -1) -> Any:
    """Return the mean of min(retention, 1) over capabilities (``axis``): a gain on one cannot hide a loss on another.

    NaN when a retention is NaN, or when there is none: leave undefined capabilities out on purpose, and say so.
    """
    kept = np.asarray(retentions, np.float64)
    return _plain(np.minimum(kept, 1.0).mean(axis=axis) if kept.shape[axis] else _undefined(kept, axis))


def worst_case(retentions: ArrayLike, axis: int = -1) -> Any:
    """Return the smallest retention over capabilities (``axis``); NaN when one is NaN, or when there is none."""
    kept = np.asarray(retentions, np.float64)
    return _plain(kept.min(axis=axis) if kept.shape[axis] else _undefined(kept, axis))


def _undefined(kept: Floats, axis: int) -> Floats:
    return np.full(np.delete(kept.shape, axis), np.nan)


def _plain(value: Any) -> Any:
    return value if np.ndim(value) else float(value)
