"""A figure of several panels: one chart each on the page, all side by side in a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import altair as alt
import polars

from regrow.report.charts.file import write_chart
from regrow.report.charts.frame import framed
from regrow.report.charts.paper.palette import Ink
from regrow.report.theme import LIGHT, Theme

DrawPanel = Callable[[Theme], alt.LayerChart]

PANEL_WIDTH = 300
COLUMNS = 2
"""Panels side by side in a file."""


class Panel(NamedTuple):
    """One chart of a figure: ``draw`` makes it in a theme, without a frame and without data; ``data`` holds the rows of
    each data set that it names (:func:`rows_named`)."""

    key: str
    title: str
    draw: DrawPanel
    height: int
    data: dict[str, list[dict[str, Any]]]


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
        found = dict(framed(panel.draw(theme), theme, height=panel.height).to_dict(validate=False))
        found["datasets"] = panel.data
        return found

    def whole_spec(self, theme: Theme) -> dict[str, Any]:
        """Return the specification of all panels with one legend, for a file."""
        panels: list[dict[str, Any]] = []
        data: dict[str, list[dict[str, Any]]] = {}
        for panel in self.panels:
            names = {name: f"{panel.key}/{name}" for name in panel.data}
            data |= {names[name]: rows for name, rows in panel.data.items()}
            title = {"text": panel.title, "anchor": "start", "fontSize": 13, "color": theme.ink, "fontWeight": "bold"}
            part = _renamed(_bare(panel.draw(theme)), names)
            panels.append({**part, "width": PANEL_WIDTH, "height": panel.height, "title": title})
        apart = {"scale": dict.fromkeys(("x", "y", "color", "shape"), "independent")}
        body: dict[str, Any] = {"concat": panels, "columns": self.columns, "spacing": 28, "resolve": apart}
        legend = [_bare(_legend(self.inks, theme))] if self.inks else []
        frame = framed(alt.layer(alt.Chart(alt.NamedData("none")).mark_point()), theme, height=1).to_dict(
            validate=False
        )
        return {
            "$schema": frame["$schema"],
            "description": self.description,
            "background": theme.surface,
            "padding": 16,
            "config": frame["config"],
            "datasets": data,
            "vconcat": [*legend, body],
            "spacing": 18,
            "resolve": apart,
        }


def rows_named(name: str) -> alt.NamedData:
    """Return a reference to a panel's data set: charts are drawn without their data, which keeps drawing fast."""
    return alt.NamedData(name)


def _bare(chart: alt.LayerChart) -> dict[str, Any]:
    found = dict(chart.to_dict(validate=False))
    for key in ("$schema", "config"):
        found.pop(key, None)
    return found


def _renamed(spec: Any, names: dict[str, str]) -> Any:
    """The specification with its data sets called otherwise, so that those of several panels do not meet."""
    if isinstance(spec, dict):
        return {
            key: {**value, "name": names[value["name"]]}
            if key == "data" and isinstance(value, dict) and value.get("name") in names
            else _renamed(value, names)
            for key, value in spec.items()
        }
    return [_renamed(part, names) for part in spec] if isinstance(spec, list) else spec


def save_paper_figure(figure: PaperFigure, path: Path, *, theme: Theme = LIGHT) -> None:
    """Write a figure as .png (two pixels a point), .svg or .pdf, by the file's ending."""
    write_chart(figure.whole_spec(theme), path)


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
