"""Causal attention over a packed row: each sequence reads itself and the prefix that it shares with others.

Everything else in a decoder works token by token, so only attention has to know where sequences begin. It is offered to
transformers as one more attention implementation; no forward of a model is copied. The keys and values of a prefix are
computed once; the queries of all its branches meet them in one product, and each branch's own keys in a second one;
the softmax runs over both. Gradients through the shared keys and values are the sums over the branches, so loss and
gradients equal those of separate sequences up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AttentionInterface

from regrow.heal.packed_layout import GroupLayout, PackedLayout
from regrow.models.families import text_config_of

NAME = "regrow_packed"
_UNSUPPORTED = ("s_aux", "position_bias")

# A plain global, not a context variable: a recomputed forward may run in a thread of the autograd engine.
_layouts: list[PackedLayout] = []


@contextmanager
def packed_rows(model: Any, layout: PackedLayout) -> Iterator[None]:
    """Let ``model`` attend by ``layout`` while the context lasts; a backward pass that recomputes belongs inside."""
    config = text_config_of(model)
    before = config._attn_implementation
    config._attn_implementation = NAME
    _layouts.append(layout)
    try:
        yield
    finally:
        _layouts.pop()
        config._attn_implementation = before


def packed_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    scaling: float | None = None,
    softcap: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Return attention (1, tokens, heads, size) from query (1, heads, tokens, size) and key and value with as many
    heads or a divisor of them. Raises NotImplementedError for attention sinks and learned biases."""
    if any(options.get(name) is not None for name in _UNSUPPORTED):
        raise NotImplementedError("attention with sinks or learned biases is not packed")
    layout = _layouts[-1]
    # Scores in the products' own format, softmax in float32 inside: as eager attention does it.
    with torch.autocast(query.device.type, enabled=False):
        q = query[0].to(value.dtype) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
        k, v = key[0].to(value.dtype), value[0]
        parts = [part for group in layout.groups for part in _attend(layout, group, q, k, v, softcap)]
        return torch.cat(parts, dim=1).transpose(0, 1)[None].contiguous(), None


def _attend(
    layout: PackedLayout, group: GroupLayout, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, softcap: float | None
) -> list[torch.Tensor]:
    """Return the attention of a group's prefix and of its branches, each (heads, tokens, size)."""
    heads, _, size = q.shape
    kv_heads = k.shape[0]
    repeats = heads // kv_heads
    prefix = group.prefix
    n, own = group.branches.shape
    found: list[torch.Tensor] = []
    if prefix:
        span = slice(group.start, group.start + prefix)
        q_prefix = q[:, span].reshape(kv_heads, repeats * prefix, size)
        k_prefix, v_prefix = k[:, span], v[:, span]
        scores = _capped(q_prefix @ k_prefix.mT, softcap).view(kv_heads, repeats, prefix, prefix)
        weights = (scores + layout.causal_mask(prefix, q)).softmax(-1).view(kv_heads, repeats * prefix, prefix)
        found.append((weights @ v_prefix).view(heads, prefix, -1))
    q_own = q[:, group.branches].view(kv_heads, repeats, n, own, size).transpose(1, 2).reshape(kv_heads * n, -1, size)
    k_own = k[:, group.branches].view(kv_heads * n, own, size)
    v_own = v[:, group.branches].view(kv_heads * n, own, -1)
    scores = _capped(q_own @ k_own.mT, softcap).view(kv_heads * n, repeats, own, own)
    scores = scores + layout.causal_mask(own, q)
    if prefix:
        to_prefix = _capped(q_own.view(kv_heads, -1, size) @ k_prefix.mT, softcap)
        scores = torch.cat([to_prefix.view(kv_heads * n, repeats, own, prefix), scores], dim=-1)
    weights = scores.softmax(-1).view(kv_heads * n, repeats * own, prefix + own)
    out = weights[..., prefix:] @ v_own
    if prefix:
        read = weights[..., :prefix].reshape(kv_heads, n * repeats * own, prefix) @ v_prefix
        out = out + read.view(out.shape)
    out = out.view(kv_heads, n, repeats, own, -1).transpose(1, 2).reshape(heads, n * own, -1)
    found.append(out if group.kept is None else out[:, group.kept])
    return found


def _capped(scores: torch.Tensor, softcap: float | None) -> torch.Tensor:
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


AttentionInterface.register(NAME, packed_attention)
