"""The five tables as readers see them: frames in, cells of text out, for the page and for LaTeX alike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import polars

from regrow.planning.tokens import show_tokens
from regrow.records.study_runs import MAIN_CUT
from regrow.report.paper.comparisons import FIXED, MARGIN, TOKEN_MATCHED
from regrow.report.paper.families import HOME_SCOPE, UNIFORM
from regrow.report.paper.paper import Paper
from regrow.report.wording import DASH, MINUS, capability_name, count, percent

METRICS = {"capped_mean": "Capped mean", "worst_case": "Worst case"}


class Text(NamedTuple):
    """One cell. ``small`` is a second line (limits, a spread); ``runs`` the run folders it comes from, joined by "; ";
    ``note`` says why it is undefined, or what stands behind it."""

    text: str
    small: str = ""
    bold: bool = False
    runs: str = ""
    note: str = ""


class Head(NamedTuple):
    """A column's head; columns of numbers stand right, ``group`` heads several columns at once."""

    text: str
    number: bool = True
    group: str = ""


class Line(NamedTuple):
    """A row. ``first`` opens a group (a family): a rule stands above it."""

    cells: tuple[Text, ...]
    first: bool = False


class Grid(NamedTuple):
    """A table with its number, title, caption and the notes below it. ``frame`` holds the numbers themselves."""

    key: str
    number: int
    title: str
    caption: str
    heads: tuple[Head, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...]
    frame: polars.DataFrame


def grids_of(paper: Paper) -> list[Grid]:
    """Return the tables of a study, numbered as in the paper; those without rows are left out."""
    found = [retention_grid(paper), scope_grid(paper), result_grid(paper), test_grid(paper), matched_grid(paper)]
    return [grid for grid in found if grid.lines]


def retention_grid(paper: Paper) -> Grid:
    """Return table 1: retention by capability and stage, raw and corrected for chance."""
    whole = paper.retention.filter(polars.col("kind") == "")
    capabilities = list(dict.fromkeys(whole["capability"]))
    lines: list[Line] = []
    for family in paper.families:
        own = [row for row in whole.iter_rows(named=True) if row["family"] == family.name]
        shown = [
            m
            for m in family.methods
            if m.stage != "healed"
            or (m.rule == UNIFORM and m.scope == HOME_SCOPE and m.budget == paper.budget and m.cut == MAIN_CUT)
        ]
        for place, method in enumerate(shown):
            rows = {r["capability"]: r for r in own if r["runs"].endswith(method.places)}
            first = rows[next(iter(rows))]
            cells = [Text(family.name if place == 0 else ""), Text(first["model"], _seeds(method.seeds))]
            cells += [_retention(rows.get(name), unpruned=method.stage == "unpruned") for name in capabilities]
            if method.stage == "unpruned":
                cells += [Text(""), Text("")]
            else:
                places = f"{family.base.places}; {method.places}"
                cells += [
                    Text(two(value(method)), _corrected(value(method, corrected=True)), runs=places)
                    for value in (family.capped, family.worst)
                ]
            lines.append(Line(tuple(cells), first=place == 0))
    notes = ["Small: above chance, where something can be guessed (knowledge .25, refusal .50)."]
    for measure, name in (("raw", "retention"), ("corrected", "retention above chance")):
        ranks = paper.concordance.filter(polars.col("measure") == measure)
        if ranks.is_empty():
            continue
        by_name = {row["capability"]: row for row in ranks.iter_rows(named=True)}
        one = next(iter(by_name.values()))
        w = f"W = {two(one['w'])}, p = {p_text(one['p_value'])}" if math.isfinite(one["w"]) else one["reason"]
        cells = [Text("Mean rank" if measure == "raw" else ""), Text(f"by {name}", w, runs=one["runs"])]
        for capability in capabilities:
            row = by_name.get(capability)
            cells.append(Text(f"{row['mean_rank']:.2f}" if row and math.isfinite(row["mean_rank"]) else DASH))
        lines.append(Line((*cells, Text(""), Text("")), first=measure == "raw"))
    if len(paper.families) < 2:
        notes.append("One family: whether families agree on what breaks first (Kendall's W) cannot be told.")
    else:
        notes.append("Mean rank over families of the pruned models, 1 = lost most; W is Kendall's, corrected for ties.")
    heads = (
        Head("Family", number=False),
        Head("Model", number=False),
        *(Head(capability_name(name)) for name in capabilities),
        Head("Capped mean"),
        Head("Worst case"),
    )
    caption = (
        "Scores of the unpruned models, and what each stage kept of them: the score divided by the unpruned one, "
        f"with {percent(paper.drawing.level)} intervals from resampled items."
    )
    return Grid("retention", 1, "Retention by capability and stage", caption, heads, tuple(lines), tuple(notes), whole)


def scope_grid(paper: Paper) -> Grid:
    """Return table 2: the same mixture under each scope."""
    lines, last = [], ""
    for row in paper.scopes.iter_rows(named=True):
        home = not math.isfinite(row["difference"])
        lines.append(
            Line(
                (
                    Text(row["family"] if row["family"] != last else ""),
                    Text(row["scope"], _seeds(row["seeds"])),
                    Text(two(row["capped_mean"]), _spread(row["capped_mean_sd"]), row["best"], row["runs"]),
                    Text(two(row["worst_case"]), _spread(row["worst_case_sd"]), runs=row["runs"]),
                    Text("" if home else signed(row["difference"]), span(row["low"], row["high"]), runs=row["runs"]),
                    Text("" if home else p_text(row["p_value"], bound=row["bound"])),
                    Text("" if home else p_text(row["holm"], bound=row["holm_bound"])),
                ),
                first=row["family"] != last,
            )
        )
        last = row["family"]
    heads = (
        Head("Family", number=False),
        Head("Trained", number=False),
        Head("Capped mean"),
        Head("Worst case"),
        Head("Capped mean minus all-lora"),
        Head("p"),
        Head("p after Holm"),
    )
    caption = (
        f"The uniform mixture on {tokens(paper.budget)} tokens under each scope. Bold: the best capped mean of a "
        "family. Small: standard deviation from seed to seed; limits of the difference."
    )
    return Grid("scopes", 2, "What is trained", caption, heads, tuple(lines), (), paper.scopes)


def result_grid(paper: Paper) -> Grid:
    """Return table 3: every rule at the same budget, and what it cost with its pilots."""
    lines, last = [], ""
    for row in paper.results.iter_rows(named=True):
        lines.append(
            Line(
                (
                    Text(row["family"] if row["family"] != last else ""),
                    Text(row["name"], _seeds(row["seeds"])),
                    Text(row["scope"]),
                    Text(two(row["capped_mean"]), _spread(row["capped_mean_sd"]), row["best_capped_mean"], row["runs"]),
                    Text(two(row["worst_case"]), _spread(row["worst_case_sd"]), row["best_worst_case"], row["runs"]),
                    Text(two(row["corrected_capped_mean"]), runs=row["runs"]),
                    Text(two(row["corrected_worst_case"]), runs=row["runs"]),
                    Text(tokens(row["budget"])),
                    _pilot_cell(row),
                    Text(tokens(row["paid_tokens"])),
                    Text(count(row["evaluated_tokens"]) if row["evaluated_tokens"] else "0", runs=row["pilot_runs"]),
                    Text(flops(row["heal_flops"]), runs=row["runs"]),
                    Text(flops(row["planning_flops"]), runs=row["pilot_runs"]),
                ),
                first=row["family"] != last,
            )
        )
        last = row["family"]
    heads = (
        Head("Family", number=False),
        Head("Rule", number=False),
        Head("Trained", number=False),
        Head("Capped mean", group="Retention"),
        Head("Worst case", group="Retention"),
        Head("Capped mean", group="Above chance"),
        Head("Worst case", group="Above chance"),
        Head("Heal", group="Training tokens"),
        Head("Pilots", group="Training tokens"),
        Head("Paid", group="Training tokens"),
        Head("Generated to score pilots"),
        Head("Of the heal", group="FLOPs, evaluations included"),
        Head("Of its pilots", group="FLOPs, evaluations included"),
    )
    caption = (
        f"Rules at {tokens(paper.budget)} healing tokens. Bold: the best rule of a family at that budget, ties as "
        "printed included; the token-matched control heals on the pilots' tokens too and does not compete. Summaries "
        "are of scores averaged over seeds; small: standard deviation from seed to seed."
    )
    return Grid("results", 3, "Allocation rules and what they cost", caption, heads, tuple(lines), (), paper.results)


def test_grid(paper: Paper) -> Grid:
    """Return table 4: every paired test."""
    lines, last = [], ("", "")
    notes = []
    for name in (FIXED, TOKEN_MATCHED):
        rows = paper.comparisons.filter(polars.col("tests") == name)
        if not rows.is_empty():
            notes.append(f"{name.capitalize()}: {rows.height} tests are corrected together.")
        for row in rows.iter_rows(named=True):
            seeded = math.isfinite(row["p_seed"])
            sure = (row["holm_seed"] if seeded else row["holm_item"]) <= 0.05
            lines.append(
                Line(
                    (
                        Text(name if name != last[0] else ""),
                        Text(row["family"] if (name, row["family"]) != last else ""),
                        Text(f"{row['a']} {MINUS} {row['b'][:1].lower() + row['b'][1:]}"),
                        Text(METRICS[row["metric"]].lower()),
                        Text(
                            signed(row["difference"]), span(row["low"], row["high"]), sure, row["runs"], row["reason"]
                        ),
                        Text(p_text(row["p_item"], bound=row["bound_item"])),
                        Text(p_text(row["holm_item"], bound=row["holm_bound_item"])),
                        Text(p_text(row["p_seed"], bound=row["bound_seed"]), note=row["reason"]),
                        Text(p_text(row["holm_seed"], bound=row["holm_bound_seed"]), note=row["reason"]),
                        Text(two(row["detectable"])),
                    ),
                    first=(name, row["family"]) != last,
                )
            )
            last = (name, row["family"])
    heads = (
        Head("Tests", number=False),
        Head("Family", number=False),
        Head("Comparison", number=False),
        Head("Metric", number=False),
        Head("Difference"),
        Head("p", group="Items resampled"),
        Head("Holm", group="Items resampled"),
        Head("p", group="Seeds and items"),
        Head("Holm", group="Seeds and items"),
        Head("Detectable"),
    )
    resamples = paper.drawing.resamples
    notes.append(
        f"< marks a bound: none of {resamples:,} resamples crossed zero, so p lies below {p_text(2 / resamples)}."
    )
    if paper.comparisons.filter(polars.col("p_seed").is_nan()).height:
        notes.append("A dash under seeds and items: one seed, so what another seed would have changed is unknown.")
    caption = (
        "Paired bootstrap tests over the same items. Bold: stands after Holm's correction within its family of tests "
        "(seed-aware where there are seeds). Detectable: the true difference that the test finds four times in five."
    )
    return Grid("tests", 4, "Is the difference real", caption, heads, tuple(lines), tuple(notes), paper.comparisons)


def matched_grid(paper: Paper) -> Grid:
    """Return table 5: what a plan gains at the same budget and what is left once its pilots are paid."""
    lines, last = [], ""
    for row in paper.matched.iter_rows(named=True):
        sure = row["gain_p"] <= 0.05, row["left_p"] <= 0.05
        lines.append(
            Line(
                (
                    Text(row["family"] if row["family"] != last else ""),
                    Text(row["planner"]),
                    Text(METRICS[row["metric"]].lower()),
                    Text(two(row["planned"]), runs=row["runs"]),
                    Text(two(row["uniform"]), runs=row["runs"]),
                    Text(signed(row["gain"]), span(row["gain_low"], row["gain_high"]), sure[0], row["runs"]),
                    Text(p_text(row["gain_p"], bound=row["gain_bound"])),
                    Text(two(row["longer"]), runs=row["runs"]),
                    Text(signed(row["left"]), span(row["left_low"], row["left_high"]), sure[1], row["runs"]),
                    Text(p_text(row["left_p"], bound=row["left_bound"])),
                    Text(p_text(row["left_equivalence_p"])),
                ),
                first=row["family"] != last,
            )
        )
        last = row["family"]
    longer = max((row["longer_tokens"] for row in paper.matched.iter_rows(named=True)), default=0)
    same, paid = f"Same budget ({tokens(paper.budget)})", f"Pilots paid for ({tokens(longer)})"
    heads = (
        Head("Family", number=False),
        Head("Planner", number=False),
        Head("Metric", number=False),
        Head("Planner"),
        Head("Uniform", group=same),
        Head("Difference", group=same),
        Head("Holm", group=same),
        Head("Uniform", group=paid),
        Head("Difference", group=paid),
        Head("Holm", group=paid),
        Head("Equivalent", group=paid),
    )
    caption = (
        "The planner minus the uniform mixture: on the same healing tokens, and on as many tokens as the planner "
        "trained on with its pilots. Bold: stands after Holm's correction. Equivalent: p that the difference lies "
        f"within ±{two(MARGIN)} (two one-sided tests)."
    )
    return Grid("matched", 5, "Planning against healing longer", caption, heads, tuple(lines), (), paper.matched)


def two(value: float) -> str:
    """Return a number as the paper prints it: ".82", "−.05", "1.02"; a dash when undefined."""
    if not math.isfinite(value):
        return DASH
    shown = f"{abs(value):.2f}".removeprefix("0")
    return f"{MINUS}{shown}" if round(value, 2) < 0 else shown


def signed(value: float) -> str:
    """Return a difference with its sign: "+.02", "−.16", ".00"."""
    shown = two(value)
    return f"+{shown}" if math.isfinite(value) and round(value, 2) > 0 else shown


def span(low: float, high: float) -> str:
    """Return limits as ".03 to .12"; empty when undefined."""
    return f"{two(low)} to {two(high)}" if math.isfinite(low) and math.isfinite(high) else ""


def p_text(p_value: float, *, bound: bool = False) -> str:
    """Return a p value with three decimals (".288"), "< .028" for a bound, "< .001" below that; a dash if undefined."""
    if not math.isfinite(p_value):
        return DASH
    if p_value < 0.001:
        return "< .001"
    shown = "1" if round(p_value, 3) >= 1 else f"{p_value:.3f}".removeprefix("0")
    return f"< {shown}" if bound else shown


def tokens(value: float) -> str:
    """Return a number of tokens, exact where that is short (1M, 4.48M), else rounded."""
    exact = show_tokens(value)
    return exact if len(exact) <= 6 else count(value)


def flops(value: float) -> str:
    """Return a number of FLOPs as "1.2e15"; "0" for none, a dash when undefined."""
    if not math.isfinite(value):
        return DASH
    return f"{value:.1e}".replace("e+", "e") if value else "0"


def _retention(row: Mapping[str, Any] | None, *, unpruned: bool) -> Text:
    if row is None:
        return Text(DASH)
    if unpruned:
        return Text(percent(row["score"]), f"{row['items']} items", runs=row["runs"])
    limits = span(row["kept_low"], row["kept_high"])
    small = "" if row["corrected"] == row["kept"] else _corrected(row["corrected"])
    return Text(two(row["kept"]), small, runs=row["runs"], note=row["reason"] or (limits and f"interval {limits}"))


def _corrected(value: float) -> str:
    return f"({two(value)})" if math.isfinite(value) else ""


def _spread(sd: float) -> str:
    return f"± {sd:.3f}".replace("0.", ".", 1) if math.isfinite(sd) else ""


def _seeds(seeds: int) -> str:
    return f"{seeds} seeds" if seeds > 1 else ""


def _pilot_cell(row: Mapping[str, Any]) -> Text:
    if not row["pilots"]:
        return Text("0")
    return Text(tokens(row["pilot_tokens"]), f"{row['pilots']} runs", runs=row["pilot_runs"])


def plain_rows(grid: Grid) -> Sequence[Mapping[str, Any]]:
    """Return the frame behind a table as plain values, for JSON."""
    return list(grid.frame.iter_rows(named=True))
