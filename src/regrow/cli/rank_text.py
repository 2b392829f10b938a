"""A ranking in lines of text: the removed blocks, the order behind them with its scores, the overlap of the cuts."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.markup import escape

from regrow.records.ranking import Ranking

SHOWN = 8
"""Blocks of each order that are printed; --json has them all."""


def ranking_lines(ranking: Ranking) -> Iterator[str]:
    """Yield the lines of a ranking, in rich's markup. Block indices are 0-based, REMOVED ones first."""
    names = [answer.criterion for answer in ranking.answers]
    width = max(map(len, names))
    read = f", fingerprint {ranking.calibration_fingerprint[:12]}" if ranking.calibration_fingerprint else ""
    text = f" on '{ranking.calibration}'{read}" if ranking.calibration else ""
    yield f"[bold]removed blocks[/] ({ranking.remove} of {ranking.blocks}, 0-based{escape(text)})"
    for answer in ranking.answers:
        yield f"  {escape(answer.criterion):<{width}}  [bold]{', '.join(map(str, answer.removed))}[/]"
    yield ""
    yield f"[bold]order[/] (most removable first, the first {SHOWN}, with scores)"
    for answer in ranking.answers:
        shown = " ".join(f"{block}{_score(answer.scores[block])}" for block in answer.order[:SHOWN])
        yield f"  {escape(answer.criterion):<{width}}  {shown}"
    if len(names) > 1:
        yield ""
        yield "[bold]overlap[/] (Jaccard of the removed blocks)"
        for name, row in zip(names, ranking.jaccard(), strict=True):
            yield f"  {escape(name):<{width}}  " + " ".join(f"{value:4.2f}" for value in row)
    for warning in ranking.warnings:
        yield f"note: {escape(warning)}"


def _score(value: float) -> str:
    return f"[dim]({value:.4g})[/]" if math.isfinite(value) else ""
