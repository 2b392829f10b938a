"""RAH without pilots of its own: gains guessed from how much the cut raised the loss."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from regrow.errors import DataError
from regrow.planning.curves import Curves
from regrow.planning.least_squares import Fit
from regrow.planning.pilots import LOSS_EXAMPLES, SEQUENCE_TOKENS, Pilots
from regrow.planning.planner import plan_mixture
from regrow.planning.rule import Allocation, CallableRule, Design, Evidence, Needs


class Proxy(CallableRule):
    """a_c = a line in the NLL gap (pruned minus teacher on 50 own-pool examples), fitted on another family's pilots;
    tau = that family's median; T = I; then the planner's optimum.

    The line is least squares with an intercept over that family's capabilities, the guess clipped to 0..1.2 - r0
    [derived: the study names the regression, not its form]. The donor is the first family with pilots and gaps.
    """

    name = "rah-proxy"

    def needs(self, design: Design) -> Needs:
        return Needs(evaluations=2, read_tokens=2 * LOSS_EXAMPLES * SEQUENCE_TOKENS * len(design.capabilities))

    def allocate(self, evidence: Evidence, budget: float) -> Allocation:
        pilots = evidence.the_pilots(self.name)
        gaps = _gaps(pilots)
        donor = next((other for other in evidence.others if other.nll_gap is not None and not other.missing()), None)
        if donor is None:
            raise DataError(
                f"rule '{self.name}' needs another family with complete pilots and 'nll_gap', beside '{pilots.family}'",
                hint="put both families into one file",
            )
        fit = evidence_of(donor, evidence).fit(self.name, "exponential", "free")
        known = donor.usable
        level, slope = line(_gaps(donor)[known], fit.curves.gain[known])
        high = np.maximum(1e-3, 1.2 - pilots.pruned_retention)
        gain = np.clip(level + slope * gaps, 0.0, high)
        transfer = np.zeros((len(pilots.capabilities), len(pilots.pools)))
        transfer[np.arange(len(pilots.own)), pilots.own] = 1.0
        tau = np.full(len(gain), float(np.median(fit.curves.tau[known])))
        curves = Curves(pilots.pruned_retention, gain, tau, transfer)
        mixture = plan_mixture(curves, budget, donor.largest, solver=evidence.solver)
        nothing = np.full(len(gain), np.nan)
        return Allocation(
            tokens={pool: float(tokens) for pool, tokens in zip(pilots.pools, mixture.tokens, strict=True)},
            notes=(f"gains guessed from losses with the fits of '{donor.family}'", *mixture.notes),
            fit=Fit(curves, nothing, nothing, "none", "proxy"),
            mixture=mixture,
        )


def evidence_of(donor: Pilots, evidence: Evidence) -> Evidence:
    """Return the donor's own evidence under the same solver."""
    return Evidence(pools=donor.pools, pilots=donor, solver=evidence.solver)


def line(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, float]:
    """Return level and slope of the least-squares line; a flat one where x does not vary."""
    centred = x - x.mean()
    spread = float(centred @ centred)
    slope = float(centred @ y) / spread if spread > 0 else 0.0
    return float(y.mean() - slope * x.mean()), slope


def _gaps(pilots: Pilots) -> NDArray[np.float64]:
    if pilots.nll_gap is None or np.isnan(pilots.nll_gap).any():
        raise DataError(
            f"rule 'rah-proxy' needs 'nll_gap' of family '{pilots.family}', one number a capability",
            hint="the mean loss of the pruned model on 50 examples of each own pool, minus the unpruned model's",
        )
    return pilots.nll_gap


PROXY = Proxy()
