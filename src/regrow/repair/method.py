"""What a repair method is, and what it is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from regrow.data.calibration import CalibrationSet
from regrow.errors import ConfigError
from regrow.protocols import Watcher
from regrow.records.specs import RepairSpec
from regrow.repair.book import Book
from regrow.repair.cuts import Span
from regrow.repair.edits import Edit


@dataclass(frozen=True)
class Cut:
    """The job: both models, the removed runs from the input side on, the stream's width.

    ``calibration`` is for methods that cannot do with the shared pass (sequential fitting, training); ``tuned`` tells
    that an eighth of its sequences is set aside for choosing lambda.
    """

    unpruned: Any
    pruned: Any
    spans: tuple[Span, ...]
    width: int
    calibration: CalibrationSet
    tuned: bool = False
    watch: Watcher | None = None


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
    """What to change in the pruned model, in this order, and what is known of the fit. ``inserted`` is, per run,
    the number of blocks put in (1 where a block stands in for it); empty when there is none."""

    edits: tuple[Edit, ...]
    spans: tuple[SpanFit, ...] = ()
    warnings: tuple[str, ...] = ()
    inserted: tuple[int, ...] = ()


class RepairMethod(Protocol):
    """Two steps around one shared pass: ``plan`` orders sums in the book, ``fit`` solves from them.

    ``portable``: the result is a plain checkpoint. ``tunes``: lambda is chosen on held-out tokens unless the spec
    names one. ``heeds`` names the options of a RepairSpec that mean something to it; ``plan`` refuses the others
    (:func:`refuse_options`).
    """

    portable: bool
    tunes: bool

    @property
    def heeds(self) -> tuple[str, ...]: ...

    def plan(self, book: Book, cut: Cut, spec: RepairSpec) -> None: ...

    def fit(self, book: Book, cut: Cut, spec: RepairSpec) -> Fitted: ...


COMMON = frozenset(("method", "calibration", "calibration_tokens", "chunk_tokens", "seed"))
"""What every method heeds."""


def set_options(spec: RepairSpec) -> tuple[str, ...]:
    """Return the options of ``spec``, other than the common ones, that are not at their default."""
    return tuple(
        name
        for name, field in type(spec).model_fields.items()
        if name not in COMMON and getattr(spec, name) != field.default
    )


def refuse_options(method: str, spec: RepairSpec, heeded: Sequence[str]) -> None:
    """Raise ConfigError when ``spec`` sets an option that ``method`` would silently ignore."""
    for name in set_options(spec):
        if name in heeded:
            continue
        raise ConfigError(
            f"the repair '{method}' has no use for {name}={getattr(spec, name)!r}",
            hint=f"leave it out; {method} heeds: {', '.join(heeded) or 'none of these options'}",
        )
