"""Where the sequences of a packed row lie: groups of one prefix and the branches behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch


@dataclass(frozen=True)
class GroupLayout:
    """One group in the row: ``prefix`` tokens from ``start`` on, then its branches one after the other.

    ``branches`` (n, longest) holds the row positions of each branch, its last one repeated up to the longest length;
    ``kept`` selects the real ones of the flattened n * longest in row order (None: all are real).
    """

    start: int
    prefix: int
    branches: torch.Tensor
    kept: torch.Tensor | None


@dataclass(frozen=True)
class PackedLayout:
    """The groups of a row in order, and the causal masks that their attention needs (made once a row)."""

    groups: tuple[GroupLayout, ...]
    masks: dict[tuple[int, torch.dtype], torch.Tensor] = field(default_factory=dict, compare=False, repr=False)

    def to(self, device: torch.device) -> PackedLayout:
        """Return the layout with its index tensors on ``device``."""
        moved = (
            replace(
                group, branches=group.branches.to(device), kept=None if group.kept is None else group.kept.to(device)
            )
            for group in self.groups
        )
        return PackedLayout(tuple(moved))

    def causal_mask(self, length: int, like: torch.Tensor) -> torch.Tensor:
        """Return (length, length): 0 where a query may read a key, -inf where the key comes later."""
        key = (length, like.dtype)
        if key not in self.masks:
            full = torch.full((length, length), float("-inf"), dtype=like.dtype, device=like.device)
            self.masks[key] = full.triu_(1)
        return self.masks[key]


def layout_of(lengths: Sequence[tuple[int, Sequence[int]]]) -> PackedLayout:
    """Return the layout of a row from (prefix tokens, own tokens of each branch) of its groups."""
    groups: list[GroupLayout] = []
    start = 0
    for prefix, owns in lengths:
        longest = max(owns)
        branches = torch.empty(len(owns), longest, dtype=torch.long)
        kept: list[int] = []
        at = start + prefix
        for row, own in enumerate(owns):
            branches[row] = torch.arange(at, at + longest).clamp_(max=at + own - 1)
            kept += range(row * longest, row * longest + own)
            at += own
        whole = len(kept) == branches.numel()
        groups.append(GroupLayout(start, prefix, branches, None if whole else torch.tensor(kept)))
        start = at
    return PackedLayout(tuple(groups))
