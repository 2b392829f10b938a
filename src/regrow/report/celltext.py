"""Cells of the main table as readers see them."""

from __future__ import annotations

import math

from regrow.report.results import Cell, Unit
from regrow.report.wording import DASH, count, percent, percent_span, plain, times


def cell_text(cell: Cell, unit: Unit) -> tuple[str, str]:
    """Return a cell's value and its limits as shown to readers; the limits are empty where there are none."""
    if unit == "share":
        return percent(cell.value), percent_span(cell.low, cell.high)
    if unit == "parameters":
        return count(cell.value), ""
    if not math.isfinite(cell.low + cell.high):
        return plain(cell.value), ""
    digits = 0 if cell.value >= 10 else 1
    return plain(cell.value), f"{cell.low:,.{digits}f}{DASH}{cell.high:,.{digits}f}"


def kept_text(cell: Cell, unit: Unit) -> tuple[str, str]:
    """Return what was kept (or, for perplexity, how many times it grew) and its limits, as shown to readers."""
    if unit == "perplexity":
        return times(cell.value), f"{cell.low:.2f}{DASH}{cell.high:.2f}" if math.isfinite(cell.low + cell.high) else ""
    return percent(cell.value), percent_span(cell.low, cell.high)


def with_limits(value: str, limits: str) -> str:
    """Return "54% (46–64)", or the value alone when there are no limits."""
    return f"{value} ({limits})" if limits else value
