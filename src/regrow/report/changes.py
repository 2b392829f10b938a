"""Which changes between two columns are real, and what became of each item."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from regrow.report.inputs import Paired
from regrow.report.results import Against, Change, FateCounts
from regrow.report.scored import Drawing, ScoredRow
from regrow.seeding import stream
from regrow.stats.decisions import holm_by_family, mcnemar, sign_flip, smallest_detectable_difference
from regrow.stats.intervals import wilson
from regrow.stats.resampling import strata_of, stratified_mean
from regrow.stats.transitions import transitions


def changes_of(paired: Paired, scored: Sequence[ScoredRow], drawing: Drawing) -> list[Change]:
    """Return a paired test of every row: each column against the unpruned one, and later ones against the first cut.

    Right/wrong items are tested by McNemar's exact test, graded or unequally weighted ones by sign flips. One family of
    Holm's correction is one question: all rows of one column against one reference.
    """
    pairs: list[tuple[Against, int, int]] = []
    for later in range(len(paired.records)):
        if paired.base is not None and later != paired.base:
            pairs.append(("unpruned", paired.base, later))
        if paired.cut is not None and later > paired.cut:
            pairs.append(("pruned", paired.cut, later))
    tests = [
        _change(entry, against, earlier, later, drawing)
        for against, earlier, later in pairs
        for entry in scored
        if entry.row.items
    ]
    corrected = holm_by_family([test.p_value for test in tests], [f"{test.against} {test.later}" for test in tests])
    return [
        test.model_copy(update={"adjusted": float(adjusted), "significant": bool(rejected)})
        for test, adjusted, rejected in zip(tests, corrected.adjusted, corrected.rejected, strict=True)
    ]


def _change(entry: ScoredRow, against: Against, earlier: int, later: int, drawing: Drawing) -> Change:
    moved = entry.scores[later] - entry.scores[earlier]
    lost, gained = int((moved < 0).sum()), int((moved > 0).sum())
    groups = strata_of(moved.size, entry.strata)
    weights = np.zeros(moved.size)
    for members in groups:
        weights[members] = 1 / (members.size * len(groups))
    if np.isin(moved, (-1.0, 0.0, 1.0)).all() and np.ptp(weights) < 1e-12:
        p_value = mcnemar(lost, gained)
    else:
        p_value = sign_flip(moved * weights, generator=stream(drawing.seed, entry.row.key, "flip", earlier, later))
    if lost or gained:
        drawn = entry.drawn[:, later] - entry.drawn[:, earlier]
        low, high = (float(limit) for limit in np.quantile(drawn, [0.5 - drawing.level / 2, 0.5 + drawing.level / 2]))
        error = math.sqrt(sum(moved[members].var(ddof=min(1, members.size - 1)) / members.size for members in groups))
        error /= len(groups)
    else:
        # No item changed; as many as Wilson's limit allows might have, in other items.
        high = wilson(0, moved.size, drawing.level).high
        low, error = -high, math.sqrt(high / moved.size)
    return Change(
        row=entry.row.key,
        against=against,
        earlier=earlier,
        later=later,
        difference=stratified_mean(moved, entry.strata),
        low=low,
        high=high,
        lost=lost,
        gained=gained,
        p_value=p_value,
        adjusted=math.nan,
        significant=False,
        detectable=smallest_detectable_difference(error),
    )


def fates_of(paired: Paired) -> list[FateCounts]:
    """Return the fate counts of every capability at every column after the unpruned one."""
    if paired.base is None:
        return []
    stages = [record.stage for record in paired.records]
    found = []
    for later in range(paired.base + 1, len(stages)):
        between = [i for i in range(paired.base + 1, later) if stages[i] != stages[later]]
        for capability in paired.capabilities:
            scores = paired.scores[capability]
            if not scores.shape[1]:
                continue
            counts = transitions(scores[paired.base], scores[later], scores[between])
            found.append(FateCounts(capability=capability, later=later, **counts._asdict()))
    return found
