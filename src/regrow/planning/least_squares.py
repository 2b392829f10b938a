"""Recovery curves by least squares: the study's objective, and the study's own solver.

Per capability, over the single-pool pilots: sum of squared residuals + 0.05 * sum of T^2 (other pools only), with
0 <= a <= max(1e-3, 1.2 - r0), 3e3 <= tau <= 6e7 (in log), 0 <= T <= 3. The study's limits of tau belong to its pilots,
the smallest of which has 30,000 tokens; for other pilots they move in proportion, so that curves on a small model,
measured with a thousand tokens, are fitted as those of a large one.

The study's numbers come from a trust-region reflective descent from one start (a = 1.5 x the best own gain, tau = 1e5,
T = 0.1) with the default tolerances of SciPy. That is reproduced here as it is: the answer depends on no random
number, but it may be a local optimum, and where the valley is flat it stops a little early (up to 1.2e-4 of a on the
published pilots). ``regrow.planning.global_fit`` finds the global one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from regrow.planning.curves import CEILING, SHAPES, Curves, ShapeName
from regrow.planning.pilots import Pilots

Floats = NDArray[np.float64]
Transfer = Literal["free", "none", "signed"]

PENALTY = 0.05
TAU_LOW, TAU_START, TAU_HIGH = 3e3, 1e5, 6e7
"""Limits and start of tau where the smallest pilot has ``PILOT_TOKENS``, as in the study."""
PILOT_TOKENS = 30_000
TRANSFER_HIGH = 3.0
NOTHING = 1e-9
"""A gain below this is nothing: then tau and T have no meaning and are set to their bounds, the highest tau and 0."""


def scale_of(budgets: Floats) -> float:
    """Return how large pilots of ``budgets`` tokens are beside the study's: 1 where the smallest has 30,000."""
    return float(np.min(budgets)) / PILOT_TOKENS


def tau_limits(budgets: Floats) -> tuple[float, float]:
    """Return the lowest and the highest tau (tokens) that is fitted to pilots of ``budgets`` tokens."""
    return TAU_LOW * scale_of(budgets), TAU_HIGH * scale_of(budgets)


@dataclass(frozen=True)
class Fit:
    """Fitted curves of one family with the objective's value and the root mean squared residual, both (C,).

    ``transfer`` says what was fitted: "free" (0 <= T <= 3), "none" (T = I, own-pool pilots only) or "signed" (-3 <= T
    <= 3). NaN throughout for a capability without a retention.
    """

    curves: Curves
    rmse: Floats
    objective: Floats
    transfer: Transfer
    method: str


@dataclass(frozen=True)
class Problem:
    """The least-squares problem of one capability: ``y`` (pools, budgets) retentions, ``own`` its pool's index."""

    y: Floats
    tokens: Floats
    start: float
    own: int
    shape: ShapeName
    transfer: Transfer

    @property
    def gain_high(self) -> float:
        return max(1e-3, CEILING - self.start)

    @property
    def tau_limits(self) -> tuple[float, float]:
        return tau_limits(self.tokens)

    @property
    def others(self) -> list[int]:
        """Return the pools whose transfer is fitted."""
        return [] if self.transfer == "none" else [p for p in range(len(self.y)) if p != self.own]

    @property
    def rows(self) -> list[int]:
        """Return the pools whose pilots count."""
        return [self.own] if self.transfer == "none" else list(range(len(self.y)))

    def bounds(self) -> tuple[Floats, Floats]:
        """Return lower and upper bounds of (a, log tau, T of the other pools)."""
        n = len(self.others)
        low = -TRANSFER_HIGH if self.transfer == "signed" else 0.0
        return (
            np.r_[0.0, np.log(self.tau_limits[0]), np.full(n, low)],
            np.r_[self.gain_high, np.log(self.tau_limits[1]), np.full(n, TRANSFER_HIGH)],
        )

    def study_start(self) -> Floats:
        """Return the study's starting point."""
        best = float((self.y[self.own] - self.start).max())
        return np.r_[
            min(self.gain_high, max(1e-3, 1.5 * best)),
            np.log(TAU_START * scale_of(self.tokens)),
            np.full(len(self.others), 0.1),
        ]

    def residual_function(self) -> Callable[[Floats], Floats]:
        """Return :meth:`residuals` with everything that does not depend on the point computed once."""
        rows, count, weight = self.rows, len(self.rows), np.sqrt(PENALTY)
        place = np.array([rows.index(p) for p in self.others], np.intp)
        row = np.ones((count, 1))
        tokens, wanted, start, rise = self.tokens, self.y[rows], self.start, SHAPES[self.shape].rise

        def residuals(point: Floats) -> Floats:
            row[place, 0] = point[2:]
            z = row * tokens / np.exp(point[1])
            apart = np.minimum(CEILING, start + point[0] * rise(z)) - wanted
            return np.concatenate([apart.ravel(), weight * point[2:]])

        return residuals

    def predicted(self, point: Floats) -> Floats:
        """Return the predicted retentions of the rows that count, (rows, budgets)."""
        transfer = self.transfer_row(point)[self.rows]
        z = transfer[:, None] * self.tokens / np.exp(point[1])
        return np.minimum(CEILING, self.start + point[0] * SHAPES[self.shape].rise(z))

    def residuals(self, point: Floats) -> Floats:
        """Return residuals followed by the penalty's: half their squared length is what is minimised."""
        apart = self.predicted(point) - self.y[self.rows]
        return np.r_[apart.ravel(), np.sqrt(PENALTY) * point[2:]]

    def jacobian(self, point: Floats) -> Floats:
        """Return the residuals' derivatives, (residuals, parameters)."""
        shape, n, rows = SHAPES[self.shape], len(self.others), self.rows
        rates = self.tokens / np.exp(point[1])
        z = self.transfer_row(point)[rows][:, None] * rates
        risen = shape.rise(z)
        rising = self.start + point[0] * risen <= CEILING
        sloped = rising * point[0] * shape.slope(z)
        found = np.zeros((z.size + n, 2 + n))
        found[: z.size, 0] = (rising * risen).ravel()
        found[: z.size, 1] = (-sloped * z).ravel()
        if n:
            places = np.array([rows.index(p) for p in self.others])[:, None]
            at = places * len(rates) + np.arange(len(rates))
            found[at, 2 + np.arange(n)[:, None]] = sloped[places[:, 0]] * rates
            found[np.arange(z.size, z.size + n), np.arange(2, 2 + n)] = np.sqrt(PENALTY)
        return found

    def objective(self, point: Floats) -> float:
        found = self.residuals(point)
        return float(found @ found)

    def rmse(self, point: Floats) -> float:
        return float(np.sqrt(np.mean((self.predicted(point) - self.y[self.rows]) ** 2)))

    def transfer_row(self, point: Floats) -> Floats:
        """Return T of this capability, (pools,)."""
        row = np.zeros(len(self.y))
        row[self.own] = 1.0
        row[self.others] = point[2:]
        return row

    def settled(self, point: Floats) -> Floats:
        """Return the point, with tau and T of a curve that gains nothing moved to their bounds."""
        if point[0] >= NOTHING:
            return point
        return np.r_[0.0, np.log(self.tau_limits[1]), np.zeros(len(self.others))]


def problem_of(pilots: Pilots, capability: int, shape: ShapeName, transfer: Transfer) -> Problem:
    """Return the least-squares problem of one capability."""
    return Problem(
        y=pilots.retention[:, :, capability],
        tokens=np.asarray(pilots.budgets, np.float64),
        start=float(pilots.pruned_retention[capability]),
        own=pilots.own[capability],
        shape=shape,
        transfer=transfer,
    )


def fit_study(pilots: Pilots, *, shape: ShapeName = "exponential", transfer: Transfer = "free") -> Fit:
    """Return the curves as the study fits them. Raises DataError naming a pilot that is missing."""
    pilots.require(own_pool_only=transfer == "none")
    points = {}
    for c in np.flatnonzero(pilots.usable):
        problem = problem_of(pilots, int(c), shape, transfer)
        end = least_squares(problem.residual_function(), problem.study_start(), bounds=problem.bounds())
        points[int(c)] = (problem, np.asarray(end.x, np.float64))
    return assemble(pilots, points, shape, transfer, "study")


def assemble(
    pilots: Pilots, points: dict[int, tuple[Problem, Floats]], shape: ShapeName, transfer: Transfer, method: str
) -> Fit:
    """Return a Fit from the solved problems of the usable capabilities."""
    count, pools = len(pilots.capabilities), len(pilots.pools)
    gain, tau, rmse, objective = (np.full(count, np.nan) for _ in range(4))
    rows = np.full((count, pools), np.nan)
    for c, (problem, found) in points.items():
        point = problem.settled(found)
        gain[c], tau[c] = point[0], np.exp(point[1])
        rows[c] = problem.transfer_row(point)
        rmse[c], objective[c] = problem.rmse(point), problem.objective(point)
    curves = Curves(pilots.pruned_retention, gain, tau, rows, shape)
    return Fit(curves, rmse, objective, transfer, method)
