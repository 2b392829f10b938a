"""Right answers from models with a single key head (Gemma 3 270M and 1B, MQA) on CUDA.

transformers repeats one key head for all query heads as a view with stride 0. PyTorch's memory-efficient attention
reads such a view wrongly under a mask: seen with torch 2.11 on an H200, 65 keys, where the last query's result was off
by more than 1 and every other kernel agreed with the CPU. A real copy of the head is read rightly. The guard stands in
front of transformers' own function for "sdpa" and changes nothing else.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Return what transformers' scaled dot product attention returns, from copies where the one key head is shared."""
    if key.shape[1] == 1 and query.shape[1] > 1 and attention_mask is not None and _affected(key):
        heads = query.shape[1]
        key, value = (each.expand(-1, heads, -1, -1).contiguous() for each in (key, value))
        module = SimpleNamespace(is_causal=getattr(module, "is_causal", True), num_key_value_groups=1)
    return sdpa_attention_forward(module, query, key, value, attention_mask, **options)


def guard_single_key_heads() -> None:
    """Put :func:`attend` in front of transformers' "sdpa" for all models of this process."""
    AttentionInterface.register("sdpa", attend)


def _affected(key: torch.Tensor) -> bool:
    return key.device.type == "cuda"
