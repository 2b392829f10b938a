"""Figure 4: recovery curves: what pilots reached with a capability's own pool, and the curves fitted to them."""

from __future__ import annotations

import math

import altair as alt
import polars

from regrow.report.charts.frame import or_none
from regrow.report.charts.paper.axes import decades
from regrow.report.charts.paper.palette import Ink, family_inks
from regrow.report.charts.paper.panel import Panel, PaperFigure, colour, rows_named, shape
from regrow.report.paper.grids import tokens, two
from regrow.report.paper.paper import Paper
from regrow.report.theme import Theme
from regrow.report.wording import capability_name

HEIGHT = 190


def curves_figure(paper: Paper) -> PaperFigure | None:
    """Return the recovery curves, one panel a capability; None without pilots."""
    points, curves = paper.recovery.points, paper.recovery.curves
    if points.is_empty():
        return None
    families = list(dict.fromkeys(points["family"]))
    known = [family.name for family in paper.families]
    inks = [
        ink for ink in family_inks([*known, *(name for name in families if name not in known)]) if ink.label in families
    ]
    first = min(value for value in points["tokens"] if value > 0) / 10
    top = max([1.0, *(value for value in (*points["high"], *curves["high"]) if math.isfinite(value))])
    ceiling = min(1.5, math.ceil(top * 4) / 4)
    panels = [
        _panel(
            name,
            points.filter(polars.col("capability") == name),
            curves.filter(polars.col("capability") == name),
            inks,
            first,
            ceiling,
        )
        for name in dict.fromkeys(points["capability"])
    ]
    said = "; ".join(
        f"{row['family']} {capability_name(row['capability']).lower()}: a = {two(row['a'])}, tau = {tokens(row['tau'])}"
        for row in paper.recovery.fits.iter_rows(named=True)
        if math.isfinite(row["a"])
    )
    return PaperFigure(
        "curves",
        4,
        "How fast each capability comes back",
        "Dots: retention on dev after a pilot on the capability's own pool, with 95% intervals of the count; the "
        "leftmost is the pruned model. Lines: the fitted curves, dashed beyond the largest pilot; bands: 90% of the "
        "curves that the counts allow.",
        f"Recovery curves by capability. {said}.",
        tuple(panels),
        tuple(inks),
        points,
        dashes=(("fitted", ""), ("extrapolated", "5 4")) if not curves.is_empty() else (),
    )


def _panel(
    name: str, points: polars.DataFrame, curves: polars.DataFrame, inks: list[Ink], first: float, ceiling: float
) -> Panel:
    dots = [
        {
            "family": row["family"],
            "tokens": row["tokens"] or first,
            "healed": row["tokens"],
            "kept": row["kept"],
            "low": or_none(row["low"]),
            "high": or_none(row["high"]),
            "right": f"{row['right']:g} of {row['items']}",
            "runs": row["runs"],
        }
        for row in points.iter_rows(named=True)
    ]
    lines = []
    for row in curves.iter_rows(named=True):
        value = {key: round(row[key], 4) for key in ("tokens", "kept", "low", "high")}
        lines.append({"family": row["family"], "extrapolated": row["extrapolated"], **value})
    # The dashed part begins where the drawn one ends.
    for family in dict.fromkeys(line["family"] for line in lines):
        near = [line for line in lines if line["family"] == family and not line["extrapolated"]]
        if near:
            lines.append({**near[-1], "extrapolated": True})
    end = max([line["tokens"] for line in lines] + [dot["tokens"] * 1.15 for dot in dots])

    def draw(theme: Theme) -> alt.LayerChart:
        scale = alt.Scale(type="log", domain=[first * 0.85, end], nice=False)
        axis = alt.Axis(
            format="~s", title="healing tokens of its own pool", values=decades(first * 0.85, end), grid=False
        )
        x = alt.X("tokens:Q", scale=scale, axis=axis)
        y_scale = alt.Scale(domain=[0, ceiling], clamp=True, nice=False)
        y_axis = alt.Axis(format="%", title="retention", values=[0, 0.25, 0.5, 0.75, 1, 1.25, 1.5], grid=True)
        y = alt.Y("kept:Q", scale=y_scale, axis=y_axis)
        ink, form = colour(inks, "family", theme), shape(inks, "family")
        layers: list[alt.Chart] = []
        if lines:
            base = alt.Chart(rows_named("lines"))
            sure = base.transform_filter("!datum.extrapolated")
            far = base.transform_filter("datum.extrapolated")
            layers.append(
                base.mark_area(opacity=0.13, clip=True).encode(
                    x=x, y=alt.Y("low:Q", scale=y_scale, axis=y_axis), y2="high:Q", color=ink
                )
            )
            layers.append(sure.mark_line(strokeWidth=2, clip=True).encode(x=x, y=y, color=ink))
            layers.append(far.mark_line(strokeWidth=1.8, strokeDash=[5, 4], clip=True).encode(x=x, y=y, color=ink))
        data = alt.Chart(rows_named("dots"))
        tooltip = [
            alt.Tooltip("family:N"),
            alt.Tooltip("healed:Q", title="tokens", format=",d"),
            alt.Tooltip("right:N", title="items right"),
            alt.Tooltip("kept:Q", title="retention", format=".0%"),
            alt.Tooltip("runs:N"),
        ]
        layers.append(
            data.mark_rule(strokeWidth=1.6, opacity=0.45, clip=True).encode(
                x=x, y=alt.Y("low:Q", scale=y_scale, axis=y_axis), y2="high:Q", color=ink
            )
        )
        layers.append(
            data.mark_point(size=52, filled=True, opacity=1, clip=True).encode(
                x=x, y=y, color=ink, shape=form, tooltip=tooltip
            )
        )
        return alt.layer(*layers)

    key = name.replace("_", "-")
    return Panel(key, capability_name(name), draw, HEIGHT, {"lines": lines, "dots": dots})
