"""What all charts share: their words, the frame around them, colours and shapes by model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import altair as alt

from regrow.report.results import MainTable
from regrow.report.theme import Theme, column_colours

SANS = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'
SHAPES = ("circle", "diamond", "square", "triangle-up", "cross", "triangle-down", "triangle-right", "triangle-left")

Draw = Callable[[Theme], alt.TopLevelMixin]


class Figure(NamedTuple):
    """A chart with its words. ``description`` is the text alternative; ``draw`` makes the chart in a theme;
    ``wide`` asks for half a page's width rather than a third."""

    key: str
    title: str
    caption: str
    description: str
    draw: Draw
    wide: bool = False

    def spec(self, theme: Theme, *, width: int | None = None) -> dict[str, Any]:
        """Return the Vega-Lite specification; ``width`` in pixels replaces "as wide as the page"."""
        found: dict[str, Any] = self.draw(theme).to_dict()
        found["description"] = self.description
        if width is not None:
            found["width"] = width
        return found


def colour_of(table: MainTable, places: Sequence[int], theme: Theme, *, legend_columns: int = 2) -> alt.Color:
    """Return the colour of the models at ``places``: the same model has the same colour in every chart."""
    every = column_colours([column.stage for column in table.columns], theme)
    labels = [table.columns[i].label for i in places]
    legend = alt.Legend(title=None, orient="top", columns=legend_columns, symbolOpacity=1, symbolSize=70)
    return alt.Color(
        "model:N", scale=alt.Scale(domain=labels, range=[every[i] for i in places]), sort=labels, legend=legend
    )


def shape_of(table: MainTable, places: Sequence[int]) -> alt.Shape:
    """Return the shape of the models at ``places``, so that colour is never the only difference."""
    labels = [table.columns[i].label for i in places]
    return alt.Shape(
        "model:N", scale=alt.Scale(domain=labels, range=[SHAPES[i % len(SHAPES)] for i in places]), sort=labels
    )


def framed(chart: alt.LayerChart, theme: Theme, *, height: int) -> alt.TopLevelMixin:
    """The chart at the page's width with the theme's ink and nothing superfluous."""
    return (
        chart.properties(
            width="container",
            height=height,
            background="transparent",
            padding={"left": 4, "right": 8, "top": 4, "bottom": 4},
            autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),
        )
        .configure(font=SANS)
        .configure_view(stroke=None)
        .configure_axis(
            labelColor=theme.muted,
            titleColor=theme.muted,
            gridColor=theme.line,
            domainColor=theme.line,
            tickColor=theme.line,
            labelFontSize=12,
            titleFontSize=12,
            titleFontWeight="normal",
            titlePadding=10,
            labelLimit=170,
        )
        .configure_axisY(grid=False, ticks=False, domain=False)
        .configure_legend(labelColor=theme.ink, labelFontSize=12, offset=10, columnPadding=12, rowPadding=4)
    )


def shares(title: str, upto: float = 1.0) -> alt.Axis:
    """Return an axis of shares from 0 to ``upto``, with few enough labels for a narrow screen."""
    ticks = [quarter / 4 for quarter in range(int(upto * 4 + 1e-9) + 1)]
    return alt.Axis(format="%", title=title, values=ticks, labelOverlap=True)


def names() -> alt.Axis:
    """Return an axis of capabilities, their names over two lines where they have two words."""
    return alt.Axis(labelPadding=10, labelExpr="split(datum.label, ' ')", title=None)


def or_none(value: float) -> float | None:
    """Return the number, or None where it is undefined (JSON has no NaN)."""
    return value if math.isfinite(value) else None
