"""From numbers to decisions: corrected p values, paired tests, equivalence, and what a test could have seen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtr, ndtr, ndtri, stdtr, stdtrit

from regrow.errors import ConfigError, DataError

Floats = NDArray[np.float64]


class Holm(NamedTuple):
    """Adjusted p values in the order given. Where ``bounds`` is True the value is an upper bound ("below this")."""

    adjusted: Floats
    bounds: NDArray[np.bool_]
    rejected: NDArray[np.bool_]


def holm(p_values: ArrayLike, *, bounds: ArrayLike | float | None = None, alpha: float = 0.05) -> Holm:
    """Return Holm's step-down adjustment of one family of tests (Holm 1979).

    ``bounds`` is for resampling tests whose count was zero. A mask (one boolean a test) marks p values that are upper
    bounds; a number, or one number a test, replaces each p of exactly 0 and marks it. A bound stays a bound under
    adjustment: .001 in a family of 28 becomes .028, "at most". NaN tests stay NaN and do not count in the family.
    """
    raw = np.atleast_1d(np.asarray(p_values, np.float64)).copy()
    marked = np.zeros(raw.shape, bool)
    if bounds is not None:
        given = np.asarray(bounds)
        if given.dtype == bool:
            marked = np.broadcast_to(given, raw.shape).copy()
        else:
            marked = raw == 0
            raw = np.where(marked, np.broadcast_to(given.astype(np.float64), raw.shape), raw)
    if ((raw < 0) | (raw > 1)).any():
        raise DataError("p values lie between 0 and 1", hint="check the order of the arguments")
    adjusted = np.full(raw.shape, np.nan)
    defined = np.flatnonzero(~np.isnan(raw))
    # A bound sorts before an equal exact value: the true p lies below it.
    order = defined[np.lexsort((~marked[defined], raw[defined]))]
    highest, from_bound = 0.0, False
    for place, test in enumerate(order):
        scaled = min(1.0, raw[test] * (order.size - place))
        if scaled > highest:
            highest, from_bound = scaled, bool(marked[test])
        adjusted[test] = highest
        marked[test] = from_bound and highest < 1
    return Holm(adjusted, marked, adjusted <= alpha)


def holm_by_family(
    p_values: ArrayLike, families: Sequence[str], *, bounds: ArrayLike | None = None, alpha: float = 0.05
) -> Holm:
    """Return Holm's adjustment within each named family, in the order given; ``bounds`` is a mask as in holm."""
    raw = np.asarray(p_values, np.float64)
    mask = np.zeros(raw.shape, bool) if bounds is None else np.asarray(bounds, bool)
    adjusted, marked = np.full(raw.shape, np.nan), np.zeros(raw.shape, bool)
    names = np.array(families)
    for family in dict.fromkeys(families):
        members = names == family
        part = holm(raw[members], bounds=mask[members], alpha=alpha)
        adjusted[members], marked[members] = part.adjusted, part.bounds
    return Holm(adjusted, marked, adjusted <= alpha)


def mcnemar(broke: int, came_back: int) -> float:
    """Return the exact two-sided p of McNemar's test for right/wrong items scored twice.

    ``broke`` counts items right the first time only, ``came_back`` those right the second time only; items that agree
    say nothing. 1 when no item changed.
    """
    if min(broke, came_back) < 0:
        raise DataError(
            f"counts of items cannot be negative, got {broke} and {came_back}", hint="count the changed items"
        )
    changed = broke + came_back
    if changed == 0:
        return 1.0
    return min(1.0, 2.0 * float(bdtr(min(broke, came_back), changed, 0.5)))


def sign_flip(differences: ArrayLike, *, resamples: int = 10_000, generator: np.random.Generator | int = 0) -> float:
    """Return the two-sided p of paired item differences of any size: their signs are flipped at random.

    The counterpart of :func:`mcnemar` for graded scores; (1 + hits) / (1 + resamples).
    """
    moved = np.asarray(differences, np.float64)
    if resamples < 1:
        raise ConfigError(f"{resamples} resamples are too few", hint="use 10000")
    moved = moved[moved != 0]
    if moved.size == 0:
        return 1.0
    rng = np.random.default_rng(generator)
    signs = rng.integers(0, 2, size=(resamples, moved.size), dtype=np.int8) * 2.0 - 1.0
    hits = int((np.abs(signs @ moved) >= abs(moved.sum()) - 1e-9).sum())
    return (1 + hits) / (1 + resamples)


class Equivalence(NamedTuple):
    """``p_value`` is the larger of the two one-sided tests; ``low``/``high`` the interval they amount to (90 %)."""

    equivalent: bool
    p_value: float
    difference: float
    low: float
    high: float
    margin: float
    reason: str = ""


def tost(
    difference: float,
    standard_error: float,
    margin: float,
    *,
    degrees_of_freedom: float = math.inf,
    alpha: float = 0.05,
) -> Equivalence:
    """Return whether a difference is shown to lie within +-``margin`` (two one-sided tests, Schuirmann 1987).

    "No difference detected" is not this: only a small p here says that the two are as good as equal. ``margin`` is in
    the difference's unit and must be chosen before looking. A standard error of 0 (no item changed) proves nothing
    about other items and is NaN with the reason.
    """
    if margin <= 0:
        raise DataError(f"the equivalence margin must be above 0, got {margin:g}", hint="for example 0.05")
    if not (standard_error > 0 and math.isfinite(difference)):
        nan = math.nan
        return Equivalence(False, nan, difference, nan, nan, margin, "the standard error is 0 or undefined")
    normal = math.isinf(degrees_of_freedom)
    above, below = (-(difference + margin) / standard_error, (difference - margin) / standard_error)
    above, below = (float(ndtr(z) if normal else stdtr(degrees_of_freedom, z)) for z in (above, below))
    reach = float(ndtri(1 - alpha) if normal else stdtrit(degrees_of_freedom, 1 - alpha)) * standard_error
    p_value = max(above, below)
    return Equivalence(p_value <= alpha, p_value, difference, difference - reach, difference + reach, margin)


def paired_standard_error(differences: ArrayLike) -> float:
    """Return the standard error of the mean of paired item differences; NaN for fewer than two items."""
    moved = np.asarray(differences, np.float64)
    return float(moved.std(ddof=1) / math.sqrt(moved.size)) if moved.size > 1 else math.nan


def smallest_detectable_difference(standard_error: float, *, alpha: float = 0.05, power: float = 0.8) -> float:
    """Return the true difference that a two-sided test of this precision finds with probability ``power``.

    Smaller ones are likely to end as "no difference detected".
    """
    return float(ndtri(1 - alpha / 2) + ndtri(power)) * standard_error


def discordant_standard_error(items: int, discordant: float) -> float:
    """Return the standard error of a paired difference of rates when ``discordant`` (a share) of items change.

    For planning a study before any item is scored: the difference itself is taken as small against the changes.
    """
    return math.sqrt(discordant / items) if items > 0 else math.nan


def family_sizes(families: Sequence[str]) -> Mapping[str, int]:
    """Return how many tests each named family holds, in order of first appearance."""
    return {family: families.count(family) for family in dict.fromkeys(families)}
