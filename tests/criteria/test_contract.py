"""What every criterion must do: honour its options, ignore padding and batch size, never hide a NaN."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from regrow.criteria.ranking import check_request, kept_by, needs_text, rank, score_blocks
from regrow.criteria.registry import CRITERIA
from regrow.data.calibration import from_examples, make_set
from regrow.errors import ConfigError, DataError, ModelError
from regrow.models.families import blocks_of
from tests.criteria.conftest import FAMILIES, token_rows

ALL = CRITERIA.names()
SPANS = ("angular", "streamline")
KEEPS_THE_ENDS = ("greedy-perplexity", "lorp", "wrp")
KEPT = {**{name: {0, 5} for name in KEEPS_THE_ENDS}, "laco": {0}}


@pytest.fixture(scope="module")
def model():
    """Return one tiny model whose blocks matter unequally; criteria must leave it as it is."""
    from tests.conftest import tiny_model

    tiny = tiny_model("llama")
    with torch.no_grad():
        for block, scale in zip(blocks_of(tiny), (1.0, 0.3, 1.5, 0.2, 0.7, 1.1)):
            block.mlp.down_proj.weight.mul_(scale)
            block.self_attn.o_proj.weight.mul_(scale)
    return tiny


def answer_of(name, model, calibration, **options):
    return score_blocks(name, model, calibration if needs_text(name) else None, **{"remove": 2, **options})


def same(one, other, tolerance=1e-4):
    assert one.removed == other.removed
    assert one.order == other.order
    np.testing.assert_allclose(one.scores, other.scores, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ALL)
def test_it_answers_the_same_question_the_same_way_and_leaves_the_model_alone(name, model, ragged):
    before = {key: value.clone() for key, value in model.state_dict().items()}
    flags = [parameter.requires_grad for parameter in model.parameters()]
    first = answer_of(name, model, ragged, seed=3)
    second = answer_of(name, model, ragged, seed=3)
    assert first.model_dump_json() == second.model_dump_json()
    assert first.criterion == name
    assert len(first.scores) == 6
    assert all(value.equal(before[key]) for key, value in model.state_dict().items())
    assert [parameter.requires_grad for parameter in model.parameters()] == flags
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(block._forward_hooks or block._forward_pre_hooks for block in blocks_of(model))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("remove", [1, 2, 3])
@pytest.mark.parametrize("protect", [(0,), (0, 2)])
def test_it_removes_as_many_as_asked_and_nothing_protected(name, model, even, remove, protect):
    answer = answer_of(name, model, even, remove=remove, protect=protect)
    assert len(answer.removed) == remove
    assert not set(protect) & set(answer.removed)
    assert set(answer.order[:remove]) == set(answer.removed)
    assert all(math.isnan(answer.scores[block]) for block in answer.protected)
    assert set(protect) <= set(answer.protected)
    assert all(math.isfinite(answer.scores[block]) for block in answer.order)
    if name in KEEPS_THE_ENDS:
        assert not {0, 5} & set(answer.removed)
    if name in SPANS:
        assert answer.removed == tuple(range(answer.removed[0], answer.removed[0] + remove))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("remove", [1, 2, 3])
def test_contiguous_means_neighbours(name, model, even, remove):
    answer = answer_of(name, model, even, remove=remove, contiguous=True)
    assert answer.removed == tuple(range(answer.removed[0], answer.removed[0] + remove))
    assert 0 not in answer.removed


@pytest.mark.parametrize("name", ALL)
def test_padding_changes_nothing(name, model, ragged):
    wider = make_set(
        "wider",
        torch.nn.functional.pad(ragged.input_ids, (0, 11), value=7),
        torch.nn.functional.pad(ragged.attention_mask, (0, 11)),
    )
    same(answer_of(name, model, ragged, seed=1), answer_of(name, model, wider, seed=1))


@pytest.mark.parametrize("name", [name for name in ALL if needs_text(name)])
def test_the_batch_size_changes_nothing(name, model, ragged, monkeypatch):
    import regrow.criteria.ablation as ablation
    import regrow.criteria.gradients as gradients
    import regrow.criteria.merging as merging
    import regrow.criteria.similarity as similarity
    from regrow.criteria.objective import text_batches

    base = answer_of(name, model, ragged)
    monkeypatch.setattr(similarity, "STATE_BYTES", 1)
    monkeypatch.setattr(merging, "STATE_BYTES", 1)
    monkeypatch.setattr(gradients, "BATCH_TOKENS", 1)
    monkeypatch.setattr(ablation, "text_batches", lambda calibration: text_batches(calibration, 1))
    other = answer_of(name, model, ragged)
    assert base.removed == other.removed
    if name == "greedy-perplexity":
        return
    same(base, other)


@pytest.mark.parametrize("name", ALL)
def test_it_never_removes_everything(name, model, even):
    for protect in ((), (0,)):
        with pytest.raises(ConfigError, match="cannot remove 6 of 6 blocks"):
            answer_of(name, model, even, remove=6, protect=protect)
    with pytest.raises(ConfigError, match="at least 1"):
        answer_of(name, model, even, remove=0)
    with pytest.raises(ConfigError, match="cannot protect block 9"):
        answer_of(name, model, even, protect=(9,))


@pytest.mark.parametrize("name", ALL)
def test_what_it_keeps_itself_is_declared(name, model, even):
    declared = {block % 6 for block in kept_by(name)}
    assert declared == KEPT.get(name, set())
    assert set(answer_of(name, model, even, remove=1, protect=()).protected) >= declared
    most = 6 - len(declared | {0})
    check_request(name, 6, remove=most, protect=(0,))
    assert len(answer_of(name, model, even, remove=most).removed) == most
    with pytest.raises(ConfigError, match=f"cannot remove {most + 1} of 6 blocks"):
        check_request(name, 6, remove=most + 1, protect=(0,))


def test_a_request_that_one_criterion_cannot_meet_is_refused_before_any_pass(model):
    with pytest.raises(ConfigError, match="1 more by lorp itself"):
        rank(model, None, ["block-influence", "lorp"], remove=5)
    with pytest.raises(ConfigError, match="no 3 neighbouring blocks"):
        rank(model, None, ["block-influence", "angular"], remove=3, protect=(0, 3))


@pytest.mark.parametrize("name", [name for name in ALL if name not in ("reverse-order", "random")])
def test_a_nan_is_an_error_that_names_a_block(name, even):
    from tests.conftest import tiny_model

    broken = tiny_model("llama")
    with torch.no_grad():
        blocks_of(broken)[2].mlp.down_proj.weight[3, 3] = math.nan
    with pytest.raises(ModelError, match="block 2"):
        answer_of(name, broken, even)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("family", FAMILIES)
def test_it_works_on_every_family(name, family, make_tiny, even):
    answer = answer_of(name, make_tiny(family), even, remove=2)
    assert len(answer.removed) == 2


@pytest.mark.parametrize("name", [name for name in ALL if needs_text(name)])
def test_a_criterion_that_needs_text_says_so(name, model):
    with pytest.raises(DataError, match="needs a calibration text"):
        score_blocks(name, model, None, remove=1)


@pytest.mark.parametrize("name", ALL)
def test_what_is_said_of_it_is_complete(name):
    entry = CRITERIA.entry(name)
    facts = dict(entry.facts)
    assert entry.summary
    assert entry.paper
    assert {"needs", "cost", "basis"} <= set(facts)
    assert (CRITERIA.get(name).__doc__ or "").startswith("Return")


def test_half_precision_is_enough_for_the_cheap_ones(model, even):
    import copy

    half = copy.deepcopy(model).to(torch.bfloat16)
    for name in ("block-influence", "streamline", "magnitude-l1", "perplexity"):
        full, low = answer_of(name, model, even), answer_of(name, half, even)
        np.testing.assert_allclose(np.array(low.scores)[1:], np.array(full.scores)[1:], rtol=0.1, atol=0.03)
    assert len(from_examples("x", token_rows([5]))) == 1
