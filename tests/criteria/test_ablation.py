"""Leave-one-out and greedy cuts against models that were really cut, one candidate at a time."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch

from regrow.criteria.ablation import greedy_perplexity, perplexity
from regrow.data.calibration import from_examples
from regrow.models.families import blocks_of
from regrow.surgery import remove_blocks
from tests.criteria.conftest import FAMILIES, own_words


def loss_without(model, cut, calibration):
    """Return the mean token NLL of a really cut model, sequence by sequence."""
    short = remove_blocks(copy.deepcopy(model), sorted(cut))
    losses = []
    for ids, mask in zip(calibration.input_ids, calibration.attention_mask):
        row = ids[mask.bool()].unsqueeze(0)
        with torch.no_grad():
            logits = short(row, use_cache=False).logits[0, :-1]
        losses += torch.nn.functional.cross_entropy(logits, row[0, 1:], reduction="none").tolist()
    return float(np.mean(losses))


@pytest.mark.parametrize("family", FAMILIES)
def test_one_shot_perplexities_are_those_of_cut_models(make_tiny, ragged, family):
    model = make_tiny(family)
    answer = perplexity(model, ragged, remove=2)
    expected = [math.exp(loss_without(model, (block,), ragged)) for block in range(6)]
    assert answer.scores[1:] == pytest.approx(expected[1:], rel=1e-4)
    assert answer.removed == tuple(sorted(sorted(range(1, 6), key=expected.__getitem__)[:2]))
    assert answer.data_fingerprint == ragged.fingerprint


def test_giving_up_gives_the_same_cut_and_bounds_for_the_rest(make_tiny, monkeypatch):
    import regrow.criteria.ablation as ablation
    from regrow.criteria.objective import text_batches

    monkeypatch.setattr(ablation, "text_batches", lambda calibration: text_batches(calibration, 1))
    model = make_tiny("qwen3")
    with torch.no_grad():
        model.lm_head.weight.mul_(20)
        for name in ("self_attn.o_proj.weight", "mlp.down_proj.weight"):
            blocks_of(model)[3].get_parameter(name).mul_(1e-3)
    text = from_examples("its own", own_words(model, 8, 24))
    full, quick = perplexity(model, text, remove=1), perplexity(model, text, remove=1, give_up=True)
    assert quick.removed == full.removed == (3,)
    bounds = [block for block in range(1, 6) if "lower bound" in quick.reasons.get(str(block), "")]
    assert bounds
    for block in range(1, 6):
        if block in bounds:
            assert full.scores[full.removed[0]] < quick.scores[block] <= full.scores[block]
        else:
            assert quick.scores[block] == pytest.approx(full.scores[block], rel=1e-5)


def test_the_plus_rule_keeps_the_first_four_and_the_last_two(make_tiny, even):
    answer = perplexity(make_tiny("llama", blocks=8), even, remove=2, plus=True)
    assert answer.protected == (0, 1, 2, 3, 6, 7)
    assert answer.removed == (4, 5)


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt_neox"])
def test_greedy_takes_the_best_block_of_every_round(make_tiny, ragged, family):
    model = make_tiny(family)
    gone: list[int] = []
    for _ in range(3):
        free = [block for block in range(1, 5) if block not in gone]
        losses = {block: loss_without(model, [*gone, block], ragged) for block in free}
        gone.append(min(free, key=losses.__getitem__))
        last = losses
    answer = greedy_perplexity(model, ragged, remove=3)
    assert answer.order[:3] == tuple(gone)
    assert answer.scores[gone[2]] == pytest.approx(math.exp(last[gone[2]]), rel=1e-4)
    assert answer.protected == (0, 5)


def test_a_contiguous_greedy_cut_grows_to_either_side(make_tiny, ragged):
    model = make_tiny("llama", blocks=8)
    gone = [min(range(1, 7), key=lambda block: loss_without(model, [block], ragged))]
    for _ in range(2):
        beside = [block for block in (min(gone) - 1, max(gone) + 1) if 1 <= block <= 6]
        gone.append(min(beside, key=lambda block: loss_without(model, [*gone, block], ragged)))
    answer = greedy_perplexity(model, ragged, remove=3, contiguous=True)
    assert answer.order[:3] == tuple(gone)
