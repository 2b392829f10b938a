"""Attention over a prefix that is kept once for all rows, and over each row's own tokens after it.

The queries of all rows meet the prefix in one matrix product per head instead of one per row, so the prefix is read
from memory once a step, whatever the batch (the idea of Hydragen, 2402.05099). The scores of both parts go through one
softmax: the result is that of plain attention up to rounding. It is registered with transformers as an attention
function, so no model's forward is copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from regrow.capabilities.kv_rows import KeyValueRows

NAME = "regrow_shared_prefix"

_BLOCK_BYTES = {"cpu": 3 << 19}
"""Bytes of scores computed at a time: on a CPU what stays in a core's second-level cache (best measured: 1-2 MiB)."""
_BLOCK_BYTES_ELSEWHERE = 256 << 20
_LEAST_QUERIES = 16
"""New tokens of a row that are handled at a time at least, however many keys they look at."""

UNKNOWN_OPTIONS = ("softcap", "s_aux", "position_bias", "head_mask")
"""Options of transformers' attention functions that change the scores, and that none of ours knows."""

_rows: ContextVar[KeyValueRows | None] = ContextVar("regrow_rows", default=None)


class NotShareable(Exception):
    """The model's attention is more than scaled dot products under a mask."""


class SharedAttention:
    """Context in which ``model`` attends through :func:`attend` to ``rows`` and their prefixes.

    Raises NotShareable when the model does not take its attention function from transformers' interface.
    """

    def __init__(self, model: Any, rows: KeyValueRows) -> None:
        self.model, self.rows = model, rows

    def __enter__(self) -> SharedAttention:
        self._before = self.model.config._attn_implementation
        self._token = _rows.set(self.rows)
        self._use(NAME)
        if self.model.config._attn_implementation != NAME:
            self.__exit__()
            raise NotShareable
        return self

    def __exit__(self, *exception: object) -> None:
        self._use(self._before)
        _rows.reset(self._token)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Let the model attend in its own way while the block runs."""
        self._use(self._before)
        try:
            yield
        finally:
            self._use(NAME)

    def _use(self, name: str) -> None:
        self.model.set_attn_implementation(name)


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
    """Return the attention's output, batch x tokens x heads x head width, and None for the weights.

    ``query`` is batch x heads x new tokens x head width; ``key`` and ``value`` hold the rows' own tokens, with fewer
    heads where several query heads share one; ``attention_mask`` (batch x 1 x new x own tokens, True = visible) does
    not cover the prefix, which every token sees. Raises NotShareable for options that change the scores.
    """
    rows = _rows.get()
    if rows is None or rows.updated is None or any(options.get(name) is not None for name in UNKNOWN_OPTIONS):
        raise NotShareable
    if attention_mask is None and query.shape[2] > 1:
        raise NotShareable
    rows.attended += 1
    layer = rows.updated.index
    hidden = None if attention_mask is None else ~attention_mask
    query = query * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    result = query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[-1])
    limit = _BLOCK_BYTES.get(query.device.type, _BLOCK_BYTES_ELSEWHERE)
    for segment in rows.segments:
        prefix = (segment.prefix.keys[layer], segment.prefix.values[layer]) if segment.prefix.tokens else None
        query_bytes = query.shape[1] * (segment.prefix.tokens + key.shape[2]) * query.element_size()
        queries = min(query.shape[2], max(_LEAST_QUERIES, limit // query_bytes))
        at_once = max(1, limit // (query_bytes * queries))
        for begin in range(segment.rows.start, segment.rows.stop, at_once):
            rows_part = slice(begin, min(begin + at_once, segment.rows.stop))
            for first in range(0, query.shape[2], queries):
                new_part = slice(first, min(first + queries, query.shape[2]))
                # Keys of later tokens are hidden anyway.
                seen = slice(0, key.shape[2] - query.shape[2] + new_part.stop)
                result[rows_part, new_part] = _attend(
                    query[rows_part, :, new_part],
                    key[rows_part, :, seen],
                    value[rows_part, :, seen],
                    None if hidden is None else hidden[rows_part, :, new_part, seen],
                    prefix,
                )
    return result, None


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    hidden: torch.Tensor | None,
    prefix: tuple[torch.Tensor, torch.Tensor] | None,
) -> torch.Tensor:
    batch, _, new, width = query.shape
    heads, own = key.shape[1], key.shape[2]
    count = prefix[0].shape[1] if prefix is not None else 0
    # Query heads that share a key head are stacked, so that keys are never repeated.
    query = query.reshape(batch, heads, -1, width)
    stack = query.shape[2]
    scores = query.new_empty(batch, heads, stack, count + own)
    if prefix is not None:
        asked = query.transpose(0, 1).reshape(heads, -1, width) @ prefix[0].transpose(1, 2)
        scores[..., :count] = asked.view(heads, batch, stack, count).transpose(0, 1)
    scores[..., count:] = query @ key.transpose(2, 3)
    if hidden is not None:
        # The lowest number instead of minus infinity: a padded query sees nothing, and must not become NaN.
        by_token = scores.view(batch, heads, -1, new, count + own)[..., count:]
        by_token.masked_fill_(hidden[:, :, None], torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1, dtype=torch.float32).to(query.dtype)
    summed = weights[..., count:] @ value
    if prefix is not None:
        spread = weights[..., :count].transpose(0, 1).reshape(heads, -1, count) @ prefix[1]
        summed += spread.view(heads, batch, stack, -1).transpose(0, 1)
    return summed.reshape(batch, -1, new, summed.shape[-1]).transpose(1, 2)


def _mask(*args: Any, **options: Any) -> torch.Tensor | None:
    # Left out only for single tokens: for more, transformers would rely on a kernel that knows "causal".
    options["allow_is_causal_skip"] = options.get("allow_is_causal_skip", True) and options.get("q_length") == 1
    return sdpa_mask(*args, **options)


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, _mask)
