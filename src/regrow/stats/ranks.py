"""Do families agree on the order of capabilities? Kendall's coefficient of concordance."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from regrow.errors import DataError

Floats = NDArray[np.float64]

CELLS_AT_ONCE = 2_000_000


class KendallsW(NamedTuple):
    """``w`` is 1 for one common order and 0 for none; ``mean_ranks`` has one entry a column, 1 = lowest score."""

    w: float
    p_value: float
    mean_ranks: tuple[float, ...]


def kendalls_w(scores: ArrayLike, *, permutations: int = 20_000, generator: np.random.Generator | int = 0) -> KendallsW:
    """Return Kendall's W over the rows of ``scores`` (families, capabilities), corrected for ties.

    Each row is ranked upwards (the lowest retention, the worst damage, has rank 1; ties share their mean rank). The p
    value comes from permuting every row by itself, (1 + hits) / (1 + permutations); the chi-square approximation is
    poor for so few families. W and p are NaN when every row is one big tie. Raises DataError for fewer than two rows
    or columns and for scores that are not finite.
    """
    table = np.asarray(scores, np.float64)
    if table.ndim != 2 or table.shape[0] < 2 or table.shape[1] < 2:
        raise DataError(
            f"Kendall's W compares rankings of at least two families over at least two capabilities, got {table.shape}",
            hint="give one row for each family",
        )
    if not np.isfinite(table).all():
        row, column = (int(index) for index in np.argwhere(~np.isfinite(table))[0])
        raise DataError(f"the score in row {row}, column {column} is not a number", hint="leave that column out")
    ranks = _ranks(table)
    families, columns = ranks.shape
    largest = families**2 * (columns**3 - columns) - families * _tie_term(ranks)
    mean_ranks = tuple(float(rank) for rank in ranks.mean(axis=0))
    if largest <= 0:
        return KendallsW(np.nan, np.nan, mean_ranks)
    observed = _spread(ranks.sum(axis=0))
    hits = _as_extreme(ranks, observed, permutations, np.random.default_rng(generator))
    return KendallsW(float(12 * observed / largest), (1 + hits) / (1 + permutations), mean_ranks)


def _ranks(table: Floats) -> Floats:
    """Ranks within each row, 1 = lowest; ties share the mean of the ranks they take."""
    below = (table[:, None, :] < table[:, :, None]).sum(axis=2)
    equal = (table[:, None, :] == table[:, :, None]).sum(axis=2)
    return np.asarray(below + (equal + 1) / 2, np.float64)


def _tie_term(ranks: Floats) -> float:
    total = 0.0
    for row in ranks:
        sizes = np.unique(row, return_counts=True)[1]
        total += float((sizes**3 - sizes).sum())
    return total


def _spread(rank_sums: Floats) -> Floats:
    """Squared deviations of rank sums (..., columns) from their mean, summed."""
    spread: Floats = ((rank_sums - rank_sums.mean(axis=-1, keepdims=True)) ** 2).sum(axis=-1)
    return spread


def _as_extreme(ranks: Floats, observed: Floats, permutations: int, rng: np.random.Generator) -> int:
    step = max(1, CELLS_AT_ONCE // ranks.size)
    hits = 0
    for start in range(0, permutations, step):
        many = np.broadcast_to(ranks, (min(step, permutations - start), *ranks.shape))
        sums = rng.permuted(many, axis=2).sum(axis=1)
        # Rank sums are exact halves, so a hair of slack only guards the squares of their mean.
        hits += int((_spread(sums) >= observed - 1e-9).sum())
    return hits
