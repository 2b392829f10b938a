"""Attention of rows of different lengths, over a prefix that is kept once for all of them and over their own tokens.

The queries of all rows meet the prefix in one matrix product per head instead of one per row, so the prefix is read
from memory once a step, whatever the batch (the idea of Hydragen, 2402.05099). The scores of both parts go through one
softmax, in float32 whatever the model's precision: the result is that of plain attention up to rounding. It is
registered with transformers as an attention function, so no model's forward is copied.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from regrow.capabilities.attention_swap import UNKNOWN_OPTIONS, AttentionSwap, NotShareable
from regrow.capabilities.ragged_rows import RaggedRows, Stretch

NAME = "regrow_ragged_rows"

_rows: ContextVar[RaggedRows | None] = ContextVar("regrow_ragged", default=None)


class RaggedAttention(AttentionSwap):
    """Context in which ``model`` attends to ``rows`` and their prefixes. Raises NotShareable like its base."""

    def __init__(self, model: Any, rows: RaggedRows) -> None:
        super().__init__(model, NAME)
        self.rows = rows

    def __enter__(self) -> RaggedAttention:
        super().__enter__()
        self._token = _rows.set(self.rows)
        return self

    def __exit__(self, *exception: object) -> None:
        super().__exit__()
        if hasattr(self, "_token"):
            _rows.reset(self._token)
            del self._token


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Return the attention's output, 1 x tokens x heads x head width, and None for the weights.

    ``query`` is 1 x heads x tokens x head width, of the call that was announced to the rows; keys and values are taken
    from the rows, with fewer heads where several query heads share one. Raises NotShareable for options that change the
    scores.
    """
    rows = _rows.get()
    if rows is None or rows.updated is None or any(options.get(name) is not None for name in UNKNOWN_OPTIONS):
        raise NotShareable
    if query.shape[0] != 1 or query.shape[2] != len(rows.row_T):
        raise NotShareable
    rows.attended += 1
    layer = rows.updated
    _, query_heads, tokens, width = query.shape
    heads = key.shape[1]
    query = _wide(query)[0].transpose(0, 1) * (width**-0.5 if scaling is None else scaling)
    # Query heads that share a key head stand together, so that keys are never repeated.
    query = query.reshape(tokens, heads, query_heads // heads, width)
    result = query.new_empty(*query.shape[:3], value.shape[-1])
    for stretch in rows.stretches(query_heads, query.element_size()):
        prefix = stretch.prefix
        kept = (_wide(prefix.keys[layer.index]), _wide(prefix.values[layer.index])) if prefix.tokens else None
        _attend(query[stretch.tokens], layer.keys, layer.values, stretch, kept, result[stretch.tokens])
    return result.view(1, tokens, query_heads, -1).to(value.dtype), None


def _attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    stretch: Stretch,
    prefix: tuple[torch.Tensor, torch.Tensor] | None,
    result: torch.Tensor,
) -> None:
    count = prefix[0].shape[1] if prefix is not None else 0
    scores = query.new_empty(*query.shape[:3], count + stretch.hidden.shape[-1])
    if prefix is not None:
        scores[..., :count] = _of_one(query, prefix[0].transpose(1, 2))
    for part in stretch.parts:
        at, own = _within(part.tokens, stretch.tokens), slice(count, count + part.columns)
        seen = _wide(keys[part.rows, :, : part.columns]).transpose(2, 3)
        scores[at, :, :, own] = _product(query[at], seen)
    # The lowest number instead of minus infinity, which would turn a stray token that sees nothing into NaN.
    scores[..., count:].masked_fill_(stretch.hidden, torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1)
    for part in stretch.parts:
        at, own = _within(part.tokens, stretch.tokens), slice(count, count + part.columns)
        result[at] = _product(weights[at, :, :, own], _wide(values[part.rows, :, : part.columns]))
    if prefix is not None:
        result += _of_one(weights[..., :count], prefix[1])


def _product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Multiply tokens x heads x group x n with rows x heads x n x m: row by row, or all tokens with the only row."""
    return left @ right if right.shape[0] == left.shape[0] else _of_one(left, right[0])


def _of_one(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Multiply tokens x heads x group x n with the heads x n x m of one row, in one product per head."""
    tokens, heads, group, inner = left.shape
    found = left.transpose(0, 1).reshape(heads, tokens * group, inner) @ right
    return found.view(heads, tokens, group, -1).transpose(0, 1)


def _wide(states: torch.Tensor) -> torch.Tensor:
    return states.float() if states.element_size() < 4 else states


def _within(inner: slice, outer: slice) -> slice:
    return slice(inner.start - outer.start, inner.stop - outer.start)


def _mask(*args: Any, **options: Any) -> None:
    """Build no mask: which column a token sees follows from the rows."""


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, _mask)
