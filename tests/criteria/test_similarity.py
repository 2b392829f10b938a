"""The one-pass similarity record against a brute-force computation, and the criteria that read it."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from regrow.criteria.similarity import angular, block_influence, counted_tokens, kept_similarity, similarity, streamline
from regrow.data.calibration import from_examples, make_set
from regrow.errors import ConfigError, DataError, ModelError
from regrow.models.families import anatomy_of, blocks_of, final_norm_of
from regrow.records.similarity import SimilarityRecord, read_similarity
from tests.criteria.conftest import FAMILIES


def brute_force(model, rows, skip_first):
    """Return cosine, angle and last angle matrices from hidden states of single sequences, in float64.

    The final norm is replaced by nothing, so that the last hidden state is what leaves the last block.
    """
    backbone, norm = anatomy_of(model).backbone, final_norm_of(model)
    name = next(name for name, child in backbone.named_children() if child is norm)
    setattr(backbone, name, torch.nn.Identity())
    try:
        tokens, last = [], []
        for row in rows:
            with torch.no_grad():
                states = model(torch.tensor([row]), output_hidden_states=True, use_cache=False).hidden_states
            stacked = torch.stack([state[0] for state in states]).double().numpy()[:, skip_first:]
            tokens.append(stacked)
            if stacked.shape[1]:
                last.append(stacked[:, -1])
    finally:
        setattr(backbone, name, norm)

    def cosines(h_ND):
        unit = h_ND / np.linalg.norm(h_ND, axis=1, keepdims=True)
        return np.clip(unit @ unit.T, -1, 1)

    each = [cosines(stacked[:, t]) for stacked in tokens for t in range(stacked.shape[1])]
    ends = [cosines(stacked) for stacked in last]
    return (
        np.mean(each, axis=0),
        np.mean(np.arccos(each), axis=0) / math.pi,
        np.mean(np.arccos(ends), axis=0) / math.pi,
        len(each),
    )


def rows_of(calibration):
    return [ids[mask.bool()].tolist() for ids, mask in zip(calibration.input_ids, calibration.attention_mask)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("skip_first", [0, 1])
def test_the_record_equals_brute_force_on_every_family(make_tiny, ragged, family, skip_first):
    model = make_tiny(family)
    record = similarity(model, ragged, skip_first=skip_first, batch_size=2)
    cosine, angle, last_angle, tokens = brute_force(model, rows_of(ragged), skip_first)
    off = ~np.eye(len(cosine), dtype=bool)
    assert record.tokens == tokens
    np.testing.assert_allclose(record.matrix(), cosine, atol=2e-6)
    np.testing.assert_allclose(np.array(record.angle)[off], angle[off], atol=2e-5)
    np.testing.assert_allclose(np.array(record.last_angle)[off], last_angle[off], atol=2e-6)
    assert np.diag(record.angle).max() == 0.0
    neighbours = similarity(model, ragged, skip_first=skip_first, neighbours_only=True).matrix()
    near = np.abs(np.subtract.outer(np.arange(7), np.arange(7))) <= 1
    np.testing.assert_allclose(neighbours[near], cosine[near], atol=2e-6)
    assert np.isnan(neighbours[~near]).all()


def test_the_last_block_is_observed_before_the_final_norm(make_tiny, even):
    model = make_tiny("llama")
    with torch.no_grad():
        final_norm_of(model).weight.copy_(torch.linspace(-3, 3, 32))
    before = similarity(model, even).matrix()
    with torch.no_grad():
        final_norm_of(model).weight.fill_(1.0)
    np.testing.assert_array_equal(similarity(model, even).matrix(), before)


def test_padding_and_batch_size_change_nothing_beyond_rounding(make_tiny, ragged):
    model = make_tiny("gemma3")
    base = similarity(model, ragged, batch_size=5)
    wide = make_set(
        "wide",
        torch.nn.functional.pad(ragged.input_ids, (0, 9), value=5),
        torch.nn.functional.pad(ragged.attention_mask, (0, 9)),
    )
    for other in (similarity(model, ragged, batch_size=1), similarity(model, wide, batch_size=3)):
        np.testing.assert_allclose(other.matrix(), base.matrix(), atol=1e-6)
        np.testing.assert_allclose(other.last_angle, base.last_angle, atol=1e-6)
        assert other.tokens == base.tokens


def test_counted_tokens_skips_the_first_real_ones_wherever_they_stand():
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0]])
    assert counted_tokens(mask, 1).int().tolist() == [[0, 0, 0, 1, 1], [0, 1, 1, 0, 0], [0, 0, 0, 0, 0]]


def test_nothing_left_after_the_skipped_tokens_is_refused(make_tiny):
    with pytest.raises(DataError, match="no token of 'short' is left"):
        similarity(make_tiny("llama"), from_examples("short", [[5], [6]]))


@pytest.mark.parametrize("neighbours_only", [True, False])
def test_activations_that_are_not_finite_name_the_block(make_tiny, even, neighbours_only):
    model = make_tiny("llama")
    with torch.no_grad():
        blocks_of(model)[3].mlp.down_proj.weight[0, 0] = math.nan
    with pytest.raises(ModelError, match="block 3 gives activations that are not finite"):
        similarity(model, even, neighbours_only=neighbours_only)
    with torch.no_grad():
        model.get_input_embeddings().weight.fill_(math.inf)
    with pytest.raises(ModelError, match="the embeddings give"):
        similarity(model, even, neighbours_only=neighbours_only)


def test_a_block_that_only_scales_has_no_influence_and_goes_first(make_tiny, even):
    model = make_tiny("llama")
    with torch.no_grad():
        for weight in (blocks_of(model)[4].self_attn.o_proj.weight, blocks_of(model)[4].mlp.down_proj.weight):
            weight.zero_()
    answer = block_influence(model, even, remove=2)
    assert answer.scores[4] == pytest.approx(0.0, abs=1e-6)
    assert answer.order[0] == 4


def record_of(cosine, **options):
    rows = tuple(map(tuple, cosine))
    angle = tuple(map(tuple, np.arccos(np.clip(cosine, -1, 1)) / math.pi))
    return SimilarityRecord(
        blocks=len(cosine) - 1,
        cosine=rows,
        last_angle=angle,
        angle=angle,
        tokens=1,
        sequences=1,
        skip_first=1,
        **options,
    )


def test_spans_have_the_most_similar_ends_and_scores_that_agree():
    generator = np.random.default_rng(0)
    angles = np.cumsum([0, 3, 1, 1.1, 4, 1.2, 2, 5]) / 20
    cosine = np.cos(np.subtract.outer(angles, angles))
    record = record_of(cosine)
    for method in (angular, streamline):
        answer = method(None, None, remove=2, protect=(0,), generator=generator, record=record)
        assert answer.removed == (1, 2)
        for remove in (1, 3, 4):
            found = method(None, None, remove=remove, protect=(0,), generator=generator, record=record)
            spans = [(angles[first + remove] - angles[first], first) for first in range(1, 8 - remove)]
            first = min(spans)[1]
            assert found.removed == tuple(range(first, first + remove))
            assert all(found.scores[a] <= found.scores[b] for a, b in pairwise(found.order))
    assert angular(None, None, remove=2, record=record).scores[1] == pytest.approx(2.1 / 20 / math.pi)
    assert streamline(None, None, remove=2, record=record).scores[1] == pytest.approx(0.5 - 0.5 * math.cos(2.1 / 20))


def test_blocks_that_no_span_can_hold_say_so():
    record = record_of(np.eye(7) * 0.5 + 0.5)
    answer = angular(None, None, remove=2, protect=(0, 2), record=record)
    assert answer.reasons["1"] == "no span of 2 free blocks contains it"
    assert math.isnan(answer.scores[1])
    assert 1 not in answer.order
    with pytest.raises(ConfigError, match="no 4 neighbouring blocks"):
        streamline(None, None, remove=4, protect=(0, 2), record=record)


def test_a_saved_record_is_the_same_record(make_tiny, even, tmp_path):
    record = similarity(make_tiny("llama"), even, neighbours_only=True)
    record.save(tmp_path / "similarity.json")
    again = read_similarity(tmp_path / "similarity.json")
    np.testing.assert_array_equal(again.matrix(), record.matrix())
    assert again.fingerprint == record.fingerprint
    (tmp_path / "similarity.json").write_text("{}")
    with pytest.raises(DataError, match="not a similarity record"):
        read_similarity(tmp_path / "similarity.json")


def test_the_fingerprint_names_model_text_and_settings(make_tiny, even, ragged):
    model, other = make_tiny("llama"), make_tiny("llama", seed=1)
    prints = {
        similarity(model, even).fingerprint,
        similarity(other, even).fingerprint,
        similarity(model, ragged).fingerprint,
        similarity(model, even, skip_first=0).fingerprint,
        similarity(model, even, neighbours_only=True).fingerprint,
    }
    assert len(prints) == 5
    assert similarity(model, even, batch_size=1).fingerprint in prints


def test_asking_again_costs_nothing(make_tiny, even, ragged, tmp_path):
    model = make_tiny("llama")
    calls = []
    model.model.register_forward_hook(lambda *_: calls.append(1))
    first = kept_similarity(model, even, tmp_path)
    assert len(calls) == 1
    assert kept_similarity(model, even, tmp_path) == first
    assert kept_similarity(model, even, tmp_path, neighbours_only=True) == first
    assert len(calls) == 1
    kept_similarity(model, ragged, tmp_path)
    kept_similarity(model, even, tmp_path, skip_first=0)
    assert len(calls) == 3
    with torch.no_grad():
        blocks_of(model)[2].mlp.down_proj.weight.mul_(1.5)
    assert kept_similarity(model, even, tmp_path).cosine != first.cosine
    assert len(list(tmp_path.iterdir())) == 4
    for file in tmp_path.iterdir():
        file.write_text("{")
    kept_similarity(model, even, tmp_path)
    assert len(calls) == 5


@pytest.mark.slow
def test_block_influence_of_smollm2_finds_the_middle_blocks(smollm2):
    from regrow.data.calibration import load_calibration

    calibration = load_calibration("bundled", smollm2.tokenizer, tokens=4096, chunk_tokens=256)
    record = similarity(smollm2.model, calibration, neighbours_only=True)
    answer = block_influence(smollm2.model, calibration, remove=7, record=record)
    assert {13, 14, 17} <= set(answer.removed)
