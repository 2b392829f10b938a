"""Recovery curves from counts: the binomial likelihood of dev items right, and curves drawn from what it leaves open.

Items right ~ Binomial(n, s0 r), s0 the unpruned score (taken as exact: retention is defined against it) and r the
curve of ``regrow.planning.curves``. Unknown: the pruned score (its own count is data), a uniform on 0..1.2 - r0,
log tau uniform between the limits of the fit, each T of another pool half-normal with scale 0.5 (what the study's
penalty amounts to at the binomial spread of 60 items), normal when signed.

Given pruned score, a and tau the pools are independent, so the posterior is summed on a grid: no sampler, no start.
Limitation: the same dev items are scored in all pilots, so differences between pilots are less noisy than independent
counts; the intervals are wide rather than narrow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, ndtr

from regrow.planning.curves import CEILING, SHAPES, Curves, ShapeName
from regrow.planning.least_squares import TRANSFER_HIGH, Transfer, tau_limits
from regrow.planning.pilots import Pilots
from regrow.seeding import stream

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]

STARTS, GAINS, TAUS = 9, 24, 30
TRANSFERS = 16
TRANSFER_SCALE = 0.5
ZOOMS = 4
TAIL = 1e-4
"""Posterior mass left outside the grid on each side of each axis when it is narrowed."""
EDGE = 1e-6
"""Success probabilities are kept this far from 0 and 1."""


@dataclass(frozen=True)
class CurveDraws:
    """Curves drawn from the posterior: ``curves`` has a leading dimension of draws; NaN for a capability without a
    retention."""

    curves: Curves
    pilots: Pilots
    transfer: Transfer

    @property
    def count(self) -> int:
        return len(self.curves.start)

    def first(self, count: int) -> Curves:
        """Return the first ``count`` drawn curves."""
        kept = self.curves
        return Curves(kept.start[:count], kept.gain[:count], kept.tau[:count], kept.transfer[:count], kept.shape)

    def probabilities(self) -> Floats:
        """Return the success probability of each drawn curve at each pilot, (draws, pools, budgets, C)."""
        return success_probabilities(self.curves, self.pilots)

    def interval(self, values: Floats, level: float = 0.9) -> Floats:
        """Return median, lower and upper limit of drawn values (draws, ...) as (3, ...)."""
        tail = (1 - level) / 2
        return np.asarray(np.quantile(values, [0.5, tail, 1 - tail], axis=0))


def success_probabilities(curves: Curves, pilots: Pilots) -> Floats:
    """Return s0 r at each single-pool pilot, (draws, pools, budgets, C)."""
    tokens = np.asarray(pilots.budgets, np.float64)
    z = np.einsum("scp,b->spbc", curves.transfer, tokens) / curves.tau[:, None, None, :]
    r = curves.start[:, None, None, :] + curves.gain[:, None, None, :] * SHAPES[curves.shape].rise(z)
    return np.clip(np.minimum(r, CEILING) * (pilots.unpruned / pilots.dev_items), EDGE, 1 - EDGE)


def draw_curves(
    pilots: Pilots,
    *,
    draws: int = 1000,
    shape: ShapeName = "exponential",
    transfer: Transfer = "free",
    seed: int = 0,
) -> CurveDraws:
    """Return curves drawn from the posterior given the pilots; pilots that were not run are simply not data.

    ``transfer`` "none" holds every T of another pool at 0 and reads own-pool pilots only. The draws of a capability
    depend on the seed and its name, not on the other capabilities.
    """
    count, pools = len(pilots.capabilities), len(pilots.pools)
    start, gain, tau = (np.full((draws, count), np.nan) for _ in range(3))
    rows = np.full((draws, count, pools), np.nan)
    for c in np.flatnonzero(pilots.usable):
        grid = _narrowed(pilots, int(c), shape, transfer)
        drawn = grid.draw(draws, stream(seed, "curves", pilots.family, pilots.capabilities[c]))
        start[:, c], gain[:, c], tau[:, c], rows[:, c] = drawn
    return CurveDraws(Curves(start, gain, tau, rows, shape), pilots, transfer)


class _Window(NamedTuple):
    """Limits of the grid: success probability of the pruned model, a as a part of its highest value, log tau."""

    start: tuple[float, float]
    part: tuple[float, float]
    log_tau: tuple[float, float]


def _narrowed(pilots: Pilots, capability: int, shape: ShapeName, transfer: Transfer) -> _Grid:
    """Return the posterior on a grid that has been narrowed to where the mass is, so that its cells resolve it."""
    n, right = float(pilots.dev_items[capability]), float(pilots.pruned[capability])
    low, high = (float(betaincinv(right + 0.5, n - right + 0.5, part)) for part in (1e-6, 1 - 1e-6))
    least, most = np.log(tau_limits(np.asarray(pilots.budgets, np.float64)))
    window = _Window((low, high), (0.0, 1.0), (float(least), float(most)))
    grid = _Grid(pilots, capability, shape, transfer, window)
    for _ in range(ZOOMS):
        closer = grid.window_of_mass()
        widths = [(new[1] - new[0]) / (old[1] - old[0]) for new, old in zip(closer, window, strict=True)]
        if min(widths) > 0.7:
            break
        window = closer
        grid = _Grid(pilots, capability, shape, transfer, window)
    return grid


class _Grid:
    """The posterior of one capability on a grid (start, gain, tau), with the other pools' T summed out."""

    def __init__(self, pilots: Pilots, capability: int, shape: ShapeName, transfer: Transfer, window: _Window) -> None:
        self.window = window
        self.own = pilots.own[capability]
        self.pools = len(pilots.pools)
        self.others = [] if transfer == "none" else [p for p in range(self.pools) if p != self.own]
        self.edges = _transfer_edges(transfer == "signed")
        n = float(pilots.dev_items[capability])
        self.score = float(pilots.unpruned[capability]) / n
        right = float(pilots.pruned[capability])
        chance = _middles(window.start, STARTS)
        # The pruned model's own count, with the Jeffreys prior.
        self.prior = (right - 0.5) * np.log(chance) + (n - right - 0.5) * np.log1p(-chance)
        self.start = chance / self.score
        self.part = _middles(window.part, GAINS)
        self.log_tau = _middles(window.log_tau, TAUS)
        self.gain = np.maximum(1e-3, CEILING - self.start)[:, None] * self.part
        self.rise = SHAPES[shape].rise
        self.rates = np.asarray(pilots.budgets, np.float64) / np.exp(self.log_tau)[:, None]
        counts = pilots.healed[:, :, capability]
        run = ~np.isnan(counts)
        # Right and wrong items of each pilot, 0 and 0 where it was not run.
        self.items = _single(np.concatenate([np.where(run, counts, 0.0), np.where(run, n - counts, 0.0)], axis=1))
        self._solve()

    def _logs(self, transfer: Floats) -> Singles:
        """Return log p and log(1 - p) by budget, (start, gain, tau, T, 2 budgets), in single precision: an error of
        1e-7 in p is nothing beside what a few dozen items say, and it takes half the time."""
        risen = _single(self.rise(transfer[:, None] * self.rates[:, None, :]))
        p = _single(self.score * self.gain)[:, :, None, None, None] * risen
        p += _single(self.score * self.start)[:, None, None, None, None]
        np.clip(p, EDGE, min(1 - EDGE, self.score * CEILING), out=p)
        logs = np.empty((*p.shape[:-1], 2 * p.shape[-1]), np.float32)
        np.log(p, out=logs[..., : p.shape[-1]])
        np.log(np.subtract(1, p, out=p), out=logs[..., p.shape[-1] :])  # p keeps EDGE away from 1
        return logs

    def _solve(self) -> None:
        total = self.prior[:, None, None] + (self._logs(np.ones(1)) @ self.items[self.own])[..., 0]
        self.by_transfer: Singles | None = None
        if self.others:
            middles = (self.edges[1:] + self.edges[:-1]) / 2
            mass = np.diff(ndtr(self.edges / TRANSFER_SCALE))
            logs = self._logs(middles) @ self.items[self.others].T  # (start, gain, tau, T, others)
            logs += _single(np.log(np.maximum(mass / mass.sum(), 1e-300)))[:, None]
            top = logs.max(axis=3, keepdims=True)
            risen = np.subtract(logs, top)
            np.exp(risen, out=risen)
            total = total + (np.log(risen.sum(axis=3)) + top[:, :, :, 0]).sum(axis=-1, dtype=np.float64)
            self.by_transfer = logs
        weights = np.exp(total - total.max())
        self.weights = weights / weights.sum()

    def window_of_mass(self) -> _Window:
        """Return the limits that hold all but a sliver of the mass, one cell wider on each side."""
        limits = []
        for axis, (low, high) in enumerate(self.window):
            others = tuple(other for other in range(3) if other != axis)
            mass = self.weights.sum(axis=others)
            below = np.cumsum(mass)
            first, last = int((below < TAIL).sum()), int((below < 1 - TAIL).sum())
            step = (high - low) / len(mass)
            limits.append((max(low, low + (first - 1) * step), min(high, low + (last + 2) * step)))
        return _Window(*limits)

    def draw(self, count: int, generator: np.random.Generator) -> tuple[Floats, Floats, Floats, Floats]:
        """Return drawn start, gain, tau (count,) and transfer rows (count, pools), spread evenly within grid cells."""
        flat = generator.choice(self.weights.size, size=count, p=self.weights.ravel())
        at, i, k = np.unravel_index(flat, self.weights.shape)
        inside = generator.random((3, count)) - 0.5
        steps = [(high - low) / size for (low, high), size in zip(self.window, self.weights.shape, strict=True)]
        start = self.start[at] + inside[0] * steps[0] / self.score
        gain = np.maximum(1e-3, CEILING - start) * (self.part[i] + inside[1] * steps[1])
        tau = np.exp(self.log_tau[k] + inside[2] * steps[2])
        rows = np.zeros((count, self.pools))
        rows[:, self.own] = 1.0
        if self.by_transfer is not None:
            chosen = self.by_transfer[at, i, k]  # (count, T, others)
            odds = np.exp(chosen - chosen.max(axis=1, keepdims=True)).cumsum(axis=1)
            point = generator.random((count, 1, len(self.others))) * odds[:, -1:]
            node = (odds < point).sum(axis=1)
            low, high = self.edges[node], self.edges[node + 1]
            rows[:, self.others] = low + (high - low) * generator.random(node.shape)
        return start, gain, tau, rows


def _single(values: Floats) -> Singles:
    return values.astype(np.float32)


def _middles(limits: tuple[float, float], count: int) -> Floats:
    low, high = limits
    return np.asarray(low + (high - low) * (np.arange(count) + 0.5) / count)


def _transfer_edges(signed: bool) -> Floats:
    """Return the edges of the cells of T, finest near 0: there a little transfer of much data makes a difference."""
    edges = TRANSFER_HIGH * (np.arange(TRANSFERS + 1) / TRANSFERS) ** 4
    return np.concatenate([-edges[:0:-1], edges]) if signed else edges
