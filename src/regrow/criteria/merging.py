"""LaCo: deeper blocks are folded into an earlier one, theta*_l = theta_l + sum_k (theta_{l+k} - theta_l)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from regrow.criteria.order import candidates, select, windows
from regrow.criteria.replay import Replay
from regrow.criteria.similarity import counted_tokens, rows_that_fit
from regrow.data.calibration import CalibrationSet
from regrow.errors import ModelError
from regrow.models.capture import stream_of_output
from regrow.models.families import blocks_of, text_config_of
from regrow.records.results import LayerScores

THRESHOLD_STEP = 0.05
STATE_BYTES = 256 * 2**20
PREFIX_BYTES = 2**30


@dataclass(frozen=True)
class Merge:
    """``absorbed`` blocks (0-based, of the unpruned model) fold into ``into``; ``similarity`` is what it left."""

    into: int
    absorbed: tuple[int, ...]
    similarity: float


@dataclass(frozen=True)
class LacoPlan:
    """The merges in the order in which they were accepted, and the similarity every one of them had to exceed."""

    merges: tuple[Merge, ...]
    threshold: float
    tried: dict[int, float]

    @property
    def removed(self) -> tuple[int, ...]:
        return tuple(sorted(block for merge in self.merges for block in merge.absorbed))


def laco_plan(
    model: Any,
    calibration: CalibrationSet,
    *,
    remove: int,
    protect: Sequence[int] = (0,),
    contiguous: bool = False,
    span: int = 3,
    interval: int = 2,
    threshold: float = 0.45,
    skip_first: int = 1,
) -> LacoPlan:
    """Return which blocks fold into which, without changing the model.

    From the top down, up to ``span`` blocks are folded into the one below them; the merge is accepted when the mean
    cosine between the final hidden states of the original and the merged model exceeds ``threshold``, and the search
    goes ``interval`` blocks further down, else one. A block may absorb, but not be absorbed, when it is protected. If
    the pass ends before ``remove`` blocks are gone, it goes on from the top with a threshold lower by 0.05: the paper
    tunes it by hand. With ``contiguous``, one merge of a whole window. Paper: LaCo, arXiv:2402.11187.
    """
    count = len(blocks_of(model))
    allowed = frozenset(candidates("laco", count, remove=remove, protect=(*protect, 0)))
    trial = _Trial(model, calibration, skip_first)
    if contiguous:
        starts = windows("laco", remove=remove, allowed=sorted(allowed))
        found = [Merge(start - 1, tuple(range(start, start + remove)), math.nan) for start in starts]
        scored = {merge: trial.similarity([merge]) for merge in found}
        best = max(found, key=lambda merge: (scored[merge], merge.into))
        kept = Merge(best.into, best.absorbed, scored[best])
        seen: dict[int, float] = {}
        for option in found:
            for block in option.absorbed:
                seen[block] = max(scored[option], seen.get(block, -1.0))
        return LacoPlan((kept,), scored[best], seen)
    merges: list[Merge] = []
    gone: set[int] = set()
    tried: dict[int, float] = {}
    limit = threshold
    while len(gone) < remove:
        place = count - 2
        while place >= 0 and len(gone) < remove:
            merge = _next_merge(place, allowed, gone, min(span, remove - len(gone)), count)
            if merge is None:
                place -= 1
                continue
            similarity = trial.similarity([*merges, merge])
            for block in merge.absorbed:
                tried[block] = max(similarity, tried.get(block, -1.0))
            if similarity > limit:
                merges.append(Merge(merge.into, merge.absorbed, similarity))
                gone.update(merge.absorbed)
                place -= interval
            else:
                place -= 1
        limit -= THRESHOLD_STEP
    return LacoPlan(tuple(merges), limit + THRESHOLD_STEP, tried)


def _next_merge(place: int, allowed: frozenset[int], gone: set[int], most: int, count: int) -> Merge | None:
    """Return the merge of up to ``most`` present blocks right above ``place`` into it, or None when none may go."""
    if place in gone:
        return None
    absorbed: list[int] = []
    for block in range(place + 1, count):
        if block in gone:
            continue
        if block not in allowed or len(absorbed) == most:
            break
        absorbed.append(block)
    return Merge(place, tuple(absorbed), math.nan) if absorbed else None


def merges_of(scores: LayerScores) -> tuple[Merge, ...]:
    """Return the merges that the answer of :func:`laco` stands for, in order; none for any other criterion."""
    if scores.criterion != "laco":
        return ()
    found = []
    for name, text in scores.reasons.items():
        if name.startswith("merge "):
            absorbed, _, into = text.partition(" into ")
            found.append(Merge(int(into), tuple(int(block) for block in absorbed.split()), math.nan))
    return tuple(found)


def merge_blocks(model: Any, merges: Sequence[Merge]) -> Any:
    """Return ``model`` itself with the merges folded into the weights of the absorbing blocks (changed in place).

    The absorbed blocks are still there: take them out with ``surgery.remove_blocks(model, plan.removed)``.
    """
    blocks = list(blocks_of(model))
    weights = _Merged(blocks, merges)
    with torch.no_grad():
        for into, merged in weights.items():
            own = dict(blocks[into].named_parameters())
            for name, value in merged.items():
                own[name].copy_(value)
    return model


class _Merged(dict[int, dict[str, torch.Tensor]]):
    """New weights of the absorbing blocks: merges apply one after another, each to what the ones before left."""

    def __init__(self, blocks: Sequence[nn.Module], merges: Sequence[Merge]) -> None:
        super().__init__()
        for merge in merges:
            base = self._weights(blocks, merge.into)
            total = {name: value.float().clone() for name, value in base.items()}
            for block in merge.absorbed:
                other = self._weights(blocks, block)
                if {name: value.shape for name, value in other.items()} != {n: v.shape for n, v in base.items()}:
                    raise ModelError(
                        f"blocks {merge.into} and {block} differ in shape and cannot be merged",
                        hint="protect the blocks of another shape, or use another criterion",
                    )
                for name, value in other.items():
                    total[name] += value.float() - base[name].float()
            self[merge.into] = {name: value.to(base[name].dtype) for name, value in total.items()}

    def _weights(self, blocks: Sequence[nn.Module], block: int) -> dict[str, torch.Tensor]:
        if block in self:
            return self[block]
        return {name: value.detach() for name, value in blocks[block].named_parameters()}


class _Trial:
    """Final hidden states of the original model, and their similarity to those of a merged one."""

    def __init__(self, model: Any, calibration: CalibrationSet, skip_first: int) -> None:
        device = next(model.parameters()).device
        rows = rows_that_fit(model, calibration, 4, STATE_BYTES)
        self._replays: list[Replay] = []
        self._kept: list[torch.Tensor] = []
        self._originals: list[torch.Tensor] = []
        self._prefixes: list[dict[int, torch.Tensor]] = []
        self._blocks = list(blocks_of(model))
        self._known: dict[tuple[tuple[int, tuple[int, ...]], ...], float] = {}
        width = int(text_config_of(model).hidden_size)
        all_states = len(self._blocks) * calibration.input_ids.numel() * width * next(model.parameters()).element_size()
        stride = max(1, math.ceil(all_states / PREFIX_BYTES))
        with torch.inference_mode():
            for batch in calibration.batches(rows):
                streams: dict[int, torch.Tensor] = {}
                replay = Replay(model, batch.input_ids.to(device), streams.__setitem__)
                kept = counted_tokens(batch.attention_mask.to(device), skip_first).flatten()
                self._replays.append(replay)
                self._kept.append(kept)
                self._originals.append(_unit(replay.norm(streams.pop(len(self._blocks))), kept))
                self._prefixes.append({block: state for block, state in streams.items() if block % stride == 0})

    def similarity(self, merges: Sequence[Merge]) -> float:
        """Return the mean token cosine of the final hidden states, after the norm, with the merges applied."""
        key = tuple((merge.into, merge.absorbed) for merge in merges)
        if key in self._known:
            return self._known[key]
        gone = {block for merge in merges for block in merge.absorbed}
        weights = _Merged(self._blocks, merges)
        first = min(merge.into for merge in merges)
        total, tokens = 0.0, 0
        with torch.inference_mode():
            for number, replay in enumerate(self._replays):
                start = max(block for block in self._prefixes[number] if block <= first)
                state = self._prefixes[number][start]
                for block in range(start, len(self._blocks)):
                    if block in gone:
                        continue
                    if block in weights:
                        call = replay.calls[block]
                        inputs = (state, *call.rest)
                        output = torch.func.functional_call(self._blocks[block], weights[block], inputs, call.options)
                        state = stream_of_output(output)
                    else:
                        state = replay.run(block, state)
                cosine = (_unit(replay.norm(state), self._kept[number]) * self._originals[number]).sum(-1)
                total += float(cosine.sum(dtype=torch.float64))
                tokens += len(cosine)
        value = total / tokens if tokens else math.nan
        if not math.isfinite(value):
            raise ModelError(
                f"laco: the hidden states without blocks {sorted(gone)} are not finite",
                hint="load the model with --dtype float32, or check its weights",
            )
        self._known[key] = value
        return value


def _unit(state: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    rows = state.flatten(0, 1)[kept].float()
    return rows / torch.linalg.vector_norm(rows, dim=-1, keepdim=True)


def laco(
    model: Any,
    calibration: CalibrationSet,
    *,
    remove: int,
    protect: Sequence[int] = (0,),
    contiguous: bool = False,
    generator: np.random.Generator | None = None,
    span: int = 3,
    interval: int = 2,
    threshold: float = 0.45,
) -> LayerScores:
    """Return the blocks that LaCo merges away; ``merge_blocks(model, merges_of(scores))`` comes before taking them out.

    Score of a block: 1 minus the best similarity of a merge that absorbed it; blocks that were never tried have none.
    See :func:`laco_plan`. The authors' notebook subtracts in a way that telescopes to plain dropping; this is the
    paper's formula.
    """
    plan = laco_plan(
        model,
        calibration,
        remove=remove,
        protect=protect,
        contiguous=contiguous,
        span=span,
        interval=interval,
        threshold=threshold,
    )
    return scores_of_plan(
        plan, len(blocks_of(model)), remove=remove, protect=protect, fingerprint=calibration.fingerprint
    )


def scores_of_plan(
    plan: LacoPlan, blocks: int, *, remove: int, protect: Sequence[int] = (0,), fingerprint: str = ""
) -> LayerScores:
    """Return a plan as the answer of a criterion."""
    allowed = candidates("laco", blocks, remove=remove, protect=(*protect, 0))
    scores = [1.0 - plan.tried[block] if block in plan.tried else math.nan for block in range(blocks)]
    reasons = {str(block): "never tried" for block in allowed if block not in plan.tried}
    reasons["threshold"] = f"every accepted merge left a similarity above {plan.threshold:.2f}"
    for number, merge in enumerate(plan.merges, start=1):
        reasons[f"merge {number}"] = f"{' '.join(str(block) for block in merge.absorbed)} into {merge.into}"
    return select(
        "laco",
        scores,
        remove=remove,
        allowed=[block for block in allowed if block in plan.tried],
        removed=plan.removed,
        fingerprint=fingerprint,
        reasons=reasons,
    )
