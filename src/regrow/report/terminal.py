"""The main table on a terminal: full where it fits, without limits where it is narrow, a list where it is tiny."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from regrow.report.celltext import cell_text, kept_text
from regrow.report.findings import Findings
from regrow.report.results import Cell, MainTable
from regrow.report.wording import percent, percent_span

GOOD, POOR = 0.9, 0.5
"""Retention from which a value is printed green, and below which it is printed red."""


def print_report(console: Console, table: MainTable, found: Findings | None = None) -> None:
    """Print the main table, then what broke and what came back."""
    console.print(render_terminal(table))
    for sentence in found.sentences() if found else ():
        console.print(Text(sentence))


def render_terminal(table: MainTable) -> TerminalTable:
    """Return the main table for a rich console; it takes the widest of three forms that fits when it is printed."""
    return TerminalTable(table)


class TerminalTable:
    """A main table that knows how to print itself at any width."""

    def __init__(self, table: MainTable) -> None:
        self.table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        unlimited = options.update(width=10_000)
        for limits in (True, False):
            drawn = _grid(self.table, limits=limits)
            if Measurement.get(console, unlimited, drawn).maximum <= options.max_width:
                yield drawn
                return
        yield _list(self.table)


class _Parts(NamedTuple):
    """One cell: its value, its limits, and what was kept, with the style of the last."""

    value: str
    limits: str
    kept: str
    style: str


def _grid(table: MainTable, *, limits: bool) -> Table:
    drawn = Table(
        box=box.SIMPLE_HEAD,
        caption=_caption(table, limits),
        caption_justify="left",
        header_style="bold",
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    drawn.add_column("", no_wrap=True)
    columns = [_column(table, index) for index in range(len(table.columns))]
    for column in table.columns:
        drawn.add_column(escape(column.label), justify="right", no_wrap=True)
    names = [
        Text(f"  {row.name}" if row.part_of else row.name, style="dim" if row.part_of else "") for row in table.rows
    ]
    names += [Text(f"{summary.name} kept", style="bold") for summary in table.summaries]
    for line, name in enumerate(names):
        if line == len(table.rows):
            drawn.add_section()
        drawn.add_row(name, *(_joined(column[line], column, limits) for column in columns))
    return drawn


def _list(table: MainTable) -> Group:
    lines: list[Text] = []
    columns = [_column(table, index) for index in range(len(table.columns))]
    widest = max(len(column.label) for column in table.columns)
    names = [row.name for row in table.rows] + [f"{summary.name} of what was kept" for summary in table.summaries]
    for line, name in enumerate(names):
        lines.append(Text(name, style="bold"))
        for column, cells in zip(table.columns, columns, strict=True):
            every = [cell for other in columns for cell in other]
            lines.append(Text.assemble(f"  {column.label:<{widest}}  ", _joined(cells[line], every, True)))
    return Group(*lines)


def _column(table: MainTable, index: int) -> list[_Parts]:
    """The cells of one column from top to bottom, the summaries last."""
    cells = []
    for row in table.rows:
        kept = row.kept[index]
        shown = table.base is not None and index != table.base and math.isfinite(kept.value)
        style = _style(kept) if row.unit == "share" else "dim"
        cells.append(
            _Parts(*cell_text(row.cells[index], row.unit), kept_text(kept, row.unit)[0] if shown else "", style)
        )
    for summary in table.summaries:
        cell = summary.cells[index]
        value = percent(cell.value)
        limits = percent_span(cell.low, cell.high)
        cells.append(_Parts(value, "", "", "") if index == table.base else _Parts("", limits, value, _style(cell)))
    return cells


def _joined(parts: _Parts, column: Sequence[_Parts], limits: bool) -> Text:
    """The parts in one line, each as wide as the widest of its kind in the column."""
    value, span, kept = (max(len(other[place]) for other in column) for place in range(3))
    text = Text(f"{parts.value:>{value}}")
    if limits and span:
        text.append(f" {parts.limits:<{span}}", style="dim")
    if kept:
        text.append(f"  {parts.kept:>{kept}}", style=parts.style)
    return text


def _style(kept: Cell) -> str:
    return "green" if kept.value >= GOOD else "red" if kept.value < POOR else "yellow"


def _caption(table: MainTable, limits: bool) -> str:
    parts = [f"{table.level:.0%} intervals in grey"] if limits else []
    if table.base is not None:
        parts.append("last figure of a cell: what was kept of the unpruned model")
    return "; ".join(parts)
