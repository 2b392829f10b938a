"""The main table as JSON, CSV and Markdown."""

from __future__ import annotations

import csv
import io
import math
from typing import Any

from regrow.report.celltext import cell_text, kept_text, with_limits
from regrow.report.results import Cell, MainTable, Row
from regrow.report.wording import DASH, percent, percent_span


def to_json(table: MainTable) -> dict[str, Any]:
    """Return the table as plain JSON values: undefined numbers are null, with their reasons beside them."""
    return table.model_dump(mode="json")


def to_csv(table: MainTable) -> str:
    """Return one line for each row and column of the table, ready for a spreadsheet or a data frame."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    head = ["row", "name", "column", "stage", "items", "value", "low", "high", "kept", "kept_low", "kept_high"]
    writer.writerow([*head, "corrected", "corrected_low", "corrected_high"])
    for row in (*table.rows, *table.also):
        for index, column in enumerate(table.columns):
            corrected = row.corrected[index] if row.corrected else None
            parts = [*_limits(row.cells[index]), *_limits(row.kept[index] if row.kept else None), *_limits(corrected)]
            writer.writerow([row.key, row.name, column.label, column.stage, row.items or "", *parts])
    for summary in table.summaries:
        for index, column in enumerate(table.columns):
            parts = ["", "", "", *_limits(summary.cells[index]), *_limits(summary.corrected[index])]
            writer.writerow([summary.key, summary.name, column.label, column.stage, "", *parts])
    return out.getvalue()


def to_markdown(table: MainTable) -> str:
    """Return the table in GitHub's Markdown: values with their intervals, and what was kept."""
    head = ["", *(_escaped(column.label) for column in table.columns)]
    lines = [f"| {' | '.join(head)} |", f"|---|{'---:|' * len(table.columns)}"]
    for row in table.rows:
        name = f"{DASH} {row.name}" if row.part_of else row.name
        shown = [_markdown_cell(row, index, table.base) for index in range(len(table.columns))]
        lines.append(f"| {_escaped(name)} | {' | '.join(shown)} |")
    for summary in table.summaries:
        shown = [with_limits(percent(cell.value), percent_span(cell.low, cell.high)) for cell in summary.cells]
        lines.append(f"| **{summary.name} of retention** | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


def _markdown_cell(row: Row, index: int, base: int | None) -> str:
    value = with_limits(*cell_text(row.cells[index], row.unit))
    if base is None or index == base or not math.isfinite(row.kept[index].value):
        return value
    kept, _ = kept_text(row.kept[index], row.unit)
    return f"{value}, {kept}" if row.unit == "perplexity" else f"{value}, {kept} kept"


def _limits(cell: Cell | None) -> list[str]:
    if cell is None:
        return ["", "", ""]
    return [f"{value:.6g}" if math.isfinite(value) else "" for value in (cell.value, cell.low, cell.high)]


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
