"""A packed row gives the loss and the gradients of separate sequences, in every family that can be packed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from regrow.data.pools import Example
from regrow.heal.gradients import GradientMaker
from regrow.heal.microbatch import padded_microbatches
from regrow.heal.objective import objective_of
from regrow.heal.packing_check import why_not_packed
from regrow.heal.plan import plan_heal
from regrow.heal.response_logits import response_logits
from tests.conftest import TINY_FAMILIES
from tests.heal.samples import sample_model, sample_pools, sample_spec

PACKED = sorted(set(TINY_FAMILIES) - {"gpt_neo"})


def sequences(loaded: Any, count: int = 8) -> tuple[Example, ...]:
    return plan_heal(sample_pools(), sample_spec(sequences_per_update=count), loaded.tokenizer).update(0)


def separate(model: Any, examples: tuple[Example, ...]) -> tuple[float, dict[str, torch.Tensor]]:
    """Return loss and gradients as transformers computes them: one sequence at a time, labels of -100 on the prompt."""
    model.zero_grad()
    total = torch.zeros(())
    count = sum(len(entry.response_ids) for entry in examples)
    for entry in examples:
        ids = torch.tensor([entry.prompt_ids + entry.response_ids])
        labels = ids.clone()
        labels[:, : len(entry.prompt_ids)] = -100
        loss = model(input_ids=ids, labels=labels, use_cache=False).loss * len(entry.response_ids) / count
        loss.backward()
        total += loss.detach()
    return float(total), gradients(model)


def gradients(model: Any) -> dict[str, torch.Tensor]:
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


def compare(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        scale = gradient.abs().max().clamp(min=1e-6)
        assert ((found[name] - gradient).abs().max() / scale) < 1e-3, name


@pytest.mark.parametrize("family", PACKED)
@pytest.mark.parametrize("share", [True, False])
def test_loss_and_gradients_of_every_weight(family: str, share: bool) -> None:
    loaded = sample_model(family)
    examples = sequences(loaded)
    assert why_not_packed(loaded.model, examples, share_prefix=share) == ""
    loss, expected = separate(loaded.model, examples)
    loaded.model.zero_grad()
    maker = GradientMaker(
        loaded.model,
        objective_of("response-cross-entropy"),
        sample_spec(share_prefix=share, microbatch_tokens=300),
        torch.float32,
        packed=True,
    )
    with maker.ready():
        result = maker.add(0, examples)
    assert result.loss == pytest.approx(loss, rel=1e-5)
    compare(gradients(loaded.model), expected)
    tokens = sum(entry.tokens for entry in examples)
    assert result.computed_tokens == tokens if not share else result.computed_tokens < 0.9 * tokens


@pytest.mark.parametrize("family", ["llama", "gpt_neo", "gemma2"])
def test_padded_batches_too(family: str) -> None:
    loaded = sample_model(family)
    examples = sequences(loaded)
    loss, expected = separate(loaded.model, examples)
    loaded.model.zero_grad()
    maker = GradientMaker(
        loaded.model,
        objective_of("response-cross-entropy"),
        sample_spec(microbatch_tokens=300),
        torch.float32,
        packed=False,
    )
    with maker.ready():
        assert maker.add(0, examples).loss == pytest.approx(loss, rel=1e-5)
    compare(gradients(loaded.model), expected)


def test_what_a_model_does_to_its_logits_is_kept() -> None:
    loaded = sample_model("gemma2", final_logit_softcapping=3.0)
    examples = sequences(loaded, 2)
    for entry in examples:
        (batch,) = padded_microbatches([entry], 512)
        with torch.no_grad():
            whole = loaded.model(input_ids=batch.input_ids, use_cache=False).logits[0]
            logits = response_logits(loaded.model, batch)
        assert torch.equal(logits.argmax(-1), whole[batch.positions].argmax(-1))
        assert torch.allclose(logits, whole[batch.positions], atol=1e-5)
        assert float(logits.abs().max()) <= 3.0


def test_the_head_is_computed_on_response_positions_alone() -> None:
    loaded = sample_model()
    seen: list[int] = []
    loaded.model.lm_head.register_forward_hook(lambda _, args, out: seen.append(out.numel() // out.shape[-1]))
    examples = sequences(loaded)
    objective = objective_of("response-cross-entropy")
    maker = GradientMaker(loaded.model, objective, sample_spec(), torch.float32, packed=True)
    with maker.ready():
        maker.add(0, examples)
    assert sum(seen) == sum(len(entry.response_ids) for entry in examples)


def test_the_cut_into_microbatches_does_not_change_the_update() -> None:
    found = []
    for limit in (60, 250, 10_000):
        loaded = sample_model()
        maker = GradientMaker(
            loaded.model,
            objective_of("response-cross-entropy"),
            sample_spec(microbatch_tokens=limit),
            torch.float32,
            packed=True,
        )
        with maker.ready():
            loss = maker.add(0, sequences(loaded)).loss
        found.append((loss, gradients(loaded.model)))
    for loss, gradient in found[1:]:
        assert loss == pytest.approx(found[0][0], rel=1e-6)
        compare(gradient, found[0][1])


def test_a_model_that_cannot_be_packed_is_found_out() -> None:
    window = sample_model("mistral", sliding_window=16)
    assert "reaches back 16 tokens" in why_not_packed(window.model, sequences(window), share_prefix=True)
    long = Example("p", "long", "", "", (5,) * 1_100, (2,))
    assert "1101 tokens" in why_not_packed(sample_model().model, [long], share_prefix=True)
    own_attention = sample_model("gpt_neo")
    assert "other log-probabilities" in why_not_packed(own_attention.model, sequences(own_attention), share_prefix=True)

    class NoPositions(torch.nn.Module):
        def forward(self, input_ids: torch.Tensor) -> None: ...

    assert "position_ids" in why_not_packed(NoPositions(), sequences(window), share_prefix=True)


def test_the_models_own_attention_is_back_afterwards() -> None:
    loaded = sample_model("llama")
    before = loaded.model.config._attn_implementation
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        logits = loaded.model(input_ids=ids).logits
        assert why_not_packed(loaded.model, sequences(loaded), share_prefix=True) == ""
        assert loaded.model.config._attn_implementation == before != "regrow_packed"
        assert torch.equal(loaded.model(input_ids=ids).logits, logits)
