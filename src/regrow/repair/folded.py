"""Repairs that change weights of the block before the cut and add nothing: the checkpoint stays a plain one.

With u the input of that block's down projection D, M = u D what it adds to the stream and Z = h_a - M the rest, the
block's output is M + Z. Changing D to D + E moves it by u E, wherever in the family the norms are, so both methods are
linear least squares for u E ~ Y - h_a: ReplaceMe with E = D (T - I), d x d unknowns; fold with any E, every weight of D
free. A bias of D is fitted too where there is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from regrow.errors import ModelError
from regrow.records.specs import RepairSpec
from regrow.repair.book import Book, RowRule
from regrow.repair.cuts import Span
from regrow.repair.edits import WriteProjection
from regrow.repair.held_out import MEASURED, want_errors
from regrow.repair.method import Cut, Fitted, SpanFit, refuse_options
from regrow.repair.operators import identity
from regrow.repair.projections import Projection, writing_projection
from regrow.repair.reservoir import Reservoir, nearest_cosine
from regrow.repair.signals import Source, down_in, down_out, plus, stream
from regrow.repair.solve import Ridge, choose_ridge, least_squares
from regrow.repair.sums import Problem


def projection_before(cut: Cut, span: Span) -> Projection:
    """Return the projection that a repair of ``span`` is folded into. Raises ModelError where there is none."""
    if span.first == 0:
        raise ModelError(
            "the cut begins at block 0: there is no block before it to fold a repair into",
            hint="use a repair that adds a bridge: --method lra",
        )
    return writing_projection(cut.unpruned, span.first - 1)


def missing(span: Span) -> Source:
    """Return Y - h_a, what the removed run added to the stream."""
    return plus((1.0, stream(span.leaving)), (-1.0, stream(span.entering)))


@dataclass(frozen=True)
class ReplaceMe:
    """T minimising norm(M T - (Y - Z)); D becomes D T (arXiv 2505.02819). ``cosine``: T minimising the mean of
    1 - cos(M T + Z, Y) by Adam from T = I instead, over a bounded random sample of the tokens."""

    name: str
    cosine: bool = False
    skip_first: int = 0
    passes: int = 10
    portable: bool = True
    tunes: bool = False

    @property
    def heeds(self) -> tuple[str, ...]:
        return ("passes", "skip_first") if self.cosine else ("ridge", "ridge_choice", "rows", "skip_first")

    def plan(self, book: Book, cut: Cut, spec: RepairSpec) -> None:
        """Order the sums of Y - Z on M, or a sample of rows of M, Z and Y."""
        refuse_options(self.name, spec, self.heeds)
        for span in cut.spans:
            projection_before(cut, span)
            want_errors(book, span)
            book.want(self._output(span), missing(span), MEASURED)
            if not self.cosine:
                book.want(self._output(span), self._target(span), self._rule(spec))
                continue
            parts = (self._output(span), self._rest(span), stream(span.leaving))
            skip = self._rule(spec).skip_first
            book.want_other(("rows", span, skip, spec.seed), partial(Reservoir, parts, skip, spec.seed))

    def fit(self, book: Book, cut: Cut, spec: RepairSpec) -> Fitted:
        """Return one changed projection per run."""
        edits: list[WriteProjection] = []
        fits: list[SpanFit] = []
        warnings: list[str] = []
        for span in cut.spans:
            amount = float("nan")
            if self.cosine:
                rows = book.other(("rows", span, self._rule(spec).skip_first, spec.seed), Reservoir)
                outputs, rest, leaving = rows.rows()
                transform = nearest_cosine(outputs, rest, leaving, passes=spec.passes or self.passes, seed=spec.seed)
            else:
                x, y, rule = self._output(span), self._target(span), self._rule(spec)
                ridge = Ridge(spec.ridge or 0.0)
                if spec.ridge_choice == "held-out":
                    ridge, _ = choose_ridge(
                        book.problem(x, y, rule, "fit"),
                        book.problem(x, y, rule, "tune"),
                        intercept=False,
                        toward_identity=True,
                    )
                fit = least_squares(
                    book.problem(x, y, rule), ridge, intercept=False, toward_identity=True, what=str(span)
                )
                transform, amount = fit.operator.matrix, fit.ridge
                warnings.extend(fit.warnings)
            projection = projection_before(cut, span)
            matrix = projection.matrix.detach().double().cpu() @ transform
            bias = projection.bias
            edits.append(
                WriteProjection(
                    span.after_block, matrix, None if bias is None else bias.detach().double().cpu() @ transform
                )
            )
            change = transform - identity(cut.width).matrix
            fits.append(folded_errors(book, span, self._output(span), change, None, amount))
        return Fitted(tuple(edits), tuple(fits), tuple(dict.fromkeys(warnings)))

    def _output(self, span: Span) -> Source:
        return down_out(span.first - 1)

    def _rest(self, span: Span) -> Source:
        return plus((1.0, stream(span.entering)), (-1.0, down_out(span.first - 1)))

    def _target(self, span: Span) -> Source:
        return plus((1.0, stream(span.leaving)), (-1.0, stream(span.entering)), (1.0, down_out(span.first - 1)))

    def _rule(self, spec: RepairSpec) -> RowRule:
        return RowRule(self.skip_first if spec.skip_first is None else spec.skip_first, spec.rows == "inverse-norm")


@dataclass(frozen=True)
class Fold:
    """E minimising norm(u E - (Y - h_a)) + lambda norm(E); D becomes D + E, and its bias too where it has one.

    regrow's own. On the fitting tokens its least error is never above ReplaceMe's, whose E is one of those it may
    choose; with thousands of unknowns per column it needs the ridge, which is chosen on held-out tokens.
    """

    name: str = "fold"
    skip_first: int = 0
    portable: bool = True
    tunes: bool = True

    @property
    def heeds(self) -> tuple[str, ...]:
        return ("ridge", "ridge_choice", "rows", "skip_first")

    def plan(self, book: Book, cut: Cut, spec: RepairSpec) -> None:
        """Order the sums of Y - h_a on u."""
        refuse_options(self.name, spec, self.heeds)
        for span in cut.spans:
            projection_before(cut, span)
            want_errors(book, span)
            book.want(down_in(span.first - 1), missing(span), MEASURED)
            book.want(down_in(span.first - 1), missing(span), self._rule(spec))

    def fit(self, book: Book, cut: Cut, spec: RepairSpec) -> Fitted:
        """Return one changed projection per run."""
        edits: list[WriteProjection] = []
        fits: list[SpanFit] = []
        warnings: list[str] = []
        for span in cut.spans:
            projection = projection_before(cut, span)
            x, y, rule = down_in(span.first - 1), missing(span), self._rule(spec)
            free_bias = projection.bias is not None
            problem = book.problem(x, y, rule)
            if spec.ridge is not None and spec.ridge_choice == "fixed":
                ridge = Ridge(spec.ridge)
            else:
                tune = book.problem(x, y, rule, "tune")
                if tune.rows == 0:
                    raise ModelError("no sequence is left for choosing the ridge", hint="name one: --ridge 1e-2")
                ridge, _ = choose_ridge(
                    book.problem(x, y, rule, "fit"), tune, intercept=free_bias, toward_identity=False
                )
            fit = least_squares(problem, ridge, intercept=free_bias, toward_identity=False, what=str(span))
            change, shift = fit.operator.matrix, fit.operator.offset
            old_bias = projection.bias
            bias = None
            if old_bias is not None and shift is not None:
                bias = old_bias.detach().double().cpu() + shift
            edits.append(WriteProjection(span.after_block, projection.matrix.detach().double().cpu() + change, bias))
            fits.append(folded_errors(book, span, x, change, shift, fit.ridge))
            warnings.extend(fit.warnings)
        return Fitted(tuple(edits), tuple(fits), tuple(dict.fromkeys(warnings)))

    def _rule(self, spec: RepairSpec) -> RowRule:
        return RowRule(self.skip_first if spec.skip_first is None else spec.skip_first, spec.rows == "inverse-norm")


def folded_errors(
    book: Book, span: Span, x: Source, change: torch.Tensor, shift: torch.Tensor | None, ridge: float
) -> SpanFit:
    """Return the relative errors of the stream when ``x change + shift`` is added to h_a: norm over norm of Y."""

    def error(problem: Problem, whole: Problem, *, changed: bool) -> float:
        size = whole.y_squares.sum().item()
        if size <= 0:
            return float("nan")
        moved = change if changed else torch.zeros_like(change)
        return float((problem.squared_error(moved, shift if changed else None) / size) ** 0.5)

    fitted = book.problem(x, missing(span), MEASURED)
    held = book.problem(x, missing(span), MEASURED, "held")
    whole = book.problem(stream(span.entering), stream(span.leaving), MEASURED)
    whole_held = book.problem(stream(span.entering), stream(span.leaving), MEASURED, "held")
    return SpanFit(
        span,
        fitted=error(fitted, whole, changed=True),
        held_out_before=error(held, whole_held, changed=False),
        held_out=error(held, whole_held, changed=True),
        ridge=ridge,
    )


REPLACE_ME = ReplaceMe("replace-me")
"""ReplaceMe by least squares, without regularisation unless asked for; positions are all counted."""

REPLACE_ME_COSINE = ReplaceMe("replace-me-cosine", cosine=True)
"""ReplaceMe by cosine distance: Adam, learning rate 1e-4, ten passes over at most 16,384 sampled tokens."""

FOLD = Fold()
