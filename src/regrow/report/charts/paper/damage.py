"""Figure 1: what pruning alone left of each capability, in every family."""

from __future__ import annotations

import polars

from regrow.records.study_runs import MAIN_CUT
from regrow.report.charts.paper.dots import Dot, dots_panel
from regrow.report.charts.paper.palette import family_inks
from regrow.report.charts.paper.panel import PaperFigure
from regrow.report.paper.paper import Paper
from regrow.report.wording import capability_name, percent


def damage_figure(paper: Paper) -> PaperFigure | None:
    """Return the dot chart of retention after the main cut, raw and above chance; None without pruned models."""
    frame = paper.retention.filter(
        (polars.col("kind") == "") & (polars.col("stage") == "pruned") & (polars.col("cut") == MAIN_CUT)
    )
    if frame.is_empty():
        return None
    rows = list(frame.iter_rows(named=True))
    inks = family_inks([family.name for family in paper.families])
    order = [capability_name(name) for name in dict.fromkeys(row["capability"] for row in rows)]
    panels = []
    for measure, title in (("kept", "Retention"), ("corrected", "Retention above chance")):
        dots = [
            Dot(
                capability_name(row["capability"]),
                row["family"],
                row[measure],
                row[f"{measure}_low"],
                row[f"{measure}_high"],
                row["runs"],
            )
            for row in rows
        ]
        words = "share of the unpruned model"
        panels.append(dots_panel(measure, title, dots, order, inks, words, marks_at=(0.0, 1.0)))
    said = "; ".join(
        f"{row['family']} {capability_name(row['capability']).lower()} {percent(row['kept'])}" for row in rows
    )
    return PaperFigure(
        "damage",
        1,
        "What pruning broke",
        "The pruned model's score as a share of the unpruned one's, and the same above guessing (0: no better than a "
        f"guess). Lines: {percent(paper.drawing.level)} intervals.",
        f"Dot chart of retention after pruning, by capability and family. {said}.",
        tuple(panels),
        tuple(inks),
        frame,
    )
