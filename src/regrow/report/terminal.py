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

from regrow.report.also import also_views
from regrow.report.celltext import cell_text, kept_text
from regrow.report.findings import Findings
from regrow.report.results import Cell, MainTable
from regrow.report.wording import percent, percent_span

GOOD, POOR = 0.9, 0.5
"""Retention from which a value is printed green, and below which it is printed red."""


def print_report(console: Console, table: MainTable, found: Findings | None = None) -> None:
    """Print the main table, then what broke and what came back."""
    console.print(render_terminal(table))
    if table.also:
        rates = "; ".join(f"{name} {' / '.join(cells)}" for name, cells in also_views(table))
        console.print(Text(f"also: {rates}", style="dim"))
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
        for tall in (False, True):
            drawn = _grid(self.table, tall=tall)
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


def _grid(table: MainTable, *, tall: bool) -> Table:
    """The table with limits beside the values, or below them (``tall``)."""
    drawn = Table(
        box=box.SIMPLE_HEAD,
        caption=_caption(table),
        caption_justify="left",
        header_style="bold",
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    drawn.add_column("", no_wrap=True)
    columns = [_column(table, index) for index in range(len(table.columns))]
    with_kept = [any(cell.kept for cell in cells) for cells in columns]
    for column, kept in zip(table.columns, with_kept, strict=True):
        drawn.add_column(escape(column.label), justify="right", no_wrap=True)
        if not tall:
            drawn.add_column("", no_wrap=True, style="dim")
        if kept:
            drawn.add_column("kept", justify="right", no_wrap=True, header_style="dim")
    names = [
        Text(f"  {row.name}" if row.part_of else row.name, style="dim" if row.part_of else "") for row in table.rows
    ]
    names += [Text(summary.name, style="bold") for summary in table.summaries]
    for line, name in enumerate(names):
        if line == len(table.rows):
            drawn.add_section()
        texts: list[Text] = []
        for cells, kept in zip(columns, with_kept, strict=True):
            texts += _cell_texts(cells[line], tall=tall, kept=kept)
        drawn.add_row(name, *texts)
    return drawn


def _cell_texts(parts: _Parts, *, tall: bool, kept: bool) -> list[Text]:
    value, share = Text(parts.value), Text(parts.kept, style=parts.style)
    if not tall:
        return [value, Text(parts.limits), share] if kept else [value, Text(parts.limits)]
    if parts.limits:
        (value if parts.value else share).append(f"\n{parts.limits}", style="dim")
    return [value, share] if kept else [value]


def _list(table: MainTable) -> Group:
    lines: list[Text] = []
    columns = [_column(table, index) for index in range(len(table.columns))]
    widest = max(len(column.label) for column in table.columns)
    names = [row.name for row in table.rows] + [f"{summary.name} of what was kept" for summary in table.summaries]
    for line, name in enumerate(names):
        lines.append(Text(name, style="bold"))
        for column, cells in zip(table.columns, columns, strict=True):
            every = [cell for other in columns for cell in other]
            lines.append(Text.assemble(f"  {column.label:<{widest}}  ", _joined(cells[line], every)))
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


def _joined(parts: _Parts, cells: Sequence[_Parts]) -> Text:
    """The parts in one line, each as wide as the widest of its kind among ``cells``."""
    value, limits, kept = (max(len(other[place]) for other in cells) for place in range(3))
    text = Text(f"{parts.value:>{value}}")
    text.append(f" {parts.limits:<{limits}}", style="dim")
    text.append(f"  {parts.kept:>{kept}}", style=parts.style)
    return text


def _style(kept: Cell) -> str:
    return "green" if kept.value >= GOOD else "red" if kept.value < POOR else "yellow"


def _caption(table: MainTable) -> str:
    kept = "; kept: share of the unpruned model" if table.base is not None and len(table.columns) > 1 else ""
    return f"{table.level:.0%} intervals in grey{kept}"
