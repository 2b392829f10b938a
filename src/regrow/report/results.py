"""What a report states, as typed values: computed once, then drawn as a page, a terminal table, CSV or Markdown.

Undefined numbers are NaN in Python and null in JSON; the reason stands beside them.
"""

from __future__ import annotations

import math
from typing import Literal

from regrow.records.results import Frozen, Number, Stage

Unit = Literal["share", "perplexity", "parameters"]
Against = Literal["unpruned", "pruned"]


class Cell(Frozen):
    """One number with the limits of its interval. ``reason`` is empty unless a number is NaN; ``estimated`` is False
    for a count, which has no limits."""

    value: Number
    low: Number = math.nan
    high: Number = math.nan
    reason: str = ""
    estimated: bool = True


class Column(Frozen):
    """One evaluated model. ``label`` is unique in its table."""

    label: str
    stage: Stage
    source: str
    blocks: int
    unpruned_blocks: int
    removed_blocks: tuple[int, ...]
    parameters: int
    repair: str
    healing_tokens: int


class Row(Frozen):
    """One measured quantity over all columns.

    ``cells`` are its values; ``kept`` the ratio to the unpruned model (retention for shares); ``corrected`` retention
    above chance, where chance is not 0. ``part_of`` names the row that this one is a part of (the two refusal rates).
    ``items`` is the number of test questions behind each cell (0: not from items).
    """

    key: str
    name: str
    unit: Unit
    items: int = 0
    chance: float = 0.0
    part_of: str = ""
    cells: tuple[Cell, ...]
    kept: tuple[Cell, ...]
    corrected: tuple[Cell, ...] = ()


class Summary(Frozen):
    """A summary of retention over capabilities, one cell a column. ``over`` lists the capabilities it covers."""

    key: Literal["capped_mean", "worst_case"]
    name: str
    over: tuple[str, ...]
    cells: tuple[Cell, ...]
    corrected: tuple[Cell, ...]


class Change(Frozen):
    """A paired test of one row between two columns, ``later`` minus ``earlier`` (column indices).

    ``lost`` and ``gained`` count items that turned wrong and right. ``adjusted`` is Holm's p within all tests
    ``against`` the same reference. ``detectable`` is the true change that this test would have found 4 times in 5.
    """

    row: str
    against: Against
    earlier: int
    later: int
    difference: Number
    low: Number
    high: Number
    lost: int
    gained: int
    p_value: Number
    adjusted: Number
    significant: bool
    detectable: Number


class FateCounts(Frozen):
    """What became of the items of one capability between the unpruned model and column ``later``."""

    capability: str
    later: int
    kept: int
    came_back: int
    new: int
    broke: int
    never: int


class MainTable(Frozen):
    """Everything the main table, its tests and its transitions state.

    ``base`` is the unpruned column's index, None when no unpruned model was evaluated (nothing can then be retained).
    ``also`` holds rates beside the scores (parse rate, loose grading, calibration error), plain values without limits.
    ``notes`` are sentences a reader must know (items left out, undefined numbers).
    """

    suite: str
    split: str
    level: float
    resamples: int
    base: int | None
    cut: int | None
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    also: tuple[Row, ...] = ()
    summaries: tuple[Summary, ...]
    changes: tuple[Change, ...]
    fates: tuple[FateCounts, ...]
    notes: tuple[str, ...] = ()

    def row(self, key: str) -> Row:
        """Return the row called ``key``."""
        return next(row for row in self.rows if row.key == key)

    def change(self, row: str, against: Against, later: int) -> Change | None:
        """Return the test of ``row`` at column ``later``, None when there is none."""
        wanted = (row, against, later)
        return next((c for c in self.changes if (c.row, c.against, c.later) == wanted), None)
