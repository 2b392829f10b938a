"""Rates beside the scores: how many answers could be read, loose grading, calibration error."""

from __future__ import annotations

import math
from collections.abc import Collection

from regrow.report.inputs import Paired
from regrow.report.results import Cell, MainTable, Row
from regrow.report.wording import DASH, capability_name, percent

NAMES = {
    "parse_rate": "answers of the asked form",
    "prompt_loose": "loose",
    "instruction_strict": "by instruction",
    "instruction_loose": "by instruction, loose",
    "confidence": "mean confidence",
    "ece": "calibration error",
    "acc_norm": "accuracy by length",
}
KINDS = {"unsafe_refused": "unsafe", "benign_answered": "benign"}
"""Rates that are rows of the table itself where both kinds were asked."""


def also_rows(paired: Paired, *, shown: Collection[str]) -> tuple[Row, ...]:
    """Return one row a rate that any of the evaluations measured, those of ``shown`` rows left out."""
    measured = [{one.name: one for one in record.measurements} for record in paired.records]
    rows = []
    for name in dict.fromkeys(name for one in measured for name in one):
        capability, dot, rate = name.partition(".")
        if not dot or capability not in paired.capabilities or f"{capability}.{KINDS.get(rate, rate)}" in shown:
            continue
        cells = tuple(
            Cell(value=one[name].value, reason=one[name].reason, estimated=False)
            if name in one
            else Cell(value=math.nan, reason="not measured", estimated=False)
            for one in measured
        )
        title = f"{capability_name(capability)}, {NAMES.get(rate, rate.replace('_', ' '))}"
        rows.append(Row(key=name, name=title, unit="share", part_of=capability, cells=cells, kept=()))
    order = list(paired.capabilities)
    return tuple(sorted(rows, key=lambda row: order.index(row.part_of)))


def also_views(table: MainTable) -> list[tuple[str, tuple[str, ...]]]:
    """Return (name, one text a column)."""
    return [
        (row.name, tuple(percent(cell.value) if math.isfinite(cell.value) else DASH for cell in row.cells))
        for row in table.also
    ]
