"""Models whose removed blocks are affine by construction, and calibration sets over their vocabulary."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from regrow.data.calibration import CalibrationSet, make_set
from regrow.models.bridges import AffineBridge, attach_bridge
from regrow.models.families import blocks_of
from regrow.models.load import LoadedModel
from regrow.surgery import remove_blocks
from tests.conftest import tiny_model, tiny_tokenizer

WIDTH = 32


def calibration_set(rows: int = 24, tokens: int = 48, *, seed: int = 0, padded: bool = False) -> CalibrationSet:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 96, (rows, tokens), generator=generator)
    mask = torch.ones_like(ids)
    if padded:
        for row in range(rows):
            mask[row, tokens - row % 7 :] = 0
        ids = torch.where(mask.bool(), ids, 0)
    return make_set("random ids", ids, mask)


def random_affine(seed: int, *, bias: bool = True, scale: float = 0.1) -> AffineBridge:
    generator = torch.Generator().manual_seed(seed)
    bridge = AffineBridge(WIDTH, bias=bias)
    with torch.no_grad():
        for weight in bridge.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) * scale)
    return bridge


def make_affine(model: Any, block: int, *, seed: int = 0, bias: bool = True) -> None:
    """Turn a block of a real model into h' = h + h W + b: its own branches are silenced, a bridge does the map."""
    with torch.no_grad():
        for name, weight in blocks_of(model)[block].named_parameters():
            if "norm" not in name and "ln" not in name:
                weight.zero_()
    attach_bridge(model, block, random_affine(seed, bias=bias))


def pair(
    removed: Sequence[int], family: str = "llama", *, affine: Sequence[int] = (), blocks: int = 6, bias: bool = True
) -> tuple[LoadedModel, LoadedModel]:
    """Return an unpruned model, the ``affine`` blocks of which are affine, and its pruned copy."""
    model = tiny_model(family, blocks=blocks)
    for block in affine:
        make_affine(model, block, seed=block, bias=bias)
    pruned = copy.deepcopy(model)
    remove_blocks(pruned, list(removed))
    return LoadedModel(model, tiny_tokenizer(), "tiny"), LoadedModel(pruned, tiny_tokenizer(), "tiny-pruned")
