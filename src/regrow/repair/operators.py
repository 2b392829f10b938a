"""Affine maps of the residual stream in float64: composing them, shrinking their rank, turning them into bridges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from regrow.models.bridges import AffineBridge, check_rank


@dataclass(frozen=True)
class Affine:
    """h' = h ``matrix`` + ``offset`` for rows h; float64, (d, d) and (d) or None for no offset."""

    matrix: torch.Tensor
    offset: torch.Tensor | None = None

    @property
    def width(self) -> int:
        return int(self.matrix.shape[0])

    @property
    def change(self) -> torch.Tensor:
        """What the map adds to the stream, as a matrix: W in h' = h + h W + b."""
        return self.matrix - torch.eye(self.width, dtype=self.matrix.dtype)

    def then(self, following: Affine) -> Affine:
        """Return the exact merge of two consecutive maps, this one first.

        In SHIFT-LLM's notation I + W12 = (I + W1)(I + W2) and b12 = b1 (I + W2) + b2.
        """
        offset = following.offset
        if self.offset is not None:
            carried = self.offset @ following.matrix
            offset = carried if offset is None else carried + offset
        return Affine(self.matrix @ following.matrix, offset)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        moved = rows @ self.matrix
        return moved if self.offset is None else moved + self.offset


def identity(width: int) -> Affine:
    """Return the map that changes nothing."""
    return Affine(torch.eye(width, dtype=torch.float64))


def merge(maps: Sequence[Affine]) -> Affine:
    """Return the exact merge of consecutive maps, the first applied first."""
    total = maps[0]
    for following in maps[1:]:
        total = total.then(following)
    return total


def truncate(matrix: torch.Tensor, rank: int, gram: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the factors (d, r), (r, d) of the best rank-``rank`` stand-in for ``matrix``.

    Without ``gram`` best means the least Frobenius norm of the difference (truncated SVD). With ``gram`` (X'X of the
    inputs, positive definite) it means the least Frobenius norm of X times the difference: applied to a least-squares
    solution that is reduced-rank regression.
    """
    check_rank(int(matrix.shape[0]), rank)
    if gram is None:
        left, sizes, right = torch.linalg.svd(matrix, full_matrices=False)
        return left[:, :rank] * sizes[:rank], right[:rank]
    lower = torch.linalg.cholesky(gram)
    left, sizes, right = torch.linalg.svd(lower.T @ matrix, full_matrices=False)
    down = torch.linalg.solve_triangular(lower.T, left[:, :rank] * sizes[:rank], upper=True)
    return down, right[:rank]


def bridge_of(operator: Affine) -> AffineBridge:
    """Return the full-rank bridge that computes ``operator``, as a change added to the stream (float32)."""
    bridge = AffineBridge(operator.width, bias=operator.offset is not None)
    with torch.no_grad():
        bridge.weight.copy_(operator.change)
        if operator.offset is not None:
            bridge.bias.copy_(operator.offset)
    return bridge


def low_rank_bridge(
    down: torch.Tensor, up: torch.Tensor, offset: torch.Tensor | None, *, residual: bool = True
) -> AffineBridge:
    """Return the bridge h' = (h +) h ``down`` ``up`` + ``offset`` (float32)."""
    bridge = AffineBridge(int(down.shape[0]), rank=int(down.shape[1]), bias=offset is not None, residual=residual)
    with torch.no_grad():
        # Equal norms in both factors, so that a half-precision copy rounds neither away and training starts balanced.
        balance = (up.norm(dim=1) / down.norm(dim=0).clamp_min(1e-30)).clamp(1e-12, 1e12).sqrt()
        bridge.down.copy_(down * balance)
        bridge.up.copy_(up / balance[:, None])
        if offset is not None:
            bridge.bias.copy_(offset)
    return bridge
