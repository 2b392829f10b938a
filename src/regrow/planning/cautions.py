"""What a reader must know before trusting fitted curves, in sentences."""

from __future__ import annotations

import numpy as np

from regrow.planning.least_squares import Fit, problem_of
from regrow.planning.pilots import PILOT_SCOPE, Pilots

AT_BOUND = 1e-3
"""Relative distance to a bound of the fit that counts as being on it."""


def cautions(fit: Fit, pilots: Pilots, scope: str | None = None) -> tuple[str, ...]:
    """Return warnings on curves: undefined, saturated, nothing gained, resting on extrapolation, fitted under another
    scope than the one used."""
    said: list[str] = []
    for c, name in enumerate(pilots.capabilities):
        gain, tau = float(fit.curves.gain[c]), float(fit.curves.tau[c])
        if np.isnan(gain):
            said.append(f"{name}: the unpruned model gets no item right, so it has no retention and is left out")
            continue
        problem = problem_of(pilots, c, fit.curves.shape, fit.transfer)
        high, lowest_tau = problem.gain_high, problem.tau_limits[0]
        if gain == 0:
            said.append(f"{name}: the fit finds no gain (a = 0), so the plan spends nothing for it")
        elif tau <= lowest_tau * (1 + AT_BOUND):
            said.append(
                f"{name}: saturated (tau at its lower bound {lowest_tau:,.0f}); the smallest pilot already reached "
                f"{fit.curves.limit[c]:.2f}, and the plan sees no use in more tokens"
            )
        elif gain >= high * (1 - AT_BOUND) and tau > pilots.largest:
            said.append(
                f"{name}: the pilots never bent the curve (gain at its bound, tau {tau:,.0f} beyond the largest pilot "
                f"{pilots.largest:,}); its recovery to {fit.curves.limit[c]:.2f} is extrapolation"
            )
    if scope is not None and scope != PILOT_SCOPE:
        said.append(f"the curves were measured under {PILOT_SCOPE}, the heal uses {scope}: they may not hold there")
    return tuple(said)


def local_optimum(fit: Fit, better: Fit, pilots: Pilots, *, margin: float = 1e-3) -> tuple[str, ...]:
    """Return a sentence for each capability whose fit is beaten by ``better`` by more than ``margin`` (relative)."""
    said = []
    for c, name in enumerate(pilots.capabilities):
        if better.objective[c] < fit.objective[c] * (1 - margin):
            said.append(
                f"{name}: the study's fit is a local optimum (penalised squares {fit.objective[c]:.4f}); the global "
                f"one ({better.objective[c]:.4f}) has a = {better.curves.gain[c]:.3f}, "
                f"tau = {better.curves.tau[c]:,.0f}"
            )
    return tuple(said)
