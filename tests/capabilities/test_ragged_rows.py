"""Rows of different lengths: what they hold against a list, their attention against PyTorch's own over whole rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from regrow.capabilities import partial_attention, ragged_attention, ragged_rows
from regrow.capabilities.attention_swap import NotShareable
from regrow.capabilities.kv_rows import NO_PREFIX, Prefix
from regrow.capabilities.model_call import out_of_memory
from regrow.capabilities.ragged_attention import RaggedAttention, attend
from regrow.capabilities.ragged_rows import RaggedRows
from tests.conftest import tiny_model

HEADS, GROUP, WIDTH = 2, 3, 8
CPU = torch.device("cpu")


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


class Twin:
    """Keeps each row's keys and values as one whole tensor, and computes each row's attention alone."""

    def __init__(self, rows: RaggedRows, seed: int) -> None:
        self.rows = rows
        self.generator = torch.Generator().manual_seed(seed)
        self.live: list[tuple[Prefix, torch.Tensor, torch.Tensor]] = []

    def call(self, first: int, new: list[int], kept: list[int], scaling: float | None = None) -> None:
        """Run the announced call of rows ``first`` and on, compare, and keep so many tokens of each."""
        tokens = sum(new)
        query = torch.randn(1, HEADS * GROUP, tokens, WIDTH, generator=self.generator)
        key, value = (torch.randn(1, HEADS, tokens, WIDTH, generator=self.generator) for _ in range(2))
        self.rows.layers[0].update(key, value)
        with RaggedAttention(Holder(), self.rows):
            got, weights = attend(nn.Identity(), query, key, value, None, scaling=scaling)
        assert weights is None and got.shape == (1, tokens, HEADS * GROUP, WIDTH)
        for at, (places, count, stays) in enumerate(zip(self.rows.places, new, kept, strict=True), start=first):
            prefix, keys, values = self.live[at]
            held = keys.shape[1]
            assert len(places) == count
            assert self.rows.position_T[places].tolist() == list(
                range(prefix.tokens + held, prefix.tokens + held + count)
            )
            whole_key = torch.cat([*([prefix.keys[0]] if prefix.tokens else []), keys, key[0][:, places]], 1)
            whole_value = torch.cat([*([prefix.values[0]] if prefix.tokens else []), values, value[0][:, places]], 1)
            visible = torch.ones(count, whole_key.shape[1], dtype=torch.bool).tril(whole_key.shape[1] - count)
            expected = scaled_dot_product_attention(
                query[0][:, places],
                whole_key.repeat_interleave(GROUP, 0),
                whole_value.repeat_interleave(GROUP, 0),
                visible,
                scale=scaling,
            )
            assert torch.allclose(got[0, places], expected.transpose(0, 1), atol=1e-5)
            self.live[at] = (
                prefix,
                torch.cat([keys, key[0][:, places[:stays]]], 1),
                torch.cat([values, value[0][:, places[:stays]]], 1),
            )
        self.rows.keep(kept)

    def open(self, prefix: Prefix, lengths: list[int], *, copied: bool = False) -> None:
        self.rows.open(prefix, lengths, copied=copied)
        first = len(self.live)
        nothing = torch.zeros(HEADS, 0, WIDTH)
        row = (prefix, nothing, nothing)
        if copied and prefix.tokens:
            row = (NO_PREFIX, prefix.keys[0], prefix.values[0])
        self.live += [row for _ in lengths]
        self.call(first, lengths, lengths)

    def grow(self, new: list[int], kept: list[int], scaling: float | None = None) -> None:
        self.rows.grow(new)
        self.call(0, new, kept, scaling)

    def drop(self, at: int) -> None:
        for to, origin in self.rows.drop(at):
            self.live[to] = self.live[origin]
        self.live.pop()
        assert [each.tokens for each in self.rows.prefixes] == [prefix.tokens for prefix, _, _ in self.live]
        assert self.rows.lengths == [keys.shape[1] for _, keys, _ in self.live]


@pytest.mark.parametrize("most_entries", [1, 60, 1 << 30])
@pytest.mark.parametrize(
    ("call_columns", "kernel", "compiled"),
    [
        (-1000, True, False),
        (20, True, False),
        (10_000, True, False),
        (20, False, False),
        (10_000, False, False),
        (20, True, True),
    ],
)
@pytest.mark.parametrize("seed", range(2))
def test_rows_attend_as_if_each_were_alone(
    most_entries: int, call_columns: int, kernel: bool, compiled: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(ragged_attention, "step_attention", lambda: None)
    monkeypatch.setitem(ragged_rows._CALL_COLUMNS, "cpu", call_columns)
    monkeypatch.setattr(ragged_rows, "_MASK_ENTRIES", most_entries)
    if not kernel:
        monkeypatch.setattr(partial_attention, "_KERNEL", None)
        monkeypatch.setattr(partial_attention, "_SCORES_AT_ONCE", most_entries)
    draw = np.random.default_rng(seed)
    twin = Twin(RaggedRows(1, 7, 40, device=CPU), seed)
    opened = drafted = 0
    for prefix in [prefix_of(7, twin.generator), NO_PREFIX, prefix_of(3, twin.generator)]:
        for _ in range(8):
            free = 7 - len(twin.live)
            if free and draw.random() < 0.6:
                lengths = draw.integers(1, 12, size=int(draw.integers(1, free + 1))).tolist()
                twin.open(prefix, lengths, copied=draw.random() < 0.5)
                opened += 1
            if twin.live:
                new = [int(draw.choice([1, 1, 1, 2, 5])) for _ in twin.live]
                twin.grow(
                    new, [int(draw.integers(1, count + 1)) for count in new], 0.3 if draw.random() < 0.3 else None
                )
                drafted += max(new) > 1
            while twin.live and (draw.random() < 0.3 or max(twin.rows.lengths) > 30):
                twin.drop(int(draw.integers(len(twin.live))))
    assert opened > 5 and drafted > 5


def test_masks_of_a_long_prompt_stay_small() -> None:
    rows = RaggedRows(1, 1, 40_000, device=CPU)
    rows.open(NO_PREFIX, [40_000])
    groups = rows.groups(7)
    assert groups[-1].end == 40_000 and sum(group.end - group.begin for group in groups) == 40_000
    held = {group.bias.data_ptr(): group.bias.numel() for group in groups}
    assert sum(held.values()) <= 2 * ragged_rows._MASK_ENTRIES


@pytest.mark.parametrize("kernel", [True, False])
def test_float64_stays_float64(kernel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not kernel:
        monkeypatch.setattr(partial_attention, "_KERNEL", None)
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 3, 5, 8, generator=generator, dtype=torch.float64) for _ in range(3))
    bias = torch.zeros(2, 1, 5, 5).masked_fill_(torch.ones(5, 5, dtype=torch.bool).triu(1), -torch.inf)
    whole = scaled_dot_product_attention(query, key, value, bias.double(), scale=0.4)
    parts = [
        partial_attention.attention_with_logsumexp(query, key[:, :, at], value[:, :, at], bias[..., at], 0.4)
        for at in (slice(0, 1), slice(0, 5))
    ]
    twice = partial_attention.joined(parts[1], parts[1])
    assert torch.allclose(parts[1][0], whole, atol=1e-12) and torch.allclose(twice[0], whole, atol=1e-12)
    assert torch.allclose(twice[1], parts[1][1] + np.log(2), atol=1e-12)
    assert torch.allclose(parts[0][0], value[:, :, :1].expand_as(whole), atol=1e-12)


def test_dropping_a_row_moves_one_row_of_each_later_prefix() -> None:
    twin = Twin(RaggedRows(1, 9, 20, device=CPU), 0)
    first, second, third = (prefix_of(count, twin.generator) for count in (1, 2, 3))
    for prefix in (first, second, third):
        twin.open(prefix, [5, 5, 5])
    assert twin.rows.drop(1) == [(1, 2), (2, 5), (5, 8)]
    assert twin.rows.prefixes == [first] * 2 + [second] * 3 + [third] * 3
    assert twin.rows.drop(7) == []
    assert twin.rows.drop(4) == [(4, 6)]


def test_what_a_row_left_behind_does_not_reach_the_next() -> None:
    twin = Twin(RaggedRows(1, 3, 20, device=CPU), 0)
    twin.open(NO_PREFIX, [12, 3])
    layer = twin.rows.layers[0]
    twin.rows.grow([5, 1])
    states = torch.full((1, HEADS, 6, WIDTH), float("nan"))
    layer.write(*layer.update(states, states))
    twin.rows.keep([2, 1])
    assert twin.rows.drop(0) == [(0, 1)]
    twin.live = []
    assert twin.rows.drop(0) == []
    assert layer.keys.isnan().any()
    twin.open(NO_PREFIX, [2, 9, 4])
    twin.grow([1, 1, 1], [1, 1, 1])
    assert layer.keys.isfinite().all() and layer.values.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_rounds_its_output_only(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    wide = prefix_of(40, generator)
    prefix = Prefix(40, (wide.keys[0].to(dtype),), (wide.values[0].to(dtype),))
    rows = RaggedRows(1, 1, 30, device=CPU)
    rows.open(prefix, [30])
    query = 3 * torch.randn(1, HEADS * GROUP, 30, WIDTH, generator=generator)
    key, value = (torch.randn(1, HEADS, 30, WIDTH, generator=generator).to(dtype) for _ in range(2))
    rows.layers[0].update(key, value)
    with RaggedAttention(Holder(), rows):
        got, _ = attend(nn.Identity(), query.to(dtype), key, value, None)
    whole_key, whole_value = (
        torch.cat([kept[0][None], own], 2).double().repeat_interleave(GROUP, 1)
        for kept, own in ((prefix.keys, key), (prefix.values, value))
    )
    visible = torch.ones(30, 70, dtype=torch.bool).tril(40)
    exact = scaled_dot_product_attention(query.to(dtype).double(), whole_key, whole_value, visible).transpose(1, 2)
    assert got.dtype == dtype
    # The nearest number of the precision is half a unit away at most.
    assert ((got.double() - exact).abs() <= 1.01 * torch.finfo(dtype).eps / 2 * exact.abs() + 1e-6).all()


def test_rows_longer_than_the_storage_are_a_bug_that_shows() -> None:
    rows = RaggedRows(1, 3, 10, device=CPU)
    with pytest.raises(ValueError, match="do not fit"):
        rows.open(NO_PREFIX, [11])
    twin = Twin(rows, 0)
    twin.open(NO_PREFIX, [8])
    with pytest.raises(ValueError, match="more than 10"):
        rows.grow([3])
    with pytest.raises(ValueError, match="11 tokens do not fit"):
        rows.open(prefix_of(4, twin.generator), [7], copied=True)


def test_too_little_memory_for_the_storage_is_pytorchs_error() -> None:
    """By it a batch is halved (generation.py)."""
    states = torch.zeros(1, HEADS, 1, WIDTH)
    with pytest.raises(RuntimeError) as caught:
        RaggedRows(1, 1 << 20, 1 << 26, device=CPU).layers[0].lazy_initialization(states, states)
    assert out_of_memory(caught.value)


@pytest.mark.parametrize("options", [{"softcap": 30.0}, {"s_aux": torch.zeros(1)}, {"position_bias": torch.zeros(1)}])
def test_other_kinds_of_attention_are_refused(options: dict[str, Any]) -> None:
    rows = RaggedRows(1, 1, 4, device=CPU)
    rows.open(NO_PREFIX, [1])
    states = torch.randn(1, HEADS, 1, WIDTH)
    rows.layers[0].update(states, states)
    with RaggedAttention(Holder(), rows), pytest.raises(NotShareable):
        attend(nn.Identity(), states, states, states, None, **options)


def test_a_call_that_was_not_announced_is_refused() -> None:
    rows = RaggedRows(1, 1, 4, device=CPU)
    rows.open(NO_PREFIX, [2])
    states = torch.randn(1, HEADS, 2, WIDTH)
    rows.layers[0].update(states, states)
    with RaggedAttention(Holder(), rows), pytest.raises(NotShareable):
        attend(nn.Identity(), states[:, :, :1], states, states, None)


def test_outside_its_context_it_refuses() -> None:
    states = torch.randn(1, HEADS, 1, WIDTH)
    with pytest.raises(NotShareable):
        attend(nn.Identity(), states, states, states, None)


def test_a_model_that_keeps_its_own_attention_is_refused_and_unchanged() -> None:
    class Stubborn(Holder):
        def set_attn_implementation(self, name: str) -> None:
            pass

    with pytest.raises(NotShareable), RaggedAttention(Stubborn(), RaggedRows(1, 1, 4, device=CPU)):
        pass
    assert ragged_attention._rows.get() is None


def test_the_models_own_attention_comes_back() -> None:
    model = tiny_model("llama")
    before = model.config._attn_implementation
    with RaggedAttention(model, RaggedRows(6, 1, 4, device=CPU)) as attention:
        assert model.config._attn_implementation == ragged_attention.NAME
        with attention.suspended():
            assert model.config._attn_implementation == before
        assert model.config._attn_implementation == ragged_attention.NAME
    assert model.config._attn_implementation == before
