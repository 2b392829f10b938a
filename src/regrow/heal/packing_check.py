"""Whether a model computes the same on a packed row as on separate sequences, tried out before training on them."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch

from regrow.data.pools import Example
from regrow.heal.microbatch import MicroBatch, packed_microbatches, padded_microbatches
from regrow.heal.packed_attention import packed_rows
from regrow.heal.response_logits import response_logits
from regrow.models.families import text_config_of

TOLERANCE_NATS = {torch.float32: 1e-3}
COARSE_TOLERANCE_NATS = 0.1
TRIED = 3
LONGEST_PACKED_TOKENS = 1024
"""Packed attention keeps its scores for the backward pass, which grow with the square of the length."""


@torch.no_grad()
def why_not_packed(model: Any, examples: Sequence[Example], *, share_prefix: bool) -> str:
    """Return the empty string when rows can be packed, else the reason why not.

    A few short sequences of ``examples``, two with a common beginning where there are such, are run both ways; the
    log-probability of every response token must agree (within 0.001 nats in float32; on average within 0.1 in half
    precision, whose own rounding is of that size).
    """
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return "the model takes no position_ids"
    longest = max(entry.tokens for entry in examples)
    window = _window(model)
    if window is not None and window < longest:
        return f"attention reaches back {window} tokens, less than the longest sequence ({longest})"
    if longest > LONGEST_PACKED_TOKENS:
        return f"sequences of {longest} tokens would need much memory (packed up to {LONGEST_PACKED_TOKENS})"
    chosen = _sample(examples)
    device = next(model.parameters()).device
    try:
        packed = _scores(model, packed_microbatches(chosen, longest * TRIED, share_prefix=share_prefix), device)
    except Exception as error:
        # Any code of any architecture may run here, and the padded path is always there.
        return f"{type(model).__name__} does not run on packed rows ({type(error).__name__}: {str(error)[:120]})"
    apart = _scores(model, [batch for entry in chosen for batch in padded_microbatches([entry], entry.tokens)], device)
    gap = torch.cat([(packed[key] - apart[key]).abs() for key in apart])
    dtype = next(model.parameters()).dtype
    worst = float(gap.max()) if dtype in TOLERANCE_NATS else float(gap.mean())
    allowed = TOLERANCE_NATS.get(dtype, COARSE_TOLERANCE_NATS)
    if not worst <= allowed:
        return f"{type(model).__name__} gives other log-probabilities on packed rows (by {worst:.2g} nats)"
    return ""


def _sample(examples: Sequence[Example]) -> list[Example]:
    once = {(entry.pool, entry.example_id): entry for entry in examples}
    by_length = sorted(once.values(), key=lambda entry: entry.tokens)
    first = by_length[0]
    mates = [entry for entry in by_length[1:] if entry.pool == first.pool]
    others = [entry for entry in by_length[1:] if entry.pool != first.pool]
    return [first, *mates[: TRIED - 1 - bool(others)], *others[:1]]


def _scores(model: Any, batches: Sequence[MicroBatch], device: torch.device) -> dict[tuple[str, str], torch.Tensor]:
    """Return the log-probabilities of the response tokens of each example."""
    found: dict[tuple[str, str], torch.Tensor] = {}
    for given in batches:
        batch = given.to(device)
        if batch.layout is None:
            logits = response_logits(model, batch)
        else:
            with packed_rows(model, batch.layout):
                logits = response_logits(model, batch)
        scores = logits.float().log_softmax(-1).gather(-1, batch.labels[:, None])[:, 0]
        parts = scores.split([len(entry.response_ids) for entry in batch.examples])
        found.update({(entry.pool, entry.example_id): part for entry, part in zip(batch.examples, parts, strict=True)})
    return found


def _window(model: Any) -> int | None:
    config = text_config_of(model)
    sizes = [getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size", "window_size")]
    known = [size for size in sizes if isinstance(size, int) and size > 0]
    return min(known) if known else None
