"""Cuts that look at depth alone, or at nothing: the deepest blocks, and a seeded draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from regrow.criteria.order import candidates, select
from regrow.errors import ConfigError
from regrow.models.families import blocks_of
from regrow.records.results import LayerScores


def reverse_order(
    model: Any,
    calibration: Any = None,
    *,
    remove: int,
    protect: Sequence[int] = (0,),
    contiguous: bool = False,
    generator: np.random.Generator | None = None,
    keep_last: bool = False,
) -> LayerScores:
    """Return the ``remove`` deepest blocks; ``keep_last`` spares the final one.

    Score of a block: its distance from the end. SHIFT-LLM reports this order, and one marked with a star that it does
    not define; keeping the last block is one reading of it.
    """
    count = len(blocks_of(model))
    allowed = candidates("reverse-order", count, remove=remove, protect=protect, own=(-1,) if keep_last else ())
    scores = [float(count - 1 - block) for block in range(count)]
    return select("reverse-order", scores, remove=remove, allowed=allowed, contiguous=contiguous)


def random_order(
    model: Any,
    calibration: Any = None,
    *,
    remove: int,
    protect: Sequence[int] = (0,),
    contiguous: bool = False,
    generator: np.random.Generator | None = None,
) -> LayerScores:
    """Return blocks drawn uniformly with ``generator``: the baseline that any criterion has to beat."""
    if generator is None:
        raise ConfigError("the random criterion needs a generator", hint="give --seed")
    count = len(blocks_of(model))
    allowed = candidates("random", count, remove=remove, protect=protect)
    scores = generator.random(count)
    return select("random", [float(score) for score in scores], remove=remove, allowed=allowed, contiguous=contiguous)
