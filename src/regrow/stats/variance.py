"""How much of the spread of a result each factor of a crossed design explains."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regrow.stats.intervals import Interval, percentile, undefined

Floats = NDArray[np.float64]


class VarianceShare(NamedTuple):
    """The share of the total sum of squares that ``factor`` explains (eta squared), with bootstrap limits.

    ``chance`` is the share that it would explain on average if it had no effect: its degrees of freedom over all.
    """

    factor: str
    share: Interval
    chance: float


def variance_shares(
    values: Mapping[tuple[str, str], Sequence[float]],
    *,
    factors: tuple[str, str] = ("calibration", "search"),
    level: float = 0.95,
    resamples: int = 2_000,
    generator: np.random.Generator | int = 0,
) -> list[VarianceShare]:
    """Return the shares of two crossed factors, of their interaction and of the seeds, which sum to 1.

    ``values`` maps (level of the first factor, level of the second) to one value per seed; every cell needs the same
    number. Limits: percentile bootstrap, seeds drawn anew within every cell. With one seed a cell, the interaction
    cannot be told from noise and is reported as "seed". Undefined (with the reason) when all values are equal.
    Raises ValueError when a cell is missing or the cells differ in size.
    """
    rows, columns = (list(dict.fromkeys(key[place] for key in values)) for place in (0, 1))
    missing = [key for key in product(rows, columns) if key not in values]
    if missing:
        raise ValueError(f"no value for {missing[0]}")
    sizes = {len(seeds) for seeds in values.values()}
    if len(sizes) != 1 or sizes == {0}:
        raise ValueError(f"every cell needs the same number of seeds, got {sorted(sizes)}")
    table_RCS: Floats = np.array([[values[row, column] for column in columns] for row in rows], dtype=float)
    seeds = table_RCS.shape[2]
    names = [factors[0], factors[1], f"{factors[0]} x {factors[1]}", "seed"]
    freedom = [
        len(rows) - 1,
        len(columns) - 1,
        (len(rows) - 1) * (len(columns) - 1),
        len(rows) * len(columns) * (seeds - 1),
    ]
    observed = _shares(table_RCS)
    rng = np.random.default_rng(generator)
    drawn = np.array([_shares(_resampled(table_RCS, rng)) for _ in range(resamples)]) if seeds > 1 else None
    found = []
    for place, name in enumerate(names):
        if seeds == 1 and place == 2:
            continue
        at = 2 if seeds == 1 and place == 3 else place
        value = float(observed[at])
        if not math.isfinite(value):
            share = undefined("all values are equal", level)
        elif drawn is None:
            share = Interval(value, math.nan, math.nan, level, "one seed: no limits")
        else:
            usable = drawn[np.isfinite(drawn[:, at]), at]
            share = percentile(usable, value, level) if len(usable) else Interval(value, math.nan, math.nan, level)
        found.append(VarianceShare(name, share, freedom[at] / sum(freedom) if sum(freedom) else math.nan))
    return found


def _shares(table_RCS: Floats) -> Floats:
    mean = table_RCS.mean()
    cells = table_RCS.mean(axis=2)
    rows, columns = cells.mean(axis=1), cells.mean(axis=0)
    per_row, per_column, per_cell = (table_RCS.size / len(rows), table_RCS.size / len(columns), table_RCS.shape[2])
    sums = np.array(
        [
            per_row * ((rows - mean) ** 2).sum(),
            per_column * ((columns - mean) ** 2).sum(),
            per_cell * ((cells - rows[:, None] - columns[None] + mean) ** 2).sum(),
            ((table_RCS - cells[:, :, None]) ** 2).sum(),
        ]
    )
    total = ((table_RCS - mean) ** 2).sum()
    if total <= 1e-24 * max(1.0, mean**2):
        return np.full(4, math.nan)
    shares: Floats = sums / total
    return shares


def _resampled(table_RCS: Floats, rng: np.random.Generator) -> Floats:
    chosen = rng.integers(table_RCS.shape[2], size=table_RCS.shape)
    return np.take_along_axis(table_RCS, chosen, axis=2)
