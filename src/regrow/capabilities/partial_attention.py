"""Attention over a part of what a token sees, told so that parts can be joined.

Softmax attention over the union of two sets of keys is the mean of the attention over each, weighted by the sums of
their exponentials; those sums come with every result here, as logarithms ("online softmax", 1805.02867).
"""

from __future__ import annotations

import torch

_KERNEL = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
"""What PyTorch's scaled_dot_product_attention runs on a CPU; it alone tells the logarithms too."""

_SCORES_AT_ONCE = 64 << 20
"""Scores that are held at a time where PyTorch has no such kernel."""


Part = tuple[torch.Tensor, torch.Tensor]
"""The attention over a part of the keys, ... x width, and the logarithms of its sums of exponentials, ..."""


def attention_with_logsumexp(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, bias: torch.Tensor | None, scale: float
) -> Part:
    """Return the attention's output, rows x heads x queries x width, and the logarithms of its sums, rows x heads x
    queries.

    ``query`` is rows x heads x queries x width, ``keys`` and ``values`` rows x heads x columns x width, in float32 or
    float64; ``bias`` is added to the scores, rows or 1 x 1 x queries x columns: minus infinity hides a column, and each
    query must see one.
    """
    usual = query.device.type == "cpu" and query.dtype == torch.float32 and keys.shape[-1] == values.shape[-1]
    if usual and _KERNEL is not None:
        out, sums = _KERNEL(query, keys, values, 0.0, False, attn_mask=bias, scale=scale)
        return out, sums
    rows, heads, queries, _ = query.shape
    at_once = max(1, _SCORES_AT_ONCE // (rows * heads * keys.shape[2]))
    outs, logs = [], []
    for begin in range(0, queries, at_once):
        part = slice(begin, begin + at_once)
        scores = query[:, :, part] @ keys.transpose(2, 3) * scale
        if bias is not None:
            scores += bias[:, :, part]
        logs.append(scores.logsumexp(-1))
        outs.append(scores.sub_(logs[-1][..., None]).exp_() @ values)
    return torch.cat(outs, 2), torch.cat(logs, 2)


def joined(first: Part, second: Part) -> Part:
    """Return the attention over two parts together."""
    (out, sums), (other, other_sums) = first, second
    return other.lerp(out, (sums - other_sums).sigmoid()[..., None]), torch.logaddexp(sums, other_sums)
