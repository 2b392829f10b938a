"""Similarity of the residual streams, gathered in one streaming pass, and the criteria that read it.

The pass keeps no activations of the text: per batch the N+1 states stay alive only until their cosines are summed, in
pieces of a few tokens that fit the processor's cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regrow.criteria.finite import non_finite
from regrow.criteria.order import candidates, select, windows
from regrow.data.calibration import CalibrationSet
from regrow.data.fingerprints import model_fingerprint
from regrow.errors import DataError
from regrow.models.capture import observe_streams
from regrow.models.families import backbone_of, blocks_of, text_config_of
from regrow.records.results import LayerScores, provenance
from regrow.records.similarity import SimilarityRecord, read_similarity, similarity_key

STATE_BYTES = 256 * 2**20
# Of 8 to 128 tokens on a CPU, 32 are fastest: 31 states of 576 values then stay in the second-level cache.
PIECE_TOKENS_CPU = 32
PIECE_TOKENS = 1_024


def similarity(
    model: Any,
    calibration: CalibrationSet,
    *,
    skip_first: int = 1,
    neighbours_only: bool = False,
    batch_size: int | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> SimilarityRecord:
    """Return the mean cosines and angles of all pairs of residual streams from one forward pass, without the head.

    Cosines are taken per token in float32 and summed in float64. Padding and the first ``skip_first`` real tokens of
    each sequence are left out: the first one is an attention sink of a hundred times the usual norm.
    ``neighbours_only`` computes nothing but cos(h_l, h_{l+1}), all that Block Influence needs. ``batch_size`` is chosen
    so that the states of one batch fit in 256 MiB. ``on_progress`` is told the number of tokens of every finished
    batch. Raises ModelError naming the block whose output is not finite.
    """
    count = len(blocks_of(model))
    if batch_size is None:
        batch_size = rows_that_fit(model, calibration, count + 1, STATE_BYTES)
    sums: _Neighbours | _Pairs = _Neighbours(count) if neighbours_only else _Pairs(count)
    backbone = backbone_of(model)
    device = next(model.parameters()).device
    with torch.inference_mode(), observe_streams(model, sums.on_state):
        for batch in calibration.batches(batch_size):
            sums.begin(batch.attention_mask.to(device), skip_first)
            backbone(input_ids=batch.input_ids.to(device), use_cache=False)
            sums.finish()
            if on_progress is not None:
                on_progress(int(batch.attention_mask.sum()))
    if sums.tokens == 0:
        raise DataError(
            f"no token of '{calibration.name}' is left once the first {skip_first} of every sequence are excluded",
            hint="use longer chunks or --skip-first 0",
        )
    return SimilarityRecord(
        blocks=count,
        cosine=_square(sums.cosine / sums.tokens),
        last_angle=_square(sums.last_angle / sums.sequences) if sums.last_angle is not None else (),
        angle=_square(sums.angle / sums.tokens) if sums.angle is not None else (),
        tokens=sums.tokens,
        sequences=len(calibration),
        skip_first=skip_first,
        calibration=calibration.name,
        data_fingerprint=calibration.fingerprint,
        model_fingerprint=model_fingerprint(model),
        neighbours_only=neighbours_only,
        provenance=provenance(),
    )


def kept_similarity(
    model: Any,
    calibration: CalibrationSet,
    folder: Path,
    *,
    skip_first: int = 1,
    neighbours_only: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> SimilarityRecord:
    """Return the similarity record of this model on this text, read from ``folder`` or computed and saved there.

    The file's name holds the hash of model, text and settings; a full record also answers for ``neighbours_only``. A
    file that cannot be read, or belongs to something else, is computed again.
    """
    wanted = [False] if not neighbours_only else [False, True]
    prints = model_fingerprint(model), calibration.fingerprint
    for only in wanted:
        key = similarity_key(*prints, skip_first=skip_first, neighbours_only=only)
        file = folder / f"similarity-{key[:16]}.json"
        try:
            record = read_similarity(file)
        except DataError:
            continue
        if record.fingerprint == key:
            return record
    record = similarity(
        model, calibration, skip_first=skip_first, neighbours_only=neighbours_only, on_progress=on_progress
    )
    record.save(folder / f"similarity-{record.fingerprint[:16]}.json")
    return record


def rows_that_fit(model: Any, calibration: CalibrationSet, states: int, limit_bytes: int) -> int:
    """Return how many sequences go in a batch so that ``states`` residual streams of it stay below ``limit_bytes``."""
    width = int(text_config_of(model).hidden_size)
    element = next(model.parameters()).element_size()
    per_row = states * width * element * int(calibration.input_ids.shape[1])
    return max(1, min(len(calibration), limit_bytes // per_row))


def counted_tokens(attention_mask: torch.Tensor, skip_first: int) -> torch.Tensor:
    """Return which tokens (rows, tokens; bool) are real and not among the first ``skip_first`` real ones of a row."""
    real = attention_mask.bool()
    return real & (real.cumsum(dim=1) > skip_first)


class _Neighbours:
    """Sums of cos(h_l, h_{l+1}); holds one state at a time."""

    def __init__(self, blocks: int) -> None:
        self.cosine = np.full((blocks + 1, blocks + 1), math.nan)
        np.fill_diagonal(self.cosine, 0.0)
        for place in range(blocks):
            self.cosine[place, place + 1] = self.cosine[place + 1, place] = 0.0
        self.last_angle: np.ndarray | None = None
        self.angle: np.ndarray | None = None
        self.tokens = 0
        self.sequences = 0
        self._kept: torch.Tensor
        self._before: torch.Tensor | None = None
        self._before_norm: torch.Tensor

    def begin(self, attention_mask: torch.Tensor, skip_first: int) -> None:
        self._kept = counted_tokens(attention_mask, skip_first)
        self._before = None

    def on_state(self, place: int, state: torch.Tensor) -> None:
        state_BTD = state.float()
        norm_BT = torch.linalg.vector_norm(state_BTD, dim=-1)
        if not bool((norm_BT.isfinite() & (norm_BT > 0))[self._kept].all()):
            raise non_finite(place - 1)
        if self._before is not None:
            cosine_BT = torch.linalg.vecdot(self._before, state_BTD) / (self._before_norm * norm_BT)
            total = float(cosine_BT[self._kept].sum(dtype=torch.float64))
            self.cosine[place - 1, place] += total
            self.cosine[place, place - 1] += total
        self._before, self._before_norm = state_BTD, norm_BT

    def finish(self) -> None:
        kept = int(self._kept.sum())
        self.tokens += kept
        self.cosine[np.diag_indices_from(self.cosine)] += kept
        self._before = None


class _Pairs:
    """Sums of cos(h_i, h_j) and of the angles for all pairs, over all tokens and at the last one of each sequence."""

    def __init__(self, blocks: int) -> None:
        self.cosine = np.zeros((blocks + 1, blocks + 1))
        self.last_angle: np.ndarray | None = np.zeros_like(self.cosine)
        self.angle: np.ndarray | None = np.zeros_like(self.cosine)
        self.tokens = 0
        self.sequences = 0
        self._kept: torch.Tensor
        self._states: list[torch.Tensor] = []

    def begin(self, attention_mask: torch.Tensor, skip_first: int) -> None:
        self._kept = counted_tokens(attention_mask, skip_first)
        self._states = []

    def on_state(self, place: int, state: torch.Tensor) -> None:
        self._states.append(state.reshape(-1, state.shape[-1]))

    def finish(self) -> None:
        kept = self._kept.flatten().nonzero().squeeze(1)
        piece = PIECE_TOKENS_CPU if kept.device.type == "cpu" else PIECE_TOKENS
        assert self.angle is not None
        for start in range(0, len(kept), piece):
            cosine_PNN = self._cosines(kept[start : start + piece], torch.float32)
            self.cosine += cosine_PNN.sum(dim=0, dtype=torch.float64).cpu().numpy()
            self.angle += _angles(cosine_PNN).sum(dim=0, dtype=torch.float64).cpu().numpy()
        self._add_last_angles()
        self.tokens += len(kept)
        self._states = []
        broken = np.flatnonzero(~np.isfinite(self.cosine.diagonal()))
        if broken.size:
            raise non_finite(int(broken[0]) - 1)

    def _add_last_angles(self) -> None:
        rows, width = self._kept.shape
        place = torch.arange(width, device=self._kept.device)
        last = torch.where(self._kept, place, -1).amax(dim=1)
        used = last >= 0
        flat = (torch.arange(rows, device=last.device) * width + last)[used]
        assert self.last_angle is not None
        self.last_angle += _angles(self._cosines(flat, torch.float64)).sum(dim=0).cpu().numpy()
        self.sequences += len(flat)

    def _cosines(self, tokens: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        stacked_NPD = torch.stack([state.index_select(0, tokens) for state in self._states]).to(dtype)
        unit_NPD = stacked_NPD / torch.linalg.vector_norm(stacked_NPD, dim=-1, keepdim=True)
        return unit_NPD.transpose(0, 1) @ unit_NPD.permute(1, 2, 0)


def _angles(cosine: torch.Tensor) -> torch.Tensor:
    angle = cosine.clamp(-1, 1).arccos() / math.pi
    angle.diagonal(dim1=-2, dim2=-1).zero_()
    return angle


def _square(values: np.ndarray) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(float(value) for value in row) for row in values)


def block_influence(
    model: Any,
    calibration: CalibrationSet,
    *,
    remove: int,
    protect: Sequence[int] = (0,),
    contiguous: bool = False,
    generator: np.random.Generator | None = None,
    record: SimilarityRecord | None = None,
    skip_first: int = 1,
) -> LayerScores:
    """Return Block Influence, BI_l = 1 - mean over tokens of cos(h_l, h_{l+1}); the least influential blocks go.

    Per-token cosine on the feature axis. Releases exist that take one cosine of the flattened tensor, or a cosine on
    the sequence axis; both choose other blocks (SmolLM2-135M: 12-18 and 12, 14, 15, 17, 25, 26, 28 where this
    definition chooses 3 and 12-17). Paper: ShortGPT, arXiv:2403.03853, which averages all positions; here the first
    ``skip_first`` are left out.
    """
    record = record or similarity(model, calibration, skip_first=skip_first, neighbours_only=True)
    allowed = candidates("block-influence", record.blocks, remove=remove, protect=protect)
    scores = [1.0 - record.cosine[place][place + 1] for place in range(record.blocks)]
    return select(
        "block-influence",
        scores,
        remove=remove,
        allowed=allowed,
        contiguous=contiguous,
        fingerprint=record.data_fingerprint,
    )


def angular(
    model: Any,
    calibration: CalibrationSet,
    *,
    remove: int,
    protect: Sequence[int] = (0,),
    contiguous: bool = True,
    generator: np.random.Generator | None = None,
    record: SimilarityRecord | None = None,
    all_tokens: bool = False,
) -> LayerScores:
    """Return the span of ``remove`` blocks with the least angular distance arccos(cos(h_l, h_{l+n}))/pi of its ends.

    At the last token of each sequence, as in the paper; ``all_tokens`` averages over all of them. The cut is always
    one span. Score of a block: the least distance of the spans that contain it. Paper: arXiv:2403.17887.
    """
    record = record or similarity(model, calibration)
    distance = record.angle if all_tokens else record.last_angle
    return _span("angular", [list(row) for row in distance], record, remove=remove, protect=protect)


def streamline(
    model: Any,
    calibration: CalibrationSet,
    *,
    remove: int,
    protect: Sequence[int] = (0,),
    contiguous: bool = True,
    generator: np.random.Generator | None = None,
    record: SimilarityRecord | None = None,
) -> LayerScores:
    """Return the span of ``remove`` blocks whose ends are most similar: 0.5 + 0.5 cos(h_j, h_{j+n}), mean over tokens.

    The cut is always one span. Score of a block: 1 minus the highest similarity of the spans that contain it.
    Paper: LLM-Streamline, arXiv:2403.19135, definition as in its released code.
    """
    record = record or similarity(model, calibration)
    distance = (0.5 - 0.5 * record.matrix()).tolist()
    return _span("streamline", distance, record, remove=remove, protect=protect)


def _span(
    criterion: str, distance: list[list[float]], record: SimilarityRecord, *, remove: int, protect: Sequence[int]
) -> LayerScores:
    """Return the best span under a distance between states, with per-block scores that agree with it."""
    allowed = candidates(criterion, record.blocks, remove=remove, protect=protect)
    starts = windows(criterion, remove=remove, allowed=allowed)
    value = {first: distance[first][first + remove] for first in starts}
    broken = [first for first in starts if not math.isfinite(value[first])]
    if broken:
        raise non_finite(broken[0] + remove - 1)
    scores = [math.nan] * record.blocks
    for first in starts:
        for block in range(first, first + remove):
            scores[block] = min(value[first], scores[block]) if math.isfinite(scores[block]) else value[first]
    best = min(starts, key=lambda first: (value[first], first))
    reachable = [block for block in allowed if math.isfinite(scores[block])]
    reasons = {
        str(block): f"no span of {remove} free blocks contains it" for block in allowed if block not in set(reachable)
    }
    reasons["span"] = f"blocks {best} to {best + remove - 1}, distance {value[best]:.6f}"
    return select(
        criterion,
        scores,
        remove=remove,
        allowed=reachable,
        removed=range(best, best + remove),
        fingerprint=record.data_fingerprint,
        reasons=reasons,
    )
