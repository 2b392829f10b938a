"""The main table: every score with its interval, what was kept of it, which changes are real, what became of items."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

from regrow.report.celltext import cell_text, kept_text, with_limits
from regrow.report.changes import changes_of, fates_of
from regrow.report.inputs import Paired
from regrow.report.results import Cell, Column, MainTable, Row
from regrow.report.scored import Drawing, capability_rows
from regrow.report.summaries import summaries_of
from regrow.report.wording import CHANCE, DASH, percent, percent_span
from regrow.stats.retention import chance_corrected, undefined_reason


def main_table(
    paired: Paired,
    *,
    chance: Mapping[str, float] | None = None,
    seed: int = 0,
    resamples: int = 2000,
    level: float = 0.95,
) -> MainTable:
    """Return the main table of paired evaluations.

    ``chance`` gives the score of guessing by capability (None: a quarter for knowledge, a half for safety, else 0).
    Retention intervals resample the items of the unpruned model and of the stage together. The same ``seed`` gives the
    same table.
    """
    floors = CHANCE if chance is None else chance
    drawing = Drawing(seed, resamples, level)
    scored = [
        row
        for capability in paired.capabilities
        for row in capability_rows(paired, capability, floors.get(capability, 0.0), drawing)
    ]
    whole = [entry for entry in scored if not entry.row.part_of]
    rows = [entry.row for entry in scored]
    perplexity = _perplexity_row(paired)
    rows += [perplexity] if perplexity else []
    first = paired.evaluations[0].record
    return MainTable(
        suite=first.suite,
        split=first.split,
        level=level,
        resamples=resamples,
        base=paired.base,
        cut=paired.cut,
        columns=tuple(_column(paired, index) for index in range(len(paired.evaluations))),
        rows=(*rows, _parameters_row(paired)),
        summaries=summaries_of(whole, paired.base, level),
        changes=tuple(changes_of(paired, scored, drawing)),
        fates=tuple(fates_of(paired)),
        notes=(*paired.notes, *_undefined_notes([entry.row for entry in whole], paired.base)),
    )


def _undefined_notes(rows: Sequence[Row], base: int | None) -> list[str]:
    if base is None:
        return ["No unpruned model was evaluated: nothing can be said about what was kept."]
    return [
        f"{row.name} has no retention ({row.kept[base].reason}) and is in no summary."
        for row in rows
        if not math.isfinite(row.kept[base].value)
    ]


def _column(paired: Paired, index: int) -> Column:
    record = paired.evaluations[index].record
    return Column(
        label=paired.labels[index],
        stage=record.stage,
        source=record.model.source,
        blocks=record.model.blocks,
        unpruned_blocks=record.model.unpruned_blocks or record.model.blocks,
        removed_blocks=record.model.removed_blocks,
        parameters=record.model.parameters,
        repair=record.model.repair,
        healing_tokens=record.model.healing_tokens,
    )


def _perplexity_row(paired: Paired) -> Row | None:
    cells = []
    for one in paired.evaluations:
        found = {measured.name: measured for measured in one.record.measurements}
        main = found.get("perplexity")
        if main is None:
            cells.append(Cell(value=math.nan, reason="not measured"))
            continue
        low, high = (found[name].value if name in found else math.nan for name in ("perplexity_low", "perplexity_high"))
        cells.append(Cell(value=main.value, low=low, high=high, reason=main.reason))
    if all(cell.reason == "not measured" for cell in cells):
        return None
    return Row(
        key="perplexity", name="Perplexity", unit="perplexity", cells=tuple(cells), kept=_plain_ratios(paired, cells)
    )


def _parameters_row(paired: Paired) -> Row:
    cells = [Cell(value=float(one.record.model.parameters), estimated=False) for one in paired.evaluations]
    kept = _plain_ratios(paired, cells)
    return Row(key="parameters", name="Parameters", unit="parameters", cells=tuple(cells), kept=kept)


def _plain_ratios(paired: Paired, cells: Sequence[Cell]) -> tuple[Cell, ...]:
    if paired.base is None:
        return tuple(Cell(value=math.nan, reason="no unpruned evaluation to compare with") for _ in cells)
    base = cells[paired.base].value
    return tuple(
        Cell(value=chance_corrected(c.value, base, 0.0), reason=undefined_reason(c.value, base), estimated=False)
        for c in cells
    )


def to_json(table: MainTable) -> dict[str, Any]:
    """Return the table as plain JSON values: undefined numbers are null, with their reasons beside them."""
    return table.model_dump(mode="json")


def to_csv(table: MainTable) -> str:
    """Return one line for each row and column of the table, ready for a spreadsheet or a data frame."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    head = ["row", "name", "column", "stage", "items", "value", "low", "high", "kept", "kept_low", "kept_high"]
    writer.writerow([*head, "corrected", "corrected_low", "corrected_high"])
    for row in table.rows:
        for index, column in enumerate(table.columns):
            corrected = row.corrected[index] if row.corrected else None
            parts = [*_limits(row.cells[index]), *_limits(row.kept[index]), *_limits(corrected)]
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
