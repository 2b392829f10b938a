"""What a repair method is, and what it is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from regrow.records.specs import RepairSpec
from regrow.repair.book import Book
from regrow.repair.cuts import Span
from regrow.repair.edits import Edit


@dataclass(frozen=True)
class Cut:
    """The job: both models, the removed runs from the input side on, the stream's width.

    ``regather(book, pruned)`` makes another pass for methods that cannot do with the shared one (sequential fitting).
    """

    unpruned: Any
    pruned: Any
    spans: tuple[Span, ...]
    width: int
    regather: Callable[[Book, Any], None] | None = None


@dataclass(frozen=True)
class SpanFit:
    """Relative errors of the operator itself on the unpruned stream (NaN: none), and the lambda that was used."""

    span: Span
    fitted: float = float("nan")
    held_out_before: float = float("nan")
    held_out: float = float("nan")
    ridge: float = float("nan")


@dataclass(frozen=True)
class Fitted:
    """What to change in the pruned model, in this order, and what is known of the fit. ``inserted`` is the number of
    blocks put in per run (1 where a block stands in for it)."""

    edits: tuple[Edit, ...]
    spans: tuple[SpanFit, ...] = ()
    warnings: tuple[str, ...] = ()
    inserted: int = 0


class RepairMethod(Protocol):
    """Two steps around one shared pass: ``plan`` orders sums in the book, ``fit`` solves from them."""

    portable: bool

    def plan(self, book: Book, cut: Cut, spec: RepairSpec) -> None: ...

    def fit(self, book: Book, cut: Cut, spec: RepairSpec) -> Fitted: ...
