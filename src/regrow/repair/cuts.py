"""The cut in numbers: which runs of blocks are gone, and where in the pruned model each gap is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from regrow.errors import ModelError


@dataclass(frozen=True)
class Span:
    """A run of removed blocks ``first``..``last`` (0-based, of the unpruned model, both included).

    X = h_``entering`` is the stream that entered it, Y = h_``leaving`` the one that left it. ``after_block`` is the
    kept block of the PRUNED model whose output meets the gap, -1 when the cut begins at block 0.
    """

    first: int
    last: int
    after_block: int

    @property
    def entering(self) -> int:
        return self.first

    @property
    def leaving(self) -> int:
        return self.last + 1

    @property
    def blocks(self) -> tuple[int, ...]:
        return tuple(range(self.first, self.last + 1))

    def __str__(self) -> str:
        return f"block {self.first}" if self.first == self.last else f"blocks {self.first}-{self.last}"


def spans_of(removed: Sequence[int], unpruned_blocks: int, pruned_blocks: int | None = None) -> tuple[Span, ...]:
    """Return the removed runs from the input side on.

    Raises ModelError when nothing was removed, an index is out of range or named twice, no block is left, or the
    pruned model does not have the blocks that then remain.
    """
    gone = sorted(removed)
    if not gone:
        raise ModelError(
            "no block was removed, so there is no cut to repair", hint="prune the model first: regrow prune"
        )
    if len(set(gone)) != len(gone) or gone[0] < 0 or gone[-1] >= unpruned_blocks or len(gone) >= unpruned_blocks:
        raise ModelError(
            f"removed blocks {gone} do not fit a model of {unpruned_blocks} blocks",
            hint="pass the unpruned model that the checkpoint was pruned from",
        )
    if pruned_blocks is not None and pruned_blocks != unpruned_blocks - len(gone):
        raise ModelError(
            f"a model of {unpruned_blocks} blocks without {len(gone)} has {unpruned_blocks - len(gone)}, "
            f"but the pruned model has {pruned_blocks}",
            hint="pass the unpruned model that the checkpoint was pruned from",
        )
    spans: list[Span] = []
    start = gone[0]
    for here, following in zip(gone, [*gone[1:], None]):
        if following != here + 1:
            kept_before = start - sum(index < start for index in gone)
            spans.append(Span(start, here, kept_before - 1))
            if following is not None:
                start = following
    return tuple(spans)
