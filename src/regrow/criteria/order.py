"""From one score per block to the blocks that go: protection, counts, windows and ties in one place."""

from __future__ import annotations

import math
from collections.abc import Sequence

from regrow.errors import ConfigError, ModelError
from regrow.records.results import LayerScores


def removal_count(wanted: str | int | float, blocks: int) -> int:
    """Return how many blocks to remove: a count ("7", 7) or a share of all blocks ("25%", "0.25", 0.25; rounded).

    Raises ConfigError when it is not a number, below one block, or all of them.
    """
    if blocks < 2:
        raise ConfigError("a model with one block has none to spare", hint="use a model with at least two blocks")
    text = str(wanted).strip()
    hint = f"give a count from 1 to {blocks - 1} or a share such as 25%"
    try:
        value = float(text.removesuffix("%"))
    except ValueError as error:
        raise ConfigError(f"'{wanted}' is not a number of blocks to remove", hint=hint) from error
    if not math.isfinite(value):
        raise ConfigError(f"'{wanted}' is not a number of blocks to remove", hint=hint)
    share = text.endswith("%") or 0 < value < 1
    if share:
        value = round((value / 100 if text.endswith("%") else value) * blocks)
    if value != int(value) or not 1 <= value < blocks:
        meant = f", which is {value:.0f}" if share else ""
        raise ConfigError(f"cannot remove '{wanted}' of {blocks} blocks{meant}", hint=hint)
    return int(value)


def protected_blocks(protect: Sequence[int], blocks: int) -> frozenset[int]:
    """Return protected blocks as indices from 0; negative ones count from the end. ConfigError when out of range."""
    wrong = [index for index in protect if not -blocks <= index < blocks]
    if wrong:
        raise ConfigError(
            f"cannot protect block {wrong[0]}: the model has {blocks} blocks",
            hint=f"allowed: 0 to {blocks - 1}, or -1 for the last one",
        )
    return frozenset(index % blocks for index in protect)


def candidates(
    criterion: str, blocks: int, *, remove: int, protect: Sequence[int], own: Sequence[int] = ()
) -> tuple[int, ...]:
    """Return the blocks that may go, ascending: those neither the user nor the criterion itself (``own``) protects.

    Raises ConfigError when there are fewer than ``remove``, or when no block would be left.
    """
    if remove < 1:
        raise ConfigError(f"the number of blocks to remove must be at least 1, got {remove}", hint="try --remove 2")
    users = protected_blocks(protect, blocks)
    methods = protected_blocks(own, blocks) - users
    allowed = tuple(index for index in range(blocks) if index not in users | methods)
    most = min(len(allowed), blocks - 1)
    if remove > most:
        also = f", {len(methods)} more by {criterion} itself" if methods else ""
        raise ConfigError(
            f"cannot remove {remove} of {blocks} blocks: {len(users)} protected{also}",
            hint=f"remove at most {most}, or protect fewer blocks" if most > 0 else "protect fewer blocks",
        )
    return allowed


def select(
    criterion: str,
    scores: Sequence[float],
    *,
    remove: int,
    allowed: Sequence[int],
    contiguous: bool = False,
    order: Sequence[int] | None = None,
    removed: Sequence[int] | None = None,
    fingerprint: str = "",
    reasons: dict[str, str] | None = None,
) -> LayerScores:
    """Return the answer of a criterion from its scores (lower = removed first).

    Without ``order`` the allowed blocks are sorted by score, equal scores by depth. The first ``remove`` of the order
    go; with ``contiguous`` it is the window of ``remove`` neighbouring allowed blocks with the least sum of scores
    (the shallowest of equals), and the order begins with it. ``removed`` overrides both (spans, merges). Scores of
    blocks that are not allowed are dropped. Raises ModelError when the score of an allowed block is not finite: an
    undefined score is never read as "least important".
    """
    blocks = len(scores)
    for index in allowed:
        if not math.isfinite(scores[index]):
            raise ModelError(
                f"{criterion}: the score of block {index} is {scores[index]}",
                hint="non-finite activations or weights; load the model with --dtype float32, or check its weights",
            )
    ranked = list(order) if order is not None else sorted(allowed, key=lambda index: (scores[index], index))
    if removed is None and contiguous:
        removed = best_window(criterion, [scores[index] for index in range(blocks)], remove=remove, allowed=allowed)
    if removed is None:
        removed = ranked[:remove]
    gone = set(removed)
    ranked = [index for index in ranked if index in gone] + [index for index in ranked if index not in gone]
    return LayerScores(
        criterion=criterion,
        scores=tuple(float(scores[index]) if index in set(allowed) else math.nan for index in range(blocks)),
        order=tuple(ranked),
        removed=tuple(sorted(gone)),
        protected=tuple(index for index in range(blocks) if index not in set(allowed)),
        data_fingerprint=fingerprint,
        reasons=reasons or {},
    )


def windows(criterion: str, *, remove: int, allowed: Sequence[int]) -> list[int]:
    """Return the first blocks of all windows of ``remove`` neighbouring allowed blocks. ConfigError when none fits."""
    free = set(allowed)
    starts = [first for first in sorted(free) if all(first + step in free for step in range(remove))]
    if not starts:
        raise ConfigError(
            f"{criterion}: no {remove} neighbouring blocks are free to go together",
            hint="remove fewer blocks, protect fewer, or choose a criterion that may take them apart",
        )
    return starts


def best_window(criterion: str, scores: Sequence[float], *, remove: int, allowed: Sequence[int]) -> tuple[int, ...]:
    """Return the window of ``remove`` neighbouring allowed blocks with the least sum of scores."""
    starts = windows(criterion, remove=remove, allowed=allowed)
    first = min(starts, key=lambda start: (math.fsum(scores[start : start + remove]), start))
    return tuple(range(first, first + remove))
