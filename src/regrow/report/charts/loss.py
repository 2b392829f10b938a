"""The loss of a healing run."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from regrow.report.charts.frame import Figure, framed
from regrow.report.losslog import LossPoint
from regrow.report.theme import Theme


def loss_figure(loss: Sequence[LossPoint]) -> Figure | None:
    """Return the healing loss against tokens, each update and a running mean; None with fewer than two points."""
    if len(loss) < 2:
        return None
    reach = max(1, len(loss) // 20)
    points = [
        {
            "tokens": point.tokens,
            "loss": point.loss,
            "mean": sum(p.loss for p in loss[max(0, i - reach) : i + reach + 1])
            / len(loss[max(0, i - reach) : i + reach + 1]),
        }
        for i, point in enumerate(loss)
    ]

    def draw(theme: Theme) -> alt.TopLevelMixin:
        base = alt.Chart(alt.Data(values=points)).encode(
            x=alt.X("tokens:Q", title="healing tokens", axis=alt.Axis(format="~s", tickCount=6)),
            tooltip=[alt.Tooltip("tokens:Q", format=",d"), alt.Tooltip("loss:Q", format=".3f")],
        )
        y_title = "loss (nats a token)"
        colour = theme.stages["healed"]
        chart = alt.layer(
            base.mark_point(size=22, filled=True, opacity=0.35, color=colour).encode(
                y=alt.Y("loss:Q", title=y_title, scale=alt.Scale(zero=False))
            ),
            base.mark_line(strokeWidth=2.2, color=colour).encode(y=alt.Y("mean:Q", title=y_title)),
        )
        return framed(chart, theme, height=240)

    first, last = points[0]["mean"], points[-1]["mean"]
    return Figure(
        "loss",
        "Healing loss",
        "Cross-entropy on response tokens, each update (dots) and a running mean (line).",
        f"Line chart of the healing loss over {loss[-1].tokens:,} tokens, from {first:.2f} to {last:.2f}.",
        draw,
    )
