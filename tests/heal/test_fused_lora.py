"""The fused LoRA layers against PEFT's own forward and against plain autograd."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from peft.tuners.lora.layer import Linear as LoraLinear

from regrow.heal import lora_dropout
from regrow.heal.fused_lora import fused_lora
from regrow.heal.lora_dropout import apply_mask, keep_mask, survival
from regrow.heal.registry import SCOPES
from regrow.heal.scopes import all_frozen
from tests.heal.samples import sample_model, sample_spec

FAMILIES = ["llama", "phi3", "gpt2", "gpt_neox", "qwen2"]


def adapted(family: str):  # type: ignore[no-untyped-def]
    loaded = sample_model(family)
    loaded.model.requires_grad_(False)
    trained = SCOPES.get("all-lora")(loaded, sample_spec())
    torch.manual_seed(1)
    for name, weight in trained.parameters.items():
        if ".lora_B." in name:
            torch.nn.init.normal_(weight, std=0.1)
    return loaded.model, trained


def gradients_of(model, trained, ids):  # type: ignore[no-untyped-def]
    model.zero_grad()
    logits = model(input_ids=ids, use_cache=False).logits
    logits.logsumexp(-1).mean().backward()
    return logits.detach(), {name: weight.grad.clone() for name, weight in trained.parameters.items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_without_dropout_it_is_pefts_forward(family: str) -> None:
    model, trained = adapted(family)
    ids = torch.randint(3, 90, (2, 17), generator=torch.Generator().manual_seed(0))
    logits, expected = gradients_of(model, trained, ids)
    with fused_lora(model, torch.float32, dropout=0.0, seed=0) as fused:
        layers = [module for module in model.modules() if isinstance(module, LoraLinear)]
        assert fused.layers == layers
        found_logits, found = gradients_of(model, trained, ids)
    assert torch.allclose(found_logits, logits, atol=2e-5)
    for name, gradient in expected.items():
        assert torch.allclose(found[name], gradient, rtol=1e-3, atol=1e-6 + 1e-4 * float(gradient.abs().max())), name
    assert torch.equal(gradients_of(model, trained, ids)[0], logits)


def test_bfloat16_is_the_products_of_autocast_up_to_rounding() -> None:
    model, trained = adapted("llama")
    ids = torch.randint(3, 90, (2, 40), generator=torch.Generator().manual_seed(0))
    _, exact = gradients_of(model, trained, ids)
    with torch.autocast("cpu", torch.bfloat16):
        _, theirs = gradients_of(model, trained, ids)
        with fused_lora(model, torch.bfloat16, dropout=0.0, seed=0):
            _, ours = gradients_of(model, trained, ids)

    def error(found: dict[str, torch.Tensor]) -> float:
        apart = sum(float((found[name] - exact[name]).square().sum()) for name in exact)
        return (apart / sum(float(gradient.square().sum()) for gradient in exact.values())) ** 0.5

    assert 0 < error(ours) < 1.5 * error(theirs) + 1e-3
    assert error(ours) < 0.05
    assert {gradient.dtype for gradient in ours.values()} == {torch.float32}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_is_on_the_adapters_input_alone_forward_and_backward(dtype: torch.dtype) -> None:
    model, _ = adapted("llama")
    layer = next(module for module in model.modules() if isinstance(module, LoraLinear))
    x = torch.randn(2, 9, 32, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    weight = layer.base_layer.weight
    with fused_lora(model, dtype, dropout=0.5, seed=11) as fused:
        fused.key.update, fused.key.microbatch = 5, 2
        y = layer(x)
        mask = keep_mask((18, 32), 0.5, (11, 5, 2, 0), x.detach().view(18, 32)).view(2, 9, 32)
        given = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
        y.backward(given)
        found = [x.grad.clone(), a.grad.clone(), b.grad.clone()]
    assert 0.3 < float((mask != 0).float().mean()) < 0.7
    x.grad = a.grad = b.grad = None
    kept = x.float() * (mask != 0) / survival(0.5)
    reference = F.linear(x.float(), weight) + layer.scaling["default"] * F.linear(F.linear(kept, a), b)
    reference.backward(given.float())
    tolerance = 1e-5 if dtype == torch.float32 else 0.04
    assert torch.allclose(y.float(), reference, atol=tolerance * float(reference.abs().max()))
    for gradient, expected in zip(found, [x.grad, a.grad, b.grad], strict=True):
        assert torch.allclose(gradient.float(), expected.float(), atol=tolerance * float(expected.abs().max()))


@pytest.mark.parametrize("draw", [lora_dropout._bits_from_words, lora_dropout._bits_on])
def test_masks_depend_on_the_key_and_have_the_asked_rate(draw, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    like = torch.zeros(1)
    if draw is lora_dropout._bits_on:
        # What a GPU runs, on the device that is there.
        monkeypatch.setattr(lora_dropout, "_bits_from_words", lambda *rest: draw(torch.device("cpu"), *rest))
    mask = keep_mask((400, 500), 0.05, (1, 2, 3, 4), like)
    assert torch.equal(mask, keep_mask((400, 500), 0.05, (1, 2, 3, 4), like))
    for other in ((0, 2, 3, 4), (1, 0, 3, 4), (1, 2, 0, 4), (1, 2, 3, 0)):
        assert not torch.equal(mask, keep_mask((400, 500), 0.05, other, like))
    dropped = (mask == 0).double()
    # Five standard errors around the rate, over all values and over columns and rows.
    assert abs(float(dropped.mean()) - 0.05) < 5 * (0.05 * 0.95 / 200_000) ** 0.5
    assert float((dropped.mean(0) - 0.05).abs().max()) < 5 * (0.05 * 0.95 / 400) ** 0.5
    assert float((dropped.mean(1) - 0.05).abs().max()) < 5 * (0.05 * 0.95 / 500) ** 0.5
    assert survival(0.05) == pytest.approx(0.95, abs=1e-5)
    values = torch.randn(400, 500)
    assert torch.equal(apply_mask(values, mask), values * (mask != 0))
    half = values.bfloat16()
    small = keep_mask((400, 500), 0.05, (1, 2, 3, 4), half)
    assert torch.equal(apply_mask(half, small), half * (mask != 0))


def test_layers_of_another_kind_keep_pefts_forward() -> None:
    from peft import LoraConfig, get_peft_model

    loaded = sample_model("llama")
    wrapped = get_peft_model(loaded.model, LoraConfig(r=2, target_modules=["q_proj"], use_dora=True))
    with fused_lora(wrapped, torch.float32, dropout=0.1, seed=0) as fused:
        assert fused.layers == []


def test_the_model_is_as_before_when_the_context_ends_badly() -> None:
    model, _ = adapted("llama")
    forwards = copy.copy({name: module.forward.__func__ for name, module in model.named_modules()})
    with (
        pytest.raises(RuntimeError, match="stop"),
        all_frozen(model),
        fused_lora(model, torch.float32, dropout=0.1, seed=0),
    ):
        raise RuntimeError("stop")
    assert {name: module.forward.__func__ for name, module in model.named_modules()} == forwards
