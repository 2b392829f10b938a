"""Calibration sets for tiny models, with and without padding."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from regrow.data.calibration import CalibrationSet, from_examples

VOCABULARY = 96
FAMILIES = ("llama", "qwen3", "gemma3", "olmo2", "smollm3", "gpt_neox", "gpt2")


def token_rows(lengths: list[int], seed: int = 0) -> list[list[int]]:
    """Return random token ids, none of them special."""
    generator = np.random.default_rng(seed)
    return [generator.integers(3, VOCABULARY, size=length).tolist() for length in lengths]


def own_words(model, rows: int, tokens: int) -> list[list[int]]:
    """Return what the model itself writes after random first tokens: likely to it, less so to a cut one."""
    ids = torch.tensor(token_rows([1] * rows))
    with torch.inference_mode():
        for _ in range(tokens - 1):
            ids = torch.cat([ids, model(ids, use_cache=False).logits[:, -1:].argmax(-1)], dim=1)
    return ids.tolist()


@pytest.fixture
def even() -> CalibrationSet:
    """Return five sequences of 24 tokens."""
    return from_examples("even", token_rows([24] * 5))


@pytest.fixture
def ragged() -> CalibrationSet:
    """Return sequences of unequal length, padded."""
    return from_examples("ragged", token_rows([24, 7, 15, 3, 20], seed=1))
