"""Damage-proportional: tokens go where the cut hurt, whether or not they help there."""

from __future__ import annotations

import numpy as np

from regrow.planning.rule import Allocation, CallableRule, Design, Evidence, Needs, by_pool


class DamageProportional(CallableRule):
    """t_p in proportion to the sum of max(0, 1 - r_c) over the capabilities whose own pool is p; all-lora.

    Capabilities without a retention count as undamaged. With no damage anywhere the split is uniform.
    """

    name = "damage-proportional"

    def needs(self, design: Design) -> Needs:
        return Needs(evaluations=2)

    def allocate(self, evidence: Evidence, budget: float) -> Allocation:
        pilots = evidence.the_pilots(self.name)
        lost = np.nan_to_num(np.maximum(0.0, 1.0 - pilots.pruned_retention), nan=0.0)
        shares = np.bincount(pilots.own, weights=lost, minlength=len(pilots.pools))
        if shares.sum() > 0:
            return Allocation(by_pool(pilots.pools, shares, budget))
        even = by_pool(pilots.pools, np.ones(len(pilots.pools)), budget)
        return Allocation(even, notes=("nothing was lost on the dev split, so the split is uniform",))


DAMAGE_PROPORTIONAL = DamageProportional()
