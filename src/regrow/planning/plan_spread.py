"""The planner's own variability: the plans that curves drawn from the pilots' posterior would each have led to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regrow.planning.curves import Curves
from regrow.planning.likelihood import CurveDraws
from regrow.planning.optimum import Objective, maximise
from regrow.planning.planner import checked_budget, trust_region

Floats = NDArray[np.float64]

DRAWS = 200


@dataclass(frozen=True)
class PlanSpread:
    """Optimal splits of drawn curves, ``tokens`` (draws, P) at ``budget``, at most ``cap`` a pool.

    ``curves`` are those of the capabilities that have a retention.
    """

    pools: tuple[str, ...]
    budget: float
    cap: float
    objective: Objective
    tokens: Floats
    curves: Curves

    def quantiles(self, level: float = 0.9) -> Floats:
        """Return median, lower and upper limit of each pool's tokens, (3, P)."""
        tail = (1 - level) / 2
        return np.asarray(np.quantile(self.tokens, [0.5, tail, 1 - tail], axis=0))

    @property
    def unused(self) -> Floats:
        """Return how often each pool gets less than 1 % of the budget, (P,)."""
        return np.asarray((self.tokens < 0.01 * self.budget).mean(axis=0))

    @property
    def moved(self) -> float:
        """Return the mean share of the budget by which a drawn plan differs from the mean plan (0: always the same
        plan; the plan is then known, whatever the curves are)."""
        return float(np.abs(self.tokens - self.tokens.mean(axis=0)).sum(axis=1).mean() / 2 / self.budget)


def plan_spread(drawn: CurveDraws, budget: float, *, objective: Objective = "sum", draws: int = DRAWS) -> PlanSpread:
    """Return the optimal split under each of the first ``draws`` drawn curves."""
    pilots = drawn.pilots
    pools = len(pilots.pools)
    cap = trust_region(pilots.largest, checked_budget(budget), pools)
    curves = drawn.first(draws).only(pilots.usable)
    if cap <= budget / pools or pools == 1:
        tokens = np.full((len(curves.start), pools), budget / pools)
    else:
        tokens = maximise(curves, budget, cap, objective).tokens
    return PlanSpread(pilots.pools, budget, cap, objective, tokens, curves)
