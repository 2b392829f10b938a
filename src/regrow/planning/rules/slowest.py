"""Slowest-first: no pilots, a fixed share to the capability known to come back last."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from regrow.errors import ConfigError, DataError
from regrow.planning.rule import Allocation, CallableRule, Design, Evidence, Needs, by_pool


@dataclass(frozen=True)
class SlowestFirst(CallableRule):
    """``share`` of the budget to the pool ``slowest``, the rest even over the others; all-lora.

    The baseline that the study names and did not run: on its pilots the planner mostly rediscovered "math needs 60 %".
    Raises DataError when there is no such pool.
    """

    share: float = 0.6
    slowest: str = "math"
    name: str = "slowest-first"

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ConfigError(
                f"the share of slowest-first must lie between 0 and 1, got {self.share:g}",
                hint="--rule 'slowest-first(0.6)'",
            )

    def needs(self, design: Design) -> Needs:
        return Needs()

    def configured(self, argument: float) -> SlowestFirst:
        return SlowestFirst(argument, self.slowest, self.name)

    def allocate(self, evidence: Evidence, budget: float) -> Allocation:
        pools = evidence.pools
        if self.slowest not in pools:
            raise DataError(
                f"slowest-first names the pool '{self.slowest}', which is not there",
                hint=f"use SlowestFirst(slowest=...) with one of {', '.join(pools)}",
            )
        if len(pools) == 1:
            return Allocation(by_pool(pools, [1.0], budget))
        shares = np.full(len(pools), (1 - self.share) / (len(pools) - 1))
        shares[pools.index(self.slowest)] = self.share
        return Allocation(by_pool(pools, shares, budget))


SLOWEST_FIRST = SlowestFirst()
