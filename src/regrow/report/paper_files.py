"""A study's tables and figures as files: CSV and LaTeX, PDF, PNG and the numbers behind each figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import polars

from regrow.records.atomic import write_text
from regrow.report.charts.paper.panel import PaperFigure, save_paper_figure
from regrow.report.paper.frames import csv_of
from regrow.report.paper.grids import Grid
from regrow.report.paper.latex import latex_of
from regrow.report.paper.paper import Paper

TABLES, FIGURES = "tables", "figures"


def write_paper_files(
    folder: Path,
    paper: Paper,
    grids: Sequence[Grid],
    figures: Sequence[PaperFigure],
    *,
    begin: Callable[[str], None] = lambda task: None,
) -> list[Path]:
    """Write everything below ``folder`` and return the files: ``tables/table1-retention.csv`` and ``.tex``,
    ``figures/figure1-damage.pdf``, ``.png`` and ``.csv``, and the frames that stand behind several of them.

    ``begin`` is told what is being written. Existing files of the same names are replaced, each whole or not at all.
    """
    written = []
    for grid in grids:
        begin(f"table {grid.number}")
        base = folder / TABLES / f"table{grid.number}-{grid.key}"
        written += [_written(base.with_suffix(".csv"), csv_of(grid.frame))]
        written += [_written(base.with_suffix(".tex"), latex_of(grid))]
    for name, frame in extra_frames(paper).items():
        if not frame.is_empty():
            written.append(_written(folder / TABLES / f"{name}.csv", csv_of(frame)))
    for figure in figures:
        begin(f"figure {figure.number}")
        base = folder / FIGURES / f"figure{figure.number}-{figure.key}"
        for ending in (".pdf", ".png"):
            save_paper_figure(figure, base.with_suffix(ending))
            written.append(base.with_suffix(ending))
        written.append(_written(base.with_suffix(".csv"), csv_of(figure.frame)))
    return written


def extra_frames(paper: Paper) -> dict[str, polars.DataFrame]:
    """Return the frames that are no table or figure by themselves."""
    return {
        "ranks": paper.concordance,
        "curve-fits": paper.recovery.fits,
        "curve-points": paper.recovery.curves,
        "refusal-rates": paper.refusals,
        "runs": paper.runs,
    }


def _written(path: Path, text: str) -> Path:
    write_text(path, text)
    return path
