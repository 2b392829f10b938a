"""Similarity of blocks from their weights alone, and WRP, which prunes by it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from regrow.criteria.locality import by_groups
from regrow.errors import ConfigError, ModelError, did_you_mean
from regrow.models.families import blocks_of
from regrow.records.results import LayerScores

Similarity = Literal["cosine", "gram", "subspace"]
SUBSPACE_RANK = 32
ROWS_AT_ONCE = 64

_WRITERS = re.compile(r"(^|\.)(o_proj|out_proj|c_proj|dense|dense_4h_to_h|down_proj|fc2|w2|wo)(\.weight)?$")
_ATTENTION = re.compile(r"attn|attention|mixer", re.IGNORECASE)


def output_projections(block: nn.Module) -> dict[str, torch.Tensor]:
    """Return the matrices with which a block writes to the stream: "attention" and "mlp", each (width, inner).

    Transposed where the family stores them the other way round; experts stand side by side.
    """
    found: dict[str, list[torch.Tensor]] = {"attention": [], "mlp": []}
    for name, parameter in block.named_parameters():
        if not _WRITERS.search(name) or parameter.dim() < 2:
            continue
        owner = block.get_submodule(name.rpartition(".")[0])
        weight = parameter.detach()
        if parameter.dim() == 3:
            weight = weight.transpose(0, 1).flatten(1)
        elif type(owner).__name__ == "Conv1D":
            weight = weight.T
        found["attention" if _ATTENTION.search(name) else "mlp"].append(weight)
    if not found["attention"] or not found["mlp"]:
        names = ", ".join(name for name, _ in block.named_parameters())
        raise ModelError(
            f"no output projections of attention and MLP found among: {names}",
            hint="this criterion knows o_proj, out_proj, c_proj, dense and down_proj, fc2, dense_4h_to_h",
        )
    return {part: torch.cat(weights, dim=1) for part, weights in found.items()}


def weight_similarity(model: Any, similarity: Similarity = "gram") -> np.ndarray:
    """Return S (N, N): mean over attention and MLP of (smaller norm / larger norm) x similarity of the projections.

    ``similarity``: "cosine" of the flattened matrices (near 0 for matrices trained independently); "gram": cosine of
    the Gram matrices W W', as in linear CKA without centring, which compares the directions written to and not the
    inner units; "subspace": shared share of the spans of the 32 leading left singular vectors. Norms are Frobenius.
    """
    if similarity not in _SIMILARITIES:
        raise ConfigError(f"unknown similarity '{similarity}'", hint=did_you_mean(similarity, _SIMILARITIES))
    blocks = [output_projections(block) for block in blocks_of(model)]
    parts = []
    for part in ("attention", "mlp"):
        matrices = [block[part] for block in blocks]
        norms = np.array([float(torch.linalg.vector_norm(matrix.double())) for matrix in matrices])
        scale = np.minimum.outer(norms, norms) / np.maximum.outer(norms, norms)
        parts.append(scale * _SIMILARITIES[similarity](matrices))
    return np.mean(parts, axis=0)


def _cosine(matrices: list[torch.Tensor]) -> np.ndarray:
    if len({matrix.shape for matrix in matrices}) > 1:
        raise ModelError("blocks of unequal shape have no cosine", hint="use the similarity 'gram' or 'subspace'")
    flat = torch.stack([matrix.float().flatten() for matrix in matrices])
    return _normalised((flat @ flat.T).double().cpu().numpy())


def _gram(matrices: list[torch.Tensor]) -> np.ndarray:
    """Inner products of the Gram matrices, some rows at a time: all of them together may not fit in memory."""
    inner = np.zeros((len(matrices), len(matrices)))
    whole = [matrix.float() for matrix in matrices]
    for start in range(0, whole[0].shape[0], ROWS_AT_ONCE):
        rows = torch.stack([(matrix[start : start + ROWS_AT_ONCE] @ matrix.T).flatten() for matrix in whole])
        inner += (rows @ rows.T).double().cpu().numpy()
    return _normalised(inner)


def _subspace(matrices: list[torch.Tensor]) -> np.ndarray:
    rank = min(SUBSPACE_RANK, *(min(matrix.shape) for matrix in matrices))
    spans = []
    for matrix in matrices:
        _, vectors = torch.linalg.eigh(matrix.float() @ matrix.float().T)
        spans.append(vectors[:, -rank:].double())
    return np.array([[float((one.T @ other).square().sum()) / rank for other in spans] for one in spans])


def _normalised(inner: np.ndarray) -> np.ndarray:
    norm = np.sqrt(inner.diagonal())
    return inner / np.outer(norm, norm)


_SIMILARITIES: dict[str, Callable[[list[torch.Tensor]], np.ndarray]] = {
    "cosine": _cosine,
    "gram": _gram,
    "subspace": _subspace,
}


def wrp(
    model: Any,
    calibration: Any = None,
    *,
    remove: int,
    protect: Sequence[int] = (0,),
    contiguous: bool = False,
    generator: np.random.Generator | None = None,
    similarity: Similarity = "gram",
    clusters: int | None = None,
) -> LayerScores:
    """Return a cut by Weight-Redundancy Pruning: no data and no forward pass.

    DERIVED from the abstract of the paper, which gives the ingredients and no formula: similarity of the output
    projections of attention and MLP, weighted by their relative scale (see :func:`weight_similarity`), then grouping
    and selection on the all-pairs matrix, for which LoRP's rules are used. Published results may differ.
    """
    matrix = weight_similarity(model, similarity)
    if not np.isfinite(matrix).all():
        broken = int(np.flatnonzero(~np.isfinite(matrix.diagonal()))[0])
        raise ModelError(
            f"wrp: the weights of block {broken} are not finite or all zero", hint="check the weights of that block"
        )
    return by_groups("wrp", matrix, remove=remove, protect=protect, contiguous=contiguous, clusters=clusters)
