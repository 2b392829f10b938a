"""All repairs by name. ``portable``: whether the result loads in any program; ``trains``: whether it takes gradient
steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regrow.registry import Registry

if TYPE_CHECKING:
    from regrow.repair.method import RepairMethod

REPAIRS: Registry[RepairMethod] = Registry("repair", entry_point_group="regrow.repairs")

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
