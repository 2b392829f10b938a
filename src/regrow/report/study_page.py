"""A study's report as one HTML file: tables 1-5, figures 1-6, every item and every run."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup

from regrow.planning.tokens import show_tokens
from regrow.records.atomic import write_text
from regrow.report.charts.paper.palette import Ink
from regrow.report.charts.paper.panel import Panel, PaperFigure
from regrow.report.embed import content_policy, json_block, script, vega_script
from regrow.report.page import template_text
from regrow.report.paper.frames import csv_of
from regrow.report.paper.grids import Grid, Head, Text
from regrow.report.paper.items import study_items
from regrow.report.paper.latex import latex_of
from regrow.report.paper.paper import Paper
from regrow.report.study_findings import study_sentences
from regrow.report.theme import THEMES, Theme
from regrow.report.views import base_css
from regrow.report.wording import count

RUN_HEADS = {
    "run": "Run",
    "family": "Family",
    "stage": "Stage",
    "rule": "Rule",
    "pilot": "Pilot",
    "scope": "Trained",
    "budget": "Healing tokens",
    "seed": "Seed",
    "split": "Split",
    "mixture": "Tokens by pool",
    "removed": "Removed blocks",
    "items": "Items",
    "generated_tokens": "Generated",
    "measured": "Measured",
}

_PATHS = {
    "circle": "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0",
    "square": "M-4.5-4.5h9v9h-9z",
    "diamond": "M0-6L5 0L0 6L-5 0z",
    "triangle-up": "M0-5.5L5.5 4.5h-11z",
    "triangle-down": "M0 5.5L5.5-4.5h-11z",
    "triangle-right": "M5.5 0L-4.5 5.5v-11z",
    "triangle-left": "M-5.5 0L4.5 5.5v-11z",
    "cross": "M-2-6h4v4h4v4h-4v4h-4v-4h-4v-4h4z",
}
"""The shapes of Vega as paths, for the key above a figure."""


class KeyView(NamedTuple):
    """One entry of a figure's key; its colour is the custom property ``--ink-NAME``."""

    name: str
    label: str
    path: str


class FigureView(NamedTuple):
    """A figure as its template shows it."""

    key: str
    number: int
    title: str
    caption: str
    description: str
    panels: tuple[Panel, ...]
    keys: tuple[KeyView, ...]
    dashes: tuple[tuple[str, str], ...]


class LineView(NamedTuple):
    """A row of a table: cells with the index of their trace, None where a cell stands for no number."""

    cells: tuple[tuple[Text, int | None], ...]
    first: bool


class GridView(NamedTuple):
    """A table as its template shows it; ``groups`` are (text, columns) of the upper head, empty without one."""

    key: str
    number: int
    title: str
    caption: str
    heads: tuple[Head, ...]
    groups: tuple[tuple[str, int], ...]
    lines: tuple[LineView, ...]
    notes: tuple[str, ...]


def write_study_page(
    path: Path, paper: Paper, grids: Sequence[Grid], figures: Sequence[PaperFigure], *, refresh_seconds: int = 0
) -> None:
    """Write the report of a study as one HTML file that needs no network, no server and no other file."""
    write_text(path, render_study_page(paper, grids, figures, refresh_seconds=refresh_seconds))


def render_study_page(
    paper: Paper, grids: Sequence[Grid], figures: Sequence[PaperFigure], *, refresh_seconds: int = 0
) -> str:
    """Return the report as HTML. Every text that is not ours (answers, names, ids) is escaped.

    ``refresh_seconds``: an open page loads itself anew so often, for a study that is under way (0: never).
    """
    traces: dict[tuple[str, ...], int] = {}
    views = [_grid_view(grid, traces) for grid in grids]
    values = {
        "charts": {
            f"{figure.key}-{panel.key}": {name: figure.panel_spec(panel, theme) for name, theme in THEMES.items()}
            for figure in figures
            for panel in figure.panels
        },
        "figures": {f.key: {name: f.whole_spec(theme) for name, theme in THEMES.items()} for f in figures},
        "files": _files(paper, grids, figures),
        "traces": [list(places) for places in traces],
        "items": study_items(paper),
    }
    page_code, study_code = template_text("page.js"), template_text("study.js")
    vega_code = vega_script() if figures else ""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("regrow.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    inks = list(dict.fromkeys(ink for figure in figures for ink in figure.inks))
    return environment.get_template("study.html.j2").render(
        policy=content_policy([code for code in (vega_code, page_code, study_code) if code]),
        version=version("regrow"),
        refresh_seconds=refresh_seconds,
        title=paper.study.name,
        themes={name: Markup(f"{base_css(theme)} {_ink_css(inks, theme)}") for name, theme in THEMES.items()},
        css=Markup(template_text("page.css")),
        subtitle=_subtitle(paper),
        lead=study_sentences(paper),
        notes=paper.notes,
        grids=views,
        figures=[_figure_view(figure, inks) for figure in figures],
        place=paper.study.name,
        run_heads=list(RUN_HEADS.values()),
        runs=[[_run_text(row, name) for name in RUN_HEADS] for row in paper.runs.iter_rows(named=True)],
        resamples=paper.drawing.resamples,
        data=json_block("report-data", values),
        vega=script(vega_code) if vega_code else "",
        page_script=script(page_code),
        study_script=script(study_code),
    )


def _subtitle(paper: Paper) -> str:
    first = paper.study.runs[0].record
    names = ", ".join(family.name for family in paper.families)
    one = paper.families[0]
    items = sum(one.paired.scores[name].shape[1] for name in one.paired.capabilities)
    budget = f" \u00b7 rules compared at {show_tokens(paper.budget)} healing tokens" if paper.budget else ""
    split = one.base.runs[0].record.split
    measured = f"{first.suite} suite, {split} split, {items:,} items{budget}"
    return f"{names} \u00b7 {len(paper.study.runs)} runs \u00b7 {measured}"


def _grid_view(grid: Grid, traces: dict[tuple[str, ...], int]) -> GridView:
    groups = [(text, len(list(members))) for text, members in groupby(grid.heads, key=lambda head: head.group)]
    return GridView(
        grid.key,
        grid.number,
        grid.title,
        grid.caption,
        grid.heads,
        tuple(groups) if any(head.group for head in grid.heads) else (),
        tuple(LineView(tuple((cell, _trace(cell, traces)) for cell in line.cells), line.first) for line in grid.lines),
        grid.notes,
    )


def _trace(cell: Text, traces: dict[tuple[str, ...], int]) -> int | None:
    if not cell.runs or not cell.text:
        return None
    return traces.setdefault(tuple(dict.fromkeys(cell.runs.split("; "))), len(traces))


def _figure_view(figure: PaperFigure, inks: Sequence[Ink]) -> FigureView:
    keys = tuple(KeyView(str(inks.index(ink)), ink.label, _PATHS[ink.shape]) for ink in figure.inks)
    return FigureView(
        figure.key,
        figure.number,
        figure.title,
        figure.caption,
        figure.description,
        figure.panels,
        keys,
        figure.dashes,
    )


def _ink_css(inks: Sequence[Ink], theme: Theme) -> str:
    return " ".join(f"--ink-{place}: {ink.colour(theme)};" for place, ink in enumerate(inks))


def _files(paper: Paper, grids: Sequence[Grid], figures: Sequence[PaperFigure]) -> dict[str, str]:
    found = {"runs.csv": csv_of(paper.runs)}
    for grid in grids:
        found[f"table{grid.number}-{grid.key}.csv"] = csv_of(grid.frame)
        found[f"table{grid.number}-{grid.key}.tex"] = latex_of(grid)
    for figure in figures:
        found[f"figure{figure.number}-{figure.key}.csv"] = csv_of(figure.frame)
    return found


def _run_text(row: dict[str, Any], name: str) -> str:
    value = row[name]
    if name == "stage":
        return f"{value}, {row['cut']} cut" if row["cut"] != "main" else str(value)
    if name == "budget":
        return show_tokens(value) if value else ""
    if name == "seed":
        return str(value) if row["budget"] else ""
    if name == "generated_tokens":
        return count(value) if value else ""
    return str(value)
