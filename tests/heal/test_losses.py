"""Losses against closed forms and computations of their own; sums of losses; what a whole run makes of them."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.errors import ConfigError, ModelError
from regrow.heal.cut_streams import Cut, cuts_of
from regrow.heal.loop import heal
from regrow.heal.loss_expression import terms_of
from regrow.heal.losses import LossInputs, TopTokens, distillation, distillation_top_k, hidden_states
from regrow.heal.objective import objective_of
from regrow.heal.registry import LOSSES
from regrow.models.load import LoadedModel
from regrow.records.checkpoint import CheckpointFacts
from regrow.surgery import remove_blocks
from tests.heal.samples import sample_model, sample_pools, sample_spec


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)


def seen(logits: torch.Tensor, **more: Any) -> LossInputs:
    return LossInputs(logits, torch.zeros(len(logits), dtype=torch.long), **more)


def top_of(logits: torch.Tensor, count: int, heat: float = 1.0) -> TopTokens:
    """Return the top-k record from probabilities written out."""
    rows = (logits.double() / heat).softmax(-1)
    values, ids = rows.sort(dim=-1, descending=True)
    return TopTokens(ids[:, :count], values[:, :count].log().float(), values[:, count:].sum(-1).log().float())


def test_distillation_of_two_outcomes_in_closed_form() -> None:
    """Two tokens, logit gaps a (unpruned) and b: KL = p (a - b) + log((1 + e^b) / (1 + e^a)) with p = sigmoid(a)."""
    a, b = 1.3, -0.4
    p = 1 / (1 + math.exp(-a))
    expected = p * (a - b) + math.log((1 + math.exp(b)) / (1 + math.exp(a)))
    found = distillation(seen(torch.tensor([[b, 0.0]]), teacher_logits=torch.tensor([[a, 0.0]])))
    assert float(found) == pytest.approx(expected, rel=1e-5)
    hot = distillation(seen(torch.tensor([[2 * b, 0.0]]), teacher_logits=torch.tensor([[2 * a, 0.0]]), temperature=2.0))
    assert float(hot) == pytest.approx(4 * expected, rel=1e-5)


def test_its_gradient_is_the_difference_of_the_distributions() -> None:
    logits, teacher = draw(5, 30).requires_grad_(), draw(5, 30, seed=1)
    for heat in (1.0, 3.0):
        (gradient,) = torch.autograd.grad(distillation(seen(logits, teacher_logits=teacher, temperature=heat)), logits)
        expected = heat * ((logits / heat).softmax(-1) - (teacher / heat).softmax(-1))
        assert torch.allclose(gradient, expected, atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 28), st.integers(0, 1000), st.sampled_from([0.7, 1.0, 2.0]))
def test_top_k_is_the_divergence_of_the_merged_outcomes(count: int, seed: int, heat: float) -> None:
    logits, teacher = draw(4, 30, seed=seed), 3 * draw(4, 30, seed=seed + 1)
    top = top_of(teacher, count, heat)
    found = float(distillation_top_k(seen(logits, teacher_top=top, temperature=heat)))
    q = (logits.double() / heat).softmax(-1)
    named = q.gather(-1, top.ids)
    mine = torch.cat([named, 1 - named.sum(-1, keepdim=True)], dim=-1)
    p = torch.cat([top.log_probs, top.rest[:, None]], dim=-1).double().exp()
    expected = float((p * (p / mine).log()).sum()) * heat**2
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-4)
    whole = float(distillation(seen(logits, teacher_logits=teacher, temperature=heat)))
    assert -1e-4 <= found <= whole * (1 + 1e-4) + 1e-4


def test_top_k_meets_the_whole_divergence_and_has_a_finite_gradient() -> None:
    logits, teacher = draw(6, 20).requires_grad_(), draw(6, 20, seed=1)
    top = top_of(teacher, 19)
    loss = distillation_top_k(seen(logits, teacher_top=top))
    whole = distillation(seen(logits, teacher_logits=teacher))
    assert float(loss.detach()) == pytest.approx(float(whole.detach()), rel=1e-4)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert torch.allclose(gradient, logits.softmax(-1) - teacher.softmax(-1), atol=1e-5)


def test_hidden_states_are_relative_squared_errors_averaged_over_cuts() -> None:
    y = draw(7, 16)
    shifted = y * 1.1
    found = hidden_states(seen(draw(7, 5), streams=(shifted, 3 * y), teacher_streams=(y, y)))
    # 0.1^2 at each of seven positions at one cut, 2^2 at the other.
    assert float(found) == pytest.approx(7 * (0.01 + 4.0) / 2, rel=1e-4)
    big = hidden_states(seen(draw(7, 5), streams=(100 * shifted,), teacher_streams=(100 * y,)))
    assert float(big) == pytest.approx(0.07, rel=1e-4)


def test_sums_are_written_as_people_write_them() -> None:
    assert terms_of("response-cross-entropy") == [("response-cross-entropy", 1.0)]
    expected = [("response-cross-entropy", 1.0), ("distillation", 0.5), ("hidden-states", 1e2)]
    assert terms_of("response-cross-entropy + 0.5*distillation+1e+2 * hidden-states") == expected
    objective = objective_of("2*response-cross-entropy+0.5*distillation")
    inputs = seen(draw(4, 12), teacher_logits=draw(4, 12, seed=1))
    parts = objective.parts(inputs)
    total = 2 * parts["response-cross-entropy"] + 0.5 * parts["distillation"]
    assert float(objective.total(parts)) == pytest.approx(float(total))
    assert objective.needs_unpruned
    assert not objective_of("response-cross-entropy").needs_unpruned


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("distilation", "unknown loss 'distilation'"),
        ("response-cross-entropy+", "empty term"),
        ("0*distillation", "not a positive number"),
        ("-1*distillation", "not a positive number"),
        ("inf*distillation", "not a positive number"),
        ("half*distillation", "not a positive number"),
        ("distillation+0.5*distillation", "stands twice"),
        ("", "empty term"),
    ],
)
def test_nonsense_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("*", r"\*")):
        terms_of(text)


def test_every_loss_says_what_it_needs() -> None:
    for name in LOSSES.names():
        assert LOSSES.entry(name).summary
        needs = "needs" in dict(LOSSES.entry(name).facts)
        assert needs == objective_of(name).needs_unpruned


def pair(removed: tuple[int, ...] = (2,), blocks: int = 5) -> tuple[LoadedModel, LoadedModel]:
    """Return an unpruned tiny model and its pruned copy."""
    unpruned = sample_model(blocks=blocks)
    model = copy.deepcopy(unpruned.model)
    remove_blocks(model, removed)
    facts = CheckpointFacts(source="tiny", unpruned_blocks=blocks, removed_blocks=removed)
    return unpruned, LoadedModel(model, unpruned.tokenizer, "tiny cut", facts=facts)


@pytest.mark.parametrize(
    ("removed", "cuts"),
    [((2,), [(3, 2)]), ((1, 2, 4), [(3, 1), (5, 2)]), ((5,), [(6, 5)]), ((0, 1, 3), [(2, 0), (4, 1)])],
)
def test_where_streams_are_compared(removed: tuple[int, ...], cuts: list[tuple[int, int]]) -> None:
    _, pruned = pair(removed, blocks=6)
    assert list(cuts_of(pruned)) == [Cut(*entry) for entry in cuts]


def plain_value(name: str, unpruned: Any, pruned: Any, examples: Any, removed: tuple[int, ...]) -> float:
    """Return an update's mean loss, sequence by sequence, from what transformers itself hands out."""
    total, count = 0.0, 0
    for entry in examples:
        ids = torch.tensor([entry.prompt_ids + entry.response_ids])
        first, last = len(entry.prompt_ids) - 1, entry.tokens - 1
        with torch.no_grad():
            teacher = unpruned(input_ids=ids, output_hidden_states=True)
            student = pruned(input_ids=ids, output_hidden_states=True)
        if name.startswith("distillation"):
            p, q = (out.logits[0, first:last].double().log_softmax(-1) for out in (teacher, student))
            total += float((p.exp() * (p - q)).sum())
        else:
            end = removed[-1] + 1
            y = teacher.hidden_states[end][0, first:last].double()
            h = student.hidden_states[end - len(removed)][0, first:last].double()
            total += float(((h - y).square().sum(-1) / y.square().sum(-1)).sum())
        count += len(entry.response_ids)
    return total / count


@pytest.mark.parametrize("name", ["distillation", "distillation-top-k", "hidden-states"])
def test_the_first_loss_of_a_run_is_what_the_models_themselves_give(tmp_path: Path, name: str) -> None:
    unpruned, pruned = pair()
    before = copy.deepcopy(pruned.model)
    spec = sample_spec(loss=f"response-cross-entropy+0.5*{name}", dropout=0.0, tokens=1_200, top_k=95)
    result = heal(pruned, sample_pools(), spec, tmp_path / "run", unpruned=lambda: unpruned)
    lines = [json.loads(line) for line in result.log_file.read_text().splitlines()]
    expected = plain_value(name, unpruned.model, before, result.plan.update(0), (2,))
    first = lines[0]["losses"]
    assert first[name] == pytest.approx(expected, rel=1e-3)
    assert lines[0]["loss"] == pytest.approx(first["response-cross-entropy"] + 0.5 * first[name], rel=1e-5)
    unpruned, pruned = pair()
    spec = sample_spec(loss=name, dropout=0.0, tokens=3_000, learning_rate=3e-3)
    alone = heal(pruned, sample_pools(), spec, tmp_path / "alone", unpruned=lambda: unpruned)
    losses = [json.loads(line)["loss"] for line in alone.log_file.read_text().splitlines()]
    assert losses[-1] < 0.8 * losses[0]


def test_kept_top_tokens_are_computed_once_and_change_nothing(tmp_path: Path, own_cache: Path) -> None:
    calls: list[int] = []
    weights = []
    for number in range(2):
        unpruned, pruned = pair()
        assert pruned.facts is not None
        pruned.facts = pruned.facts.model_copy(update={"source_weights_sha256": "a" * 64})

        def load(unpruned: LoadedModel = unpruned) -> LoadedModel:
            calls.append(1)
            return unpruned

        spec = sample_spec(loss="distillation-top-k", tokens=1_500, top_k=8)
        heal(pruned, sample_pools(), spec, tmp_path / f"{number}", unpruned=load)
        weights.append({name: weight.detach().clone() for name, weight in pruned.model.named_parameters()})
        if not number:
            assert list(own_cache.glob("heal-states/*/*.safetensors"))
            first = len(calls)
    assert first > 0
    # The second run reads everything from disk and never asks for the unpruned model.
    assert len(calls) == first
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_loss_without_its_unpruned_model_is_refused(tmp_path: Path) -> None:
    unpruned, pruned = pair()
    with pytest.raises(ConfigError, match="compares with the unpruned model"):
        heal(pruned, sample_pools(), sample_spec(loss="distillation"), tmp_path / "a")
    other = sample_model()
    other.model.resize_token_embeddings(120)
    with pytest.raises(ModelError, match="knows 120 tokens"):
        heal(pruned, sample_pools(), sample_spec(loss="distillation"), tmp_path / "b", unpruned=lambda: other)
    with pytest.raises(ConfigError, match="no cut to look at"):
        heal(unpruned, sample_pools(), sample_spec(loss="hidden-states"), tmp_path / "c", unpruned=lambda: unpruned)
    with pytest.raises(ConfigError, match="likeliest of 96 tokens"):
        spec = sample_spec(loss="distillation-top-k", top_k=96)
        heal(pair()[1], sample_pools(), spec, tmp_path / "d", unpruned=lambda: unpruned)


def test_hidden_states_train_only_what_is_below_the_cut(tmp_path: Path) -> None:
    unpruned, pruned = pair((3,), blocks=6)
    before = {name: weight.detach().clone() for name, weight in pruned.model.named_parameters()}
    spec = sample_spec(loss="hidden-states", tokens=1_500, gradient_checkpointing=True)
    heal(pruned, sample_pools(), spec, tmp_path / "run", unpruned=lambda: unpruned)
    changed = {
        name.split(".")[2] for name, weight in pruned.model.named_parameters() if not torch.equal(weight, before[name])
    }
    assert changed == {"0", "1", "2"}
