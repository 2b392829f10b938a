"""Cuts by what the model loses when a block is left out: one shot, and greedy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from regrow.criteria.objective import Objective, text_batches
from regrow.criteria.order import candidates, select, windows
from regrow.data.calibration import CalibrationSet
from regrow.models.families import blocks_of
from regrow.records.results import LayerScores

GIVEN_UP = "a lower bound: given up once it could not be among the best"
# exp of more overflows a float.
LARGEST_LOSS = 700.0


def perplexity(
    model: Any,
    calibration: CalibrationSet,
    *,
    remove: int,
    protect: Sequence[int] = (0,),
    contiguous: bool = False,
    generator: np.random.Generator | None = None,
    plus: bool = False,
    give_up: bool = False,
    objective: Objective | None = None,
) -> LayerScores:
    """Return the blocks whose removal, each alone, leaves the lowest perplexity exp(mean token NLL) on the text.

    ``plus`` is the paper's rule that keeps blocks 0-3 and the last two. With ``give_up``, blocks that cannot be among
    the ``remove`` best any more are not evaluated to the end of the text: the same cut in less time, but their scores
    are lower bounds. ``objective`` may be given to share its work. Paper: Shortened LLaMA, arXiv:2402.02834.
    """
    count = len(blocks_of(model))
    own = (0, 1, 2, 3, -2, -1) if plus else ()
    allowed = candidates("perplexity", count, remove=remove, protect=protect, own=own)
    objective = objective or Objective(model, text_batches(calibration))
    scores = [math.nan] * count
    keep = remove if give_up and not contiguous else None
    reasons = {}
    for block, answer in zip(allowed, objective.race([(block,) for block in allowed], keep=keep), strict=True):
        scores[block] = math.exp(min(answer.value, LARGEST_LOSS))
        if not answer.complete:
            reasons[str(block)] = GIVEN_UP
    reasons["whole"] = f"perplexity {math.exp(objective.whole):.4f} with all blocks"
    return select(
        "perplexity",
        scores,
        remove=remove,
        allowed=allowed,
        contiguous=contiguous,
        fingerprint=calibration.fingerprint,
        reasons=reasons,
    )


def greedy_perplexity(
    model: Any,
    calibration: CalibrationSet,
    *,
    remove: int,
    protect: Sequence[int] = (0,),
    contiguous: bool = False,
    generator: np.random.Generator | None = None,
    objective: Objective | None = None,
) -> LayerScores:
    """Return the blocks found in ``remove`` rounds, each taking the block whose loss hurts the model cut so far least.

    The first and the last block stay. Score of a removed block: the perplexity after its round; of the others: that
    of the last round with this block gone as well, or a lower bound of it where the evaluation was given up. With
    ``contiguous`` the cut grows from its first block to either side. Paper: SLEB, arXiv:2402.09025, as in its code.
    """
    count = len(blocks_of(model))
    allowed = candidates("greedy-perplexity", count, remove=remove, protect=protect, own=(0, -1))
    objective = objective or Objective(model, text_batches(calibration))
    starts = windows("greedy-perplexity", remove=remove, allowed=allowed) if contiguous else []
    scores = [math.nan] * count
    gone: list[int] = []
    partial: set[int] = set()
    for _ in range(remove):
        free = [block for block in allowed if block not in gone]
        if contiguous:
            free = [block for block in free if _within_a_window([*gone, block], starts, remove)]
        answers = objective.race([(*gone, block) for block in free], keep=1)
        for block, answer in zip(free, answers, strict=True):
            scores[block] = math.exp(min(answer.value, LARGEST_LOSS))
            (partial.discard if answer.complete else partial.add)(block)
        gone.append(min(free, key=lambda block: (scores[block], block)))
    rest = [block for block in allowed if block not in gone and math.isfinite(scores[block])]
    reasons = {str(block): GIVEN_UP for block in sorted(partial)}
    reasons |= {str(block): "never next to the cut" for block in allowed if not math.isfinite(scores[block])}
    reasons["whole"] = f"perplexity {math.exp(objective.whole):.4f} with all blocks"
    return select(
        "greedy-perplexity",
        scores,
        remove=remove,
        allowed=[*gone, *rest],
        order=[*gone, *sorted(rest, key=lambda block: (scores[block], block))],
        removed=gone,
        fingerprint=calibration.fingerprint,
        reasons=reasons,
    )


def _within_a_window(blocks: Sequence[int], starts: Sequence[int], remove: int) -> bool:
    """Return whether the blocks are neighbours and fit into one of the allowed windows of ``remove`` blocks."""
    low, high = min(blocks), max(blocks)
    neighbours = high - low + 1 == len(blocks)
    return neighbours and any(start <= low and high < start + remove for start in starts)
