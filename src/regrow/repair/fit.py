"""Fit one repair, or several from one calibration pass, and measure what they come to."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from regrow.data.calibration import CalibrationSet
from regrow.errors import ConfigError, ModelError, RegrowError
from regrow.models.bridges import bridges_of
from regrow.models.families import blocks_of, text_config_of
from regrow.models.load import LoadedModel
from regrow.protocols import Watcher
from regrow.records.checkpoint import BridgeFacts
from regrow.records.repairs import CutError, RepairRow, RepairTable
from regrow.records.specs import RepairSpec
from regrow.repair.assess import Distance, Reference, distance_to, reference_of
from regrow.repair.book import TRAINING, Book
from regrow.repair.cuts import Span, spans_of
from regrow.repair.edits import Edit, InsertBlocks
from regrow.repair.gather import gather, new_book
from regrow.repair.method import Cut, Fitted, RepairMethod
from regrow.repair.registry import REPAIRS

_SHARED = ("calibration", "calibration_tokens", "chunk_tokens", "seed")


@dataclass
class RepairResult:
    """A fitted repair: ``row`` its numbers, ``edits`` what it changes in the pruned model."""

    row: RepairRow
    edits: tuple[Edit, ...]

    @property
    def bridges(self) -> tuple[BridgeFacts, ...]:
        """The bridges as ``regrow.json`` lists them."""
        return self.row.bridges

    @property
    def removed_blocks(self) -> tuple[int, ...]:
        """Blocks of the unpruned model that are still gone: fewer than before where a block stands in for a run."""
        for edit in self.edits:
            if isinstance(edit, InsertBlocks):
                return edit.still_removed
        return tuple(block for cut in self.row.cuts for block in cut.blocks)

    @property
    def warnings(self) -> tuple[str, ...]:
        return self.row.warnings

    @property
    def outcome(self) -> dict[str, Any]:
        """The numbers as JSON values, for the checkpoint's record."""
        return self.row.model_dump(mode="json", exclude={"bridges"})

    def apply(self, pruned: LoadedModel) -> None:
        """Change ``pruned`` in place."""
        for edit in self.edits:
            edit.apply(pruned.model)

    def undo(self, pruned: LoadedModel) -> None:
        """Take the changes back."""
        for edit in reversed(self.edits):
            edit.undo(pruned.model)


def fit_repair(
    unpruned: LoadedModel,
    pruned: LoadedModel,
    calibration: CalibrationSet,
    spec: RepairSpec,
    *,
    removed: Sequence[int] | None = None,
    watch: Watcher | None = None,
    measure: bool = True,
) -> RepairResult:
    """Return the repair of ``pruned``'s cut by ``spec.method``; ``pruned`` is changed in place.

    ``removed`` are the 0-based blocks of the unpruned model that are gone (default: what ``pruned``'s regrow.json
    says). ``measure`` False leaves out running both models on held-out tokens; errors that follow from the sums are
    there all the same. An eighth of the calibration sequences is held out of the fit. Raises RegrowError when there
    is no cut, the models do not belong together, the pruned model has bridges already, or tokens are too few.
    """
    results, _ = fit_many(unpruned, pruned, calibration, [spec], removed=removed, watch=watch, measure=measure)
    results[0].apply(pruned)
    return results[0]


def fit_many(
    unpruned: LoadedModel,
    pruned: LoadedModel,
    calibration: CalibrationSet,
    specs: Sequence[RepairSpec],
    *,
    labels: Sequence[str] | None = None,
    removed: Sequence[int] | None = None,
    watch: Watcher | None = None,
    measure: bool = True,
) -> tuple[list[RepairResult], RepairTable]:
    """Return one result per spec and their table, all fitted from ONE pass over ``calibration``.

    ``pruned`` is left as it came; apply the result you want. The specs may differ in anything but the calibration
    set. Methods that fit sequentially or train need further passes of their own. Errors as :func:`fit_repair`.
    """
    found, table = fit_possible(
        unpruned, pruned, calibration, specs, labels=labels, removed=removed, watch=watch, measure=measure, strict=True
    )
    return [one for one in found if isinstance(one, RepairResult)], table


def fit_possible(
    unpruned: LoadedModel,
    pruned: LoadedModel,
    calibration: CalibrationSet,
    specs: Sequence[RepairSpec],
    *,
    labels: Sequence[str] | None = None,
    removed: Sequence[int] | None = None,
    watch: Watcher | None = None,
    measure: bool = True,
    strict: bool = False,
) -> tuple[list[RepairResult | RegrowError], RepairTable]:
    """Return, per spec, its result or the error that refused it, and the table of the results.

    As :func:`fit_many`, but a method that cannot repair this cut (nothing to fold into, too few tokens) does not keep
    the others from being fitted unless ``strict``. Raises RegrowError for what concerns all of them.
    """
    _check_specs(specs)
    spans = _spans(unpruned, pruned, removed)
    methods = [REPAIRS.get(spec.method) for spec in specs]
    tuned = any(
        spec.ridge_choice == "held-out" or (method.tunes and spec.ridge is None) for method, spec in zip(methods, specs)
    )
    book = new_book(unpruned.model, tuned=tuned)
    width = text_config_of(unpruned.model).hidden_size
    cut = Cut(unpruned.model, pruned.model, spans, width, calibration, tuned, watch)
    found: list[RepairResult | RegrowError | None] = [
        _refusal(method, cut, spec) for method, spec in zip(methods, specs)
    ]
    for refused in found:
        if strict and isinstance(refused, RegrowError):
            raise refused
    planned = [number for number, refused in enumerate(found) if refused is None]
    for number in planned:
        methods[number].plan(book, cut, specs[number])
    pass_seconds = 0.0
    if planned:
        started = time.perf_counter()
        gather(book, unpruned.model, calibration, watch=watch)
        pass_seconds = time.perf_counter() - started

    reference, before = None, None
    if measure and planned:
        reference = reference_of(unpruned.model, calibration, spans, tuned=tuned)
        before = distance_to(reference, pruned.model, [span.after_block + 1 for span in spans])
    for number in planned:
        method, spec = methods[number], specs[number]
        label = labels[number] if labels else ""
        if watch is not None:
            watch.begin(f"fitting {label or spec.method}")
        started = time.perf_counter()
        try:
            fitted = method.fit(book, cut, spec)
        except RegrowError as error:
            if strict:
                raise
            found[number] = error
            if watch is not None:
                watch.end("refused")
            continue
        seconds = time.perf_counter() - started
        if watch is not None and reference is not None:
            watch.begin(f"measuring {label or spec.method}")
        after = _tried(pruned, fitted, reference, spans)
        row = _row(spec, fitted, before, after, reference, book, seconds, portable=method.portable)
        found[number] = RepairResult(row.model_copy(update={"label": label}), fitted.edits)
        if watch is not None:
            watch.end(_summary(row))
    done = [one for one in found if one is not None]
    table = RepairTable(
        removed_blocks=tuple(block for span in spans for block in span.blocks),
        unpruned_blocks=len(blocks_of(unpruned.model)),
        calibration=calibration.name,
        calibration_fingerprint=calibration.fingerprint,
        calibration_tokens=calibration.tokens,
        pass_seconds=pass_seconds,
        rows=tuple(one.row for one in done if isinstance(one, RepairResult)),
    )
    return done, table


def _refusal(method: RepairMethod, cut: Cut, spec: RepairSpec) -> RegrowError | None:
    """Return why ``method`` cannot be planned for this cut, None when it can; nothing is ordered."""
    try:
        method.plan(new_book(cut.unpruned), cut, spec)
    except RegrowError as error:
        return error
    return None


def _check_specs(specs: Sequence[RepairSpec]) -> None:
    if not specs:
        raise ConfigError("no repair was named", hint=f"allowed: {', '.join(REPAIRS.names())}")
    for name in _SHARED:
        values = {getattr(spec, name) for spec in specs}
        if len(values) > 1:
            raise ConfigError(
                f"repairs fitted from one pass must share {name.replace('_', ' ')}, got {sorted(map(str, values))}",
                hint="fit them in separate runs",
            )


def _spans(unpruned: LoadedModel, pruned: LoadedModel, removed: Sequence[int] | None) -> tuple[Span, ...]:
    if bridges_of(pruned.model):
        raise ModelError("the pruned model has bridges already", hint="repair the checkpoint as it was after pruning")
    gone = removed if removed is not None else (pruned.facts.removed_blocks if pruned.facts else ())
    here, there = text_config_of(unpruned.model).hidden_size, text_config_of(pruned.model).hidden_size
    if here != there:
        raise ModelError(
            f"the unpruned model has width {here}, the pruned one {there}",
            hint="pass the unpruned model that the checkpoint was pruned from",
        )
    return spans_of(gone, len(blocks_of(unpruned.model)), len(blocks_of(pruned.model)))


def _tried(pruned: LoadedModel, fitted: Fitted, reference: Reference | None, spans: Sequence[Span]) -> Distance | None:
    if reference is None:
        return None
    done: list[Edit] = []
    try:
        for edit in fitted.edits:
            edit.apply(pruned.model)
            done.append(edit)
        inserted = fitted.inserted or (0,) * len(spans)
        places = [span.after_block + 1 + sum(inserted[: number + 1]) for number, span in enumerate(spans)]
        return distance_to(reference, pruned.model, places)
    finally:
        for edit in reversed(done):
            edit.undo(pruned.model)


def _row(
    spec: RepairSpec,
    fitted: Fitted,
    before: Distance | None,
    after: Distance | None,
    reference: Reference | None,
    book: Book,
    seconds: float,
    *,
    portable: bool,
) -> RepairRow:
    cuts = tuple(
        CutError(
            blocks=fit.span.blocks,
            after_block=fit.span.after_block,
            fitted=fit.fitted,
            held_out_before=fit.held_out_before,
            held_out=fit.held_out,
            in_model_before=before.cuts[number] if before else math.nan,
            in_model=after.cuts[number] if after else math.nan,
            ridge=fit.ridge,
        )
        for number, fit in enumerate(fitted.spans)
    )
    return RepairRow(
        method=spec.method,
        cuts=cuts,
        final_error_before=before.final if before else math.nan,
        final_error=after.final if after else math.nan,
        perplexity_unpruned=reference.perplexity if reference else math.nan,
        perplexity_before=before.perplexity if before else math.nan,
        perplexity=after.perplexity if after else math.nan,
        added_parameters=sum(edit.added_parameters for edit in fitted.edits),
        flops_per_token=sum(edit.flops_per_token for edit in fitted.edits),
        portable=portable,
        tokens=sum(book.tokens[split] for split in TRAINING),
        held_out_tokens=reference.tokens if reference else book.tokens["held"],
        fit_seconds=seconds,
        bridges=tuple(facts for edit in fitted.edits if (facts := edit.facts) is not None),
        warnings=fitted.warnings,
    )


def _summary(row: RepairRow) -> str:
    if math.isnan(row.perplexity):
        return ""
    return f"perplexity on held-out tokens {row.perplexity_before:.1f} -> {row.perplexity:.1f}"
