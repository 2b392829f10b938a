"""What each stage kept of each capability, with intervals."""

from __future__ import annotations

import math

import altair as alt

from regrow.report.charts.frame import Figure, colour_of, framed, names, or_none, shape_of, shares
from regrow.report.results import MainTable
from regrow.report.theme import Theme
from regrow.report.wording import percent


def retention_figure(table: MainTable) -> Figure | None:
    """Return the chart of what each stage kept of each capability, with intervals; None without an unpruned model."""
    if table.base is None or len(table.columns) < 2:
        return None
    rows = [row for row in table.rows if row.unit == "share" and not row.part_of]
    places = [index for index in range(len(table.columns)) if index != table.base]
    points = [
        {
            "capability": row.name,
            "model": table.columns[index].label,
            "kept": row.kept[index].value,
            "low": or_none(row.kept[index].low),
            "high": or_none(row.kept[index].high),
            "score": percent(row.cells[index].value),
            "unpruned": percent(row.cells[table.base].value),
        }
        for row in rows
        for index in places
        if math.isfinite(row.kept[index].value)
    ]
    if not points:
        return None
    labels = [table.columns[index].label for index in places]
    far = max([1.2, *(float(p["high"] or p["kept"] or 0) for p in points)])
    limit = min(2.0, math.ceil(far * 10) / 10)

    def draw(theme: Theme) -> alt.TopLevelMixin:
        x = alt.X("kept:Q", axis=shares("score as a share of the unpruned model's", limit))
        x = x.scale(domain=[0, limit], clamp=True, nice=False)
        y = alt.Y("capability:N", sort=[row.name for row in rows], axis=names())
        offset = alt.YOffset("model:N", sort=labels)
        colour = colour_of(table, places, theme, legend_columns=4)
        shape = shape_of(table, places)
        tooltip = [
            alt.Tooltip("capability:N", title="capability"),
            alt.Tooltip("model:N", title="model"),
            alt.Tooltip("kept:Q", title="kept", format=".0%"),
            alt.Tooltip("low:Q", title="from", format=".0%"),
            alt.Tooltip("high:Q", title="to", format=".0%"),
            alt.Tooltip("score:N", title="score"),
            alt.Tooltip("unpruned:N", title="unpruned score"),
        ]
        data = alt.Data(values=points)
        whole = alt.Chart(alt.Data(values=[{"kept": 1}])).mark_rule(strokeWidth=1.5, color=theme.stages["unpruned"])
        spans = alt.Chart(data).mark_rule(strokeWidth=2.5, opacity=0.45, clip=True)
        marks = alt.Chart(data).mark_point(size=85, filled=True, opacity=1)
        chart = alt.layer(
            whole.encode(x=x),
            spans.encode(x=alt.X("low:Q").scale(domain=[0, limit]), x2="high:Q", y=y, yOffset=offset, color=colour),
            marks.encode(x=x, y=y, yOffset=offset, color=colour, shape=shape, tooltip=tooltip),
        )
        return framed(chart, theme, height=len(rows) * (16 * len(labels) + 22))

    worst = ", ".join(
        f"{row.name} " + ", ".join(f"{table.columns[i].label} {percent(row.kept[i].value)}" for i in places)
        for row in rows
    )
    return Figure(
        "retention",
        "What was kept",
        f"Each score as a share of the unpruned model's (the grey line). Lines are {table.level:.0%} intervals from "
        "resampling the same items in both models.",
        f"Dot chart of retention by capability and model. {worst}.",
        draw,
        wide=True,
    )
