"""Attention of rows of different lengths, over a prefix that is kept once for all of them and over their own tokens.

The queries of all rows meet the prefix together instead of row by row, so the prefix is read from memory once a step,
whatever the batch (the idea of Hydragen, 2402.05099). Both parts are joined by their sums of exponentials, in float32
whatever the model's precision: the result is that of plain attention up to rounding. It is registered with
transformers as an attention function, so no model's forward is copied.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from regrow.capabilities.attention_swap import UNKNOWN_OPTIONS, AttentionSwap, NotShareable
from regrow.capabilities.kv_rows import Prefix
from regrow.capabilities.partial_attention import Part, attention_with_logsumexp, joined
from regrow.capabilities.ragged_rows import Group, RaggedLayer, RaggedRows
from regrow.capabilities.step_attention import FEW, step_attention, suits

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
    shared = query_heads // heads
    scale = width**-0.5 if scaling is None else scaling
    # Query heads that share a key head stand together, as further queries of it, so that keys are never repeated.
    query = _wide(query)[0].transpose(0, 1).view(tokens, heads, shared, width)
    compiled = step_attention() if rows.most_new <= FEW and suits(query, layer.keys, layer.values) else None
    if compiled is None:
        layer.write(key, value)
        found = _in_groups(query, rows, layer, scale)
    else:
        new = key[0].transpose(0, 1), value[0].transpose(0, 1)
        found = compiled(query, layer.keys, layer.values, rows.row_T, rows.seen_T, scale, new)
    outs: list[torch.Tensor] = []
    for prefix, place in rows.prefixed():
        part = found[0][place], found[1][place]
        if prefix.tokens:
            part = joined(part, _of_prefix(query[place], prefix, layer.index, scale))
        outs.append(part[0])
    result = outs[0] if len(outs) == 1 else torch.cat(outs)
    return result.reshape(1, tokens, query_heads, -1).to(value.dtype), None


def _in_groups(query: torch.Tensor, rows: RaggedRows, layer: RaggedLayer, scale: float) -> Part:
    """Return the attention of all tokens to what their rows hold, by PyTorch's kernel, rows that are alike together."""
    own = [_of_group(query[group.tokens], layer, group, scale) for group in rows.groups(query.shape[2])]
    return own[0] if len(own) == 1 else (torch.cat([each[0] for each in own]), torch.cat([each[1] for each in own]))


def _of_group(query: torch.Tensor, layer: RaggedLayer, group: Group, scale: float) -> Part:
    """Return the attention of a group's tokens to their rows, tokens x heads x sharing heads x width."""
    rows, queries = group.rows.stop - group.rows.start, group.queries
    _, heads, shared, width = query.shape
    padded = query if group.padded is None else query[group.padded.flatten()]
    asked = padded.view(rows, queries, heads, shared, width).transpose(1, 2).reshape(rows, heads, -1, width)
    found: Part | None = None
    for columns, bias in ((slice(0, group.begin), None), (slice(group.begin, group.end), group.bias)):
        if columns.stop > columns.start:
            keys, values = (_wide(each[group.rows, :, columns]) for each in (layer.keys, layer.values))
            part = attention_with_logsumexp(asked, keys, values, bias, scale)
            found = part if found is None else joined(found, part)
    assert found is not None
    out = found[0].view(rows, heads, queries, shared, -1).transpose(1, 2).reshape(rows * queries, heads, shared, -1)
    sums = found[1].view(rows, heads, queries, shared).transpose(1, 2).reshape(rows * queries, heads, shared)
    return (out, sums) if group.real is None else (out[group.real], sums[group.real])


def _of_prefix(query: torch.Tensor, prefix: Prefix, layer: int, scale: float) -> Part:
    """Return the same for the prefix of some tokens, which are all queries of its keys."""
    tokens, heads, shared, width = query.shape
    out, sums = attention_with_logsumexp(
        query.transpose(0, 1).reshape(1, heads, tokens * shared, width),
        _wide(prefix.keys[layer])[None],
        _wide(prefix.values[layer])[None],
        None,
        scale,
    )
    out, sums = out[0].view(heads, tokens, shared, -1), sums[0].view(heads, tokens, shared)
    return out.transpose(0, 1), sums.transpose(0, 1)


def _wide(states: torch.Tensor) -> torch.Tensor:
    return states.float() if states.element_size() < 4 else states


def _mask(*args: Any, **options: Any) -> None:
    """Build no mask: which column a token sees follows from the rows."""


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, _mask)
