"""Attention over a shared prefix against PyTorch's own over the whole of each row."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from regrow.capabilities import shared_prefix
from regrow.capabilities.kv_rows import NO_PREFIX, KeyValueRows, Prefix
from regrow.capabilities.shared_prefix import NotShareable, SharedAttention, attend
from tests.conftest import tiny_model

HEADS, GROUP, WIDTH = 2, 3, 8


class Holder(nn.Module):
    """Stands where a model stands: has an attention function that can be set."""

    def __init__(self) -> None:
        super().__init__()
        self.config = type("Config", (), {"_attn_implementation": "sdpa"})()

    def set_attn_implementation(self, name: str) -> None:
        self.config._attn_implementation = name


def prefix_of(tokens: int, generator: torch.Generator) -> Prefix:
    shape = (HEADS, tokens, WIDTH)
    return Prefix(tokens, (torch.randn(shape, generator=generator),), (torch.randn(shape, generator=generator),))


@pytest.mark.parametrize("new", [1, 5])
@pytest.mark.parametrize("block_bytes", [1, 3000, 1 << 30])
@pytest.mark.parametrize("scaling", [None, 0.3])
def test_equals_attention_over_whole_rows(
    new: int, block_bytes: int, scaling: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(shared_prefix._BLOCK_BYTES, "cpu", block_bytes)
    monkeypatch.setattr(shared_prefix, "_LEAST_QUERIES", 2 if block_bytes == 1 else 16)
    generator = torch.Generator().manual_seed(0)
    prefixes = [prefix_of(7, generator), NO_PREFIX, prefix_of(3, generator)]
    owners = [prefixes[0]] * 3 + [prefixes[1]] * 2 + [prefixes[2]]
    own = 6
    rows = KeyValueRows(1, 6, own, shared=True, device=torch.device("cpu"))
    rows.prefixes, rows.starts = owners, [0, 1, 2, 0, 3, 0]
    rows._show(slice(0, 6))
    rows.updated = rows.layers[0]
    query = torch.randn(6, HEADS * GROUP, new, WIDTH, generator=generator)
    key, value = (torch.randn(6, HEADS, own, WIDTH, generator=generator) for _ in range(2))
    mask = torch.ones(6, 1, new, own, dtype=torch.bool).tril(own - new)
    for row, start in enumerate(rows.starts):
        mask[row, ..., :start] = False
    with SharedAttention(Holder(), rows):
        got, weights = attend(nn.Identity(), query, key, value, mask, scaling=scaling)
    assert weights is None and rows.attended == 1
    for row, prefix in enumerate(owners):
        parts = [(prefix.keys[0], prefix.values[0])] if prefix.tokens else []
        whole_key = torch.cat([part[0] for part in parts] + [key[row]], 1).repeat_interleave(GROUP, 0)
        whole_value = torch.cat([part[1] for part in parts] + [value[row]], 1).repeat_interleave(GROUP, 0)
        whole_mask = torch.cat([torch.ones(1, new, prefix.tokens, dtype=torch.bool), mask[row]], -1)
        expected = scaled_dot_product_attention(query[row], whole_key, whole_value, whole_mask, scale=scaling)
        # A padded query before its row begins sees nothing; what it gets does not matter (next test).
        seeing = whole_mask[0].any(-1)
        assert seeing.any()
        assert torch.allclose(got[row][seeing], expected.transpose(0, 1)[seeing], atol=1e-5)


def test_a_row_that_sees_nothing_is_finite() -> None:
    rows = KeyValueRows(1, 1, 4, shared=True, device=torch.device("cpu"))
    rows.prefixes, rows.starts = [NO_PREFIX], [4]
    rows._show(slice(0, 1))
    rows.updated = rows.layers[0]
    states = torch.randn(1, HEADS, 4, WIDTH)
    with SharedAttention(Holder(), rows):
        got, _ = attend(nn.Identity(), states, states, states, torch.zeros(1, 1, 4, 4, dtype=torch.bool))
    assert torch.isfinite(got).all()


@pytest.mark.parametrize("options", [{"softcap": 30.0}, {"s_aux": torch.zeros(1)}, {"position_bias": torch.zeros(1)}])
def test_other_kinds_of_attention_are_refused(options: dict[str, Any]) -> None:
    rows = KeyValueRows(1, 1, 4, shared=True, device=torch.device("cpu"))
    rows.updated = rows.layers[0]
    states = torch.randn(1, HEADS, 1, WIDTH)
    with SharedAttention(Holder(), rows), pytest.raises(NotShareable):
        attend(nn.Identity(), states, states, states, None, **options)


def test_outside_its_context_it_refuses() -> None:
    states = torch.randn(1, HEADS, 1, WIDTH)
    with pytest.raises(NotShareable):
        attend(nn.Identity(), states, states, states, None)


def test_a_model_that_keeps_its_own_attention_is_refused_and_unchanged() -> None:
    class Stubborn(Holder):
        def set_attn_implementation(self, name: str) -> None:
            pass

    rows = KeyValueRows(1, 1, 4, shared=True, device=torch.device("cpu"))
    with pytest.raises(NotShareable), SharedAttention(Stubborn(), rows):
        pass
    assert shared_prefix._rows.get() is None


def test_the_models_own_attention_comes_back() -> None:
    model = tiny_model("llama")
    rows = KeyValueRows(6, 1, 4, shared=True, device=torch.device("cpu"))
    before = model.config._attn_implementation
    with SharedAttention(model, rows) as attention:
        assert model.config._attn_implementation == shared_prefix.NAME
        with attention.suspended():
            assert model.config._attn_implementation == before
        assert model.config._attn_implementation == shared_prefix.NAME
    assert model.config._attn_implementation == before
