"""The split of a budget as the study computes it: sequential quadratic programming from fixed starts, the best kept.

SciPy's SLSQP at its default tolerance on the shares of the budget, started from the uniform split, from each pool at
its cap with the rest even, and from eight fixed points (the first draws of NumPy's Dirichlet generator with seed 0).
This reproduces the published allocations to half a token. It stops up to 8e-8 of summed retention short of the
optimum, which on a flat optimum is up to 701 tokens of 1,000,000 (Qwen): ``regrow.planning.optimum`` has the exact one
and proves the distance.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from regrow.planning.curves import CEILING, SHAPES, Curves
from regrow.planning.optimum import Objective

Floats = NDArray[np.float64]

FIXED_POINTS = 8


def study_split(curves: Curves, budget: float, cap: float, objective: Objective = "sum") -> Floats:
    """Return tokens per pool, (P,), summing to ``budget``, at most ``cap`` each; objective "sum" or "capped"."""
    pools = curves.transfer.shape[-1]

    # The same numbers as value_of and Curves.slopes, without their general shapes: this is called some thousand times.
    shape, (gain, tau) = SHAPES[curves.shape], (curves.gain, curves.tau)
    start, reach = curves.start, curves.transfer * (budget / tau)[:, None]
    ceiling = 1.0 if objective == "capped" else CEILING

    def loss(shares: Floats) -> float:
        return -float(np.minimum(ceiling, start + gain * shape.rise(reach @ shares)).sum())

    def slope(shares: Floats) -> Floats:
        z = reach @ shares
        rising = start + gain * shape.rise(z) < ceiling
        return np.asarray(-(np.where(rising, gain * shape.slope(z), 0.0) @ reach))

    ends = [
        minimize(
            loss,
            start,
            jac=slope,
            method="SLSQP",
            bounds=[(0.0, cap / budget)] * pools,
            constraints={"type": "eq", "fun": lambda shares: shares.sum() - 1, "jac": np.ones_like},
            options={"maxiter": 1000},
        ).x
        for start in starting_shares(pools, cap / budget)
    ]
    best = max(ends, key=lambda shares: -loss(shares))
    return _feasible(best, cap / budget) * budget


def starting_shares(pools: int, cap: float) -> list[Floats]:
    """Return the starts in order: uniform, each pool at ``cap`` (a share, above 1 for small budgets: the solver moves
    such a start onto the bounds), the fixed points."""
    corners = np.full((pools, pools), (1 - cap) / (pools - 1) if pools > 1 else 1.0)
    np.fill_diagonal(corners, cap)
    inside = np.random.default_rng(0).dirichlet(np.ones(pools), FIXED_POINTS)
    return [np.full(pools, 1.0 / pools), *corners, *inside]


def _feasible(shares: Floats, cap: float) -> Floats:
    """Return shares with the solver's rounding removed: not negative, at most ``cap``, summing to one."""
    kept = np.clip(shares, 0.0, min(1.0, cap))
    free = (kept > 0) & (kept < cap)
    missing = 1.0 - kept.sum()
    if free.any():
        kept[free] += missing * kept[free] / kept[free].sum()
    return kept
