"""Data-mixing optimisation for fine-tuning (Li, Liu and Xing, 2508.11953): fitted laws of each pool's loss.

L_i(w) = c_i (w_i N + g_i ((1 - w_i) N)^{a_i})^{-b_i} + e_i: own tokens count in full, all others as g n^a of them.
With 0 <= a <= 1 the effective tokens are concave in w_i, so the loss is convex and the best mixture unique up to flat
directions: found by bisection on the price of a share, with the gap proven by linearisation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import least_squares

from regrow.errors import DataError
from regrow.planning.pilots import PilotRun
from regrow.planning.planner import checked_budget
from regrow.planning.rule import Allocation, CallableRule, Design, Evidence, Needs, by_pool

Floats = NDArray[np.float64]

UP, DOWN = 3.0, 1 / 3
"""Factors by which one pool's tokens are perturbed in the small runs."""
LEAST_RUNS = 5
"""Parameters of a law, and so the fewest runs it can be fitted on."""


@dataclass(frozen=True)
class MixingRuns:
    """Small runs: tokens per pool (runs, P) and each pool's held-out loss after the run (runs, P)."""

    tokens: Floats
    losses: Floats

    @staticmethod
    def of(tokens: ArrayLike, losses: ArrayLike) -> MixingRuns:
        """Return the runs, checked. Raises DataError when sizes differ, values are not finite, or runs are too few."""
        spent, lost = np.asarray(tokens, np.float64), np.asarray(losses, np.float64)
        if spent.ndim != 2 or spent.shape != lost.shape:
            raise DataError(
                f"runs have tokens of shape {spent.shape} and losses of shape {lost.shape}",
                hint="both are (runs, pools)",
            )
        if len(spent) < LEAST_RUNS:
            raise DataError(
                f"{len(spent)} runs cannot determine a law of {LEAST_RUNS} numbers a pool",
                hint="one uniform run and two perturbed ones for each pool",
            )
        if not (np.isfinite(spent).all() and np.isfinite(lost).all() and (spent >= 0).all() and (lost > 0).all()):
            raise DataError("tokens must be 0 or more and losses positive", hint="leave out the runs that diverged")
        return MixingRuns(spent, lost)


@dataclass(frozen=True)
class Laws:
    """Fitted laws, one number a pool each: scale c, exchange g, discount a, decay b, floor e."""

    scale: Floats
    exchange: Floats
    discount: Floats
    decay: Floats
    floor: Floats

    def losses(self, own: Floats, rest: Floats) -> Floats:
        """Return each pool's loss after ``own`` tokens of it and ``rest`` of the others."""
        return self.scale * self.effective(own, rest) ** -self.decay + self.floor

    def effective(self, own: Floats, rest: Floats) -> Floats:
        return np.maximum(own + self.exchange * rest**self.discount, 1.0)

    def slopes(self, shares: Floats, budget: float) -> Floats:
        """Return d loss_i / d w_i at shares (P,)."""
        own, rest = shares * budget, np.maximum((1 - shares) * budget, 1e-9)
        reach = budget * (1 - self.exchange * self.discount * rest ** (self.discount - 1))
        return -self.scale * self.decay * self.effective(own, rest) ** (-self.decay - 1) * reach


class DataMixing(CallableRule):
    """Minimise the sum of the pools' predicted losses at the budget; ``runs`` is a :class:`MixingRuns`."""

    name = "data-mixing"

    def needs(self, design: Design) -> Needs:
        share = design.scope_tokens / len(design.pools)
        runs = [PilotRun("uniform", design.scope_tokens)]
        for pool in design.pools:
            for factor, word in ((UP, "more"), (DOWN, "less")):
                runs.append(PilotRun(f"uniform-{word}-{pool}", round(design.scope_tokens + (factor - 1) * share)))
        return Needs(loss_runs=tuple(runs))

    def allocate(self, evidence: Evidence, budget: float) -> Allocation:
        if evidence.runs is None:
            raise DataError(
                f"rule '{self.name}' needs small runs with perturbed mixtures",
                hint="put them into the file under 'evidence', 'data-mixing' (docs/planning.md has the layout)",
            )
        checked_budget(budget)
        runs = evidence.runs
        if runs.tokens.shape[1] != len(evidence.pools):
            raise DataError(
                f"runs of {runs.tokens.shape[1]} pools for {len(evidence.pools)} pools", hint="one column for each pool"
            )
        shares, gap = best_shares(fit_laws(runs), budget)
        note = f"predicted sum of losses within {gap:.1e} of the least"
        return Allocation(by_pool(evidence.pools, shares, budget), notes=(note,))


def fit_laws(runs: MixingRuns) -> Laws:
    """Return the laws of least squared relative error, each pool by itself.

    Given exchange, discount and decay a law is linear in scale and floor, so a grid over those three with the other
    two at their best gives the start of one descent: no random start.
    """
    total = runs.tokens.sum(axis=1)
    found = np.array(
        [_fit_law(runs.tokens[:, p], total - runs.tokens[:, p], runs.losses[:, p]) for p in range(runs.tokens.shape[1])]
    )
    return Laws(*found.T)


def _fit_law(own: Floats, rest: Floats, losses: Floats) -> Floats:
    """Return c, g, a, b, e of one pool; c is fitted as the loss above the floor at the mean size of the runs."""
    size = float((own + rest).mean())

    def residuals(point: Floats) -> Floats:
        lift, exchange, discount, decay, floor = point
        effective = np.maximum(own + exchange * rest**discount, 1.0)
        return np.asarray((lift * (effective / size) ** -decay + floor) / losses - 1)

    low = np.array([0.0, 0.0, 0.0, 1e-3, 0.0])
    high = np.array([10 * losses.max(), 10.0, 1.0, 3.0, losses.min()])
    start = np.clip(_grid_start(own, rest, losses, size), low, high)
    lift, exchange, discount, decay, floor = least_squares(
        residuals, start, bounds=(low, high), x_scale=high, max_nfev=300
    ).x
    return np.array([lift * size**decay, exchange, discount, decay, floor])


def _grid_start(own: Floats, rest: Floats, losses: Floats, size: float) -> Floats:
    """Return lift, g, a, b, e at the best point of a grid over g, a and b."""
    grid = np.meshgrid([0.0, *np.geomspace(0.01, 3, 12)], np.linspace(0.3, 1, 8), np.geomspace(0.03, 1.5, 14))
    exchange, discount, decay = (axis.ravel() for axis in grid)
    effective = np.maximum(own + exchange[:, None] * rest ** discount[:, None], 1.0)
    x = (effective / size) ** -decay[:, None] / losses  # relative error of lift x + floor / losses against 1
    y = np.broadcast_to(1 / losses, x.shape)
    xx, xy, yy, x1, y1 = ((p * q).sum(axis=1) for p, q in ((x, x), (x, y), (y, y), (x, 1 + 0 * x), (y, 1 + 0 * y)))
    with np.errstate(divide="ignore", invalid="ignore"):
        both = xx * yy - xy**2
        floor = np.clip(np.nan_to_num((xx * y1 - xy * x1) / both), 0, losses.min())
    lift = np.maximum(0, (x1 - xy * floor) / xx)
    error = ((lift[:, None] * x + floor[:, None] * y - 1) ** 2).sum(axis=1)
    best = int(error.argmin())
    return np.array([lift[best], exchange[best], discount[best], decay[best], floor[best]])


def best_shares(laws: Laws, budget: float) -> tuple[Floats, float]:
    """Return the shares (P,) of the least sum of losses and the proven gap to the least one."""
    pools = len(laws.scale)

    def shares_at(price: float) -> Floats:
        low, high = np.zeros(pools), np.ones(pools)
        for _ in range(60):
            middle = (low + high) / 2
            falling = laws.slopes(middle, budget) < -price
            low, high = np.where(falling, middle, low), np.where(falling, high, middle)
        return (low + high) / 2

    ends = np.concatenate([laws.slopes(np.zeros(pools), budget), laws.slopes(np.full(pools, 1 - 1e-9), budget)])
    cheap, dear = -float(ends.max()) - 1.0, -float(ends.min()) + 1.0
    for _ in range(200):
        price = (cheap + dear) / 2
        if shares_at(price).sum() > 1:
            cheap = price
        else:
            dear = price
    shares = shares_at((cheap + dear) / 2)
    shares = shares / shares.sum()
    slopes = laws.slopes(shares, budget)
    return shares, float(max(slopes @ shares - slopes.min(), 0.0))


DATA_MIXING = DataMixing()
