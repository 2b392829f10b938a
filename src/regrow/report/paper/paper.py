"""Everything that a study's report states, computed once."""

from __future__ import annotations

from typing import NamedTuple

import polars

from regrow.errors import DataError
from regrow.records.study_runs import Study
from regrow.report.paper.budgets import budget_frame
from regrow.report.paper.comparisons import comparison_frame
from regrow.report.paper.families import Family, families_of, main_budget
from regrow.report.paper.main_results import result_frame
from regrow.report.paper.matched import matched_frame
from regrow.report.paper.recovery import Recovery, recovery_of
from regrow.report.paper.refusals import refusal_frame
from regrow.report.paper.retention import concordance_frame, retention_frame
from regrow.report.paper.runs import run_frame
from regrow.report.paper.scopes import scope_frame
from regrow.report.scored import Drawing


class Paper(NamedTuple):
    """The frames of a study's tables and figures. ``budget`` is the one that rules are compared at (0: no heals);
    ``notes`` are sentences a reader must know."""

    study: Study
    families: tuple[Family, ...]
    budget: int
    drawing: Drawing
    retention: polars.DataFrame
    concordance: polars.DataFrame
    scopes: polars.DataFrame
    results: polars.DataFrame
    comparisons: polars.DataFrame
    matched: polars.DataFrame
    budgets: polars.DataFrame
    refusals: polars.DataFrame
    recovery: Recovery
    runs: polars.DataFrame
    notes: tuple[str, ...]


def paper_of(study: Study, *, budget: int | None = None, drawing: Drawing | None = None) -> Paper:
    """Return the tables and figures of a study as frames.

    ``budget`` None is the one at which the most rules were run. Raises DataError for runs that cannot be paired, naming
    the items that differ.
    """
    drawing = drawing or Drawing()
    families, notes = families_of(study.runs)
    there = sorted({method.budget for family in families for method in family.healed})
    if budget is not None and budget not in there:
        raise DataError(
            f"no healed run of this study has a budget of {budget:,} tokens",
            hint="budgets there: " + (", ".join(f"{tokens:,}" for tokens in there) or "none"),
        )
    budget = budget if budget is not None else main_budget(families)
    if study.unfinished:
        shown = ", ".join(study.unfinished[:5]) + (" and others" if len(study.unfinished) > 5 else "")
        notes.append(f"{len(study.unfinished)} runs have not finished and are not in this report: {shown}")
    if study.pending:
        notes.append(f"what the study asks for and this report lacks: {'; '.join(study.pending)}")
    for family in families:
        notes += [f"{family.name}: {note}" for note in family.notes]
        gone = [name for name in family.paired.capabilities if name not in family.defined]
        if gone:
            notes.append(
                f"{family.name}: {', '.join(gone)} has no retention (the unpruned score is 0) and is in no summary"
            )
    retention = retention_frame(families, drawing)
    comparisons = comparison_frame(families, budget, drawing)
    recovery = recovery_of(families, study.path, seed=drawing.seed)
    return Paper(
        study,
        tuple(families),
        budget,
        drawing,
        retention,
        concordance_frame(families),
        scope_frame(families, budget, drawing),
        result_frame(families, budget),
        comparisons,
        matched_frame(comparisons),
        budget_frame(families),
        refusal_frame(families, retention, budget),
        recovery,
        run_frame(study),
        (*notes, *recovery.notes),
    )
