"""Recovery curves: retention as a function of the tokens spent on each pool.

Shape suffixes: C capabilities, P pools, any leading dimensions (draws from a distribution of curves) before them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
ShapeName = Literal["exponential", "hyperbolic"]

CEILING = 1.2
"""Retention that no curve passes: healed models rarely exceed the unpruned one by more."""


class Shape(NamedTuple):
    """A unit curve with its first and second derivative; argument z = effective tokens / tau.

    All rise from 0 to 1 with slope 1 at 0. Below 0 (more harm than help, possible with signed transfer only) they go
    on as a straight line: concave, and harm in proportion to tokens instead of an exploding exponential.
    """

    rise: Callable[[Floats], Floats]
    slope: Callable[[Floats], Floats]
    bend: Callable[[Floats], Floats]


def _exponential(z: Floats) -> Floats:
    above = np.maximum(z, 0)
    return np.asarray((z - above) - np.expm1(-above))


def _exponential_slope(z: Floats) -> Floats:
    return np.exp(-np.maximum(z, 0))


def _exponential_bend(z: Floats) -> Floats:
    return np.where(z < 0, 0.0, -np.exp(-np.maximum(z, 0)))


def _hyperbolic(z: Floats) -> Floats:
    above = np.maximum(z, 0)
    return np.asarray((z - above) + above / (1 + above))


def _hyperbolic_slope(z: Floats) -> Floats:
    return np.asarray(1 / (1 + np.maximum(z, 0)) ** 2)


def _hyperbolic_bend(z: Floats) -> Floats:
    return np.where(z < 0, 0.0, -2 / (1 + np.maximum(z, 0)) ** 3)


SHAPES: dict[str, Shape] = {
    "exponential": Shape(_exponential, _exponential_slope, _exponential_bend),
    "hyperbolic": Shape(_hyperbolic, _hyperbolic_slope, _hyperbolic_bend),
}


@dataclass(frozen=True)
class Curves:
    """r_c = min(1.2, start_c + gain_c * rise(x_c / tau_c)) with effective tokens x_c = sum over p of T_cp t_p.

    ``start``, ``gain`` and ``tau`` (tokens) are (..., C), ``transfer`` (..., C, P). Every curve is concave in the
    tokens, so sums, capped sums and minima of them have one best value.
    """

    start: Floats
    gain: Floats
    tau: Floats
    transfer: Floats
    shape: ShapeName = "exponential"

    def effective(self, tokens: ArrayLike) -> Floats:
        """Return x, (..., C), for tokens per pool (..., P)."""
        return np.asarray(np.einsum("...cp,...p->...c", self.transfer, np.asarray(tokens, np.float64)))

    def retention(self, tokens: ArrayLike) -> Floats:
        """Return the predicted retention of each capability, (..., C), for tokens per pool (..., P)."""
        risen = self.start + self.gain * SHAPES[self.shape].rise(self.effective(tokens) / self.tau)
        return np.minimum(CEILING, risen)

    def slopes(self, tokens: ArrayLike) -> Floats:
        """Return d retention / d effective token, (..., C); 0 at the ceiling."""
        z = self.effective(tokens) / self.tau
        rising = self.start + self.gain * SHAPES[self.shape].rise(z) < CEILING
        return np.asarray(np.where(rising, self.gain / self.tau * SHAPES[self.shape].slope(z), 0.0))

    @property
    def limit(self) -> Floats:
        """Return the retention that unlimited tokens would reach, (..., C)."""
        return np.minimum(CEILING, self.start + self.gain)

    def below_ceiling(self) -> Curves:
        """Return equal curves whose start and limit lie at or under the ceiling, so that the minimum never bites."""
        start = np.minimum(self.start, CEILING)
        return replace(self, start=start, gain=np.minimum(self.gain, CEILING - start))

    def only(self, kept: NDArray[np.bool_]) -> Curves:
        """Return the curves of some capabilities ((C,) mask)."""
        return replace(
            self,
            start=self.start[..., kept],
            gain=self.gain[..., kept],
            tau=self.tau[..., kept],
            transfer=self.transfer[..., kept, :],
        )
