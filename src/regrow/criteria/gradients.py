"""Cuts by the first-order effect of a block's weights on the loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from regrow.criteria.finite import check_state
from regrow.criteria.magnitude import block_weights
from regrow.criteria.objective import text_batches
from regrow.criteria.order import candidates, select
from regrow.data.calibration import CalibrationSet
from regrow.models.capture import observe_streams
from regrow.models.families import blocks_of
from regrow.records.results import LayerScores

BATCH_TOKENS = 1_024


def weight_gradients(model: Any, calibration: CalibrationSet) -> list[dict[str, torch.Tensor]]:
    """Return, for every block, dL/dw of each of its weights (float32, on the CPU); L is the mean NLL of the text.

    Gradients are summed over batches, so they do not depend on the batch size. Only the blocks' weights get gradients,
    and the model is left as it was. Memory: one float32 copy of the blocks' weights.
    """
    blocks = list(blocks_of(model))
    asked = [parameter for block in blocks for _, parameter in block_weights(block)]
    before = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    device = next(model.parameters()).device
    rows = max(1, BATCH_TOKENS // int(calibration.input_ids.shape[1]))
    batches = text_batches(calibration, rows)
    tokens = sum(int(batch.scored.sum()) for batch in batches)
    sums = [torch.zeros(parameter.shape, dtype=torch.float32) for parameter in asked]
    try:
        for parameter, _ in before:
            parameter.requires_grad_(False)
        for parameter in asked:
            parameter.requires_grad_(True)
        for batch in batches:
            ids, scored = batch.input_ids.to(device), batch.scored.to(device)
            with torch.enable_grad(), observe_streams(model, check_state):
                logits_PV = model(input_ids=ids, use_cache=False).logits[scored].float()
                targets = ids.roll(-1, dims=1)[scored]
                loss = torch.nn.functional.cross_entropy(logits_PV, targets, reduction="sum") / tokens
            gradients = torch.autograd.grad(loss, asked, allow_unused=True)
            for total, gradient in zip(sums, gradients, strict=True):
                if gradient is not None:
                    total += gradient.float().cpu()
    finally:
        for parameter, wanted in before:
            parameter.requires_grad_(wanted)
    remaining = iter(sums)
    return [{name: next(remaining) for name, _ in block_weights(block)} for block in blocks]


def taylor(
    model: Any,
    calibration: CalibrationSet,
    *,
    remove: int,
    protect: Sequence[int] = (0,),
    contiguous: bool = False,
    generator: np.random.Generator | None = None,
) -> LayerScores:
    """Return the blocks with the smallest sum over their weights of abs(w dL/dw), L the mean NLL of the text.

    The gradient is summed over the text before the absolute value is taken. Weights are projections and norms, no
    biases. Paper: Shortened LLaMA (its "Taylor+" also protects blocks at both ends: use ``protect``), arXiv:2402.02834,
    as in its code.
    """
    blocks = list(blocks_of(model))
    allowed = candidates("taylor", len(blocks), remove=remove, protect=protect)
    gradients = weight_gradients(model, calibration)
    scores = [
        math.fsum(
            float((weight.detach().float().cpu() * found[name]).abs().sum(dtype=torch.float64))
            for name, weight in block_weights(block)
        )
        for block, found in zip(blocks, gradients, strict=True)
    ]
    return select(
        "taylor", scores, remove=remove, allowed=allowed, contiguous=contiguous, fingerprint=calibration.fingerprint
    )
