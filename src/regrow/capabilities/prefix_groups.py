"""Which prompts are generated together, so that the tokens they begin with are run once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WORTHWHILE_TOKENS = 512
"""Prompt tokens that a group of its own must save: about what a second start of a batch costs."""


@dataclass(frozen=True)
class PrefixGroup:
    """Indices of prompts, the longest first, and the number of tokens that all of them share at the beginning.

    ``shared`` is less than the shortest prompt, so that every prompt has a token of its own left to run; 0 for a
    group of one.
    """

    members: tuple[int, ...]
    shared: int


def group_by_prefix(prompts: Sequence[Sequence[int]], *, worthwhile: int = WORTHWHILE_TOKENS) -> list[PrefixGroup]:
    """Return groups that hold every index of ``prompts`` once, ordered by their first index.

    A set of prompts is split where its members part (as in a prefix tree) when the parts save at least ``worthwhile``
    prompt tokens each by a longer prefix of their own; what is left over stays together.
    """
    groups = _split(prompts, sorted(range(len(prompts)), key=lambda index: list(prompts[index])), worthwhile)
    return sorted(groups, key=lambda group: min(group.members))


def shared_tokens(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the number of leading tokens that two sequences have in common."""
    most = min(len(first), len(second))
    return next((at for at in range(most) if first[at] != second[at]), most)


def _split(prompts: Sequence[Sequence[int]], ordered: list[int], worthwhile: int) -> list[PrefixGroup]:
    if not ordered:
        return []
    if len(ordered) == 1:
        return [PrefixGroup((ordered[0],), 0)]
    # Sorted lexicographically, all of a set share what its first and last member share.
    common = shared_tokens(prompts[ordered[0]], prompts[ordered[-1]])
    groups: list[PrefixGroup] = []
    rest: list[int] = []
    for part in _parts(prompts, ordered, common):
        longer = shared_tokens(prompts[part[0]], prompts[part[-1]]) - common
        if len(part) < len(ordered) and (len(part) - 1) * longer >= worthwhile:
            groups += _split(prompts, part, worthwhile)
        else:
            rest += part
    if rest:
        common = shared_tokens(prompts[rest[0]], prompts[rest[-1]])
        shortest = min(len(prompts[index]) for index in rest)
        members = tuple(sorted(rest, key=lambda index: (-len(prompts[index]), index)))
        groups.append(PrefixGroup(members, min(common, shortest - 1) if len(rest) > 1 else 0))
    return groups


def _parts(prompts: Sequence[Sequence[int]], ordered: list[int], common: int) -> list[list[int]]:
    """Return runs of ``ordered`` whose members have the same token after the first ``common``."""
    parts: list[list[int]] = []
    previous: object = None
    for index in ordered:
        after = prompts[index][common] if len(prompts[index]) > common else -1
        if not parts or after != previous:
            parts.append([])
        parts[-1].append(index)
        previous = after
    return parts
