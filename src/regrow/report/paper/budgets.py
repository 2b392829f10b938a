"""Figure 5: what the summaries of retention are after a number of tokens, and how many were really paid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import polars

from regrow.records.study_runs import MAIN_CUT
from regrow.report.paper.families import HOME_SCOPE, MATCHED, UNIFORM, Family, Method
from regrow.report.paper.frames import frame_of
from regrow.report.paper.main_results import pilots_of_rule
from regrow.report.paper.names import rule_name
from regrow.report.paper.scopes import seed_spread


class Spent(NamedTuple):
    """One rule at one budget: tokens of the heal, tokens paid with its pilots, and what was kept."""

    family: str
    rule: str
    name: str
    scope: str
    budget: int
    paid_tokens: int
    seeds: int
    metric: str
    value: float
    sd: float
    runs: str


def budget_frame(families: Sequence[Family]) -> polars.DataFrame:
    """Return one row a family, rule, budget and metric: the pruned model at 0 tokens, and every healed model of the
    main cut (the uniform mixture under all-lora only; the token-matched control counts as uniform)."""
    found = []
    for family in families:
        for method in [*family.cuts[:1], *family.healed]:
            if method.cut != MAIN_CUT:
                continue
            rule = UNIFORM if method.rule == MATCHED else method.rule
            if rule == UNIFORM and method.scope != HOME_SCOPE:
                continue
            found += _rows(family, method, rule)
    return frame_of(Spent, found)


def _rows(family: Family, method: Method, rule: str) -> list[Spent]:
    paid = method.budget + sum(run.coordinates.budget for run in pilots_of_rule(family, rule))
    spread = seed_spread(family, method)
    values = (family.capped(method), family.worst(method))
    return [
        Spent(
            family.name,
            rule,
            rule_name(rule) if rule else "Pruned",
            method.scope,
            method.budget,
            paid,
            method.seeds,
            metric,
            value,
            sd,
            f"{family.base.places}; {method.places}",
        )
        for metric, value, sd in zip(("capped_mean", "worst_case"), values, spread, strict=True)
    ]
