"""Cuts by the size of the weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from regrow.criteria.order import candidates, select
from regrow.models.families import blocks_of
from regrow.records.results import LayerScores


def block_weights(block: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the weights of a block, projections and norms, without its biases."""
    for name, parameter in block.named_parameters():
        if not name.endswith("bias"):
            yield name, parameter


def weight_sums(model: Any, power: int) -> list[float]:
    """Return for every block the sum over its weights of abs(w)^power, in float64."""
    with torch.no_grad():
        return [
            sum(float(weight.double().abs().pow(power).sum()) for _, weight in block_weights(block))
            for block in blocks_of(model)
        ]


def magnitude_l1(
    model: Any,
    calibration: Any = None,
    *,
    remove: int,
    protect: Sequence[int] = (0,),
    contiguous: bool = False,
    generator: np.random.Generator | None = None,
) -> LayerScores:
    """Return the blocks with the smallest sum of abs(w). Paper: Shortened LLaMA, arXiv:2402.02834, as in its code."""
    return _magnitude("magnitude-l1", model, 1, remove, protect, contiguous)


def magnitude_l2(
    model: Any,
    calibration: Any = None,
    *,
    remove: int,
    protect: Sequence[int] = (0,),
    contiguous: bool = False,
    generator: np.random.Generator | None = None,
) -> LayerScores:
    """Return the blocks with the smallest sum of w^2 (no root). Paper: arXiv:2402.02834, as in its code."""
    return _magnitude("magnitude-l2", model, 2, remove, protect, contiguous)


def _magnitude(name: str, model: Any, power: int, remove: int, protect: Sequence[int], contiguous: bool) -> LayerScores:
    scores = weight_sums(model, power)
    allowed = candidates(name, len(scores), remove=remove, protect=protect)
    return select(name, scores, remove=remove, allowed=allowed, contiguous=contiguous)
