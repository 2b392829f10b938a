"""The best split of a budget over pools under recovery curves, with a proof of how good it is.

Objectives, all concave in the tokens: "sum" of retentions, "capped" sum of min(r, 1), "min" of them. The feasible set
is the simplex with an upper bound per pool. A primal-dual interior-point method solves it; the certificate needs no
trust in the solver: weights u on the capabilities turn the objective into an upper bound whose linearisation at the
answer is maximised over the feasible set by sorting. Bound minus value is the gap.

Where several splits are optimal the answer is their analytic centre, which depends on no start and no order of pools.
Everything works on many sets of curves at once (a leading dimension S).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from regrow.planning.curves import SHAPES, Curves

Floats = NDArray[np.float64]
Objective = Literal["sum", "capped", "min"]

ROUNDS = 120
TARGET = 1e-14
"""Complementarity (in summed retention) at which the iteration stops."""
SNAP = 1e-8
"""Shares closer than this to a bound, and pushed towards it, are put on it."""


@dataclass(frozen=True)
class Optimum:
    """``tokens`` (..., P), the objective's ``value`` there and a proven upper ``bound`` of any split's value."""

    tokens: Floats
    value: Floats
    bound: Floats
    weights: Floats

    @property
    def gap(self) -> Floats:
        """Return by how much at most a better split could exceed this one, in units of summed retention."""
        return np.maximum(self.bound - self.value, 0.0)


def value_of(curves: Curves, tokens: Floats, objective: Objective) -> Floats:
    """Return the objective at tokens (..., P)."""
    kept = curves.retention(tokens)
    if objective == "min":
        return np.asarray(kept.min(axis=-1))
    return np.asarray(np.minimum(kept, 1.0).sum(axis=-1) if objective == "capped" else kept.sum(axis=-1))


def upper_bound(curves: Curves, tokens: Floats, weights: Floats, cap: float, objective: Objective) -> Floats:
    """Return a value that no split of the same budget with at most ``cap`` tokens a pool exceeds.

    ``weights`` (..., C): any numbers in 0..1 ("sum": ones; "min": summing to one) give a valid bound; the multipliers
    of the optimum give a tight one.
    """
    curves = curves.below_ceiling()
    kept, slopes = curves.retention(tokens), curves.slopes(tokens)
    pull = np.einsum("...c,...cp->...p", weights * slopes, curves.transfer)
    here = (weights * kept).sum(axis=-1) - (pull * tokens).sum(axis=-1)
    if objective == "capped":
        here = here + (1 - weights).sum(axis=-1)
    budget = tokens.sum(axis=-1, keepdims=True)
    ranked = -np.sort(-pull, axis=-1)
    before = np.arange(pull.shape[-1]) * cap
    filled = np.clip(budget - before, 0.0, cap)
    return np.asarray(here + (ranked * filled).sum(axis=-1))


def maximise(curves: Curves, budget: float, cap: float, objective: Objective = "sum") -> Optimum:
    """Return the certified best split of ``budget`` tokens with at most ``cap`` tokens a pool.

    ``cap`` must exceed budget / pools (at equality the uniform split is the only one). Curves may have a leading
    dimension; NaN is not allowed.
    """
    single = curves.start.ndim == 1
    batch = _batched(curves.below_ceiling())
    found, weights = _Solver(batch, budget, min(cap, budget), objective).run()
    tokens = found * budget
    value = value_of(batch, tokens, objective)
    bound = upper_bound(batch, tokens, weights, min(cap, budget), objective)
    if single:
        return Optimum(tokens[0], value[0], bound[0], weights[0])
    return Optimum(tokens, value, bound, weights)


def _batched(curves: Curves) -> Curves:
    if curves.start.ndim > 1:
        return curves
    return Curves(curves.start[None], curves.gain[None], curves.tau[None], curves.transfer[None], curves.shape)


class _Solver:
    """Maximise sum(s) subject to E s <= r(w), s <= 1 ("capped"), 0 <= w <= cap, sum(w) = 1; w are shares of the
    budget, E the identity, or a column of ones for "min"."""

    def __init__(self, curves: Curves, budget: float, cap: float, objective: Objective) -> None:
        self.shape = SHAPES[curves.shape]
        self.start, self.gain = curves.start, curves.gain
        self.reach = curves.transfer * (budget / curves.tau)[..., None]  # d z / d w, (S, C, P)
        self.batch, self.capabilities, self.pools = self.reach.shape
        self.cap = cap / budget
        self.boxed = self.cap < 1.0
        self.capped, self.lowest = objective == "capped", objective == "min"
        self.lift = np.ones((self.capabilities, 1)) if self.lowest else np.eye(self.capabilities)
        self.slack = self.lift.shape[1]

    def run(self) -> tuple[Floats, Floats]:
        """Return shares (S, P) and the weights of the certificate (S, C)."""
        w = np.full((self.batch, self.pools), 1.0 / self.pools)
        kept = self._kept(w)
        low = kept.min(axis=1, keepdims=True) if self.lowest else kept
        s = (np.minimum(low, 1.0) if self.capped else low) - 0.5
        rooms = self._rooms(w, s)
        multipliers = 0.1 / rooms
        active = np.ones(self.batch, np.bool_)
        price = np.zeros((self.batch, 1))
        for _ in range(ROUNDS):
            mu = 0.1 * (rooms * multipliers).mean(axis=1, keepdims=True)
            dw, ds, dm, price_new = self._direction(w, s, rooms, multipliers, mu)
            step = self._step(w, s, multipliers, rooms, price, mu, dw, ds, dm, price_new - price, active)
            w, s = w + step * dw, s + step * ds
            multipliers = multipliers + step * dm
            price = price + step * (price_new - price)
            rooms = self._rooms(w, s)
            done = (rooms * multipliers).sum(axis=1) < TARGET
            stuck = step[:, 0] < 1e-12
            active &= ~(done | stuck)
            if not active.any():
                break
        return self._finish(w, multipliers)

    def _kept(self, w: Floats) -> Floats:
        return self.start + self.gain * self.shape.rise(np.einsum("scp,sp->sc", self.reach, w))

    def _rooms(self, w: Floats, s: Floats) -> Floats:
        """Return the inequalities' distances from zero: w, cap - w, r - E s, 1 - s (those that exist)."""
        parts = [w]
        if self.boxed:
            parts.append(self.cap - w)
        parts.append(self._kept(w) - s @ self.lift.T)
        if self.capped:
            parts.append(1.0 - s)
        return np.concatenate(parts, axis=1)

    def _split(self, values: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """Return the parts of a vector over all inequalities; absent ones as zeros."""
        p, c = self.pools, self.capabilities
        at = p
        upper = np.zeros_like(values[:, :p])
        if self.boxed:
            upper, at = values[:, at : at + p], at + p
        curve, at = values[:, at : at + c], at + c
        top = values[:, at:] if self.capped else np.zeros((self.batch, self.slack))
        return values[:, :p], upper, curve, top

    def _direction(
        self, w: Floats, s: Floats, rooms: Floats, multipliers: Floats, mu: Floats
    ) -> tuple[Floats, Floats, Floats, Floats]:
        z = np.einsum("scp,sp->sc", self.reach, w)
        jacobian = (self.gain * self.shape.slope(z))[..., None] * self.reach
        bend = -self.gain * self.shape.bend(z)
        stiff_low, stiff_high, stiff_curve, stiff_top = self._split(multipliers / rooms)
        pull_low, pull_high, pull_curve, pull_top = self._split(mu / rooms)
        p, k = self.pools, self.slack
        matrix = np.zeros((self.batch, p + k + 1, p + k + 1))
        heavy = self._split(multipliers)[2] * bend
        matrix[:, :p, :p] = np.einsum("sc,scp,scq->spq", heavy, self.reach, self.reach)
        matrix[:, :p, :p] += np.einsum("sc,scp,scq->spq", stiff_curve, jacobian, jacobian)
        diagonal = np.arange(p)
        matrix[:, diagonal, diagonal] += stiff_low + stiff_high
        cross = -np.einsum("scp,sc,ck->spk", jacobian, stiff_curve, self.lift)
        matrix[:, :p, p : p + k] = cross
        matrix[:, p : p + k, :p] = cross.transpose(0, 2, 1)
        matrix[:, p : p + k, p : p + k] = np.einsum("ck,sc,cl->skl", self.lift, stiff_curve, self.lift)
        slack = np.arange(p, p + k)
        matrix[:, slack, slack] += stiff_top
        matrix[:, :p, -1] = matrix[:, -1, :p] = 1.0
        right = np.empty((self.batch, p + k + 1))
        right[:, :p] = pull_low - pull_high + np.einsum("scp,sc->sp", jacobian, pull_curve)
        right[:, p : p + k] = 1.0 - pull_curve @ self.lift - pull_top
        right[:, -1] = 1.0 - w.sum(axis=1)
        found = np.linalg.solve(matrix, right[..., None])[..., 0]
        dw, ds, price = found[:, :p], found[:, p : p + k], found[:, -1:]
        moved = [dw]
        if self.boxed:
            moved.append(-dw)
        moved.append(np.einsum("scp,sp->sc", jacobian, dw) - ds @ self.lift.T)
        if self.capped:
            moved.append(-ds)
        change = mu / rooms - multipliers - multipliers / rooms * np.concatenate(moved, axis=1)
        return dw, ds, change, price

    def _residual(self, w: Floats, s: Floats, multipliers: Floats, price: Floats, mu: Floats) -> Floats:
        """Return the length of the optimality conditions' violation, (S,); infinite outside the feasible set."""
        rooms = self._rooms(w, s)
        inside = (rooms > 0).all(axis=1)
        z = np.einsum("scp,sp->sc", self.reach, w)
        jacobian = (self.gain * self.shape.slope(z))[..., None] * self.reach
        low, high, curve, top = self._split(multipliers)
        for_w = -low + high - np.einsum("scp,sc->sp", jacobian, curve) + price
        for_s = -1.0 + curve @ self.lift + top
        parts = np.concatenate([for_w, for_s, rooms * multipliers - mu], axis=1)
        return np.where(inside, np.sqrt((parts**2).sum(axis=1)), np.inf)

    def _step(
        self,
        w: Floats,
        s: Floats,
        multipliers: Floats,
        rooms: Floats,
        price: Floats,
        mu: Floats,
        dw: Floats,
        ds: Floats,
        dm: Floats,
        dprice: Floats,
        active: NDArray[np.bool_],
    ) -> Floats:
        """Return how far to go along the direction, (S, 1): 0 for finished sets of curves."""
        with np.errstate(divide="ignore", invalid="ignore"):
            limit = np.where(dm < 0, -multipliers / dm, np.inf).min(axis=1)
        step = np.minimum(1.0, 0.99 * limit)
        step = np.where(active, step, 0.0)
        before = self._residual(w, s, multipliers, price, mu)
        waiting = active.copy()
        for _ in range(50):
            t = step[:, None]
            after = self._residual(w + t * dw, s + t * ds, multipliers + t * dm, price + t * dprice, mu)
            waiting &= ~(after <= (1 - 0.01 * step) * before + 1e-15)
            if not waiting.any():
                break
            step = np.where(waiting, step * 0.5, step)
        return np.where(waiting, 0.0, step)[:, None]

    def _finish(self, w: Floats, multipliers: Floats) -> tuple[Floats, Floats]:
        low, high, curve, _ = self._split(multipliers)
        at_low = (w < SNAP) & (low > w)
        at_high = self.boxed & (self.cap - w < SNAP) & (high > self.cap - w)
        free = ~(at_low | at_high)
        w = np.where(at_low, 0.0, np.where(at_high, self.cap, w))
        rest = 1.0 - np.where(free, 0.0, w).sum(axis=1, keepdims=True)
        inner = np.where(free, w, 0.0)
        total = inner.sum(axis=1, keepdims=True)
        with np.errstate(divide="ignore", invalid="ignore"):
            w = np.where(free & (total > 0), inner * rest / total, w)
        if self.lowest:
            return w, curve / curve.sum(axis=1, keepdims=True)
        return w, np.clip(curve, 0.0, 1.0) if self.capped else np.ones_like(curve)
