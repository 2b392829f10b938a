"""The guard gives what transformers' attention gives; on CUDA, where the latter errs, see tests/accelerator."""

from __future__ import annotations

import pytest
import torch

import regrow.models.one_key_head as guard
from tests.conftest import tiny_model


@pytest.mark.parametrize("family", ["llama", "gemma3", "mistral"])
def test_copies_of_the_head_change_nothing(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(family)
    assert model.config._attn_implementation == "sdpa" and model.config.num_key_value_heads == 1
    ids = torch.randint(3, 90, (2, 65), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[0, :30] = 0
    plain = model(ids, attention_mask=mask).logits
    calls: list[int] = []

    def affected(key: torch.Tensor) -> bool:
        calls.append(key.shape[2])
        return True

    guard.guard_single_key_heads()
    monkeypatch.setattr(guard, "_affected", affected)
    copied = model(ids, attention_mask=mask).logits
    assert calls and torch.allclose(copied[mask.bool()], plain[mask.bool()], atol=1e-5)
