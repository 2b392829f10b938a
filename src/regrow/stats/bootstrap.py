"""Paired bootstraps of two methods over the same items: item-level, and seed-aware.

Both compare summaries of retention (capped mean, worst case, or one capability's) while the unpruned score stays
fixed. The resampled counts of each item multiply the score table, so one matrix product serves all methods and seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from regrow.errors import ConfigError, DataError, did_you_mean
from regrow.stats.resampling import draw_counts, resampled_means, stratified_mean
from regrow.stats.retention import capped_mean, chance_corrected, undefined_reason, worst_case

Floats = NDArray[np.float64]
ById = Mapping[str, "float | Sequence[float]"]
"""Scores by item id: one number, or one a seed."""
Scores = Mapping[str, "ArrayLike | ById"]

ONLY = "score"
"""The capability's name when scores come as a bare array."""


def _mean(retentions: ArrayLike, axis: int = -1) -> Any:
    return np.asarray(retentions, np.float64).mean(axis=axis)


METRICS: dict[str, Callable[..., Any]] = {"capped_mean": capped_mean, "worst_case": worst_case, "mean": _mean}


class Difference(NamedTuple):
    """One metric of method a minus method b.

    ``p_value`` is two-sided, 2 min(P(D <= 0), P(D >= 0)); ``bound`` says that no resample reached zero, so that it
    stands for "below this" (2 / resamples) and must be carried as a bound. ``standard_error`` is the resamples'
    standard deviation. ``reason`` is empty unless the difference is NaN.
    """

    metric: str
    a: float
    b: float
    difference: float
    low: float
    high: float
    standard_error: float
    p_value: float
    bound: bool
    reason: str = ""


class BothBootstraps(NamedTuple):
    """The differences by the item-level and by the seed-aware bootstrap, each by metric."""

    item_level: dict[str, Difference]
    seed_aware: dict[str, Difference]


def paired_bootstrap(
    a: Scores | ArrayLike,
    b: Scores | ArrayLike,
    base: Mapping[str, float] | float,
    *,
    seeds: bool = False,
    metrics: Sequence[str] = ("capped_mean", "worst_case"),
    strata: Mapping[str, Sequence[object]] | None = None,
    floors: Mapping[str, float] | None = None,
    resamples: int = 2000,
    level: float = 0.95,
    generator: np.random.Generator | int = 0,
) -> dict[str, Difference]:
    """Return a - b for each of ``metrics``, with limits and a two-sided p.

    ``a`` and ``b`` map each capability to its item scores, (items,) or (seeds, items), the same items in the same
    order for both, or to scores by item id, which are paired by id (``strata`` then follow ``a``'s order); a bare array
    stands for one capability. ``base`` holds the unpruned scores, fixed throughout.
    ``metrics`` are names of :data:`METRICS` or of capabilities (the retention of that one). ``floors`` turn retention
    into chance-corrected retention; ``strata`` (labels of a capability's items) balance and resample within groups.

    With ``seeds=False`` scores are averaged over seeds and items are resampled within each capability. With
    ``seeds=True`` the seeds of each method are resampled first, by themselves, then the items, so that the limits also
    carry what another training seed would have changed; it needs two seeds or more for each method.

    Raises DataError for unequal items (naming the ids, where there are ids) and for a single seed when ``seeds`` is
    asked. A metric that uses an undefined retention is NaN with the reason.
    """
    _check_numbers(resamples, level)
    pair = _Pair(a, b, base, strata or {}, floors or {})
    pair.check_metrics(metrics)
    if seeds:
        pair.check_seeds()
    rng = np.random.default_rng(generator)
    weights = pair.seed_draws(resamples, rng) if seeds else pair.seed_means(resamples)
    return pair.differences(pair.item_draws(resamples, rng), weights, metrics, level)


def both_bootstraps(
    a: Scores | ArrayLike,
    b: Scores | ArrayLike,
    base: Mapping[str, float] | float,
    *,
    metrics: Sequence[str] = ("capped_mean", "worst_case"),
    strata: Mapping[str, Sequence[object]] | None = None,
    floors: Mapping[str, float] | None = None,
    resamples: int = 2000,
    level: float = 0.95,
    generator: np.random.Generator | int = 0,
) -> BothBootstraps:
    """Return :func:`paired_bootstrap` with and without resampled seeds, from one set of item draws.

    A table that shows both costs half; each of the two is what it would be by itself, on other draws.
    """
    _check_numbers(resamples, level)
    pair = _Pair(a, b, base, strata or {}, floors or {})
    pair.check_metrics(metrics)
    pair.check_seeds()
    rng = np.random.default_rng(generator)
    seed_draws = pair.seed_draws(resamples, rng)
    drawn = pair.item_draws(resamples, rng)
    return BothBootstraps(
        pair.differences(drawn, pair.seed_means(resamples), metrics, level),
        pair.differences(drawn, seed_draws, metrics, level),
    )


def sign_p(differences: ArrayLike) -> tuple[float, bool]:
    """Return (p, bound) of resampled differences: p = 2 min(P(D <= 0), P(D >= 0)), at most 1.

    When one of the two never happened p is 2 / resamples and ``bound`` is True: the true value lies below.
    """
    drawn = np.asarray(differences, np.float64)
    fewer = min(int((drawn <= 0).sum()), int((drawn >= 0).sum()))
    return min(1.0, 2 * max(fewer, 1) / drawn.size), fewer == 0


def _check_numbers(resamples: int, level: float) -> None:
    if resamples < 2:
        raise ConfigError(f"{resamples} resamples are too few", hint="use 2000")
    if not 0 < level < 1:
        raise ConfigError(f"the level of the limits lies between 0 and 1, got {level:g}", hint="use 0.95")


class _Pair:
    """Two methods' score tables by capability, (seeds, items) each, checked to be pairable."""

    def __init__(
        self,
        a: Scores | ArrayLike,
        b: Scores | ArrayLike,
        base: Mapping[str, float] | float,
        strata: Mapping[str, Sequence[object]],
        floors: Mapping[str, float],
    ) -> None:
        a, b = _paired_by_id(a, b)
        self.a, self.b, self.strata = _tables(a), _tables(b), strata
        bases = _bases(base)
        self.names = _paired_names(self.a, self.b, bases)
        _check_tables(self.a, self.b)
        self.base = np.array([bases[name] for name in self.names])
        self.floor = np.array([float(floors.get(name, 0.0)) for name in self.names])
        self.faults = {
            name: reason
            for name, of, under in zip(self.names, self.base, self.floor, strict=True)
            if (reason := undefined_reason(0.0, float(of), float(under)))
        }

    def check_metrics(self, metrics: Sequence[str]) -> None:
        for metric in metrics:
            if metric not in METRICS and metric not in self.names:
                raise ConfigError(f"unknown metric '{metric}'", hint=did_you_mean(metric, [*METRICS, *self.names]))

    def check_seeds(self) -> None:
        if 1 in (_rows(self.a), _rows(self.b)):
            raise DataError(
                "the seed-aware bootstrap needs two seeds or more for each method, got one",
                hint="run more seeds, or use the item-level bootstrap (seeds=False)",
            )

    def item_draws(self, resamples: int, rng: np.random.Generator) -> list[Floats]:
        """Resampled means by capability, (resamples, seeds of a + seeds of b)."""
        return [
            resampled_means(np.concatenate([self.a[name], self.b[name]]), resamples, rng, strata=self.strata.get(name))
            for name in self.names
        ]

    def seed_means(self, resamples: int) -> tuple[Floats, Floats]:
        """Equal weights of the seeds: (resamples, seeds) for each method."""
        one, other = (np.full((resamples, _rows(tables)), 1.0 / _rows(tables)) for tables in (self.a, self.b))
        return one, other

    def seed_draws(self, resamples: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Weights of resampled seeds, drawn for each method by itself."""
        one, other = (draw_counts(_rows(tables), resamples, rng) / _rows(tables) for tables in (self.a, self.b))
        return one, other

    def differences(
        self, drawn: list[Floats], weights: tuple[Floats, Floats], metrics: Sequence[str], level: float
    ) -> dict[str, Difference]:
        split = _rows(self.a)
        kept = [
            self._kept(np.stack([(means[:, :split] * weights[0]).sum(axis=1) for means in drawn], axis=1)),
            self._kept(np.stack([(means[:, split:] * weights[1]).sum(axis=1) for means in drawn], axis=1)),
            self._kept(np.array([self._point(self.a, name) for name in self.names])),
            self._kept(np.array([self._point(self.b, name) for name in self.names])),
        ]
        return {metric: self._difference(metric, kept, level) for metric in metrics}

    def _kept(self, scores: Floats) -> Any:
        return chance_corrected(scores, self.base, self.floor)

    def _point(self, tables: dict[str, Floats], name: str) -> float:
        return stratified_mean(tables[name].mean(axis=0), self.strata.get(name))

    def _difference(self, metric: str, kept: list[Any], level: float) -> Difference:
        if metric in METRICS:
            faults = [f"{name}: {reason}" for name, reason in self.faults.items()]
            drawn_a, drawn_b, point_a, point_b = (METRICS[metric](part) for part in kept)
        else:
            faults = [self.faults[metric]] if metric in self.faults else []
            drawn_a, drawn_b, point_a, point_b = (part[..., self.names.index(metric)] for part in kept)
        if faults:
            nan = math.nan
            return Difference(metric, nan, nan, nan, nan, nan, nan, nan, False, "; ".join(faults))
        moved = drawn_a - drawn_b
        low, high = (float(limit) for limit in np.quantile(moved, [0.5 - level / 2, 0.5 + level / 2]))
        p_value, bound = sign_p(moved)
        error = float(moved.std(ddof=1))
        one, other = float(point_a), float(point_b)
        return Difference(metric, one, other, one - other, low, high, error, p_value, bound)


NAMED_AT_MOST = 5


def _paired_by_id(a: Any, b: Any) -> tuple[Any, Any]:
    """Scores that come by item id as arrays in the order of a's items; others as they are."""
    if not (isinstance(a, Mapping) and isinstance(b, Mapping)):
        return a, b
    first, second = dict(a), dict(b)
    for name in first.keys() & second.keys():
        one, other = first[name], second[name]
        if not isinstance(one, Mapping) and not isinstance(other, Mapping):
            continue
        if not (isinstance(one, Mapping) and isinstance(other, Mapping)):
            raise DataError(f"{name}: one method's scores come by item id, the other's do not", hint="give both by id")
        for only, where in ((one.keys() - other.keys(), "first"), (other.keys() - one.keys(), "second")):
            if only:
                shown = sorted(map(str, only))
                more = f" and {len(shown) - NAMED_AT_MOST} more" if len(shown) > NAMED_AT_MOST else ""
                raise DataError(
                    f"{name}: items only in the {where} method: {', '.join(shown[:NAMED_AT_MOST])}{more}",
                    hint="only runs over the same items can be paired: score both on the same suite and split",
                )
        first[name] = np.array([one[item] for item in one], np.float64).T
        second[name] = np.array([other[item] for item in one], np.float64).T
    return first, second


def _tables(scores: Scores | ArrayLike) -> dict[str, Floats]:
    named = scores if isinstance(scores, Mapping) else {ONLY: scores}
    tables = {name: np.atleast_2d(np.asarray(values, np.float64)) for name, values in named.items()}
    if not tables:
        raise DataError("there are no scores to compare", hint="give at least one capability")
    return tables


def _bases(base: Mapping[str, float] | float) -> dict[str, float]:
    return {name: float(value) for name, value in base.items()} if isinstance(base, Mapping) else {ONLY: float(base)}


def _paired_names(a: dict[str, Floats], b: dict[str, Floats], base: dict[str, float]) -> list[str]:
    if set(a) != set(b) or not set(a) <= set(base):
        odd = sorted((set(a) ^ set(b)) | (set(a) - set(base)))
        raise DataError(f"capabilities differ between the methods: {', '.join(odd)}", hint="compare the same suite")
    return list(a)


def _rows(tables: dict[str, Floats]) -> int:
    return next(iter(tables.values())).shape[0]


def _check_tables(a: dict[str, Floats], b: dict[str, Floats]) -> None:
    for tables in (a, b):
        rows = {table.shape[0] for table in tables.values()}
        if len(rows) > 1:
            raise DataError(f"capabilities have unequal numbers of seeds: {sorted(rows)}", hint="score all seeds alike")
    for name in a:
        if a[name].shape[1] != b[name].shape[1]:
            raise DataError(
                f"{name}: {a[name].shape[1]} items against {b[name].shape[1]}",
                hint="only runs over the same items can be paired",
            )
        if not (np.isfinite(a[name]).all() and np.isfinite(b[name]).all()):
            raise DataError(f"{name}: an item has no score", hint="leave that item out of both methods")
