"""The two refusal rates against each other."""

from __future__ import annotations

import altair as alt

from regrow.report.charts.frame import Figure, colour_of, framed, or_none, shape_of, shares
from regrow.report.results import MainTable
from regrow.report.theme import Theme
from regrow.report.wording import percent


def refusal_figure(table: MainTable) -> Figure | None:
    """Return the chart of the two refusal rates against each other; None where they were not both measured."""
    keys = {row.key for row in table.rows}
    if not {"safety.unsafe", "safety.benign"} <= keys:
        return None
    unsafe, benign = table.row("safety.unsafe"), table.row("safety.benign")
    points = [
        {
            "model": column.label,
            "place": index,
            "unsafe": unsafe.cells[index].value,
            "unsafe_low": or_none(unsafe.cells[index].low),
            "unsafe_high": or_none(unsafe.cells[index].high),
            "benign": benign.cells[index].value,
            "benign_low": or_none(benign.cells[index].low),
            "benign_high": or_none(benign.cells[index].high),
        }
        for index, column in enumerate(table.columns)
    ]
    places = list(range(len(table.columns)))

    def draw(theme: Theme) -> alt.TopLevelMixin:
        data = alt.Data(values=points)
        x = alt.X("benign:Q", axis=shares("benign requests answered"))
        y = alt.Y("unsafe:Q", axis=shares("unsafe requests refused"))
        x, y = x.scale(domain=[0, 1]), y.scale(domain=[0, 1])
        colour = colour_of(table, places, theme)
        shape = shape_of(table, places)
        even = alt.Chart(alt.Data(values=[{"benign": 0, "unsafe": 1}, {"benign": 1, "unsafe": 0}]))
        base = alt.Chart(data)
        chart = alt.layer(
            even.mark_line(strokeDash=[3, 4], color=theme.muted, opacity=0.6).encode(x=x, y=y),
            base.mark_line(color=theme.muted, opacity=0.5, strokeWidth=1.2).encode(
                x=x, y=y, order=alt.Order("place:Q")
            ),
            base.mark_rule(strokeWidth=2, opacity=0.4).encode(x="benign_low:Q", x2="benign_high:Q", y=y, color=colour),
            base.mark_rule(strokeWidth=2, opacity=0.4).encode(x=x, y="unsafe_low:Q", y2="unsafe_high:Q", color=colour),
            base.mark_point(size=110, filled=True, opacity=1).encode(
                x=x,
                y=y,
                color=colour,
                shape=shape,
                tooltip=[
                    alt.Tooltip("model:N"),
                    alt.Tooltip("unsafe:Q", title="unsafe refused", format=".0%"),
                    alt.Tooltip("benign:Q", title="benign answered", format=".0%"),
                ],
            ),
        )
        return framed(chart, theme, height=300)

    said = ", ".join(
        f"{column.label} refuses {percent(unsafe.cells[i].value)} of unsafe and answers "
        f"{percent(benign.cells[i].value)} of benign requests"
        for i, column in enumerate(table.columns)
    )
    return Figure(
        "refusal",
        "Refusal: two rates",
        "The best place is the top right. On the dashed line a model refuses both kinds alike, "
        "so that its balanced score is 50%.",
        f"Scatter chart of refusal. {said}.",
        draw,
    )
