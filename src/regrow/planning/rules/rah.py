"""RAH, the planner, and its variants: the budget that recovery curves fitted on pilots call best."""

from __future__ import annotations

from dataclasses import dataclass

from regrow.planning.cautions import cautions
from regrow.planning.curves import ShapeName
from regrow.planning.least_squares import Transfer
from regrow.planning.optimum import Objective
from regrow.planning.pilots import PILOT_SCOPE
from regrow.planning.rule import Allocation, CallableRule, Design, Evidence, Needs
from regrow.planning.scopes import choose_scope


@dataclass(frozen=True)
class Planner(CallableRule):
    """Fit a curve to each capability, maximise ``objective`` over them inside the trust region, choose the scope.

    ``transfer`` "none" lets a pool help its own capability only and reads only own-pool pilots; ``selects_scope``
    False trains under the pilots' own scope.
    """

    name: str = "rah"
    objective: Objective = "sum"
    shape: ShapeName = "exponential"
    transfer: Transfer = "free"
    selects_scope: bool = True

    def needs(self, design: Design) -> Needs:
        pools = None
        if self.transfer == "none":
            homes = [name if name in design.pools else "general" for name in design.capabilities]
            pools = list(dict.fromkeys(homes))
        pilots = design.single_pool_pilots(pools)
        return Needs(pilots=pilots + (design.scope_pilots() if self.selects_scope else ()), evaluations=2)

    def allocate(self, evidence: Evidence, budget: float) -> Allocation:
        pilots = evidence.the_pilots(self.name)
        transfer = evidence.transfer if self.transfer == "free" else self.transfer
        fit = evidence.fit(self.name, self.shape, transfer)
        mixture = evidence.mixture(self.name, self.shape, transfer, budget, self.objective)
        scope = choose_scope(pilots)[0] if self.selects_scope else PILOT_SCOPE
        return Allocation(
            tokens={pool: float(tokens) for pool, tokens in zip(pilots.pools, mixture.tokens, strict=True)},
            scope=scope,
            notes=(*cautions(fit, pilots, scope), *mixture.notes),
            fit=fit,
            mixture=mixture,
        )


RAH = Planner()
RAH_CAPPED = Planner("rah-capped", objective="capped")
RAH_MAX_MIN = Planner("rah-max-min", objective="min")
RAH_NO_TRANSFER = Planner("rah-no-transfer", transfer="none")
RAH_NO_SCOPE = Planner("rah-no-scope", selects_scope=False)
RAH_HYPERBOLIC = Planner("rah-hyperbolic", shape="hyperbolic")
