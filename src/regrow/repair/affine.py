"""Linear repairs: one least-squares family, told apart by intercept, by what the ridge shrinks to and by granularity.

For a removed run, X is the stream that entered it and Y the one that left it, both of the unpruned model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch

from regrow.errors import ConfigError
from regrow.models.bridges import AffineBridge, check_rank
from regrow.records.specs import RepairSpec
from regrow.repair.book import Book, RowRule, Split
from regrow.repair.cuts import Span
from regrow.repair.edits import AttachBridge
from regrow.repair.gather import gather
from regrow.repair.held_out import errors_of, want_errors
from regrow.repair.method import Cut, Fitted, SpanFit, refuse_options
from regrow.repair.operators import Affine, bridge_of, identity, low_rank_bridge, merge, truncate
from regrow.repair.signals import Source, corrected, stream
from regrow.repair.solve import Ridge, choose_ridge, least_squares
from regrow.repair.sums import Problem

Granularity = Literal["block", "span", "span-if-contiguous"]
_HEEDED = (
    "ridge",
    "ridge_choice",
    "rank",
    "rank_weighting",
    "granularity",
    "sequential",
    "rows",
    "skip_first",
)


@dataclass(frozen=True)
class LinearRepair:
    """A linear repair with its paper's choices; every one but the form of the operator can be overridden by the spec.

    ``intercept``: h' has an offset and both sides are centred. ``toward_identity``: the ridge pulls to "change
    nothing", otherwise to zero. ``granularity``: per removed block (merged exactly), per run, or per run only when the
    whole cut is one run. A rank asked for is that of the merged map of a run.
    """

    name: str
    intercept: bool
    toward_identity: bool
    ridge: Ridge
    skip_first: int
    granularity: Granularity
    portable: bool = False
    tunes: bool = False

    @property
    def heeds(self) -> tuple[str, ...]:
        return _HEEDED

    def plan(self, book: Book, cut: Cut, spec: RepairSpec) -> None:
        """Order the sums of every run and, per block, of every removed block."""
        refuse_options(self.name, spec, self.heeds)
        check_rank(cut.width, spec.rank)
        if spec.rank is None and spec.rank_weighting != "plain":
            raise ConfigError("a rank weighting says nothing without a rank", hint="add one, for example --rank 64")
        rule = self._rule(spec)
        per_block = self._per_block(cut, spec)
        for span in cut.spans:
            book.want(stream(span.entering), stream(span.leaving), rule)
            want_errors(book, span)
            if not per_block:
                continue
            for block in span.blocks:
                # Sequential fits see every later stream from the entry of the run, the algebra does the rest.
                x = span.entering if spec.sequential else block
                book.want(stream(x), stream(block + 1), rule)

    def fit(self, book: Book, cut: Cut, spec: RepairSpec) -> Fitted:
        """Return one bridge per run, with its errors on fitted and held-out tokens."""
        edits: list[AttachBridge] = []
        fits: list[SpanFit] = []
        warnings: list[str] = []
        try:
            for number, span in enumerate(cut.spans):
                source, sums = stream(span.entering), book
                if spec.sequential and number:
                    source, sums = corrected(span.after_block + 1), self._sums_of_corrected(book, cut, span, spec)
                operator, ridge, remarks = self._operator(sums, cut, span, spec, source)
                bridge, operator = self._bridge(sums, span, spec, operator, source, ridge)
                edit = AttachBridge(span.after_block, bridge, self.name, span.blocks)
                edits.append(edit)
                fits.append(errors_of(book, span, operator, ridge))
                warnings.extend(remarks)
                if spec.sequential:
                    edit.apply(cut.pruned)
        finally:
            if spec.sequential:
                for edit in reversed(edits):
                    edit.undo(cut.pruned)
        return Fitted(tuple(edits), tuple(fits), tuple(dict.fromkeys(warnings)))

    def _operator(
        self, book: Book, cut: Cut, span: Span, spec: RepairSpec, source: Source
    ) -> tuple[Affine, float, list[str]]:
        rule = self._rule(spec)
        if not self._per_block(cut, spec):
            fit, remarks = self._solve(book, source, stream(span.leaving), rule, spec, str(span))
            return fit[0], fit[1], remarks
        maps: list[Affine] = []
        ridges: list[float] = []
        warnings: list[str] = []
        for block in span.blocks:
            reached = merge(maps) if spec.sequential and maps else None
            x = source if spec.sequential else stream(block)
            (operator, ridge), remarks = self._solve(
                book, x, stream(block + 1), rule, spec, f"block {block}", through=reached
            )
            maps.append(operator)
            ridges.append(ridge)
            warnings.extend(remarks)
        return merge(maps), max(ridges), warnings

    def _solve(
        self,
        book: Book,
        x: Source,
        y: Source,
        rule: RowRule,
        spec: RepairSpec,
        what: str,
        through: Affine | None = None,
    ) -> tuple[tuple[Affine, float], list[str]]:
        def problem(*splits: Split) -> Problem:
            found = book.problem(x, y, rule, *splits)
            if through is None:
                return found
            offset = through.offset if through.offset is not None else torch.zeros(through.width).double()
            return found.through(through.matrix, offset)

        ridge = self.ridge if spec.ridge is None else Ridge(spec.ridge)
        remarks: list[str] = []
        if spec.ridge_choice == "held-out":
            tune = problem("tune")
            if tune.rows == 0:
                raise ConfigError(
                    "the calibration set is too short to choose the ridge on held-out tokens",
                    hint="use at least three sequences, or a fixed ridge: --ridge 1e-4",
                )
            ridge, _ = choose_ridge(
                problem("fit"), tune, intercept=self.intercept, toward_identity=self.toward_identity
            )
        fit = least_squares(problem(), ridge, intercept=self.intercept, toward_identity=self.toward_identity, what=what)
        remarks.extend(fit.warnings)
        return (fit.operator, fit.ridge), remarks

    def _bridge(
        self, book: Book, span: Span, spec: RepairSpec, operator: Affine, source: Source, ridge: float
    ) -> tuple[AffineBridge, Affine]:
        """Return the bridge and the map it computes, after the truncation asked for."""
        if spec.rank is None:
            return bridge_of(operator), operator
        problem = book.problem(source, stream(span.leaving), self._rule(spec))
        whole = operator.change if self.toward_identity else operator.matrix
        gram: torch.Tensor | None = None
        if spec.rank_weighting == "activations":
            gram = problem.xx
            if self.intercept:
                gram = gram - torch.outer(problem.x_sum, problem.x_mean)
            floor = max(ridge, 1e-9 * gram.diagonal().mean().item())
            gram = gram + floor * torch.eye(operator.width, dtype=gram.dtype)
        down, up = truncate(whole, spec.rank, gram)
        matrix = down @ up + (identity(operator.width).matrix if self.toward_identity else 0)
        # The means must still be met after the truncation.
        offset = problem.y_mean - problem.x_mean @ matrix if self.intercept else None
        bridge = low_rank_bridge(down, up, offset, residual=self.toward_identity)
        return bridge, Affine(matrix, offset)

    def _sums_of_corrected(self, shared: Book, cut: Cut, span: Span, spec: RepairSpec) -> Book:
        book = shared.empty_copy()
        targets = span.blocks if self._per_block(cut, spec) else (span.last,)
        for block in {*targets, span.last}:
            book.want(corrected(span.after_block + 1), stream(block + 1), self._rule(spec))
        gather(
            book,
            cut.unpruned,
            cut.calibration,
            pruned=cut.pruned,
            watch=cut.watch,
            task=f"reading the streams at {span} again, behind the repaired cuts",
        )
        return book

    def _rule(self, spec: RepairSpec) -> RowRule:
        skip = self.skip_first if spec.skip_first is None else spec.skip_first
        return RowRule(skip, spec.rows == "inverse-norm")

    def _per_block(self, cut: Cut, spec: RepairSpec) -> bool:
        if spec.granularity is not None:
            return spec.granularity == "block"
        if self.granularity == "span-if-contiguous":
            return len(cut.spans) > 1
        return self.granularity == "block"


LRA = LinearRepair(
    name="lra",
    intercept=True,
    toward_identity=True,
    ridge=Ridge(1e-4),
    skip_first=0,
    granularity="block",
)
"""SHIFT-LLM's linear residual adapter: per removed block, Y - X regressed on X with an intercept, then merged.

Lambda (1e-4 of the mean diagonal) is regrow's choice, the paper names none. All positions are fitted, the first one
above all: it is an attention sink with a stream a hundred times longer than others, later blocks lean on it, and what
an adapter that never saw it does there is extrapolation, which may do harm or not. On SmolLM2-135M without blocks 12,
13, 14 and 17 leaving position 0 out changes the perplexity from 28.84 to 28.88 on one draw of the calibration text and
from 33.10 to 67.12 on another, where no repair has 39.35.
"""

GENERIC_AFFINE = replace(LRA, name="generic-affine", toward_identity=False)
"""The ablation h' = h A + c: without ridge the same optimum as LRA with A = I + W; a ridge pulls it to zero instead."""

GHOST = LinearRepair(
    name="ghost",
    intercept=False,
    toward_identity=True,
    ridge=Ridge(1e-6, absolute=True),
    skip_first=0,
    granularity="span-if-contiguous",
)
"""Ghosted Layers: W = I + M without intercept over all positions, one operator per run when the cut is one run, else
one per removed block, composed. By construction no linear operator, diagonal or Hadamard-scaled ones included, has a
smaller error on the fitted tokens."""

RIDGE_PATCH = LinearRepair(
    name="ridge-patch",
    intercept=False,
    toward_identity=True,
    ridge=Ridge(0.01),
    skip_first=1,
    granularity="span",
)
"""Ridge regression towards the identity per run, lambda = 0.01 of the mean diagonal of X'X, position 0 left out. Its
authors stop at 16,384 tokens."""
