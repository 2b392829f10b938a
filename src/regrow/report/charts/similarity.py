"""How alike the residual streams are, and where each criterion would cut."""

from __future__ import annotations

import altair as alt

from regrow.records.ranking import Ranking
from regrow.records.similarity import SimilarityRecord
from regrow.report.charts.frame import SANS, Figure
from regrow.report.theme import Theme


def similarity_figure(record: SimilarityRecord, ranking: Ranking) -> Figure | None:
    """Return the heat map of mean cosines between streams, with the removed blocks of each criterion beside it; None
    when only neighbours were compared."""
    if record.neighbours_only:
        return None
    cells = [
        {"from": i, "to": j, "cosine": round(float(record.cosine[i][j]), 4)}
        for i in range(record.blocks + 1)
        for j in range(record.blocks + 1)
    ]
    cuts = [
        {"criterion": answer.criterion, "block": block, "state": "removed" if block in answer.removed else "kept"}
        for answer in ranking.answers
        for block in range(ranking.blocks)
    ]

    def draw(theme: Theme) -> alt.TopLevelMixin:
        ink = theme.stages["pruned"]
        heat = (
            alt.Chart(alt.Data(values=cells))
            .mark_rect()
            .encode(
                x=alt.X("from:O", axis=alt.Axis(title="stream entering block", labelOverlap=True, labelAngle=0)),
                y=alt.Y("to:O", axis=alt.Axis(title="stream entering block", labelOverlap=True)),
                color=alt.Color("cosine:Q", scale=alt.Scale(scheme="viridis"), legend=alt.Legend(title="mean cosine")),
                tooltip=["from:O", "to:O", alt.Tooltip("cosine:Q", format=".3f")],
            )
        )
        lines = (
            alt.Chart(alt.Data(values=cuts))
            .mark_square(size=90)
            .encode(
                x=alt.X("block:O", axis=alt.Axis(title="block", labelOverlap=True, labelAngle=0)),
                y=alt.Y("criterion:N", sort=[answer.criterion for answer in ranking.answers], title=None),
                color=alt.Color(
                    "state:N",
                    scale=alt.Scale(domain=["removed", "kept"], range=[ink, theme.line]),
                    legend=alt.Legend(title=None, orient="bottom"),
                ),
                tooltip=["criterion:N", "block:O", "state:N"],
            )
            .properties(height=22 * len(ranking.answers), width=560)
        )
        stacked = alt.vconcat(heat.properties(height=420, width=560), lines).resolve_scale(color="independent")
        return (
            stacked.configure(font=SANS)
            .configure_view(stroke=None)
            .configure_axis(
                labelColor=theme.muted, titleColor=theme.muted, domainColor=theme.line, tickColor=theme.line
            )
            .configure_legend(labelColor=theme.ink, titleColor=theme.muted)
        )

    removed = "; ".join(f"{a.criterion}: {', '.join(map(str, a.removed))}" for a in ranking.answers)
    return Figure(
        "similarity",
        "How alike the streams are, and the cuts",
        f"Mean cosine of the residual streams over {record.tokens:,} tokens of '{record.calibration}'; below, the "
        "blocks that each criterion removes.",
        f"Heat map of stream similarity and the removed blocks. {removed}.",
        draw,
        wide=True,
    )
