"""Table 3: every rule at the same healing budget, the longer heal beside it, and what each really cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import polars

from regrow.planning.cost import TRAIN_FLOPS
from regrow.planning.registry import RULES, canonical
from regrow.planning.rule import Design
from regrow.records.study_runs import StudyRun
from regrow.report.paper.families import MATCHED, UNIFORM, Family, Method
from regrow.report.paper.frames import frame_of
from regrow.report.paper.names import method_name, rule_name, rule_order
from regrow.report.paper.scopes import seed_spread

SHOWN_DIGITS = 2
"""Values that are equal to so many decimals share the bold type."""


class Result(NamedTuple):
    """One rule in one family. Summaries of retention (raw, and corrected for chance) of scores averaged over seeds,
    with their SD from seed to seed. ``best_*`` says that no rule at the fixed budget is printed higher; the control,
    which heals longer, does not compete (``fixed`` False).

    ``budget`` is what the heal was given, ``healed_tokens`` what it trained on (mean over seeds, 0 where not recorded),
    ``pilot_tokens`` what the rule's pilots trained on before, ``paid_tokens`` budget and pilots. ``evaluated_tokens``
    were generated to score the pilots and the two models before them; ``planning_flops`` and ``planning_seconds`` are
    those evaluations and the training of the pilots; ``heal_flops`` the heal and its own evaluation (mean over seeds);
    ``paid_flops`` both. NaN where a record does not know its own. The healing pools serve every rule and are charged to
    none.
    """

    family: str
    rule: str
    name: str
    scope: str
    fixed: bool
    budget: int
    healed_tokens: float
    pilots: int
    pilot_tokens: int
    paid_tokens: int
    evaluated_tokens: int
    planning_flops: float
    planning_seconds: float
    heal_flops: float
    paid_flops: float
    seeds: int
    capped_mean: float
    capped_mean_sd: float
    worst_case: float
    worst_case_sd: float
    corrected_capped_mean: float
    corrected_worst_case: float
    best_capped_mean: bool
    best_worst_case: bool
    runs: str
    pilot_runs: str


def result_frame(families: Sequence[Family], budget: int) -> polars.DataFrame:
    """Return one row a family and rule at the budget, and one for the token-matched control where it was run."""
    rows: list[Result] = []
    for family in families:
        fixed = sorted(family.rules(budget), key=lambda m: rule_order(m.rule))
        matched = family.matched(budget)
        own = [_row(family, method, fixed, budget, fixed=True) for method in fixed]
        if matched is not None:
            own.append(_row(family, matched, [matched], budget, fixed=False))
        rows += with_best(own)
    return frame_of(Result, rows)


def with_best(rows: Sequence[Result]) -> list[Result]:
    """Return one family's rows with the best of each metric at the fixed budget marked, ties as printed included."""
    capped = _highest([row.capped_mean for row in rows if row.fixed])
    worst = _highest([row.worst_case for row in rows if row.fixed])
    return [
        row._replace(
            best_capped_mean=row.fixed and round(row.capped_mean, SHOWN_DIGITS) == capped,
            best_worst_case=row.fixed and round(row.worst_case, SHOWN_DIGITS) == worst,
        )
        for row in rows
    ]


def _highest(values: Sequence[float]) -> float:
    """The highest value as printed; NaN, which nothing equals, where there is nothing to compare."""
    shown = [round(value, SHOWN_DIGITS) for value in values if math.isfinite(value)]
    return max(shown) if len(shown) > 1 else math.nan


def pilots_of_rule(family: Family, rule: str) -> list[StudyRun]:
    """Return the pilot runs of a family that a rule reads; all of them for the control that is matched to them."""
    name = canonical(rule)
    if name not in RULES:
        return []
    singles = [run.coordinates for run in family.pilots if run.coordinates.pilot != UNIFORM]
    pools = tuple(dict.fromkeys(at.pilot for at in singles))
    if not pools:
        return []
    scopes = [run.coordinates for run in family.pilots if run.coordinates.pilot == UNIFORM]
    design = Design(
        capabilities=tuple(family.paired.capabilities),
        pools=pools,
        budgets=tuple(dict.fromkeys(at.budget for at in singles)),
        scope_tokens=max((at.budget for at in scopes), default=0),
        scopes=tuple(dict.fromkeys(at.scope for at in scopes)),
    )
    wanted = {(run.pool, run.tokens, run.scope) for run in RULES.get(name).needs(design).pilots}
    return [
        run for run in family.pilots if (run.coordinates.pilot, run.coordinates.budget, run.coordinates.scope) in wanted
    ]


def _reads_dev(rule: str) -> bool:
    """Return whether a rule reads dev scores of the unpruned and the pruned model."""
    name = canonical(rule)
    return name in RULES and RULES.get(name).needs(Design()).evaluations > 0


def computed(run: StudyRun) -> float:
    """Return the FLOPs of a run: of its evaluation and of the training before it. A record that counts no training
    tokens (`regrow eval` measured a checkpoint that was healed elsewhere) says nothing of the training, which is then
    6 per weight and token."""
    cost, model = run.record.cost, run.record.model
    trained = 0 if cost.training_tokens else model.healing_tokens
    return cost.flops + float(TRAIN_FLOPS * trained * model.parameters)


def _row(family: Family, method: Method, among: Sequence[Method], budget: int, *, fixed: bool) -> Result:
    pilots = pilots_of_rule(family, method.rule) if fixed else []
    pilot_tokens = sum(run.coordinates.budget for run in pilots)
    scored = [*pilots, *(family.dev if fixed and _reads_dev(method.rule) else ())]
    planning, healing = sum(map(computed, scored)), sum(map(computed, method.runs)) / method.seeds
    capped_sd, worst_sd = seed_spread(family, method)
    name = method_name(method, among) if fixed else rule_name(MATCHED)
    return Result(
        family.name,
        method.rule if fixed else MATCHED,
        name,
        method.scope,
        fixed,
        method.budget,
        sum(run.record.model.healing_tokens for run in method.runs) / method.seeds,
        len(pilots),
        pilot_tokens,
        method.budget + pilot_tokens,
        sum(run.record.cost.generated_tokens for run in scored),
        float(planning),
        float(sum(run.record.cost.wall_seconds for run in scored)),
        healing,
        planning + healing,
        method.seeds,
        family.capped(method),
        capped_sd,
        family.worst(method),
        worst_sd,
        family.capped(method, corrected=True),
        family.worst(method, corrected=True),
        False,
        False,
        f"{family.base.places}; {method.places}",
        "; ".join(run.place for run in scored),
    )
