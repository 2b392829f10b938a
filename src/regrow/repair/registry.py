"""All repairs by name. ``portable``: whether the result loads in any program; ``trains``: whether it takes gradient
steps; ``needs``: what it asks of the cut or the model, nothing where it is absent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regrow.registry import Registry

if TYPE_CHECKING:
    from regrow.repair.method import RepairMethod

REPAIRS: Registry[RepairMethod] = Registry("repair", entry_point_group="regrow.repairs")

_FOLDING = "a block before the cut whose MLP is added to the stream without a norm"

REPAIRS.declare(
    "lra",
    "regrow.repair.affine:LRA",
    summary="affine map per removed block, least squares of what the block added; exactly merged per cut",
    paper="SHIFT-LLM",
    portable="no",
    trains="no",
)
REPAIRS.declare(
    "generic-affine",
    "regrow.repair.affine:GENERIC_AFFINE",
    summary="affine map with the ridge pulling to zero: the ablation of lra",
    paper="SHIFT-LLM",
    portable="no",
    trains="no",
)
REPAIRS.declare(
    "ghost",
    "regrow.repair.affine:GHOST",
    summary="linear map without offset over all positions, nearly unregularised",
    paper="Ghosted Layers",
    portable="no",
    trains="no",
)
REPAIRS.declare(
    "ridge-patch",
    "regrow.repair.affine:RIDGE_PATCH",
    summary="linear map per run, ridge towards the identity, lambda 1 % of the mean diagonal",
    paper="main paper",
    portable="no",
    trains="no",
)
REPAIRS.declare(
    "linear-patch",
    "regrow.repair.scaling:LINEAR_PATCH",
    summary="one factor per channel of the Hadamard-rotated stream",
    paper="2505.24680",
    portable="no",
    trains="no",
    needs="a stream width with a Hadamard matrix",
)
REPAIRS.declare(
    "linear-patch-diag",
    "regrow.repair.scaling:LINEAR_PATCH_DIAG",
    summary="one factor per channel of the stream",
    paper="2505.24680",
    portable="no",
    trains="no",
)
REPAIRS.declare(
    "linear-patch-distilled",
    "regrow.repair.scaling:LINEAR_PATCH_DISTILLED",
    summary="linear-patch, then its matrix alone trained on the unpruned model's top 50 tokens",
    paper="2505.24680",
    portable="no",
    trains="yes",
    needs="a stream width with a Hadamard matrix",
)
REPAIRS.declare(
    "replace-me",
    "regrow.repair.folded:REPLACE_ME",
    summary="linear map of the last kept MLP's output, absorbed by its down projection",
    paper="2505.02819",
    portable="yes",
    trains="no",
    needs=_FOLDING,
)
REPAIRS.declare(
    "replace-me-cosine",
    "regrow.repair.folded:REPLACE_ME_COSINE",
    summary="replace-me by cosine distance, a few Adam steps over sampled tokens",
    paper="2505.02819",
    portable="yes",
    trains="yes",
    needs=_FOLDING,
)
REPAIRS.declare(
    "fold",
    "regrow.repair.folded:FOLD",
    summary="least squares over all weights of the last kept down projection, ridge chosen on held-out tokens",
    paper="regrow",
    portable="yes",
    trains="no",
    needs=_FOLDING,
)
REPAIRS.declare(
    "streamline-block",
    "regrow.repair.block:STREAMLINE_BLOCK",
    summary="one block in place of each run, trained on the stream that left the run",
    paper="2403.19135",
    portable="yes",
    trains="yes",
    needs="a run of two removed blocks",
)
