"""Dots with limits, several series a row: the form of the figures that compare shares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import altair as alt

from regrow.report.charts.frame import names, or_none
from regrow.report.charts.paper.palette import Ink
from regrow.report.charts.paper.panel import Panel, colour, rows_named, shape
from regrow.report.theme import Theme


class Dot(NamedTuple):
    """One value of one series in one row, with its limits (NaN: none) and what is shown on pointing at it."""

    row: str
    series: str
    value: float
    low: float
    high: float
    runs: str


def dots_panel(
    key: str,
    heading: str,
    dots: Sequence[Dot],
    rows: Sequence[str],
    inks: Sequence[Ink],
    title: str,
    *,
    marks_at: Sequence[float] = (1.0,),
) -> Panel:
    """Return a dot chart, ``title`` on its axis; ``marks_at`` are the values of its vertical lines."""
    points = [
        {
            "row": dot.row,
            "series": dot.series,
            "value": dot.value,
            "low": or_none(dot.low),
            "high": or_none(dot.high),
            "runs": dot.runs,
        }
        for dot in dots
        if math.isfinite(dot.value)
    ]
    low, high = _domain(dots)
    labels = [ink.label for ink in inks]

    def draw(theme: Theme) -> alt.LayerChart:
        data = rows_named("points")
        step = 0.25 if high - low <= 1.5 else 0.5
        values = [step * tick for tick in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
        axis = alt.Axis(format="%", title=title, values=values, labelOverlap=True, labelFlush=False)
        scale = alt.Scale(domain=[low, high], clamp=True, nice=False, zero=False)
        x = alt.X("value:Q", axis=axis, scale=scale)
        y = alt.Y("row:N", sort=list(rows), axis=names())
        offset = alt.YOffset("series:N", sort=labels, scale=alt.Scale(domain=labels, paddingOuter=0.6))
        ink, form = colour(inks, "series", theme), shape(inks, "series")
        lines = alt.Chart(rows_named("marks"))
        spans = alt.Chart(data).mark_rule(strokeWidth=2.2, opacity=0.45, clip=True)
        marks = alt.Chart(data).mark_point(size=64, filled=True, opacity=1)
        tooltip = [
            alt.Tooltip("row:N", title=" "),
            alt.Tooltip("series:N", title="which"),
            alt.Tooltip("value:Q", title="value", format=".1%"),
            alt.Tooltip("low:Q", title="from", format=".1%"),
            alt.Tooltip("high:Q", title="to", format=".1%"),
            alt.Tooltip("runs:N"),
        ]
        return alt.layer(
            lines.mark_rule(color=theme.muted, strokeWidth=1.2, opacity=0.7).encode(x=alt.X("at:Q", scale=scale)),
            spans.encode(x=alt.X("low:Q", scale=scale, axis=axis), x2="high:Q", y=y, yOffset=offset, color=ink),
            marks.encode(x=x, y=y, yOffset=offset, color=ink, shape=form, tooltip=tooltip),
        )

    marked = [{"at": at} for at in marks_at if low <= at <= high]
    height = dots_height(len(rows), len(inks))
    return Panel(key, heading, draw, height, {"points": points, "marks": marked})


def dots_height(rows: int, series: int) -> int:
    """Return the height at which rows of so many series do not touch."""
    return rows * max(38, 13 * series + 14)


def _domain(dots: Sequence[Dot]) -> tuple[float, float]:
    ends = [value for dot in dots for value in (dot.value, dot.low, dot.high) if math.isfinite(value)]
    low = max(-0.5, math.floor(10 * min([0.0, *ends])) / 10)
    return low, min(2.0, max(1.0, math.ceil(10 * max(ends)) / 10)) if ends else 1.0
