"""Table 2: the same uniform mixture trained under each scope."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import polars

from regrow.report.paper.comparisons import SCOPES, Compared, compare, corrected
from regrow.report.paper.families import HOME_SCOPE, UNIFORM, Family, Method
from regrow.report.paper.frames import frame_of
from regrow.report.scored import Drawing
from regrow.stats.retention import capped_mean, worst_case


class Scoped(NamedTuple):
    """The uniform mixture under one scope. ``capped_mean`` and ``worst_case`` of the scores averaged over seeds, with
    their SD from seed to seed (NaN for one seed). ``difference`` is the capped mean minus all-lora's, with limits and
    its p."""

    family: str
    scope: str
    budget: int
    seeds: int
    capped_mean: float
    capped_mean_sd: float
    worst_case: float
    worst_case_sd: float
    difference: float
    low: float
    high: float
    p_value: float
    bound: bool
    holm: float
    holm_bound: bool
    best: bool
    runs: str


def scope_frame(families: Sequence[Family], budget: int, drawing: Drawing) -> polars.DataFrame:
    """Return one row a family and scope, where a family was healed under two scopes or more at the budget. The tests
    against all-lora are corrected together."""
    tests: list[Compared] = []
    methods: list[tuple[Family, Method, int | None]] = []
    for family in families:
        scopes = family.find(UNIFORM, budget)
        if len(scopes) < 2:
            continue
        home = family.uniform(budget)
        for method in sorted(scopes, key=lambda m: (m.scope != HOME_SCOPE, m.scope)):
            place = None
            if home is not None and method is not home:
                place = len(tests)
                tests.append(compare(family, SCOPES, method, home, drawing, tokens=(budget, budget))[0])
            methods.append((family, method, place))
    known = corrected(tests)
    best = {family.name: max(family.capped(m) for f, m, _ in methods if f is family) for family, _, _ in methods}
    return frame_of(
        Scoped,
        [_row(family, m, known[at] if at is not None else None, best[family.name]) for family, m, at in methods],
    )


def _row(family: Family, method: Method, test: Compared | None, best: float) -> Scoped:
    nan = math.nan
    value = family.capped(method)
    capped_sd, worst_sd = seed_spread(family, method)
    limits = (nan, nan, nan, nan, False, nan, False)
    if test is not None:
        seeded = math.isfinite(test.p_seed)
        p_value, bound = (test.p_seed, test.bound_seed) if seeded else (test.p_item, test.bound_item)
        adjusted = (test.holm_seed, test.holm_bound_seed) if seeded else (test.holm_item, test.holm_bound_item)
        limits = (test.difference, test.low, test.high, p_value, bound, *adjusted)
    return Scoped(
        family.name,
        method.scope,
        method.budget,
        method.seeds,
        value,
        capped_sd,
        family.worst(method),
        worst_sd,
        *limits,
        best - value < 1e-12,
        f"{family.base.places}; {method.places}",
    )


def seed_spread(family: Family, method: Method, *, corrected: bool = False) -> tuple[float, float]:
    """Return the standard deviation from seed to seed of capped mean and worst case; NaN for one seed."""
    if method.seeds < 2:
        return math.nan, math.nan
    kept = family.kept(method, corrected=corrected)
    return float(np.std(capped_mean(kept), ddof=1)), float(np.std(worst_case(kept), ddof=1))
