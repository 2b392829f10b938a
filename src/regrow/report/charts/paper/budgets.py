"""Figure 5: planning against healing longer, on the tokens that were really paid."""

from __future__ import annotations

import math
from typing import Any

import altair as alt
import polars

from regrow.report.charts.frame import or_none
from regrow.report.charts.paper.axes import decades
from regrow.report.charts.paper.palette import Ink, rule_inks
from regrow.report.charts.paper.panel import Panel, PaperFigure, colour, rows_named, shape
from regrow.report.paper.families import UNIFORM
from regrow.report.paper.grids import METRICS, tokens, two
from regrow.report.paper.names import rule_order
from regrow.report.paper.paper import Paper
from regrow.report.theme import Theme

HEIGHT = 210


def budgets_figure(paper: Paper) -> PaperFigure | None:
    """Return the figure of retention against tokens paid, one panel a family and metric; None without heals
    whose retention can be said."""
    healed = paper.budgets.filter((polars.col("budget") > 0) & polars.col("value").is_finite())
    if healed.is_empty():
        return None
    shown = healed.filter((polars.col("rule") == UNIFORM) | (polars.col("budget") == paper.budget))
    if shown.is_empty():
        return None
    inks = rule_inks(sorted(dict.fromkeys(shown["rule"]), key=rule_order))
    panels = []
    for family in dict.fromkeys(shown["family"]):
        for metric, title in METRICS.items():
            rows = shown.filter((polars.col("family") == family) & (polars.col("metric") == metric))
            if rows.is_empty():
                continue
            panels.append(
                _panel(
                    f"{family}-{metric.replace('_', '-')}",
                    f"{family}: {title.lower()}",
                    list(rows.iter_rows(named=True)),
                    inks,
                    title.lower(),
                )
            )
    said = "; ".join(
        f"{row['family']} {row['name']} on {tokens(row['paid_tokens'])} {two(row['value'])}"
        for row in shown.filter(polars.col("metric") == "capped_mean").iter_rows(named=True)
    )
    return PaperFigure(
        "budgets",
        5,
        "Planning against healing longer",
        f"Line: the uniform mixture at growing budgets. Other rules at {tokens(paper.budget)} healing tokens (hollow), "
        "and at the tokens they cost with their pilots (filled): above the line planning paid, below it healing "
        "longer would have been better. Vertical lines: one standard deviation from seed to seed.",
        f"Retention against training tokens paid. Capped means: {said}.",
        tuple(panels),
        tuple(inks),
        shown,
    )


def _panel(key: str, heading: str, rows: list[dict[str, Any]], inks: list[Ink], title: str) -> Panel:
    points = [
        {
            "rule": row["name"],
            "budget": row["budget"],
            "paid": row["paid_tokens"],
            "value": row["value"],
            "low": or_none(row["value"] - row["sd"]),
            "high": or_none(row["value"] + row["sd"]),
            "moved": row["paid_tokens"] != row["budget"],
            "uniform": row["rule"] == UNIFORM,
            "runs": row["runs"],
        }
        for row in rows
    ]
    spent = [value for point in points for value in (point["budget"], point["paid"])]
    ends = [v for p in points for v in (p["value"], p["low"], p["high"]) if v is not None and math.isfinite(v)]
    step = 0.1 if max(ends) - min(ends) > 0.25 else 0.05
    low, high = max(0.0, step * math.floor(min(ends) / step - 0.2)), step * math.ceil(max(ends) / step + 0.2)
    marks = [low + step * place for place in range(round((high - low) / step) + 1)]

    def draw(theme: Theme) -> alt.LayerChart:
        scale = alt.Scale(type="log", domain=[min(spent) * 0.75, max(spent) * 1.35], nice=False)
        ticks = decades(min(spent) * 0.75, max(spent) * 1.35)
        axis = alt.Axis(format="~s", title="training tokens paid, pilots included", values=ticks, grid=False)
        y_scale = alt.Scale(domain=[low, high], nice=False, zero=False)
        y_axis = alt.Axis(format=".0%", title=title, values=marks, grid=True)
        y = alt.Y("value:Q", scale=y_scale, axis=y_axis)
        paid = alt.X("paid:Q", scale=scale, axis=axis)
        given = alt.X("budget:Q", scale=scale, axis=axis)
        ink, form = colour(inks, "rule", theme), shape(inks, "rule")
        data = alt.Chart(rows_named("points"))
        uniform, moved = data.transform_filter("datum.uniform"), data.transform_filter("datum.moved")
        tooltip = [
            alt.Tooltip("rule:N"),
            alt.Tooltip("budget:Q", title="healing tokens", format=",d"),
            alt.Tooltip("paid:Q", title="paid", format=",d"),
            alt.Tooltip("value:Q", title=title, format=".1%"),
            alt.Tooltip("runs:N"),
        ]
        return alt.layer(
            uniform.mark_line(strokeWidth=2).encode(x=paid, y=y, color=ink),
            moved.mark_rule(strokeWidth=1.4, strokeDash=[3, 3], opacity=0.8).encode(
                x=given, x2="paid:Q", y=y, color=ink
            ),
            moved.mark_point(size=56, filled=False, strokeWidth=1.8, opacity=1).encode(
                x=given, y=y, color=ink, shape=form, tooltip=tooltip
            ),
            data.mark_rule(strokeWidth=1.8, opacity=0.5).encode(
                x=paid, y=alt.Y("low:Q", scale=y_scale, axis=y_axis), y2="high:Q", color=ink
            ),
            data.mark_point(size=64, filled=True, opacity=1).encode(
                x=paid, y=y, color=ink, shape=form, tooltip=tooltip
            ),
        )

    return Panel(key, heading, draw, HEIGHT, {"points": points})
