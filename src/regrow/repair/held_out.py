"""The errors that every method with an operator on the stream is judged by, over the same tokens."""

from __future__ import annotations

import math

from regrow.repair.book import Book, RowRule
from regrow.repair.cuts import Span
from regrow.repair.method import SpanFit
from regrow.repair.operators import Affine, identity
from regrow.repair.signals import stream

MEASURED = RowRule(skip_first=1)
"""First tokens are attention sinks with norms a hundred times those of others: with them in, an error says nothing."""


def want_errors(book: Book, span: Span) -> None:
    """Order the sums that :func:`errors_of` reads."""
    book.want(stream(span.entering), stream(span.leaving), MEASURED)


def errors_of(book: Book, span: Span, operator: Affine, ridge: float = math.nan) -> SpanFit:
    """Return the relative errors of ``operator`` on the unpruned model's stream at ``span``."""
    x, y = stream(span.entering), stream(span.leaving)
    fitted = book.problem(x, y, MEASURED)
    held = book.problem(x, y, MEASURED, "held")
    return SpanFit(
        span,
        fitted=fitted.relative_error(operator.matrix, operator.offset),
        held_out_before=held.relative_error(identity(operator.width).matrix),
        held_out=held.relative_error(operator.matrix, operator.offset),
        ridge=ridge,
    )
