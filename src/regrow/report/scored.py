"""Rows of the main table that come from items: values, limits, and what was kept of the unpruned score."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regrow.report.inputs import Paired
from regrow.report.results import Cell, Row
from regrow.report.wording import capability_name
from regrow.seeding import stream
from regrow.stats.intervals import Interval, balanced_rate, mean_interval, wilson
from regrow.stats.resampling import resampled_means, strata_of
from regrow.stats.retention import chance_corrected, undefined_reason

Floats = NDArray[np.float64]

PARTS = {"unsafe": "Unsafe refused", "benign": "Benign answered"}
"""Kinds of items that are shown as rows of their own below their capability."""

TOO_CLOSE = 0.025
"""Share of resamples with an unpruned score at chance from which a ratio to it has no honest limits."""


class Drawing(NamedTuple):
    """How intervals are made: the root seed, the number of resamples, the level of confidence."""

    seed: int = 0
    resamples: int = 2000
    level: float = 0.95


class ScoredRow(NamedTuple):
    """A row with its ``scores`` (columns, items), the items' ``strata`` and resampled means ``drawn`` (resamples,
    columns), which all columns share item by item."""

    row: Row
    scores: Floats
    strata: tuple[str, ...] | None
    drawn: Floats


def capability_rows(paired: Paired, capability: str, chance: float, drawing: Drawing) -> list[ScoredRow]:
    """Return the row of a capability, followed by one row for each kind of item where it balances two kinds."""
    scores, kinds = paired.scores[capability], paired.kinds.get(capability)
    whole = Row(key=capability, name=capability_name(capability), unit="share", chance=chance, cells=(), kept=())
    found = [filled(whole, paired.base, scores, kinds, drawing)]
    order = list(PARTS)
    for kind in sorted(set(kinds or ()), key=lambda kind: order.index(kind) if kind in PARTS else len(order)):
        members = np.array([other == kind for other in kinds or ()])
        part = whole.model_copy(
            update={
                "key": f"{capability}.{kind}",
                "name": PARTS.get(kind, kind.capitalize()),
                "part_of": capability,
                "chance": 0.0,
            }
        )
        found.append(filled(part, paired.base, scores[:, members], None, drawing))
    return found


def filled(row: Row, base: int | None, scores: Floats, strata: tuple[str, ...] | None, drawing: Drawing) -> ScoredRow:
    """Return ``row`` with values, limits and what was kept, from scores (columns, items); ``base`` is the column of the
    unpruned model, ``strata`` the items' kinds where these count equally."""
    columns, items = scores.shape
    if items == 0:
        empty = tuple(Cell(value=math.nan, reason="no items") for _ in range(columns))
        blank = row.model_copy(update={"cells": empty, "kept": empty})
        return ScoredRow(blank, scores, strata, np.full((drawing.resamples, columns), np.nan))
    limits = [
        _score_interval(line, strata, stream(drawing.seed, row.key, "cell", column), drawing)
        for column, line in enumerate(scores)
    ]
    drawn = resampled_means(scores, drawing.resamples, stream(drawing.seed, row.key, "items"), strata=strata)
    values = {
        "items": items,
        "cells": tuple(Cell(value=i.value, low=i.low, high=i.high, reason=i.reason) for i in limits),
        "kept": _ratios(base, limits, drawn, 0.0, drawing.level),
        "corrected": _ratios(base, limits, drawn, row.chance, drawing.level) if row.chance else (),
    }
    return ScoredRow(row.model_copy(update=values), scores, strata, drawn)


def _score_interval(
    scores: Floats, strata: tuple[str, ...] | None, generator: np.random.Generator, drawing: Drawing
) -> Interval:
    if not np.isin(scores, (0.0, 1.0)).all():
        return mean_interval(scores, generator, strata=strata, resamples=drawing.resamples, level=drawing.level)
    groups = [scores[members] for members in strata_of(scores.size, strata)]
    if len(groups) == 1:
        return wilson(float(scores.sum()), scores.size, drawing.level)
    return balanced_rate([float(group.sum()) for group in groups], [group.size for group in groups], drawing.level)


def _ratios(
    base: int | None, limits: Sequence[Interval], drawn: Floats, floor: float, level: float
) -> tuple[Cell, ...]:
    """(score - floor) / (unpruned score - floor) for every column, with limits from the shared resamples."""
    if base is None:
        return tuple(Cell(value=math.nan, reason="no unpruned evaluation to compare with") for _ in limits)
    cells = []
    against = limits[base].value
    for column, interval in enumerate(limits):
        value = chance_corrected(interval.value, against, floor)
        reason = undefined_reason(interval.value, against, floor)
        if reason or column == base:
            cells.append(Cell(value=value, reason=reason, estimated=bool(reason)))
            continue
        ratio = chance_corrected(drawn[:, column], drawn[:, base], floor)
        defined = ratio[np.isfinite(ratio)]
        if defined.size < (1 - TOO_CLOSE) * ratio.size:
            cells.append(
                Cell(value=value, reason=f"the unpruned score is too near to {'chance' if floor else '0'} for limits")
            )
            continue
        low, high = (float(limit) for limit in np.quantile(defined, [0.5 - level / 2, 0.5 + level / 2]))
        if np.ptp(drawn[:, column]) == 0:
            # All items alike: resamples cannot vary, so the limits are those of the score itself.
            low = min(low, chance_corrected(interval.low, against, floor))
            high = max(high, chance_corrected(interval.high, against, floor))
        cells.append(Cell(value=value, low=low, high=high))
    return tuple(cells)
