"""The split that lifts the worst capability highest, made unique by a documented tie-break.

The minimum is often reached by many splits: once its capability is saturated, the other tokens are free. A split
counts as optimal when its minimum is within 1e-6 of the best possible one, far less than one dev item. Among those the
simplest plan is taken:

1. the uniform split, if it is optimal;
2. otherwise one pool at its cap and the rest even, if such a split is optimal (of several, the one with the highest
   sum of retentions);
3. otherwise the split nearest to uniform (least sum of squared differences).

On the published pilots rule 2 decides for both families, with math at 600,000 and 80,000 for each other pool: the
study's result.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from regrow.planning.curves import Curves
from regrow.planning.optimum import Optimum, maximise, value_of

Floats = NDArray[np.float64]

SAME = 1e-6
"""Minima closer than this are the same (retention)."""


def max_min_split(curves: Curves, budget: float, cap: float, *, best: Optimum | None = None) -> Floats:
    """Return tokens per pool, (P,), that maximise the smallest retention; ties as the module says. ``best`` is the
    certified optimum where it is known already."""
    pools = curves.transfer.shape[-1]
    cap = min(cap, budget)
    best = maximise(curves, budget, cap, "min") if best is None else best
    good = float(best.value) - SAME
    uniform = np.full(pools, budget / pools)
    if float(value_of(curves, uniform, "min")) >= good:
        return uniform
    corners = np.full((pools, pools), (budget - cap) / (pools - 1))
    np.fill_diagonal(corners, cap)
    optimal = [split for split in corners if float(value_of(curves, split, "min")) >= good]
    if optimal:
        return max(optimal, key=lambda split: float(value_of(curves, split, "sum")))
    return nearest_to_uniform(curves, budget, cap, good, best.tokens)


def nearest_to_uniform(curves: Curves, budget: float, cap: float, worst: float, feasible: Floats) -> Floats:
    """Return the split nearest to uniform whose smallest retention is at least ``worst``.

    ``feasible`` is one such split; the way from it to the answer's linear approximation is walked back if rounding
    left the answer short. A least-distance problem over linear constraints, solved exactly (Lawson and Hanson 1974).
    """
    needs = tokens_needed(curves, worst)
    binding = np.isfinite(needs)
    pools = curves.transfer.shape[-1]
    unit = budget / pools  # distances in units of the uniform share, so that the numbers are of order one
    rows = np.concatenate([curves.transfer[binding], np.eye(pools), -np.eye(pools)])
    floors = np.concatenate([needs[binding] / unit, np.zeros(pools), np.full(pools, -cap / unit)])
    spread = np.linalg.qr(np.column_stack([np.ones(pools), np.eye(pools)[:, 1:]]))[0][:, 1:]  # directions of sum 0
    moved = _least_distance(rows @ spread, floors - rows @ np.ones(pools))
    split = np.clip((1.0 + spread @ moved) * unit, 0.0, cap)
    split = split * budget / split.sum()
    for share in (1.0, 1 - 1e-9, 1 - 1e-6, 1 - 1e-3):
        candidate = share * split + (1 - share) * feasible
        if float(value_of(curves, candidate, "min")) >= worst - SAME and candidate.max() <= cap * (1 + 1e-12):
            return candidate
    return feasible


def tokens_needed(curves: Curves, retention: float) -> Floats:
    """Return the effective tokens at which each capability reaches ``retention``: -inf where it starts above it (or
    gains nothing), (C,)."""
    curves = curves.below_ceiling()
    with np.errstate(divide="ignore", invalid="ignore"):
        part = np.clip((retention - curves.start) / curves.gain, None, 1.0)
        if curves.shape == "hyperbolic":
            z = part / (1 - part)
        else:
            z = -np.log1p(-part)
    needed = curves.tau * np.where(part < 0, part, z)
    return np.where((curves.gain <= 0) | (retention <= curves.start), -np.inf, needed)


def _least_distance(rows: Floats, floors: Floats) -> Floats:
    """Return the shortest y with rows @ y >= floors."""
    stacked = np.vstack([rows.T, floors])
    target = np.zeros(stacked.shape[0])
    target[-1] = 1.0
    multipliers, _ = nnls(stacked, target, maxiter=100 * stacked.shape[1])
    left = stacked @ multipliers - target
    return np.asarray(-left[:-1] / left[-1]) if left[-1] < 0 else np.zeros(rows.shape[1])
