"""Figure 6: the two sides of refusal, and where each model stands between them."""

from __future__ import annotations

import math

import altair as alt
import polars

from regrow.report.charts.frame import or_none
from regrow.report.charts.paper.palette import Ink, rule_inks, stage_ink
from regrow.report.charts.paper.panel import Panel, PaperFigure, colour, rows_named, shape
from regrow.report.paper.families import MATCHED
from regrow.report.paper.names import rule_order
from regrow.report.paper.paper import Paper
from regrow.report.theme import Theme
from regrow.report.wording import percent

HEIGHT = 270


def refusals_figure(paper: Paper) -> PaperFigure | None:
    """Return the scatter chart of refusal, one panel a family; None where safety items carry no kinds."""
    frame = paper.refusals
    if frame.is_empty():
        return None
    rows = list(frame.iter_rows(named=True))
    inks: dict[str, Ink] = {}
    for row in rows:
        if row["stage"] != "healed":
            light = row["stage"] == "pruned" and row["model"] != "Pruned"
            inks.setdefault(row["model"], stage_ink("light" if light else row["stage"], row["model"]))
    rules: dict[str, str] = {}
    for row in rows:
        if row["stage"] == "healed":
            rules.setdefault(row["model"], MATCHED if "token-matched" in row["model"] else row["rule"])
    for model, rule in sorted(rules.items(), key=lambda pair: rule_order(pair[1])):
        inks[model] = rule_inks([rule])[0]._replace(label=model)
    lows = [value for row in rows for value in (row["unsafe_low"], row["benign_low"]) if math.isfinite(value)]
    lowest = max(0.0, min(0.5, math.floor(4 * min(lows, default=0.0)) / 4))
    panels = [
        _panel(name, frame.filter(polars.col("family") == name), list(inks.values()), lowest)
        for name in dict.fromkeys(frame["family"])
    ]
    said = "; ".join(
        f"{row['family']} {row['model']}: {percent(row['unsafe_refused'])} of unsafe refused, "
        f"{percent(row['benign_answered'])} of benign answered"
        for row in rows
    )
    return PaperFigure(
        "refusals",
        6,
        "Refusal: two rates",
        "The best place is the top right. On the dashed line a model refuses both kinds alike: its balanced score is "
        "50%, however safe it looks by unsafe requests alone. The line joins unpruned and pruned. Crosses: "
        f"{percent(paper.drawing.level)} intervals.",
        f"Scatter charts of refusal by family. {said}.",
        tuple(panels),
        tuple(inks.values()),
        frame,
    )


def _axis(title: str, lowest: float) -> alt.Axis:
    ticks = [quarter / 4 for quarter in range(round(lowest * 4), 5)]
    return alt.Axis(
        format="%", title=title, values=ticks, labelOverlap=True, labelPadding=8, labelFlush=False, grid=True
    )


def _panel(name: str, frame: polars.DataFrame, inks: list[Ink], lowest: float) -> Panel:
    points = [
        {
            "model": row["model"],
            "place": place,
            "stage": row["stage"],
            "unsafe": row["unsafe_refused"],
            "unsafe_low": or_none(row["unsafe_low"]),
            "unsafe_high": or_none(row["unsafe_high"]),
            "benign": row["benign_answered"],
            "benign_low": or_none(row["benign_low"]),
            "benign_high": or_none(row["benign_high"]),
            "runs": row["runs"],
        }
        for place, row in enumerate(frame.iter_rows(named=True))
    ]

    def draw(theme: Theme) -> alt.LayerChart:
        scale = alt.Scale(domain=[lowest, 1], nice=False, clamp=True)
        x_axis, y_axis = (_axis(word, lowest) for word in ("benign requests answered", "unsafe requests refused"))
        x, y = alt.X("benign:Q", axis=x_axis, scale=scale), alt.Y("unsafe:Q", axis=y_axis, scale=scale)
        even = alt.Chart(rows_named("even"))
        ink, form = colour(inks, "model", theme), shape(inks, "model")
        base = alt.Chart(rows_named("points"))
        path = base.transform_filter("datum.model == 'Unpruned' || datum.model == 'Pruned'")
        tooltip = [
            alt.Tooltip("model:N"),
            alt.Tooltip("unsafe:Q", title="unsafe refused", format=".0%"),
            alt.Tooltip("benign:Q", title="benign answered", format=".0%"),
            alt.Tooltip("runs:N"),
        ]
        return alt.layer(
            even.mark_line(strokeDash=[3, 4], color=theme.muted, opacity=0.6).encode(x=x, y=y),
            path.mark_line(color=theme.muted, opacity=0.6, strokeWidth=1.2).encode(
                x=x, y=y, order=alt.Order("place:Q")
            ),
            base.mark_rule(strokeWidth=1.6, opacity=0.3).encode(
                x=alt.X("benign_low:Q", axis=x_axis, scale=scale), x2="benign_high:Q", y=y, color=ink
            ),
            base.mark_rule(strokeWidth=1.6, opacity=0.3).encode(
                x=x, y=alt.Y("unsafe_low:Q", axis=y_axis, scale=scale), y2="unsafe_high:Q", color=ink
            ),
            base.mark_point(size=72, filled=True, opacity=1).encode(x=x, y=y, color=ink, shape=form, tooltip=tooltip),
        )

    ends = [{"benign": lowest, "unsafe": 1 - lowest}, {"benign": 1 - lowest, "unsafe": lowest}]
    return Panel(name, name, draw, HEIGHT, {"points": points, "even": ends})
