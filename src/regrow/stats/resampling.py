"""Resampling of items: how often each one is drawn, for many resamples at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from regrow.errors import DataError

Floats = NDArray[np.float64]

CELLS_AT_ONCE = 32_000
"""Drawn numbers held at a time: they stay in the processor's cache, which makes this twice as fast as one large piece,
and memory does not grow with the number of resamples."""


def draw_counts(units: int, resamples: int, generator: np.random.Generator) -> Floats:
    """Return how often each of ``units`` is drawn when as many are drawn with replacement: shape (resamples, units)."""
    narrow = np.uint16 if units <= 2**16 else np.uint32  # fewer random bits, a third faster
    draws = generator.integers(0, units, size=(resamples, units), dtype=narrow).astype(np.intp)
    draws += np.arange(resamples, dtype=np.intp)[:, None] * units
    counted = np.bincount(draws.ravel(), minlength=resamples * units)
    return counted.reshape(resamples, units).astype(np.float64)


def resampled_means(
    values: ArrayLike, resamples: int, generator: np.random.Generator, *, strata: Sequence[object] | None = None
) -> Floats:
    """Return the means of resampled items, shape (resamples, series).

    ``values`` is (series, items): every series (a stage, a method, a seed) sees the same drawn items, which keeps the
    pairing. With ``strata`` (one label an item) each stratum is drawn by itself and the strata count equally, as in
    the balanced refusal score.
    """
    table = np.atleast_2d(np.asarray(values, np.float64))
    groups = strata_of(table.shape[1], strata)
    means = np.zeros((resamples, table.shape[0]))
    for members in groups:
        series = table[:, members].T
        for start, stop in pieces(resamples, members.size):
            counts = draw_counts(members.size, stop - start, generator)
            means[start:stop] += counts @ series / (members.size * len(groups))
    return means


def stratified_mean(values: ArrayLike, strata: Sequence[object] | None = None) -> float:
    """Return the mean of ``values`` (items,), or with ``strata`` the mean of the strata's means."""
    scores = np.asarray(values, np.float64)
    return float(np.mean([scores[members].mean() for members in strata_of(scores.size, strata)]))


def strata_of(items: int, strata: Sequence[object] | None) -> list[NDArray[np.intp]]:
    """Return the item indices of each stratum, in order of first appearance (one stratum when ``strata`` is None)."""
    if items == 0:
        raise DataError("there are no items to resample", hint="check that the evaluation scored any")
    if strata is None:
        return [np.arange(items)]
    if len(strata) != items:
        raise DataError(f"{len(strata)} stratum labels for {items} items", hint="give one label for each item")
    labels = list(dict.fromkeys(strata))
    return [np.array([i for i, label in enumerate(strata) if label == wanted], np.intp) for wanted in labels]


def pieces(resamples: int, width: int) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) ranges of resamples whose drawn numbers fit in memory together."""
    step = max(1, CELLS_AT_ONCE // max(1, width))
    for start in range(0, resamples, step):
        yield start, min(start + step, resamples)
