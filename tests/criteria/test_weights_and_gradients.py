"""Magnitude, Taylor and WRP against direct computations."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from regrow.criteria.gradients import taylor, weight_gradients
from regrow.criteria.magnitude import magnitude_l1, magnitude_l2
from regrow.criteria.weights import output_projections, weight_similarity, wrp
from regrow.errors import ConfigError
from regrow.models.families import blocks_of
from tests.conftest import TINY_FAMILIES
from tests.criteria.conftest import FAMILIES


@pytest.mark.parametrize("family", FAMILIES)
def test_magnitudes_are_sums_over_weights_without_biases(make_tiny, family):
    model = make_tiny(family)
    for method, power in ((magnitude_l1, 1), (magnitude_l2, 2)):
        answer = method(model, remove=2, protect=())
        for block, score in zip(blocks_of(model), answer.scores):
            arrays = [
                value.numpy().astype(float) for name, value in block.state_dict().items() if not name.endswith(".bias")
            ]
            assert score == pytest.approx(sum((np.abs(array) ** power).sum() for array in arrays), rel=1e-9)
        assert answer.removed == tuple(sorted(np.argsort(answer.scores, kind="stable")[:2].tolist()))


@pytest.mark.parametrize("family", FAMILIES)
def test_taylor_equals_autograd_on_the_whole_text(make_tiny, ragged, family):
    model = make_tiny(family)
    answer = taylor(model, ragged, remove=2, protect=())
    losses = []
    for ids, mask in zip(ragged.input_ids, ragged.attention_mask):
        row = ids[mask.bool()].unsqueeze(0)
        logits = model(row, use_cache=False).logits[0, :-1]
        losses.append(torch.nn.functional.cross_entropy(logits, row[0, 1:], reduction="none"))
    torch.cat(losses).mean().backward()
    for block, score in zip(blocks_of(model), answer.scores):
        expected = sum(
            float((weight.detach() * weight.grad).abs().sum())
            for name, weight in block.named_parameters()
            if not name.endswith(".bias")
        )
        assert score == pytest.approx(expected, rel=1e-4)


def test_gradients_cover_the_weights_and_do_not_depend_on_the_batches(make_tiny, even, monkeypatch):
    model = make_tiny("llama")
    whole = weight_gradients(model, even)
    monkeypatch.setattr("regrow.criteria.gradients.BATCH_TOKENS", 1)
    single = weight_gradients(model, even)
    for block, one, other in zip(blocks_of(model), whole, single):
        assert set(one) == {name for name, _ in block.named_parameters() if not name.endswith("bias")}
        for name, value in one.items():
            torch.testing.assert_close(value, other[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("family", sorted(TINY_FAMILIES))
def test_the_matrices_that_write_to_the_stream_are_found(make_tiny, family):
    model = make_tiny(family)
    for block in blocks_of(model):
        found = output_projections(block)
        assert set(found) == {"attention", "mlp"}
        assert all(matrix.shape[0] == 32 for matrix in found.values())


def test_gpt2_matrices_are_turned_the_right_way(make_tiny):
    block = blocks_of(make_tiny("gpt2"))[1]
    with torch.no_grad():
        written = block.mlp.c_proj(torch.eye(128)) - block.mlp.c_proj.bias
    torch.testing.assert_close(output_projections(block)["mlp"], written.T)


@pytest.mark.parametrize("kind", ["cosine", "gram", "subspace"])
def test_weight_similarities_equal_their_formulas(make_tiny, kind):
    model = make_tiny("llama")
    expected = np.zeros((6, 6))
    for i, one in enumerate(blocks_of(model)):
        for j, other in enumerate(blocks_of(model)):
            for path in ("self_attn.o_proj.weight", "mlp.down_proj.weight"):
                a, b = (block.get_parameter(path).detach().numpy().astype(float) for block in (one, other))
                norms = np.linalg.norm(a), np.linalg.norm(b)
                if kind == "cosine":
                    value = (a * b).sum() / norms[0] / norms[1]
                elif kind == "gram":
                    p, q = a @ a.T, b @ b.T
                    value = (p * q).sum() / np.linalg.norm(p) / np.linalg.norm(q)
                else:
                    rank = min(32, *a.shape)
                    u, v = (np.linalg.svd(matrix)[0][:, :rank] for matrix in (a, b))
                    value = np.linalg.norm(u.T @ v) ** 2 / rank
                expected[i, j] += min(norms) / max(norms) * value / 2
    np.testing.assert_allclose(weight_similarity(model, kind), expected, atol=2e-5)


def test_a_copied_block_is_fully_redundant_and_scale_counts(make_tiny):
    model = make_tiny("llama")
    blocks_of(model)[3].load_state_dict(blocks_of(model)[2].state_dict())
    for kind in ("cosine", "gram", "subspace"):
        similarity = weight_similarity(model, kind)
        assert similarity[2, 3] == pytest.approx(1.0, abs=1e-5)
        assert similarity[1, 2] < 0.999 or kind == "subspace"
    with torch.no_grad():
        for path in ("self_attn.o_proj.weight", "mlp.down_proj.weight"):
            blocks_of(model)[3].get_parameter(path).mul_(2)
    assert weight_similarity(model, "gram")[2, 3] == pytest.approx(0.5, abs=1e-5)
    answer = wrp(model, remove=1, similarity="gram", clusters=2)
    assert math.isfinite(answer.scores[3])
    with pytest.raises(ConfigError, match="unknown similarity"):
        wrp(model, remove=1, similarity="cka")


def test_wrp_runs_no_forward_pass(make_tiny):
    model = make_tiny("llama")

    def forbidden(*args, **kwargs):
        raise AssertionError("a forward pass was run")

    model.forward = forbidden
    for block in blocks_of(model):
        block.forward = forbidden
    assert len(wrp(model, remove=3).removed) == 3
    assert "DERIVED" in (wrp.__doc__ or "")
