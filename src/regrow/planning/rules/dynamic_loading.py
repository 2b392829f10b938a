"""Dynamic batch loading (Sheared LLaMA, 2310.06694): more of the pools whose loss is furthest above its target."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from regrow.planning.pilots import LOSS_EXAMPLES, SEQUENCE_TOKENS
from regrow.planning.reweighting import loss_rounds, reweight
from regrow.planning.rule import Allocation, CallableRule, Design, Evidence, Needs, by_pool

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class DynamicLoading(CallableRule):
    """w <- (1 - c) softmax(log w + eta * max(loss - target, 0)) + c / k from uniform, at each round of the heal.

    Asked as a plan, it replays the losses of a run (``losses``, one row a round, equal tokens between rounds) against
    the unpruned model's (``reference_losses``) and returns the tokens each pool would have got. In a heal, call
    :meth:`next_weights` at each round: the rule needs no pilots, only losses while it trains. ``clipped`` False leaves
    the difference signed.
    """

    name: str = "dynamic-batch-loading"
    eta: float = 1.0
    smoothing: float = 1e-4
    clipped: bool = True

    def needs(self, design: Design) -> Needs:
        read = LOSS_EXAMPLES * SEQUENCE_TOKENS * len(design.pools)
        return Needs(read_tokens=read, during="losses at each round of the heal")

    def next_weights(self, weights: ArrayLike, losses: ArrayLike, targets: ArrayLike) -> Floats:
        """Return the weights of the next round, (P,)."""
        above = np.asarray(losses, np.float64) - np.asarray(targets, np.float64)
        excess = np.maximum(above, 0.0) if self.clipped else above
        return reweight(np.asarray(weights, np.float64), excess, eta=self.eta, smoothing=self.smoothing)

    def path(self, losses: Floats, targets: Floats) -> list[Floats]:
        """Return the weights used in each round: uniform first, then one update after each round but the last."""
        weights: list[Floats] = [np.full(losses.shape[1], 1.0 / losses.shape[1])]
        for measured in losses[:-1]:
            weights.append(self.next_weights(weights[-1], measured, targets))
        return weights

    def allocate(self, evidence: Evidence, budget: float) -> Allocation:
        losses, targets = loss_rounds(evidence.losses, evidence.reference_losses, len(evidence.pools), self.name)
        shares = np.mean(self.path(losses, targets), axis=0)
        return Allocation(by_pool(evidence.pools, shares, budget), notes=(_note(len(losses)),))


def _note(rounds: int) -> str:
    times = f"{rounds} measured round{'s' if rounds > 1 else ''}"
    return f"replayed over {times}; in a heal the weights follow its own losses"


DYNAMIC_LOADING = DynamicLoading()
