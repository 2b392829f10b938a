"""Figure 3: the same mixture, trained in different places."""

from __future__ import annotations

from regrow.report.charts.paper.dots import Dot, dots_panel
from regrow.report.charts.paper.palette import scope_inks
from regrow.report.charts.paper.panel import PaperFigure
from regrow.report.paper.grids import METRICS, two
from regrow.report.paper.paper import Paper


def scopes_figure(paper: Paper) -> PaperFigure | None:
    """Return the dot chart of the scope experiment, one panel a metric; None where it was not run."""
    rows = list(paper.scopes.iter_rows(named=True))
    if not rows:
        return None
    inks = scope_inks(list(dict.fromkeys(row["scope"] for row in rows)))
    order = list(dict.fromkeys(row["family"] for row in rows))
    panels = []
    for metric, title in METRICS.items():
        dots = [
            Dot(
                row["family"],
                row["scope"],
                row[metric],
                row[metric] - row[f"{metric}_sd"],
                row[metric] + row[f"{metric}_sd"],
                row["runs"],
            )
            for row in rows
        ]
        panels.append(dots_panel(metric.replace("_", "-"), title, dots, order, inks, f"{title.lower()} of retention"))
    said = "; ".join(f"{row['family']} {row['scope']} {two(row['capped_mean'])}" for row in rows)
    return PaperFigure(
        "scopes",
        3,
        "Where to train",
        "The uniform mixture under each scope, scores averaged over seeds. Lines: one standard deviation from seed to "
        "seed.",
        f"Dot charts of capped mean and worst case by scope. Capped means: {said}.",
        tuple(panels),
        tuple(inks),
        paper.scopes,
    )
