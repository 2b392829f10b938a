"""The linear layers of a model's blocks, found in the module tree of any architecture."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from torch import nn

from regrow.models.bridges import ENTRY, EXIT
from regrow.models.families import anatomy_of, text_config_of

_ROUTER = re.compile(r"(^|_)(router|gate)$")
_EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def block_linears(model: nn.Module, blocks: Sequence[int] | None = None) -> list[str]:
    """Return the dotted names, below ``model``, of all linear layers of the given blocks (default: every block).

    Attention and MLP projections under whatever name the architecture has for them, fused ones and GPT-2's Conv1D too.
    Left out: routers of mixtures of experts (their few outputs decide, they do not transform) and bridges.
    """
    anatomy = anatomy_of(model)
    experts = _expert_counts(model)
    found: list[str] = []
    for index, block in enumerate(anatomy.blocks):
        if blocks is not None and index not in blocks:
            continue
        for name, module in block.named_modules():
            of_bridge = name.partition(".")[0] in (ENTRY, EXIT)
            if of_bridge or not is_linear(module) or _is_router(name, module, experts):
                continue
            found.append(f"{anatomy.block_path}.{index}.{name}")
    return found


def is_linear(module: nn.Module) -> bool:
    """Return whether ``module`` is a plain linear layer: ``nn.Linear`` or GPT-2's ``Conv1D``."""
    from transformers.pytorch_utils import Conv1D

    return isinstance(module, nn.Linear | Conv1D)


def suffixes_of(model: nn.Module, names: Sequence[str]) -> list[str]:
    """Return the last parts of ``names`` when they select exactly these modules, else the full names.

    Short names keep an adapter's config readable and let it be put on a model of another depth.
    """
    short = sorted({name.rpartition(".")[2] for name in names})
    chosen = {name for name, _ in model.named_modules() if name.rpartition(".")[2] in short}
    return short if chosen == set(names) else list(names)


def _expert_counts(model: nn.Module) -> set[int]:
    config = text_config_of(model)
    return {count for name in _EXPERT_COUNTS if isinstance(count := getattr(config, name, None), int)}


def _is_router(name: str, module: Any, experts: set[int]) -> bool:
    outputs = getattr(module, "out_features", None) or getattr(module, "nf", 0)
    return bool(_ROUTER.search(name.rpartition(".")[2])) and (outputs in experts or outputs == 1)
