"""What became of each item: kept, broke, came back, new, or wrong all along."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from regrow.errors import DataError


class Fate(StrEnum):
    """An item's way from the unpruned model to the stage looked at."""

    KEPT = "kept"
    BROKE = "broke"
    CAME_BACK = "came back"
    NEW = "new"
    NEVER = "never right"


class Transitions(NamedTuple):
    """Item counts that sum to the number of items. ``came_back`` is part of what an unpruned model had and a stage in
    between had lost."""

    kept: int
    broke: int
    came_back: int
    new: int
    never: int


def fates(
    unpruned: ArrayLike, stage: ArrayLike, between: ArrayLike | None = None, *, right_at: float = 0.5
) -> list[Fate]:
    """Return each item's fate at ``stage``.

    ``unpruned`` and ``stage`` are item scores (items,); ``between`` holds the scores of the stages in between,
    (stages, items) or (items,). An item is right when its score reaches ``right_at``. Right before and now: kept, or
    came back when a stage in between had it wrong. Right before, wrong now: broke. Wrong before, right now: new.
    """
    before, now = _right(unpruned, right_at), _right(stage, right_at)
    if before.shape != now.shape or before.ndim != 1:
        raise DataError(f"{before.size} items against {now.size}", hint="only runs over the same items can be paired")
    held: NDArray[np.bool_] = np.ones(before.shape, np.bool_)
    if between is not None and np.size(between):
        held = np.asarray(_right(np.atleast_2d(np.asarray(between, np.float64)), right_at).all(axis=0))
    return [_fate(bool(b), bool(n), bool(h)) for b, n, h in zip(before, now, held, strict=True)]


def transitions(
    unpruned: ArrayLike, stage: ArrayLike, between: ArrayLike | None = None, *, right_at: float = 0.5
) -> Transitions:
    """Return how many items had each fate (see :func:`fates`)."""
    found = fates(unpruned, stage, between, right_at=right_at)
    return Transitions(*(found.count(fate) for fate in Fate))


def _fate(before: bool, now: bool, held: bool) -> Fate:
    if before:
        return (Fate.KEPT if held else Fate.CAME_BACK) if now else Fate.BROKE
    return Fate.NEW if now else Fate.NEVER


def _right(scores: ArrayLike, right_at: float) -> NDArray[np.bool_]:
    right: NDArray[np.bool_] = np.asarray(scores, np.float64) >= right_at
    return right
