"""All rules at all budgets for the families of a pilot file: what ``regrow plan`` prints."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from regrow.errors import DataError
from regrow.planning.at_once import at_once
from regrow.planning.cautions import cautions, local_optimum
from regrow.planning.cost import RuleCost, Workload, cost_of
from regrow.planning.global_fit import better_fit
from regrow.planning.least_squares import Fit, Transfer
from regrow.planning.likelihood import CurveDraws, draw_curves
from regrow.planning.misfit import Misfit, misfits
from regrow.planning.outlook import Outlook, outlooks
from regrow.planning.pilots import Pilots
from regrow.planning.plan_spread import PlanSpread, plan_spread
from regrow.planning.planner import Solver
from regrow.planning.registry import RULES, canonical, rule_named
from regrow.planning.rule import Allocation, Design, Evidence, Needs
from regrow.planning.scopes import choose_scope, missing_scope_pilots
from regrow.planning.tokens import show_tokens
from regrow.planning.worth import Worth, worth_of_pilots

BUDGET = 1_000_000
ALWAYS = (
    "uniform",
    "damage-proportional",
    "rah",
    "rah-capped",
    "rah-max-min",
    "rah-no-transfer",
    "rah-no-scope",
    "rah-hyperbolic",
)


@dataclass(frozen=True)
class PlannedRule:
    """One rule's answer at one budget. ``rule`` is the text it was asked by, ``name`` its registered name."""

    rule: str
    name: str
    budget: float
    allocation: Allocation
    needs: Needs
    cost: RuleCost


@dataclass(frozen=True)
class Uncertainty:
    """What the pilots leave open: curves, the planner's plans by budget, lack of fit, outlook, and what one more pilot
    is worth at the first budget."""

    drawn: CurveDraws
    spreads: dict[float, PlanSpread]
    misfits: list[Misfit]
    outlooks: list[Outlook]
    worth: Worth


@dataclass(frozen=True)
class FamilyPlan:
    """Everything planned for one family. ``fit`` holds the planner's curves, None when pilots for it are missing."""

    pilots: Pilots
    fit: Fit | None
    scope: str
    scope_reason: str
    plans: list[PlannedRule]
    notes: tuple[str, ...]
    uncertainty: Uncertainty | None = field(default=None)


def plan_families(
    families: Sequence[Pilots],
    budgets: Sequence[float],
    rules: Sequence[str] | None = None,
    *,
    only: Sequence[str] | None = None,
    solver: Solver = "study",
    transfer: Transfer = "free",
    workload: Workload | None = None,
    explained: bool = True,
    uncertain: bool = False,
    seed: int = 0,
    processes: int = 1,
) -> list[FamilyPlan]:
    """Return the plans of each family (of those named in ``only``; the others still serve as donors).

    ``rules`` None: all that the pilots suffice for. ``explained`` adds the notes, ``uncertain`` what the pilots leave
    open. With ``processes`` above 1 families are planned at once where the system forks (for programs without threads).
    Raises ConfigError for an unknown rule and DataError naming what a rule lacks.
    """
    wanted = [one for one in families if not only or one.family in only]

    def plan(pilots: Pilots) -> FamilyPlan:
        others = tuple(other for other in families if other.family != pilots.family)
        evidence = Evidence.of(pilots, others=others, solver=solver, transfer=transfer, seed=seed)
        design = Design.of(pilots)
        plans: list[PlannedRule] = []
        left_out: dict[str, list[str]] = {}
        for text in rules or default_rules(pilots, others):
            rule = rule_named(text)
            needs = rule.needs(design)
            for budget in budgets:
                try:
                    allocation = rule.allocate(replace(evidence, **pilots.evidence.get(rule.name, {})), budget)
                except DataError as error:
                    if rules:
                        raise
                    left_out.setdefault(f"{error}; {error.hint}", []).append(text)
                    break
                cost = cost_of(needs, budget, workload or Workload())
                plans.append(PlannedRule(text, rule.name, budget, allocation, needs, cost))
        fit = evidence.fit("rah", "exponential", transfer) if not pilots.missing() else None
        scope, reason = choose_scope(pilots)
        return FamilyPlan(
            pilots,
            fit,
            scope,
            reason,
            plans,
            (
                *(f"left out {', '.join(names)}: {reason}" for reason, names in left_out.items()),
                *(_notes(pilots, fit, plans, transfer) if explained else ()),
            ),
        )

    def left_open(pilots: Pilots) -> Uncertainty | None:
        return None if pilots.missing() or not uncertain else _uncertainty(pilots, budgets, transfer, seed)

    jobs: list[Callable[[], Any]] = [partial(plan, one) for one in wanted]
    done = at_once([*jobs, *(partial(left_open, one) for one in wanted)], processes=processes)
    return [replace(done[at], uncertainty=done[len(wanted) + at]) for at in range(len(wanted))]


@dataclass(frozen=True)
class RuleNeeds:
    """What a rule needs and costs before anything has been run."""

    name: str
    summary: str
    needs: Needs
    cost: RuleCost

    def as_json(self) -> dict[str, Any]:
        """Return plain values: name, what is needed, and what it costs before the heal and in all."""
        return {
            "name": self.name,
            "summary": self.summary,
            "needs": self.needs.words,
            "pilots": [run.name for run in self.needs.pilots],
            "before": self.cost.before.model_dump(mode="json"),
            "total": self.cost.total.model_dump(mode="json"),
        }


def rules_needs(
    budget: float, workload: Workload, rules: Sequence[str] | None = None, design: Design | None = None
) -> list[RuleNeeds]:
    """Return what each rule (None: all) needs under a design (None: the study's) and what it costs at ``budget``."""
    found = []
    for text in rules or RULES.names():
        rule = rule_named(text)
        needs = rule.needs(design or Design())
        found.append(RuleNeeds(rule.name, RULES.entry(rule.name).summary, needs, cost_of(needs, budget, workload)))
    return found


def default_rules(pilots: Pilots, others: Sequence[Pilots]) -> list[str]:
    """Return the rules to try on a family's file; those whose pilots are missing are left out with a note."""
    names = list(ALWAYS)
    if pilots.nll_gap is not None and any(other.nll_gap is not None and not other.missing() for other in others):
        names.append("rah-proxy")
    if "math" in pilots.pools:
        names.append("slowest-first")
    return [*names, *(name for name in RULES.names() if name in pilots.evidence)]


def as_json(plans: Sequence[FamilyPlan], budgets: Sequence[float]) -> dict[str, Any]:
    """Return families -> {fit: {a, tau, rmse, transfer}, scope, allocations: {rule: tokens per pool}}.

    Lists are in the file's order of capabilities and pools. The first budget's allocations carry the rule's name,
    those of a further budget the name and "_at_" with the budget, as in rah_at_250k.
    """
    return {"families": {plan.pilots.family: _family_json(plan, budgets[0]) for plan in plans}}


def _family_json(plan: FamilyPlan, first: float) -> dict[str, Any]:
    count = len(plan.pilots.capabilities)
    nothing: list[float] = [math.nan] * count
    fit: dict[str, Any] = {"a": nothing, "tau": nothing, "rmse": nothing, "transfer": [nothing] * count}
    if plan.fit is not None:
        curves = plan.fit.curves
        fit = {
            "a": curves.gain.tolist(),
            "tau": curves.tau.tolist(),
            "rmse": plan.fit.rmse.tolist(),
            "transfer": curves.transfer.tolist(),
        }
    allocations = {}
    for one in plan.plans:
        key = canonical(one.rule).replace("-", "_")
        if one.budget != first:
            key += f"_at_{show_tokens(one.budget)}"
        allocations[key] = [one.allocation.tokens[pool] for pool in plan.pilots.pools]
    return {"fit": fit, "scope": plan.scope, "allocations": allocations}


def whole_tokens(tokens: dict[str, float], budget: float) -> dict[str, int]:
    """Return whole tokens per pool that sum to the budget exactly (largest remainders first), without empty pools."""
    floors = {pool: math.floor(value + 1e-9) for pool, value in tokens.items()}
    left = round(budget) - sum(floors.values())
    for pool in sorted(tokens, key=lambda name: floors[name] - tokens[name])[: max(left, 0)]:
        floors[pool] += 1
    return {pool: value for pool, value in floors.items() if value > 0}


def _notes(pilots: Pilots, fit: Fit | None, plans: Sequence[PlannedRule], transfer: Transfer) -> tuple[str, ...]:
    said: list[str] = [*missing_scope_pilots(pilots)]
    planned = [one for one in plans if one.allocation.mixture is not None]
    if fit is not None and planned:
        scopes = {one.allocation.scope for one in planned}
        said += cautions(fit, pilots, next((scope for scope in scopes if scope != "all-lora"), None))
        if fit.method == "study":
            said += local_optimum(fit, better_fit(fit, pilots, margin=1e-3), pilots)
    for one in planned:
        for note in one.allocation.mixture.notes if one.allocation.mixture else ():
            said.append(f"at {show_tokens(one.budget)}: {note}")
    return tuple(dict.fromkeys(said))


def _uncertainty(pilots: Pilots, budgets: Sequence[float], transfer: Transfer, seed: int) -> Uncertainty:
    drawn = draw_curves(pilots, transfer=transfer, seed=seed)
    spreads = {budget: plan_spread(drawn, budget) for budget in budgets}
    worth = worth_of_pilots(drawn, spreads[budgets[0]], seed=seed)
    return Uncertainty(drawn, spreads, misfits(drawn, seed=seed), outlooks(drawn), worth)
