"""Summaries of retention over capabilities: the capped mean and the worst case, with limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regrow.report.results import Cell, Summary
from regrow.report.scored import TOO_CLOSE, ScoredRow
from regrow.stats.retention import capped_mean, chance_corrected, worst_case

Floats = NDArray[np.float64]


def summaries_of(scored: Sequence[ScoredRow], base: int | None, level: float) -> tuple[Summary, ...]:
    """Return capped mean and worst case over the capabilities with a retention; none unless there is a comparison."""
    if base is None or len(scored[0].row.cells if scored else ()) < 2:
        return ()
    defined = [entry for entry in scored if math.isfinite(entry.row.kept[base].value)]
    if not defined:
        return ()
    over = tuple(entry.row.key for entry in defined)
    points = np.array([[cell.value for cell in entry.row.cells] for entry in defined]).T
    drawn = np.stack([entry.drawn for entry in defined], axis=2)

    def cells(metric: Callable[..., Any], floors: Sequence[float]) -> tuple[Cell, ...]:
        return _cells(metric, points, drawn, base, floors, level)

    nothing, chance = [0.0] * len(defined), [entry.row.chance for entry in defined]
    return (
        Summary(
            key="capped_mean",
            name="Capped mean",
            over=over,
            cells=cells(capped_mean, nothing),
            corrected=cells(capped_mean, chance),
        ),
        Summary(
            key="worst_case",
            name="Worst case",
            over=over,
            cells=cells(worst_case, nothing),
            corrected=cells(worst_case, chance),
        ),
    )


def _cells(
    metric: Callable[..., Any], points: Floats, drawn: Floats, base: int, floors: Sequence[float], level: float
) -> tuple[Cell, ...]:
    cells = []
    for column in range(points.shape[0]):
        value = metric(chance_corrected(points[column], points[base], floors))
        if column == base or not math.isfinite(value):
            reason = "" if math.isfinite(value) else "an unpruned score does not exceed chance"
            cells.append(Cell(value=value, reason=reason, estimated=bool(reason)))
            continue
        ratios = metric(chance_corrected(drawn[:, column], drawn[:, base], floors))
        defined = ratios[np.isfinite(ratios)]
        if defined.size < (1 - TOO_CLOSE) * ratios.size:
            cells.append(Cell(value=value, reason="an unpruned score is too near to its floor for limits"))
            continue
        low, high = (float(limit) for limit in np.quantile(defined, [0.5 - level / 2, 0.5 + level / 2]))
        cells.append(Cell(value=value, low=low, high=high))
    return tuple(cells)
