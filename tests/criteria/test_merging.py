"""LaCo: the formula, the trial without copies, and the plan that leads to a real model."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from regrow.criteria.merging import Merge, _Trial, laco, laco_plan, merge_blocks, merges_of
from regrow.errors import ModelError
from regrow.models.families import blocks_of, final_norm_of
from regrow.surgery import remove_blocks
from tests.criteria.conftest import FAMILIES


def final_states(model, calibration):
    """Return the final hidden states of every counted token, sequence by sequence (first token of each left out)."""
    held = []
    hook = final_norm_of(model).register_forward_hook(lambda norm, args, output: held.append(output[0, 1:].double()))
    with torch.no_grad():
        for ids, mask in zip(calibration.input_ids, calibration.attention_mask):
            model(ids[mask.bool()].unsqueeze(0), use_cache=False)
    hook.remove()
    return torch.cat(held).numpy()


def mean_cosine(one, other):
    return float(((one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)).mean())


def test_the_merge_is_the_formula_of_the_paper(make_tiny):
    model = make_tiny("llama")
    before = [{name: value.clone() for name, value in block.state_dict().items()} for block in blocks_of(model)]
    merge_blocks(model, [Merge(3, (4, 5), 1.0), Merge(1, (2, 3), 1.0)])
    for name in before[0]:
        third = before[3][name] + (before[4][name] - before[3][name]) + (before[5][name] - before[3][name])
        first = before[1][name] + (before[2][name] - before[1][name]) + (third - before[1][name])
        torch.testing.assert_close(blocks_of(model)[3].state_dict()[name], third)
        torch.testing.assert_close(blocks_of(model)[1].state_dict()[name], first)
        assert blocks_of(model)[2].state_dict()[name].equal(before[2][name])


def test_merging_one_block_is_not_dropping_it(make_tiny, even):
    model = make_tiny("llama")
    dropped = final_states(remove_blocks(copy.deepcopy(model), [3]), even)
    merged = final_states(remove_blocks(merge_blocks(copy.deepcopy(model), [Merge(2, (3, 4), 1.0)]), [3, 4]), even)
    assert mean_cosine(dropped, merged) < 0.999


@pytest.mark.parametrize("family", FAMILIES)
def test_a_trial_without_copies_equals_the_merged_model(make_tiny, ragged, family):
    model = make_tiny(family)
    trial = _Trial(model, ragged, 1)
    original = final_states(model, ragged)
    for merges in ([Merge(4, (5,), 0.0)], [Merge(4, (5,), 0.0), Merge(1, (2, 3), 0.0)]):
        gone = [block for merge in merges for block in merge.absorbed]
        real = remove_blocks(merge_blocks(copy.deepcopy(model), merges), gone)
        assert trial.similarity(merges) == pytest.approx(mean_cosine(original, final_states(real, ragged)), abs=1e-5)


def test_the_plan_goes_down_and_every_merge_is_similar_enough(make_tiny, even):
    model = make_tiny("llama", blocks=8)
    for remove in range(1, 8):
        plan = laco_plan(model, even, remove=remove)
        assert len(plan.removed) == remove
        assert all(merge.similarity > plan.threshold for merge in plan.merges)
        assert all(merge.into not in merge.absorbed and merge.into >= 0 for merge in plan.merges)


def test_the_answer_carries_its_merges(make_tiny, even):
    model = make_tiny("llama", blocks=8)
    answer, plan = laco(model, even, remove=5), laco_plan(model, even, remove=5)
    assert answer.removed == plan.removed
    carried = [(merge.into, merge.absorbed) for merge in merges_of(answer)]
    assert carried == [(merge.into, merge.absorbed) for merge in plan.merges]
    assert merges_of(answer.model_copy(update={"criterion": "random"})) == ()


def test_a_high_threshold_is_lowered_until_enough_blocks_are_gone(make_tiny, even):
    plan = laco_plan(make_tiny("llama"), even, remove=4, threshold=0.9999)
    assert plan.threshold < 0.9999
    assert len(plan.removed) == 4


def test_a_protected_block_is_never_absorbed_but_may_absorb(make_tiny, even):
    plan = laco_plan(make_tiny("llama"), even, remove=3, protect=(0, 2))
    assert not {0, 2} & set(plan.removed)


def test_one_merge_when_the_cut_must_be_contiguous(make_tiny, even):
    plan = laco_plan(make_tiny("llama"), even, remove=3, contiguous=True)
    assert len(plan.merges) == 1
    assert plan.removed == tuple(range(plan.merges[0].into + 1, plan.merges[0].into + 4))


def test_blocks_of_unequal_shape_cannot_be_merged(make_tiny):
    with pytest.raises(ModelError, match="differ in shape"):
        merge_blocks(make_tiny("qwen2_moe"), [Merge(0, (1,), 1.0)])
