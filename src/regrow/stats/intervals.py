"""Intervals for one number: Wilson for a rate, balanced rates, percentile bootstrap for means and perplexity."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from regrow.stats.resampling import draw_counts, pieces, resampled_means, stratified_mean


class Interval(NamedTuple):
    """An estimate with its limits. ``reason`` is empty unless something is NaN."""

    value: float
    low: float
    high: float
    level: float = 0.95
    reason: str = ""


def undefined(reason: str, level: float = 0.95) -> Interval:
    """Return the interval of a number that does not exist, with the reason."""
    return Interval(math.nan, math.nan, math.nan, level, reason)


def wilson(successes: float, n: int, level: float = 0.95) -> Interval:
    """Return the Wilson score interval of a rate of ``successes`` in ``n`` items (Wilson 1927).

    Honest at the edges, where a resampled interval shrinks to nothing: 0 of 60 gives 0 to .06.
    """
    if n <= 0:
        return undefined("no items", level)
    z = float(ndtri(0.5 + level / 2))
    rate = successes / n
    spread = z * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    centre = rate + z * z / (2 * n)
    scale = 1 + z * z / n
    low = 0.0 if successes == 0 else (centre - spread) / scale
    high = 1.0 if successes == n else (centre + spread) / scale
    return Interval(rate, low, high, level)


def balanced_rate(successes: Sequence[float], sizes: Sequence[int], level: float = 0.95) -> Interval:
    """Return the mean of several rates with limits from their Wilson intervals ("square and add", Newcombe 1998).

    Unlike the bootstrap it keeps its width when one rate is 0 and the other 1, as in a model that refuses everything.
    """
    parts = [wilson(x, n, level) for x, n in zip(successes, sizes, strict=True)]
    if not parts or any(part.reason for part in parts):
        return undefined("a group has no items", level)
    k = len(parts)
    value = sum(part.value for part in parts) / k
    below = math.sqrt(sum((part.value - part.low) ** 2 for part in parts)) / k
    above = math.sqrt(sum((part.high - part.value) ** 2 for part in parts)) / k
    return Interval(value, value - below, value + above, level)


def percentile(samples: ArrayLike, value: float, level: float = 0.95) -> Interval:
    """Return ``value`` with the percentile limits of its resampled ``samples``; NaN samples leave it undefined."""
    drawn = np.asarray(samples, np.float64)
    if np.isnan(drawn).any():
        return Interval(value, math.nan, math.nan, level, "some resamples are undefined")
    low, high = np.quantile(drawn, [0.5 - level / 2, 0.5 + level / 2])
    return Interval(value, float(low), float(high), level)


def mean_interval(
    values: ArrayLike,
    generator: np.random.Generator,
    *,
    strata: Sequence[object] | None = None,
    resamples: int = 2000,
    level: float = 0.95,
) -> Interval:
    """Return the mean of item scores with its percentile bootstrap limits.

    With ``strata`` (one label an item: unsafe, benign) it is the mean of the strata's means, each resampled by itself.
    """
    scores = np.asarray(values, np.float64)
    if scores.size == 0:
        return undefined("no items", level)
    drawn = resampled_means(scores, resamples, generator, strata=strata)[:, 0]
    return percentile(drawn, stratified_mean(scores, strata), level)


def perplexity_interval(
    negative_log_likelihoods: ArrayLike,
    tokens: ArrayLike,
    generator: np.random.Generator,
    *,
    resamples: int = 2000,
    level: float = 0.95,
) -> Interval:
    """Return exp(total NLL / total tokens) with percentile limits from resampled windows.

    Both arrays have one entry a window: the summed NLL in nats and the number of predicted tokens, so that a short last
    window counts for what it holds.
    """
    nll = np.asarray(negative_log_likelihoods, np.float64)
    size = np.asarray(tokens, np.float64)
    if nll.size == 0 or size.sum() <= 0:
        return undefined("no predicted tokens", level)
    drawn = resampled_perplexities(nll, size, resamples, generator)[:, 0]
    return percentile(drawn, float(np.exp(nll.sum() / size.sum())), level)


def resampled_perplexities(
    negative_log_likelihoods: ArrayLike, tokens: ArrayLike, resamples: int, generator: np.random.Generator
) -> NDArray[np.float64]:
    """Return perplexities of resampled windows, (resamples, models).

    ``negative_log_likelihoods`` is (models, windows), in nats, summed over the window's ``tokens`` (windows,). All
    models see the same drawn windows, so that ratios of columns keep the pairing.
    """
    nll = np.atleast_2d(np.asarray(negative_log_likelihoods, np.float64))
    size = np.asarray(tokens, np.float64)
    drawn = np.empty((resamples, nll.shape[0]))
    for start, stop in pieces(resamples, size.size):
        counts = draw_counts(size.size, stop - start, generator)
        drawn[start:stop] = np.exp(counts @ nll.T / (counts @ size)[:, None])
    return drawn
