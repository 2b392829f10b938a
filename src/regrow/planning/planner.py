"""The planner: curves and a budget in, tokens per pool out, with the proof of how good they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from regrow.errors import ConfigError, DataError
from regrow.planning.curves import Curves
from regrow.planning.max_min import max_min_split
from regrow.planning.optimum import Objective, maximise, upper_bound, value_of
from regrow.planning.study_solver import study_split

Floats = NDArray[np.float64]
Solver = Literal["study", "exact"]
SOLVERS: tuple[Solver, ...] = ("study", "exact")

REACH = 2.0
"""A pool gets at most this many times the largest pilot: further out nothing was measured."""
CLOSE_ENOUGH = 1e-6
"""Gap (summed retention) above which the study's solver has failed and the exact optimum is used."""


@dataclass(frozen=True)
class Mixture:
    """Tokens per pool, (P,), with the objective's ``value``, the proven ``gap`` to the best split, and what a reader
    must know (``notes``). ``exact`` is the exact optimum; ``off`` the largest difference to it in tokens."""

    tokens: Floats
    value: float
    gap: float
    exact: Floats
    notes: tuple[str, ...] = ()

    @property
    def off(self) -> float:
        return float(np.abs(self.tokens - self.exact).max())


def checked_budget(budget: float) -> float:
    """Return the budget. Raises ConfigError for one that is not a positive number of tokens."""
    if not budget > 0 or not np.isfinite(budget):
        raise ConfigError(f"the budget must be a positive number of tokens, got {budget:g}", hint="--budget 1M")
    return budget


def trust_region(largest_pilot: float, budget: float, pools: int) -> float:
    """Return the most tokens a pool may get: twice the largest pilot, or the uniform share where that is more."""
    return max(REACH * largest_pilot, budget / pools)


def plan_mixture(
    curves: Curves, budget: float, largest_pilot: float, *, objective: Objective = "sum", solver: Solver = "study"
) -> Mixture:
    """Return the mixture that maximises ``objective`` over the curves inside the trust region.

    Capabilities whose curve is NaN (no retention) are left out. ``solver`` "study" gives the published numbers,
    "exact" the optimum itself; both carry the proven gap. At a budget where the trust region leaves room for nothing
    else the split is exactly uniform. Raises ConfigError for a budget that is not positive.
    """
    checked_budget(budget)
    if solver not in SOLVERS:
        raise ConfigError(f"unknown solver '{solver}'", hint=f"allowed: {', '.join(SOLVERS)}")
    kept = ~np.isnan(curves.gain)
    if not kept.any():
        raise DataError(
            "no capability has a retention: the unpruned model scores 0 everywhere",
            hint="use a suite that the unpruned model can do (--suite mini for small models)",
        )
    curves = curves.only(kept)
    pools = curves.transfer.shape[-1]
    cap = trust_region(largest_pilot, budget, pools)
    uniform = np.full(pools, budget / pools)
    if cap <= budget / pools or pools == 1:
        reach = REACH * largest_pilot
        note = "the trust region leaves only the uniform split"
        if reach * pools < budget:
            note = (
                f"the trust region ({REACH:g} x the largest pilot = {reach:,.0f} tokens a pool) cannot hold "
                f"{budget:,.0f} tokens, so the split is uniform"
            )
        return Mixture(uniform, float(value_of(curves, uniform, objective)), 0.0, uniform, (note,))
    best = maximise(curves, budget, cap, objective)
    if objective == "min":
        tokens = max_min_split(curves, budget, cap, best=best)
    elif solver == "study":
        tokens = study_split(curves, budget, cap, objective)
    else:
        tokens = best.tokens
    value = float(value_of(curves, tokens, objective))
    bound = min(float(best.bound), float(upper_bound(curves, tokens, best.weights, min(cap, budget), objective)))
    notes: tuple[str, ...] = ()
    if bound - value > CLOSE_ENOUGH * 2:
        notes = (f"the study's solver stopped {bound - value:.1e} short of the optimum; the exact optimum is used",)
        tokens, value = best.tokens, float(best.value)
    exact = tokens if objective == "min" else best.tokens
    return Mixture(tokens, value, max(bound - value, 0.0), exact, notes)
