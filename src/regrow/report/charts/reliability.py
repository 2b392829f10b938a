"""Does the confidence of knowledge answers mean what it says?"""

from __future__ import annotations

import altair as alt

from regrow.report.charts.frame import Figure, colour_of, framed, shares
from regrow.report.inputs import Paired
from regrow.report.results import MainTable
from regrow.report.theme import Theme
from regrow.stats.reliability import Reliability, reliability


def reliability_figure(table: MainTable, paired: Paired) -> Figure | None:
    """Return the reliability diagram of knowledge answers; None where the items carry no confidence."""
    curves = reliability_of(paired)
    if not curves:
        return None
    points = [
        {"model": paired.labels[index], "confidence": b.confidence, "accuracy": b.accuracy, "items": b.items}
        for index, curve in curves.items()
        for b in curve.bins
        if b.items
    ]
    places = list(curves)

    def draw(theme: Theme) -> alt.TopLevelMixin:
        x = alt.X("confidence:Q", axis=shares("confidence in the answer"))
        y = alt.Y("accuracy:Q", axis=shares("share right"))
        x, y = x.scale(domain=[0, 1]), y.scale(domain=[0, 1])
        colour = colour_of(table, places, theme)
        even = alt.Chart(alt.Data(values=[{"confidence": 0, "accuracy": 0}, {"confidence": 1, "accuracy": 1}]))
        base = alt.Chart(alt.Data(values=points))
        chart = alt.layer(
            even.mark_line(strokeDash=[3, 4], color=theme.muted, opacity=0.6).encode(x=x, y=y),
            base.mark_line(strokeWidth=1.8, opacity=0.75).encode(x=x, y=y, color=colour),
            base.mark_point(filled=True, opacity=0.9).encode(
                x=x,
                y=y,
                color=colour,
                size=alt.Size("items:Q", legend=None, scale=alt.Scale(range=[20, 220], zero=True)),
                tooltip=[
                    alt.Tooltip("model:N"),
                    alt.Tooltip("items:Q"),
                    alt.Tooltip("confidence:Q", format=".0%"),
                    alt.Tooltip("accuracy:Q", title="right", format=".0%"),
                ],
            ),
        )
        return framed(chart, theme, height=300)

    said = ", ".join(f"{paired.labels[index]} {curve.ece:.3f}" for index, curve in curves.items())
    return Figure(
        "reliability",
        "Knowledge: confidence",
        f"Knowledge answers binned by confidence; on the dashed line confidence equals accuracy, and larger dots hold "
        f"more items. Expected calibration error: {said}.",
        f"Reliability diagram. Expected calibration error: {said}.",
        draw,
    )


def reliability_of(paired: Paired) -> dict[int, Reliability]:
    """Return the reliability bins of each evaluation's knowledge items; empty when one lacks confidences."""
    found: dict[int, Reliability] = {}
    for index, items in enumerate(paired.items.get("knowledge", ())):
        sure = [item.details.get("confidence") for item in items]
        numbers = [float(value) for value in sure if isinstance(value, int | float) and 0 <= value <= 1]
        if not numbers or len(numbers) < len(sure):
            return {}
        found[index] = reliability(numbers, [float(item.score >= 0.5) for item in items])
    return found
