"""LinearPatch: one factor per channel of a rotated stream, from two averages of absolute values (arXiv 2505.24680)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from regrow.models.bridges import Bridge, ScalingBridge
from regrow.records.specs import RepairSpec
from regrow.repair.book import TRAINING, Book, Rows
from regrow.repair.cuts import Span
from regrow.repair.distill import distil
from regrow.repair.edits import AttachBridge
from regrow.repair.hadamard import hadamard
from regrow.repair.held_out import errors_of, want_errors
from regrow.repair.method import Cut, Fitted, SpanFit, refuse_options
from regrow.repair.operators import Affine, bridge_of
from regrow.repair.signals import Signal


class MagnitudeRatio:
    """Collects s_k = mean over sequences of mean_t abs(Y H)_k / mean_t abs(X H)_k over the fitting tokens of a run.

    ``basis`` is H divided by its norm, or None for no rotation. Memory is O(width).
    """

    def __init__(self, span: Span, basis: torch.Tensor | None, skip_first: int) -> None:
        self.entering, self.leaving = Signal("stream", span.entering), Signal("stream", span.leaving)
        self.basis, self.skip_first = basis, skip_first
        self.total: torch.Tensor | None = None
        self.sequences = 0

    @property
    def wants(self) -> frozenset[Signal]:
        return frozenset((self.entering, self.leaving))

    def add(self, rows: Rows) -> None:
        counted = rows.chosen(TRAINING, self.skip_first)
        used = counted.any(dim=1)
        if not bool(used.any()):
            return
        sizes = []
        for signal in (self.leaving, self.entering):
            values = rows.signals[signal].float()
            if self.basis is not None:
                values = values @ self.basis.to(values.device)
            # Sums over the same tokens: their ratio is that of the means.
            sizes.append((values.abs() * counted[..., None]).sum(dim=1)[used].cpu().double())
        ratio = (sizes[0] / sizes[1].clamp_min(1e-30)).sum(dim=0)
        self.total = ratio if self.total is None else self.total + ratio
        self.sequences += int(used.sum())

    @property
    def scale(self) -> torch.Tensor:
        """The factors s (width), float64."""
        assert self.total is not None
        return self.total / self.sequences


@dataclass(frozen=True)
class LinearPatch:
    """h' = h H diag(s) H'. ``rotated`` False takes H = I, which needs no matrix product. ``distil_passes`` afterwards
    trains the operator alone on the unpruned model's most likely tokens (distill.py)."""

    name: str
    rotated: bool
    distil_passes: int = 0
    skip_first: int = 0
    portable: bool = False
    tunes: bool = False

    @property
    def heeds(self) -> tuple[str, ...]:
        return ("passes", "skip_first") if self.distil_passes else ("skip_first",)

    def plan(self, book: Book, cut: Cut, spec: RepairSpec) -> None:
        """Order the magnitude ratios of every run."""
        refuse_options(self.name, spec, self.heeds)
        basis = self._basis(cut.width)
        for span in cut.spans:
            want_errors(book, span)
            book.want_other(self._key(span, spec), partial(MagnitudeRatio, span, basis, self._skip(spec)))

    def fit(self, book: Book, cut: Cut, spec: RepairSpec) -> Fitted:
        """Return one bridge per run: a full matrix where rotated, a vector where not."""
        basis = self._basis(cut.width)
        edits: list[AttachBridge] = []
        fits: list[SpanFit] = []
        for span in cut.spans:
            scale = book.other(self._key(span, spec), MagnitudeRatio).scale
            if basis is None:
                operator = Affine(torch.diag(scale))
                bridge: Bridge = scaling_bridge(scale)
            else:
                rotation = basis.double()
                operator = Affine(rotation * scale @ rotation.T)
                bridge = bridge_of(operator)
            edits.append(AttachBridge(span.after_block, bridge, self.name, span.blocks))
            fits.append(errors_of(book, span, operator))
        if self.distil_passes:
            distil(cut, edits, passes=spec.passes or self.distil_passes, seed=spec.seed)
            fits = [errors_of(book, span, _operator_of(edit)) for span, edit in zip(cut.spans, edits)]
        return Fitted(tuple(edits), tuple(fits))

    def _basis(self, width: int) -> torch.Tensor | None:
        return torch.from_numpy(hadamard(width)).float() / width**0.5 if self.rotated else None

    def _skip(self, spec: RepairSpec) -> int:
        return self.skip_first if spec.skip_first is None else spec.skip_first

    def _key(self, span: Span, spec: RepairSpec) -> tuple[object, ...]:
        return ("magnitude-ratio", span, self.rotated, self._skip(spec))


def scaling_bridge(scale: torch.Tensor) -> ScalingBridge:
    """Return the bridge that multiplies each channel by its factor (float32)."""
    bridge = ScalingBridge(len(scale))
    with torch.no_grad():
        bridge.scale.copy_(scale)
    return bridge


def _operator_of(edit: AttachBridge) -> Affine:
    with torch.no_grad():
        unit = torch.eye(edit.bridge.width, device=next(edit.bridge.parameters()).device)
        return Affine(edit.bridge(unit).double().cpu())


LINEAR_PATCH = LinearPatch("linear-patch", rotated=True)
"""The paper's P = H diag(s) H', kept as the one fused matrix that it applies. Positions are all counted."""

LINEAR_PATCH_DIAG = LinearPatch("linear-patch-diag", rotated=False)
"""The paper's variant without rotation: one factor per channel, width parameters, no matrix product."""

LINEAR_PATCH_DISTILLED = LinearPatch("linear-patch-distilled", rotated=True, distil_passes=1)
"""P trained afterwards, everything else frozen: KL on the 50 most likely tokens of the unpruned model."""
