"""The six figures of a study, in order."""

from __future__ import annotations

from regrow.report.charts.paper.budgets import budgets_figure
from regrow.report.charts.paper.curves import curves_figure
from regrow.report.charts.paper.damage import damage_figure
from regrow.report.charts.paper.panel import PaperFigure
from regrow.report.charts.paper.refusals import refusals_figure
from regrow.report.charts.paper.scopes import scopes_figure
from regrow.report.charts.paper.stages import stages_figure
from regrow.report.paper.paper import Paper


def paper_figures(paper: Paper) -> list[PaperFigure]:
    """Return the figures that a study's runs allow."""
    found = [
        damage_figure(paper),
        stages_figure(paper),
        scopes_figure(paper),
        curves_figure(paper),
        budgets_figure(paper),
        refusals_figure(paper),
    ]
    return [figure for figure in found if figure is not None]
