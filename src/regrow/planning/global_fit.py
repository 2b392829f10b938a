"""Recovery curves by least squares, the global optimum: a grid over (a, tau) with each T at its best, then descent.

Given a and tau the pools are independent, so the seven-dimensional problem is a two-dimensional one with exact
one-dimensional inner searches. Every local minimum of that grid is polished; the best one is the answer. No start is
random.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares, minimize

from regrow.planning.curves import SHAPES, ShapeName
from regrow.planning.least_squares import (
    PENALTY,
    Fit,
    Problem,
    Transfer,
    assemble,
    problem_of,
)
from regrow.planning.pilots import Pilots

Floats = NDArray[np.float64]

GAINS, TAUS = 32, 48
TRANSFERS_PER_UNIT = 10
POLISHED, POLISHED_SIGNED = 4, 6
"""Grid minima, best first, from which a descent is run; signed transfer bends the valley at 0 and needs more."""


def fit_global(pilots: Pilots, *, shape: ShapeName = "exponential", transfer: Transfer = "free") -> Fit:
    """Return the curves of least penalised squares. Raises DataError naming a pilot that is missing."""
    pilots.require(own_pool_only=transfer == "none")
    points = {}
    for c in np.flatnonzero(pilots.usable):
        problem = problem_of(pilots, int(c), shape, transfer)
        points[int(c)] = (problem, best_point(problem))
    return assemble(pilots, points, shape, transfer, "global")


TIGHT, LOOSE = 1e-13, 1e-5
"""Tolerances of a descent: to state the optimum, and to see whether there is a better one elsewhere."""


def best_point(problem: Problem, *, tolerance: float = TIGHT, starts: Sequence[Floats] = ()) -> Floats:
    """Return the global minimum (a, log tau, T of the other pools) of one capability's problem, or with ``starts`` the
    best that a descent from one of them reaches."""
    if not starts:
        starts = [*grid_minima(problem), np.clip(problem.study_start(), *problem.bounds())]
    ends = [_descend(problem, start, tolerance) for start in starts]
    nothing = problem.settled(np.zeros(2 + len(problem.others)))
    best, arrived = min([*ends, (nothing, True)], key=lambda end: problem.objective(end[0]))
    if not arrived and problem.others and tolerance == TIGHT:
        # Along the valley a / tau * T = constant a descent crawls; with T at its best it is two-dimensional.
        walked = _along_valley(problem, best)
        best = min([best, walked, _descend(problem, walked, tolerance)[0]], key=problem.objective)
    return best


def better_fit(fit: Fit, pilots: Pilots, *, margin: float) -> Fit:
    """Return the global fit where it beats ``fit`` by more than ``margin`` (relative), else ``fit`` itself, capability
    by capability: a quick look tells which, and only those are fitted to the last digit."""
    points = {}
    for c in np.flatnonzero(pilots.usable):
        problem = problem_of(pilots, int(c), fit.curves.shape, fit.transfer)
        quick = best_point(problem, tolerance=LOOSE)
        if problem.objective(quick) < fit.objective[c] * (1 - margin):
            points[int(c)] = (problem, best_point(problem, starts=[np.clip(quick, *problem.bounds())]))
    better = assemble(pilots, points, fit.curves.shape, fit.transfer, "global")
    return replace(better, objective=np.where(np.isnan(better.objective), fit.objective, better.objective))


def _descend(problem: Problem, start: Floats, tolerance: float) -> tuple[Floats, bool]:
    """Return where a descent ends, and whether it arrived rather than ran out of steps."""
    end = least_squares(
        problem.residual_function(),
        start,
        jac=problem.jacobian,
        bounds=problem.bounds(),
        xtol=tolerance,
        ftol=tolerance,
        gtol=tolerance,
        max_nfev=100,
    )
    return problem.settled(end.x), end.status > 0


def _along_valley(problem: Problem, point: Floats) -> Floats:
    low, high = problem.bounds()

    def cost(place: Floats) -> float:
        return problem.objective(np.r_[place, best_transfer(problem, place[0], place[1], point[2:])])

    step = np.array([0.02 * high[0], 0.2])
    corners = np.clip(point[:2] + np.array([[0.0, 0.0], [step[0], step[1]], [-step[0], step[1]]]), low[:2], high[:2])
    options = {"initial_simplex": corners, "xatol": 1e-7, "fatol": 1e-14, "maxfev": 250}
    bounds = list(zip(low[:2], high[:2], strict=True))
    end = minimize(cost, point[:2], method="Nelder-Mead", bounds=bounds, options=options).x
    return np.r_[end, best_transfer(problem, end[0], end[1], point[2:])]


def best_transfer(problem: Problem, gain: float, log_tau: float, near: Floats) -> Floats:
    """Return the T of the other pools that fit best under a given gain and tau, sought from ``near``."""
    shape = SHAPES[problem.shape]
    low, high = problem.bounds()
    rates = problem.tokens / np.exp(log_tau)
    wanted = problem.y[problem.others] - problem.start
    found = np.clip(near, low[2:], high[2:])
    for _ in range(12):  # Gauss-Newton in one dimension for each pool
        z = found[:, None] * rates
        slope = gain * shape.slope(z) * rates
        pull = ((wanted - gain * shape.rise(z)) * slope).sum(axis=1) - PENALTY * found
        found = np.clip(found + pull / ((slope**2).sum(axis=1) + PENALTY), low[2:], high[2:])
    return np.asarray(found)


def grid_minima(problem: Problem) -> list[Floats]:
    """Return the lowest local minima of the grid as starting points."""
    gains = problem.gain_high * (np.arange(GAINS) + 0.5) / GAINS
    least, most = problem.tau_limits
    logs = np.linspace(np.log(least), np.log(most), TAUS)
    total, best = profile(problem, gains, logs)
    padded = np.pad(total, 1, constant_values=np.inf)
    around = [
        padded[1 + i : 1 + i + GAINS, 1 + j : 1 + j + TAUS] for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0)
    ]
    cells = np.argwhere(total <= np.min(around, axis=0))
    cells = cells[np.argsort(total[tuple(cells.T)], kind="stable")]
    cells = cells[: POLISHED_SIGNED if problem.transfer == "signed" else POLISHED]
    low, high = problem.bounds()
    inset = 1e-6 * (high - low)  # a start on a bound would be moved off it anyway
    return [np.clip(np.r_[gains[i], logs[j], best[i, j]], low + inset, high - inset) for i, j in cells]


def profile(problem: Problem, gains: Floats, logs: Floats) -> tuple[Floats, Floats]:
    """Return the objective on the grid, (gains, taus), and the best T of the other pools there, (gains, taus, n)."""
    rise = SHAPES[problem.shape].rise
    z = problem.tokens / np.exp(logs)[:, None]
    apart = problem.start + gains[:, None, None] * rise(z) - problem.y[problem.own]
    total = (apart**2).sum(axis=-1)
    others = problem.others
    if not others:
        return total, np.zeros((*total.shape, 0))
    low, high = problem.bounds()
    choices = np.linspace(low[2], high[2], round(TRANSFERS_PER_UNIT * (high[2] - low[2])) + 1)
    risen = rise(choices[:, None, None] * z)  # (T, tau, budget)
    lifted = gains[:, None, None, None] * risen  # (gain, T, tau, budget)
    best = np.empty((*total.shape, len(others)))
    for place, p in enumerate(others):
        # |lifted - wanted|^2 expanded, so that the large array is squared once for all pools
        wanted = problem.y[p] - problem.start
        cost = _squared(lifted) - 2 * lifted @ wanted + wanted @ wanted + PENALTY * choices[:, None] ** 2
        chosen = cost.argmin(axis=1)
        best[..., place] = choices[chosen]
        total = total + np.take_along_axis(cost, chosen[:, None], axis=1)[:, 0]
    return total, best


def _squared(values: Floats) -> Floats:
    return np.asarray(np.einsum("...b,...b->...", values, values))
