"""DoReMi (2305.10429): the average weights of a small run that always presses on the pool furthest from a reference."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regrow.planning.pilots import PilotRun
from regrow.planning.reweighting import loss_rounds, reweight
from regrow.planning.rule import Allocation, CallableRule, Design, Evidence, Needs, by_pool

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class DoReMi(CallableRule):
    """w <- (1 - c) w exp(eta * max(loss - reference, 0)) / Z + c / k at every step of a proxy run; the answer is the
    mean of w over the steps.

    ``losses`` (steps, P) are the proxy's, reweighted as it trains by :meth:`next_weights`; ``reference_losses`` (P,)
    those of a model healed on the uniform mixture. The paper's proxy and reference are small models trained from
    scratch; here both are short heals of the pruned model itself.
    """

    name: str = "doremi"
    eta: float = 1.0
    smoothing: float = 1e-3

    def needs(self, design: Design) -> Needs:
        runs = (PilotRun("uniform", design.scope_tokens), PilotRun("doremi-proxy", design.scope_tokens))
        return Needs(loss_runs=runs)

    def next_weights(self, weights: Floats, losses: Floats, reference: Floats) -> Floats:
        """Return the proxy run's weights after a step, (P,)."""
        return reweight(weights, np.maximum(losses - reference, 0.0), eta=self.eta, smoothing=self.smoothing)

    def allocate(self, evidence: Evidence, budget: float) -> Allocation:
        losses, reference = loss_rounds(evidence.losses, evidence.reference_losses, len(evidence.pools), self.name)
        weights = np.full(losses.shape[1], 1.0 / losses.shape[1])
        total = np.zeros_like(weights)
        for step in losses:
            weights = self.next_weights(weights, step, reference)
            total += weights
        return Allocation(by_pool(evidence.pools, total, budget))


DOREMI = DoReMi()
