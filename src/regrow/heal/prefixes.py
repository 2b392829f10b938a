"""Which sequences of an update are computed behind one common beginning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from regrow.data.pools import Example

LEAST_SHARED_TOKENS = 8
"""Shorter beginnings are not worth a group: its attention runs in two parts."""


@dataclass(frozen=True)
class PrefixGroup:
    """Sequences whose first ``prefix_tokens`` tokens are the same (0: a sequence by itself)."""

    examples: tuple[Example, ...]
    prefix_tokens: int

    @property
    def computed_tokens(self) -> int:
        """Number of token positions that the group occupies."""
        return self.prefix_tokens + sum(entry.tokens - self.prefix_tokens for entry in self.examples)


def group_by_prefix(examples: Sequence[Example]) -> list[PrefixGroup]:
    """Return the partition of ``examples`` that computes the fewest positions.

    In lexicographic order all members of a group share what neighbours share, so the best partition is a cut of that
    order into runs, found by dynamic programming. A prefix always ends before the last token of the shortest prompt:
    every position that carries a loss belongs to one sequence.
    """
    ordered = sorted(examples, key=lambda entry: (entry.prompt_ids, entry.response_ids))
    count = len(ordered)
    border = [_common(ordered[i].prompt_ids, ordered[i + 1].prompt_ids) for i in range(count - 1)]
    longest = [len(entry.prompt_ids) - 1 for entry in ordered]
    best: list[tuple[int, int, int]] = [(0, 0, 0)]  # tokens saved by the first n, start of the last run, its prefix
    for end in range(1, count + 1):
        choice = (best[end - 1][0], end - 1, 0)
        shared = longest[end - 1]
        for start in range(end - 2, -1, -1):
            shared = min(shared, border[start], longest[start])
            if shared < LEAST_SHARED_TOKENS:
                break
            saved = best[start][0] + (end - start - 1) * shared
            if saved > choice[0]:
                choice = (saved, start, shared)
        best.append(choice)
    groups: list[PrefixGroup] = []
    end = count
    while end:
        _, start, shared = best[end]
        groups.append(PrefixGroup(tuple(ordered[start:end]), shared))
        end = start
    return groups[::-1]


def split_group(group: PrefixGroup, limit: int) -> list[PrefixGroup]:
    """Return the group in parts of at most ``limit`` positions (one sequence, however long, is always allowed)."""
    parts: list[list[Example]] = []
    size = 0
    for entry in group.examples:
        own = entry.tokens - group.prefix_tokens
        if parts and size + own <= limit:
            parts[-1].append(entry)
            size += own
        else:
            parts.append([entry])
            size = group.prefix_tokens + own
    return [PrefixGroup(tuple(part), group.prefix_tokens if len(part) > 1 else 0) for part in parts]


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    most = min(len(first), len(second))
    return next((at for at in range(most) if first[at] != second[at]), most)
