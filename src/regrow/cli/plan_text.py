"""Plans as tables and sentences on a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from regrow.planning.likelihood import CurveDraws
from regrow.planning.outlook import BACK, HORIZON, WORTHWHILE
from regrow.planning.overview import FamilyPlan, PlannedRule, RuleNeeds, Uncertainty
from regrow.planning.tokens import show_tokens
from regrow.report.wording import DASH, count, duration

DOUBTFUL = 0.05
"""Misfit p below which a sentence says so."""
STEADY = 0.005
"""Mean share of the budget by which drawn plans differ below which the plan counts as known."""


def print_plans(console: Console, plans: Sequence[FamilyPlan], budgets: Sequence[float], solver: str) -> None:
    """Print each family's curves, allocations and warnings, then what the rules cost."""
    for plan in plans:
        name = (plan.pilots.family, "bold")
        console.print(Text.assemble(name, f"  scope {plan.scope} ({plan.scope_reason})"), soft_wrap=True)
        console.print()
        if plan.fit is not None:
            title = f"recovery curves, {plan.fit.method} fit: retention = pruned + a (1 - exp(-tokens / tau))"
            _print(console, title, _curves(plan))
            if plan.uncertainty is not None:
                title = "what the pilots leave open (binomial likelihood of their counts, 90 % intervals)"
                _print(console, title, _open(plan, plan.uncertainty))
                console.print(Text(_legend(), style="dim"))
                console.print()
            title = "transfer: how many tokens of its own pool a token of each pool is worth to a capability"
            _print(console, title, _transfer(plan))
        for budget in budgets:
            table, unit = _allocations(console, plan, budget)
            _print(console, f"tokens per pool at {budget:,.0f}{unit}", table)
        for sentence in _sentences(plan, solver):
            console.print(Text(f"- {sentence}"))
        console.print()
    if plans:
        _print(console, "cost, pilots included", _costs(plans[0].plans))
        _print_matched(console, plans[0].plans)


def print_needs(console: Console, rows: Sequence[RuleNeeds], budget: float) -> None:
    """Print what each rule needs before it can be run and what that costs."""
    table = _table()
    table.add_column("rule", no_wrap=True)
    table.add_column("needs")
    for name in ("trained before", "generated before", "trained in all"):
        table.add_column(name, justify="right")
    for row in rows:
        before, total = row.cost.before, row.cost.total
        table.add_row(
            row.name,
            row.needs.words,
            _tokens(before.training_tokens),
            _at_most(before.generated_tokens),
            _tokens(total.training_tokens),
        )
    _print(console, f"what each rule needs before a heal on {show_tokens(budget)} tokens", table)
    console.print(Text("generated: at most, at the study's limits; answers usually end earlier", style="dim"))


def _print(console: Console, title: str, table: Table) -> None:
    console.print(Text(title, style="italic"))
    console.print(table)
    console.print()


def _table() -> Table:
    return Table(box=None, pad_edge=False, header_style="bold")


def _words(name: str) -> str:
    return name.replace("_", " ")


def _header(pool: str) -> str:
    return pool.replace("_", "\n")


def _tokens(value: float) -> str:
    if not value:
        return "0"
    exact = show_tokens(value)
    return exact if len(exact) <= 6 else count(value)


def _at_most(value: float) -> str:
    return f"\N{LESS-THAN OR EQUAL TO}{count(value)}" if value else "0"


def _curves(plan: FamilyPlan) -> Table:
    assert plan.fit is not None
    fit, pilots = plan.fit, plan.pilots
    table = _table()
    table.add_column("capability", no_wrap=True)
    for name in ("pruned", "a", "tau", "rmse"):
        table.add_column(name, justify="right", no_wrap=True)
    for c, capability in enumerate(pilots.capabilities):
        table.add_row(
            _words(capability),
            _number(pilots.pruned_retention[c], 2),
            _number(fit.curves.gain[c], 3),
            _number(fit.curves.tau[c], 0),
            _number(fit.rmse[c], 3),
        )
    return table


def _open(plan: FamilyPlan, open_: Uncertainty) -> Table:
    drawn: CurveDraws = open_.drawn
    table = _table()
    table.add_column("capability", no_wrap=True)
    for name in ("a", "tau", "slow", "level", "back", "misfit p"):
        table.add_column(name, justify="right", no_wrap=True)
    gains, taus = drawn.interval(drawn.curves.gain), drawn.interval(drawn.curves.tau)
    for c, capability in enumerate(plan.pilots.capabilities):
        outlook, misfit = open_.outlooks[c], open_.misfits[c]
        table.add_row(
            _words(capability),
            f"{_number(gains[1, c], 2)} to {_number(gains[2, c], 2)}",
            f"{_short(taus[1, c])} to {_short(taus[2, c])}",
            _number(outlook.slow, 2),
            _number(outlook.stuck, 2),
            _number(outlook.recovered, 2),
            _number(misfit.p_value, 2),
        )
    return table


def _legend() -> str:
    return (
        f"probabilities: slow = at {HORIZON} x the largest pilot it still gained {WORTHWHILE:g} or more; level = it "
        f"levels off below {BACK:g}; back = neither"
    )


def _transfer(plan: FamilyPlan) -> Table:
    assert plan.fit is not None
    table = _table()
    table.add_column("capability", no_wrap=True)
    for pool in plan.pilots.pools:
        table.add_column(_header(pool), justify="right", no_wrap=True)
    for c, capability in enumerate(plan.pilots.capabilities):
        row = plan.fit.curves.transfer[c]
        table.add_row(_words(capability), *(_number(value, 2) for value in row))
    return table


def _allocations(console: Console, plan: FamilyPlan, budget: float) -> tuple[Table, str]:
    """Return the table of tokens and its unit: with the scope where it fits, in thousands where it is narrow."""
    for scope, whole in ((True, True), (False, True), (False, False)):
        table = _allocation_table(plan, budget, scope=scope, whole=whole)
        wide = console.options.update(width=10_000)
        if Measurement.get(console, wide, table).maximum <= console.width:
            break
    return table, "" if whole else ", in thousands"


def _allocation_table(plan: FamilyPlan, budget: float, *, scope: bool, whole: bool) -> Table:
    table = _table()
    table.add_column("rule", no_wrap=True)
    for pool in plan.pilots.pools:
        table.add_column(_header(pool), justify="right", no_wrap=True)
    if scope:
        table.add_column("scope", no_wrap=True)
    for one in plan.plans:
        if one.budget != budget:
            continue
        values = [one.allocation.tokens[pool] for pool in plan.pilots.pools]
        cells = [f"{value:,.0f}" if whole else f"{value / 1000:,.1f}" for value in values]
        table.add_row(one.rule, *cells, *([one.allocation.scope] if scope else []))
        if one.name == "rah" and plan.uncertainty is not None and plan.uncertainty.spreads[budget].moved > STEADY:
            _, low, high = plan.uncertainty.spreads[budget].quantiles()
            for word, ends in (("5 %", low), ("95 %", high)):
                shown = [f"{value:,.0f}" if whole else f"{value / 1000:,.1f}" for value in ends]
                table.add_row(*(Text(part, style="dim") for part in (f"  {word} of plans", *shown)))
    return table


def _sentences(plan: FamilyPlan, solver: str) -> list[str]:
    said = list(plan.notes)
    certified = [
        (one, one.allocation.mixture)
        for one in plan.plans
        if one.allocation.mixture is not None and not one.allocation.mixture.notes
    ]
    if certified:
        gap, rule = max((mixture.gap, one.rule) for one, mixture in certified)
        said.append(f"certified: no split beats these by more than {gap:.0e} of summed retention ({rule})")
        off, rule = max((mixture.off, one.rule) for one, mixture in certified)
        if solver == "study" and off >= 1:
            said.append(
                f"the study's solver stops just short of the optimum, which moves a pool by at most {off:,.0f} tokens "
                f"({rule}; --solver exact has it)"
            )
    if plan.uncertainty is not None:
        said += _open_sentences(plan.uncertainty)
    return said


def _open_sentences(open_: Uncertainty) -> list[str]:
    said = []
    budget, spread = next(iter(open_.spreads.items()))
    if spread.moved > STEADY:
        said.append(
            f"drawn anew from the pilots' counts, the plan for {show_tokens(budget)} moves {spread.moved:.0%} of its "
            "tokens on average"
        )
    for one in open_.misfits:
        if one.p_value < DOUBTFUL and one.worst is not None:
            said.append(
                f"{one.capability}: the curve misses its pilots (p = {one.p_value:.3f}; {one.worst.pool} at "
                f"{show_tokens(one.worst.tokens)} is {one.deviation:+.1f} standard deviations off)"
            )
    best = open_.worth.pilots[0]
    said.append(
        f"one more pilot ({best.run.pool}, {show_tokens(best.run.tokens)}) would add {best.knowledge:.4f} of mean "
        f"retention, knowing every curve exactly {open_.worth.perfect:.4f}; healing on the pilot's tokens instead "
        f"{best.healing:.4f}"
    )
    return said


def _costs(plans: Sequence[PlannedRule]) -> Table:
    """Return the table of costs, rules that cost the same in one row."""
    table = _table()
    table.add_column("rule")
    table.add_column("budget", justify="right")
    table.add_column("before the heal")
    for name in ("trained", "generated", "FLOPs", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    rows: dict[tuple[float, str, int, int], list[PlannedRule]] = {}
    for one in plans:
        total = one.cost.total
        key = (one.budget, one.needs.words, total.training_tokens, total.prompt_tokens + total.generated_tokens)
        rows.setdefault(key, []).append(one)
    for (budget, words, _, _), group in rows.items():
        total = group[0].cost.total
        table.add_row(
            ", ".join(one.rule for one in group),
            show_tokens(budget),
            words,
            _tokens(total.training_tokens),
            _at_most(total.generated_tokens),
            DASH if math.isnan(total.flops) else f"{total.flops:.2e}",
            duration(total.wall_seconds),
        )
    return table


def _print_matched(console: Console, plans: Sequence[PlannedRule]) -> None:
    dearest = max(plans, key=lambda one: one.cost.before.training_tokens)
    spent = dearest.cost.before.training_tokens
    if spent:
        console.print(
            Text(
                f"token-matched control: uniform on {show_tokens(dearest.budget + spent)} tokens trains on as many as "
                f"{dearest.rule} at {show_tokens(dearest.budget)} with its pilots"
            )
        )
    if any(math.isnan(one.cost.total.flops) or math.isnan(one.cost.total.wall_seconds) for one in plans):
        options = "--parameters, --training-rate, --generation-rate and --reading-rate"
        console.print(Text(f"FLOPs and time need {options}", style="dim"))


def _number(value: float, digits: int) -> str:
    return DASH if math.isnan(value) else f"{value:,.{digits}f}"


def _short(value: float) -> str:
    if math.isnan(value):
        return DASH
    for scale, letter in ((1e6, "M"), (1e3, "k")):
        if value >= scale:
            return f"{value / scale:.3g}{letter}"
    return f"{value:.0f}"
