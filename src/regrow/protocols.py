"""The shapes that methods have: what a criterion, a repair, a capability or an allocation rule must offer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from regrow.records.results import ItemScore, LayerScores, Split

if TYPE_CHECKING:
    import numpy as np

Message = dict[str, str]
"""One chat turn: {"role": "system" | "user" | "assistant", "content": text}."""


@dataclass(frozen=True)
class Item:
    """One test question. ``messages`` is the whole chat (few-shot turns first, the question last).

    Generative items are answered by text; a likelihood item has ``choices`` (texts that continue the assistant's
    turn). ``gold`` and ``facts`` belong to the capability's scorer and are plain JSON values.
    """

    capability: str
    item_id: str
    split: Split
    messages: tuple[Message, ...]
    gold: Any
    choices: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Grade:
    """What a scorer says of one response. ``score`` 0..1; ``parsed`` as in ItemScore."""

    score: float
    parsed: bool | None = None
    details: dict[str, str | float | bool | None] = field(default_factory=dict)


@runtime_checkable
class Capability(Protocol):
    """A set of items and the rule that grades answers.

    ``kind`` is "generative" (answer by text) or "likelihood" (choose among ``Item.choices``). ``decided(text)`` may
    return True only when no continuation of ``text`` can change the grade; generation then stops that row early.
    """

    name: str
    kind: Literal["generative", "likelihood"]
    max_new_tokens: int
    chance: float

    def items(self, split: Split) -> Sequence[Item]: ...

    def decided(self, text: str) -> bool: ...

    def grade(self, item: Item, response: str) -> Grade: ...

    def summarise(self, scores: Sequence[ItemScore]) -> dict[str, float]:
        """Return the capability's numbers from its graded items; the key "score" is the headline (0..1)."""
        ...


class Criterion(Protocol):
    """Ranks the blocks of a model for removal (see records.results.LayerScores)."""

    def __call__(
        self,
        model: Any,
        calibration: Any,
        *,
        remove: int,
        protect: Sequence[int],
        contiguous: bool,
        generator: np.random.Generator,
    ) -> LayerScores: ...


class Repair(Protocol):
    """Fits what bridges a cut, from the unpruned model's streams, without training."""

    def __call__(self, unpruned: Any, pruned: Any, calibration: Any, **options: Any) -> Any: ...


class AllocationRule(Protocol):
    """Splits a healing budget over pools: returns tokens per pool, non-negative, summing to ``budget_tokens``."""

    def __call__(self, pools: Sequence[str], budget_tokens: float, **evidence: Any) -> dict[str, float]: ...


class Watcher(Protocol):
    """Follows long work. ``begin`` opens a task of ``total`` units, ``advance`` moves it to ``done`` units and shows
    facts beside it, ``end`` closes it; ``note`` prints a line."""

    def begin(self, task: str, total: float | None = None, unit: str = "") -> None: ...

    def advance(self, done: float, **facts: Any) -> None: ...

    def end(self, summary: str = "") -> None: ...

    def note(self, text: str) -> None: ...


class SilentWatcher:
    """A Watcher that says nothing (``--quiet``, workers, probes)."""

    def begin(self, task: str, total: float | None = None, unit: str = "") -> None: ...

    def advance(self, done: float, **facts: Any) -> None: ...

    def end(self, summary: str = "") -> None: ...

    def note(self, text: str) -> None: ...
