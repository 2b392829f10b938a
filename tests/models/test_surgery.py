"""Surgery against identity, against a hand-built shorter model, and through a save and a reload, for every family."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.errors import ModelError
from regrow.models.families import anatomy_of, blocks_of, final_norm_of, head_of
from regrow.models.load import LoadedModel, load_model
from regrow.models.save import save_checkpoint
from regrow.records.checkpoint import CheckpointFacts
from regrow.surgery import check_blocks, cut_config, remove_blocks
from tests.conftest import TINY_FAMILIES, tiny_model, tiny_tokenizer

PROBE = torch.arange(3, 23)[None]


def logits(model: Any, ids: torch.Tensor = PROBE) -> torch.Tensor:
    with torch.inference_mode():
        return model(ids).logits


def skipping(model: Any, gone: set[int]) -> torch.Tensor:
    """Run the unchanged model with hooks that undo the given blocks: an independent way to leave blocks out."""
    hooks = []
    for index, block in enumerate(blocks_of(model)):
        if index in gone:

            def undo(_: Any, args: Any, kwargs: Any, output: Any) -> Any:
                state = args[0] if args else kwargs["hidden_states"]
                return (state, *output[1:]) if isinstance(output, tuple) else state

            hooks.append(block.register_forward_hook(undo, with_kwargs=True))
    try:
        return logits(model)
    finally:
        for hook in hooks:
            hook.remove()


@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_removing_nothing_changes_no_bit(family: str) -> None:
    model = tiny_model(family)
    before, config = logits(model), copy.deepcopy(model.config.to_dict())
    remove_blocks(model, [])
    assert torch.equal(logits(model), before)
    assert model.config.to_dict() == config


@pytest.mark.parametrize("family", TINY_FAMILIES)
@pytest.mark.parametrize("gone", [(1,), (2, 3), (0, 4), (5,)])
def test_pruned_model_equals_the_unpruned_one_with_blocks_skipped(family: str, gone: tuple[int, ...]) -> None:
    model = tiny_model(family)
    expected = skipping(model, set(gone))
    remove_blocks(model, gone)
    assert len(blocks_of(model)) == 6 - len(gone)
    assert torch.equal(logits(model), expected)


@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_saved_and_reloaded_model_computes_the_same(family: str, tmp_path: Path) -> None:
    model = tiny_model(family)
    remove_blocks(model, [1, 4])
    loaded = LoadedModel(model, tiny_tokenizer(), "tiny")
    save_checkpoint(loaded, tmp_path / "out", CheckpointFacts(source="tiny", unpruned_blocks=6, removed_blocks=(1, 4)))
    again = load_model(tmp_path / "out", dtype="float32", device="cpu")
    assert torch.equal(logits(again.model), logits(model))
    assert again.facts is not None and again.facts.removed_blocks == (1, 4)
    assert again.tokenizer.chat_template == loaded.tokenizer.chat_template
    assert not list(tmp_path.glob(".*partial*"))


@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_cached_generation_equals_generation_without_cache(family: str) -> None:
    model = tiny_model(family)
    remove_blocks(model, [2, 3])
    options = {"do_sample": False, "max_new_tokens": 12, "min_new_tokens": 12, "attention_mask": torch.ones_like(PROBE)}
    with torch.inference_mode():
        cached = model.generate(PROBE, use_cache=True, **options)
        plain = model.generate(PROBE, use_cache=False, **options)
    assert torch.equal(cached, plain)


@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_anatomy(family: str) -> None:
    model = tiny_model(family)
    anatomy = anatomy_of(model)
    assert model.get_submodule(anatomy.block_path) is anatomy.blocks
    seen: list[str] = []
    final_norm_of(model).register_forward_hook(lambda *_: seen.append("norm"))
    head_of(model).register_forward_hook(lambda *_: seen.append("head"))
    logits(model)
    assert seen == ["norm", "head"]


def test_a_tensor_of_a_removed_block_is_not_saved(tmp_path: Path) -> None:
    from safetensors import safe_open

    model = tiny_model("llama")
    remove_blocks(model, [0, 1])
    save_checkpoint(
        LoadedModel(model, tiny_tokenizer(), "t"), tmp_path / "o", CheckpointFacts(source="t", unpruned_blocks=6)
    )
    with safe_open(tmp_path / "o" / "model.safetensors", "pt") as weights:
        depths = {int(name.split(".")[2]) for name in weights.keys() if ".layers." in name}  # noqa: SIM118
    assert depths == {0, 1, 2, 3}


def test_bfloat16_values_are_stored_in_bfloat16(tmp_path: Path) -> None:
    model = tiny_model("llama")
    for weight in model.parameters():
        weight.data = weight.data.to(torch.bfloat16).float()
    loaded = LoadedModel(model, tiny_tokenizer(), "t")
    save_checkpoint(loaded, tmp_path / "o", CheckpointFacts(source="t", unpruned_blocks=6))
    kept = load_model(tmp_path / "o", dtype="bfloat16", device="cpu")
    assert (tmp_path / "o" / "model.safetensors").stat().st_size < 3 * sum(w.numel() for w in model.parameters())
    assert all(torch.equal(a, b.float()) for a, b in zip(model.parameters(), kept.model.parameters(), strict=True))
    assert loaded.dtype == torch.float32


def test_a_checkpoint_that_computes_something_else_is_refused(tmp_path: Path) -> None:
    model = tiny_model("smollm3")
    # A per-layer field out of step with the blocks: what a careless surgeon would leave behind.
    model.config.no_rope_layers = [1 - value for value in model.config.no_rope_layers]
    with pytest.raises(ModelError):
        save_checkpoint(
            LoadedModel(model, tiny_tokenizer(), "t"), tmp_path / "o", CheckpointFacts(source="t", unpruned_blocks=6)
        )
    assert not (tmp_path / "o").exists() and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("blocks", "said"),
    [
        ([6], "no block 6"),
        ([-1], "no block -1"),
        ([1, 1], "twice"),
        ([0, 1, 2, 3, 4, 5], "all 6"),
        ([True], "whole numbers"),
    ],
)
def test_nonsense_is_refused_and_nothing_changes(blocks: list[int], said: str) -> None:
    model = tiny_model("llama")
    before = logits(model)
    with pytest.raises(ModelError, match=said) as caught:
        remove_blocks(model, blocks)
    assert caught.value.hint
    assert torch.equal(logits(model), before)


def test_per_layer_fields_follow_the_blocks() -> None:
    model = tiny_model("smollm3")
    rope = list(model.config.no_rope_layers)
    remove_blocks(model, [0, 3])
    assert model.config.no_rope_layers == [rope[index] for index in (1, 2, 4, 5)]
    assert len(model.config.layer_types) == 4 == model.config.num_hidden_layers


def test_window_counts_follow_the_blocks() -> None:
    model = tiny_model("qwen2")
    assert model.config.max_window_layers == 2
    remove_blocks(model, [1])
    assert model.config.max_window_layers == 1


def test_index_lists_follow_the_blocks() -> None:
    model = tiny_model("qwen2_moe")
    remove_blocks(model, [0])
    assert model.config.mlp_only_layers == [0]


class _Config:
    def __init__(self, count: int) -> None:
        self.num_hidden_layers = count
        self.layer_types = [f"kind-{index}" for index in range(count)]
        self.max_window_layers = count // 2
        self.num_kv_shared_layers = count // 3
        self.mlp_only_layers = list(range(0, count, 2))
        self.eos_token_id = list(range(count))


@given(count=st.integers(2, 40), data=st.data())
@settings(max_examples=60, deadline=None)
def test_config_cut_in_two_steps_equals_one_step(count: int, data: st.DataObject) -> None:
    gone = data.draw(st.sets(st.integers(0, count - 1), max_size=count - 1))
    assert check_blocks(sorted(gone), count) == gone
    kept = [index for index in range(count) if index not in gone]
    once = _Config(count)
    cut_config(once, kept, count)
    split = data.draw(st.integers(0, len(gone)))
    first = set(sorted(gone)[:split])
    middle = [index for index in range(count) if index not in first]
    twice = _Config(count)
    cut_config(twice, middle, count)
    cut_config(twice, [middle.index(index) for index in kept], len(middle))
    assert vars(twice) == vars(once)
    assert once.eos_token_id == list(range(count))
    assert once.layer_types == [f"kind-{index}" for index in kept]
    assert once.max_window_layers == sum(index < count // 2 for index in kept)
