"""Uniform: every pool gets the same. The baseline that needs nothing, and at more tokens the planner's real rival."""

from __future__ import annotations

from regrow.planning.rule import Allocation, CallableRule, Design, Evidence, Needs, by_pool


class Uniform(CallableRule):
    """t_p = B / P, trained all-lora."""

    name = "uniform"

    def needs(self, design: Design) -> Needs:
        return Needs()

    def allocate(self, evidence: Evidence, budget: float) -> Allocation:
        return Allocation(by_pool(evidence.pools, [1.0] * len(evidence.pools), budget))


UNIFORM = Uniform()
