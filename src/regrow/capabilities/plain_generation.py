"""Greedy answers by transformers' own ``generate``: for models whose state regrow cannot reuse, and to compare with."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from transformers import GenerationConfig


def generate_plainly(
    model: Any, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, end_ids: Collection[int], pad_id: int = 0
) -> list[list[int]]:
    """Return the new token ids of each prompt, up to and with the end token, by one call of ``model.generate``.

    Shorter prompts are padded on the left. Decoding is greedy under a generation config of its own: penalties and
    sampling options of the checkpoint are not applied.
    """
    width = max(len(prompt) for prompt in prompts)
    device = next(model.parameters()).device
    ids = torch.tensor([[pad_id] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=device)
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=device)
    config = GenerationConfig(
        max_new_tokens=max_new_tokens,
        do_sample=False,
        num_beams=1,
        eos_token_id=sorted(end_ids) or None,
        pad_token_id=pad_id,
        use_cache=True,
    )
    before = model.generation_config
    # transformers fills what a given config leaves open from the model's own one (repetition penalty, ...).
    model.generation_config = GenerationConfig()
    try:
        with torch.no_grad():
            written = model.generate(input_ids=ids, attention_mask=mask, generation_config=config)[:, width:].tolist()
    finally:
        model.generation_config = before
    return [until_end(row, end_ids) for row in written]


def until_end(ids: Sequence[int], end_ids: Collection[int]) -> list[int]:
    """Return ``ids`` up to and with the first end token."""
    at = next((index for index, token in enumerate(ids) if token in end_ids), len(ids) - 1)
    return list(ids[: at + 1])
