"""A figure of several panels: one chart each on the page, all side by side in a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import altair as alt
import polars

from regrow.errors import ConfigError
from regrow.records.atomic import write_bytes
from regrow.report.charts.frame import SANS, framed
from regrow.report.charts.paper.palette import Ink
from regrow.report.theme import LIGHT, Theme

DrawPanel = Callable[[Theme], alt.LayerChart]

PANEL_WIDTH = 300
COLUMNS = 2
"""Panels side by side in a file."""


class Panel(NamedTuple):
    """One chart of a figure: ``draw`` makes it in a theme, without a frame."""

    key: str
    title: str
    draw: DrawPanel
    height: int


class PaperFigure(NamedTuple):
    """A numbered figure: its words, its panels, the key to its colours and shapes, and the numbers it is drawn from.

    ``description`` is the text alternative. ``dashes`` explains line styles: (label, dash pattern of SVG).
    """

    key: str
    number: int
    title: str
    caption: str
    description: str
    panels: tuple[Panel, ...]
    inks: tuple[Ink, ...]
    frame: polars.DataFrame
    dashes: tuple[tuple[str, str], ...] = ()
    columns: int = COLUMNS

    def panel_spec(self, panel: Panel, theme: Theme) -> dict[str, Any]:
        """Return the Vega-Lite specification of one panel, as wide as its place on the page."""
        return dict(framed(panel.draw(theme), theme, height=panel.height).to_dict(validate=False))

    def whole_spec(self, theme: Theme) -> dict[str, Any]:
        """Return the specification of all panels with one legend, for a file."""
        charts = [
            panel.draw(theme).properties(
                width=PANEL_WIDTH,
                height=panel.height,
                title=alt.TitleParams(panel.title, anchor="start", fontSize=13, color=theme.ink, fontWeight="bold"),
            )
            for panel in self.panels
        ]
        parts: list[alt.TopLevelMixin] = []
        if self.inks:
            parts.append(_legend(self.inks, theme))
        parts.append(
            alt.concat(*charts, columns=self.columns, spacing=28).resolve_scale(x="independent", y="independent")
        )
        chart = alt.vconcat(*parts, spacing=18).resolve_scale(color="independent", shape="independent", x="independent")
        found: dict[str, Any] = (
            chart.properties(background=theme.surface, padding=16)
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
            .to_dict(validate=False)  # a tenth of the time: our own charts, tested as drawn
        )
        found["description"] = self.description
        return found


def save_paper_figure(figure: PaperFigure, path: Path, *, theme: Theme = LIGHT) -> None:
    """Write a figure as .png (two pixels a point), .svg or .pdf, by the file's ending."""
    import vl_convert

    text = json.dumps(figure.whole_spec(theme))
    match path.suffix:
        case ".png":
            write_bytes(path, vl_convert.vegalite_to_png(text, scale=2))
        case ".svg":
            write_bytes(path, vl_convert.vegalite_to_svg(text).encode("utf-8"))
        case ".pdf":
            write_bytes(path, vl_convert.vegalite_to_pdf(text))
        case other:
            raise ConfigError(f"charts cannot be written as '{other}'", hint="name a .png, .svg or .pdf file")


def colour(inks: Sequence[Ink], field: str, theme: Theme) -> alt.Color:
    """Return the colour channel of ``field``, whose values are the inks' labels; without a legend of its own."""
    labels = [ink.label for ink in inks]
    return alt.Color(
        f"{field}:N",
        scale=alt.Scale(domain=labels, range=[ink.colour(theme) for ink in inks]),
        sort=labels,
        legend=None,
    )


def shape(inks: Sequence[Ink], field: str) -> alt.Shape:
    """Return the shape channel of ``field``, so that colour is never the only difference."""
    labels = [ink.label for ink in inks]
    return alt.Shape(
        f"{field}:N", scale=alt.Scale(domain=labels, range=[ink.shape for ink in inks]), sort=labels, legend=None
    )


def _legend(inks: Sequence[Ink], theme: Theme) -> alt.LayerChart:
    """The key to colours and shapes as a small chart of its own: one place for all panels."""
    step = 14 + max(7 * max(len(ink.label) for ink in inks) + 24, 90)
    across = max(1, min(len(inks), 2 * PANEL_WIDTH // step))
    rows = [{"label": ink.label, "x": (place % across) * step, "y": place // across} for place, ink in enumerate(inks)]
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("x:Q", axis=None, scale=alt.Scale(domain=[0, across * step], nice=False)),
        y=alt.Y("y:O", axis=None),
    )
    marks = base.mark_point(size=70, filled=True, opacity=1).encode(
        color=colour(inks, "label", theme), shape=shape(inks, "label")
    )
    words = base.mark_text(align="left", dx=10, fontSize=12, color=theme.ink).encode(text="label:N")
    height = 18 * (1 + (len(inks) - 1) // across)
    return alt.layer(marks, words).properties(width=across * step, height=height)
