"""What a grading rule must offer, and how it is joined to a source of items.

A rule (scorer) never knows where its items come from, so the embedded items and the real benchmarks of a capability
are graded by the same lines of code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, Protocol

from regrow.protocols import Grade, Item
from regrow.records.results import ItemScore, Split

Kind = Literal["generative", "likelihood"]

LONGEST_RESPONSE = 100_000
"""Characters of a response that are read. What lies beyond is not seen by any rule of this room."""


class Scorer(Protocol):
    """The grading rule of one capability. ``decided`` and ``grade`` obey the contract of protocols.Capability: when
    ``decided(text)`` is True, ``grade`` gives the same for ``text`` and for every text that begins with it."""

    name: str
    kind: Kind
    chance: float

    def decided(self, text: str) -> bool: ...

    def grade(self, item: Item, response: str) -> Grade: ...

    def summarise(self, scores: Sequence[ItemScore]) -> dict[str, float]: ...


class Benchmark:
    """A capability measured on one set of items: satisfies protocols.Capability.

    ``source`` returns the items of a split; ``max_new_tokens`` bounds an answer (0 for likelihood items).
    """

    def __init__(self, scorer: Scorer, source: Callable[[Split], Sequence[Item]], *, max_new_tokens: int) -> None:
        self.scorer = scorer
        self.name = scorer.name
        self.kind: Kind = scorer.kind
        self.chance = scorer.chance
        self.max_new_tokens = max_new_tokens
        self._source = source

    def items(self, split: Split) -> Sequence[Item]:
        return self._source(split)

    def decided(self, text: str) -> bool:
        return self.scorer.decided(text)

    def grade(self, item: Item, response: str) -> Grade:
        return self.scorer.grade(item, response)

    def summarise(self, scores: Sequence[ItemScore]) -> dict[str, float]:
        return self.scorer.summarise(scores)


def mean(values: Iterable[float]) -> float:
    """Return the arithmetic mean; NaN when there is nothing to average."""
    collected = list(values)
    return math.fsum(collected) / len(collected) if collected else math.nan


def score_and_parse_rate(scores: Sequence[ItemScore]) -> dict[str, float]:
    """Return the mean score and the share of answers in which a form was looked for and found (each NaN if none)."""
    return {
        "score": mean(score.score for score in scores),
        "parse_rate": mean(float(score.parsed) for score in scores if score.parsed is not None),
    }
