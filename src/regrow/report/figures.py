"""The report's charts, drawn from what was computed before (the main table, a loss log, reliability bins).

Every chart is as wide as its place on the page and is described in words for readers who cannot see it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from regrow.report.charts.fates import fates_figure
from regrow.report.charts.file import write_chart
from regrow.report.charts.frame import Figure
from regrow.report.charts.loss import loss_figure
from regrow.report.charts.refusal import refusal_figure
from regrow.report.charts.reliability import reliability_figure
from regrow.report.charts.retention import retention_figure
from regrow.report.inputs import Paired
from regrow.report.losslog import LossPoint
from regrow.report.results import MainTable
from regrow.report.theme import LIGHT, Theme


def figures_of(table: MainTable, paired: Paired, loss: Sequence[LossPoint] = ()) -> list[Figure]:
    """Return the charts that the results allow, in the order of the page."""
    found = [retention_figure(table), fates_figure(table), refusal_figure(table)]
    found += [reliability_figure(table, paired), loss_figure(loss)]
    return [figure for figure in found if figure is not None]


def save_figure(figure: Figure, path: Path, *, theme: Theme = LIGHT, width: int = 720) -> None:
    """Write a chart as .png (two pixels a point), .svg or .pdf, by the file's ending."""
    spec = figure.spec(theme, width=width)
    spec["background"] = theme.surface
    spec["padding"] = 16
    write_chart(spec, path)
