"""Exactly which weights each scope trains."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from regrow.errors import ConfigError
from regrow.heal.registry import SCOPES
from regrow.heal.scopes import all_frozen, bordering_blocks, learning_rate_of
from regrow.heal.targets import block_linears
from regrow.models.bridges import AffineBridge, ScalingBridge, attach_bridge
from regrow.models.load import LoadedModel
from regrow.records.checkpoint import CheckpointFacts
from regrow.surgery import remove_blocks
from tests.heal.samples import sample_model, sample_spec

LLAMA = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
LLAMA_MLP = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
BLOCK = [f"{name}.weight" for name in (*LLAMA, *LLAMA_MLP, "input_layernorm", "post_attention_layernorm")]


def applied(loaded: LoadedModel, scope: str, **changes: Any) -> Any:
    """Return what a scope trains after checking that nothing else is marked."""
    loaded.model.requires_grad_(False)
    trained = SCOPES.get(scope)(loaded, sample_spec(scope=scope, **changes))
    marked = {name for name, weight in loaded.model.named_parameters() if weight.requires_grad}
    assert marked == set(trained.parameters)
    assert {weight.dtype for weight in trained.parameters.values()} == {torch.float32}
    return trained


def adapted(trained: Any) -> set[str]:
    """Return the layers with an A and a B."""
    ends = {re.sub(r"\.lora_[AB]\.default\.weight$", "", name) for name in trained.parameters}
    assert len(trained.parameters) == 2 * len(ends)
    return ends


def cut_model(removed: tuple[int, ...], blocks: int = 6) -> LoadedModel:
    loaded = sample_model(blocks=blocks)
    remove_blocks(loaded.model, removed)
    loaded.facts = CheckpointFacts(source="tiny", unpruned_blocks=blocks, removed_blocks=removed)
    return loaded


def test_all_lora_is_the_seven_projections_of_every_block() -> None:
    trained = applied(cut_model((2, 3)), "all-lora")
    expected = {f"model.layers.{block}.{name}" for block in range(4) for name in (*LLAMA, *LLAMA_MLP)}
    assert adapted(trained) == expected
    shapes = {name: tuple(weight.shape) for name, weight in trained.parameters.items()}
    assert shapes["model.layers.0.mlp.down_proj.lora_A.default.weight"] == (4, 64)
    assert shapes["model.layers.0.mlp.down_proj.lora_B.default.weight"] == (32, 4)


@pytest.mark.parametrize(
    ("removed", "beside"),
    [((2, 3), {1, 2}), ((1, 4), {0, 1, 2, 3}), ((5,), {4}), ((1, 3), {0, 1, 2}), ((0, 5), {0, 3})],
)
def test_cut_lora_is_on_the_blocks_beside_a_cut(removed: tuple[int, ...], beside: set[int]) -> None:
    trained = applied(cut_model(removed), "cut-lora")
    expected = {f"model.layers.{block}.{name}" for block in beside for name in (*LLAMA, *LLAMA_MLP)}
    assert adapted(trained) == expected
    assert set(bordering_blocks(6, removed)) == beside


def test_last_k_is_the_last_blocks_and_the_norm_with_a_frozen_head() -> None:
    for last_blocks in (1, 3):
        trained = applied(sample_model(blocks=5), "last-k", last_blocks=last_blocks)
        blocks = range(5 - last_blocks, 5)
        assert set(trained.parameters) == {"model.norm.weight"} | {
            f"model.layers.{block}.{name}" for block in blocks for name in BLOCK
        }


def test_partial_adds_the_head_and_what_is_tied_to_it() -> None:
    tied = applied(sample_model(blocks=5), "partial", last_blocks=1)
    assert set(tied.parameters) == {"model.norm.weight", "model.embed_tokens.weight"} | {
        f"model.layers.4.{name}" for name in BLOCK
    }
    untied = applied(sample_model("olmo2", blocks=5), "partial", last_blocks=1)
    assert "lm_head.weight" in untied.parameters
    assert "model.embed_tokens.weight" not in untied.parameters


def test_bridges_and_full() -> None:
    loaded = cut_model((2, 3))
    plain = set(dict(loaded.model.named_parameters()))
    attach_bridge(loaded.model, 1, AffineBridge(32, rank=2))
    attach_bridge(loaded.model, -1, ScalingBridge(32))
    of_bridges = set(dict(loaded.model.named_parameters())) - plain
    assert len(of_bridges) == 4
    assert set(applied(loaded, "bridges").parameters) == of_bridges
    assert set(applied(loaded, "full").parameters) == plain | of_bridges
    for scope in ("all-lora", "last-k", "partial"):
        alone, beside = (
            set(applied(replace(loaded, model=copy.deepcopy(loaded.model)), name).parameters)
            for name in (scope, f"{scope}+bridges")
        )
        assert beside == alone | of_bridges, scope
    # A repair stays as it was fitted under LoRA.
    assert not of_bridges & set(applied(loaded, "all-lora").parameters)


@pytest.mark.parametrize(
    ("family", "layers"),
    [
        ("phi3", {"self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj"}),
        ("gpt_neox", {"attention.query_key_value", "attention.dense", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"}),
        ("gpt2", {"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"}),
        ("gemma3", {*LLAMA, *LLAMA_MLP}),
    ],
)
def test_linear_layers_of_other_architectures(family: str, layers: set[str]) -> None:
    loaded = sample_model(family)
    trained = applied(loaded, "all-lora")
    assert {re.sub(r"^.*?\.\d+\.", "", name) for name in adapted(trained)} == layers
    assert len(adapted(trained)) == 4 * len(layers)


def test_routers_of_experts_are_left_alone() -> None:
    loaded = sample_model("qwen2_moe")
    names = block_linears(loaded.model)
    assert any("shared_expert.up_proj" in name for name in names)
    assert not [name for name in names if name.endswith(("mlp.gate", "shared_expert_gate"))]
    gates = [name for name, _ in loaded.model.named_modules() if name.endswith("shared_expert_gate")]
    assert gates


def test_scopes_that_would_train_nothing_say_so() -> None:
    with pytest.raises(ConfigError, match="no block was removed"):
        SCOPES.get("cut-lora")(sample_model(), sample_spec(scope="cut-lora"))
    with pytest.raises(ConfigError, match="has no bridge"):
        SCOPES.get("bridges")(sample_model(), sample_spec(scope="bridges"))
    with pytest.raises(ConfigError, match="last_blocks is 9"):
        SCOPES.get("last-k")(sample_model(), sample_spec(scope="last-k", last_blocks=9))
    with pytest.raises(ConfigError, match="unknown scope 'all-lra'") as caught:
        SCOPES.get("all-lra")
    assert "did you mean 'all-lora'" in str(caught.value.hint)


def test_rates_are_the_methods_own_unless_given() -> None:
    rates = {name: learning_rate_of(sample_spec(scope=name, learning_rate=None)) for name in SCOPES.names()}
    assert {name: rates[name] for name in ("all-lora", "cut-lora", "last-k", "partial")} == {
        "all-lora": 2e-4,
        "cut-lora": 2e-4,
        "last-k": 2e-5,
        "partial": 1e-5,
    }
    assert learning_rate_of(sample_spec(scope="full", learning_rate=0.5)) == 0.5


def test_half_precision_weights_are_trained_as_float32_masters_and_stored_as_they_were() -> None:
    loaded = sample_model()
    loaded.model.bfloat16()
    trained = applied(loaded, "last-k", last_blocks=1)
    assert set(trained.stored.values()) == {torch.bfloat16}
    with torch.no_grad():
        trained.parameters["model.norm.weight"].add_(1e-4)
    trained.settle()
    assert {weight.dtype for weight in loaded.model.parameters()} == {torch.bfloat16}


def test_what_was_trainable_before_is_trainable_again() -> None:
    model = sample_model().model
    model.model.norm.weight.requires_grad_(False)
    before = {name: weight.requires_grad for name, weight in model.named_parameters()}
    with all_frozen(model):
        assert not any(weight.requires_grad for weight in model.parameters())
    assert {name: weight.requires_grad for name, weight in model.named_parameters()} == before
