"""A study's main results on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from regrow.report.paper.grids import Grid

SHORT = ("Family", "Rule", "Model", "Paid", "Capped mean", "Worst case")
"""Heads of the columns that a narrow terminal shows."""


def print_study(console: Console, grids: Sequence[Grid], sentences: Sequence[str], notes: Sequence[str]) -> None:
    """Print the findings, the table of rules (or of retention where no rule was run), and what a reader must know."""
    for sentence in sentences:
        console.print(Text(sentence))
    wanted = next((grid for grid in grids if grid.key == "results"), grids[0] if grids else None)
    if wanted is not None:
        console.print()
        console.print(Text(f"Table {wanted.number}. {wanted.title}", style="bold"))
        console.print(_table(console, wanted))
    for note in notes:
        console.print(Text(f"- {note}"))


def _table(console: Console, grid: Grid) -> Table:
    """The whole table where it fits, else without the second lines, else what matters most of it."""
    every = range(len(grid.heads))
    short = [at for at in every if grid.heads[at].text in SHORT and grid.heads[at].group != "Above chance"]
    for small, places in ((True, every), (False, every), (False, short or every)):
        drawn = _drawn(grid, places, small=small)
        if Measurement.get(console, console.options.update(width=10_000), drawn).maximum <= console.width:
            break
    return drawn


def _drawn(grid: Grid, places: Sequence[int], *, small: bool) -> Table:
    drawn = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    for head in (grid.heads[place] for place in places):
        title = f"{head.group}\n{head.text}" if head.group else head.text
        drawn.add_column(escape(title), justify="right" if head.number else "left", no_wrap=True)
    for place, line in enumerate(grid.lines):
        if line.first and place:
            drawn.add_section()
        cells = []
        for cell in (line.cells[at] for at in places):
            text = Text(cell.text, style="bold" if cell.bold else "")
            if small and cell.small:
                text.append(f" {cell.small}", style="dim")
            cells.append(text)
        drawn.add_row(*cells)
    return drawn
