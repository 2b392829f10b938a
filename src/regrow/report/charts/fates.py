"""What became of each capability's items at each stage."""

from __future__ import annotations

import altair as alt

from regrow.report.charts.frame import Figure, framed, names, shares
from regrow.report.results import MainTable
from regrow.report.theme import Theme
from regrow.report.wording import capability_name
from regrow.stats.transitions import Fate

_FIELD = {Fate.KEPT: "kept", Fate.CAME_BACK: "came_back", Fate.NEW: "new", Fate.BROKE: "broke", Fate.NEVER: "never"}
"""Drawing order: the first three are right now, so that they end at the stage's score."""


def fates_figure(table: MainTable) -> Figure | None:
    """Return the chart of what became of each capability's items; None without an unpruned model."""
    if not table.fates:
        return None
    order = list(_FIELD)
    points = [
        {
            "capability": capability_name(counts.capability),
            "model": table.columns[counts.later].label,
            "fate": fate.value,
            "place": order.index(fate),
            "items": getattr(counts, _FIELD[fate]),
            "end": 1,
        }
        for counts in table.fates
        for fate in order
    ]
    order_of = list(dict.fromkeys(str(point["capability"]) for point in points))
    models = list(dict.fromkeys(str(point["model"]) for point in points))

    def draw(theme: Theme) -> alt.TopLevelMixin:
        data = alt.Data(values=points)
        y = alt.Y("capability:N", sort=order_of, axis=names())
        offset = alt.YOffset("model:N", sort=models, scale=alt.Scale(paddingInner=0.18))
        colours = alt.Scale(domain=[fate.value for fate in order], range=[theme.fates[fate] for fate in order])
        legend = alt.Legend(title=None, orient="top", columns=3, symbolOpacity=1, symbolSize=70)
        bars = (
            alt.Chart(data)
            .mark_bar(stroke=theme.surface, strokeWidth=0.8)
            .encode(
                x=alt.X("items:Q", stack="normalize", axis=shares("share of items")),
                y=y,
                yOffset=offset,
                color=alt.Color("fate:N", scale=colours, sort=None, legend=legend),
                order=alt.Order("place:Q"),
                tooltip=["capability:N", "model:N", "fate:N", "items:Q"],
            )
        )
        labels = (
            alt.Chart(data)
            .transform_filter("datum.place == 0")
            .mark_text(align="left", dx=6, fontSize=10.5, color=theme.muted)
            .encode(x=alt.X("end:Q"), y=y, yOffset=offset, text="model:N")
        )
        return framed(alt.layer(bars, labels), theme, height=len(order_of) * max(44, 15 * len(models) + 18))

    said = ", ".join(
        f"{capability_name(c.capability)} in {table.columns[c.later].label}: {c.kept} kept, {c.came_back} came back, "
        f"{c.new} new, {c.broke} broke, {c.never} never right"
        for c in table.fates
    )
    return Figure(
        "fates",
        "What became of each item",
        "Kept: right before and throughout. Came back: lost at an earlier stage, right again. New: wrong in the "
        "unpruned model, right now. Broke: right before, wrong now.",
        f"Stacked bars of item counts. {said}.",
        draw,
        wide=True,
    )
