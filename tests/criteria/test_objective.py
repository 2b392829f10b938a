"""The oracle of all searches against models that were really cut, and what it costs."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch

from regrow.criteria.ablation import greedy_perplexity
from regrow.criteria.head import Head
from regrow.criteria.objective import Objective, answer_batches, text_batches
from regrow.criteria.replay import Replay
from regrow.data.calibration import from_examples
from regrow.errors import ConfigError, DataError, ModelError
from regrow.models.families import backbone_of, blocks_of
from regrow.surgery import remove_blocks
from tests.conftest import TINY_FAMILIES
from tests.criteria.conftest import FAMILIES, own_words, token_rows

CUTS = [(), (1,), (4,), (5,), (1, 2), (2, 4), (0, 3, 5), (1, 2, 3, 4)]


def cut_model(model, cut):
    return remove_blocks(copy.deepcopy(model), sorted(cut))


def plain_loss(model, rows, firsts=None):
    """Return the mean NLL of the rows, one at a time, from the model's own logits in float64."""
    losses = []
    for number, row in enumerate(rows):
        with torch.no_grad():
            logits = model(torch.tensor([row]), use_cache=False).logits[0].double().log_softmax(-1)
        first = 1 if firsts is None else firsts[number]
        losses += [-float(logits[place - 1, row[place]]) for place in range(first, len(row))]
    return float(np.mean(losses))


def rows_of(calibration):
    return [ids[mask.bool()].tolist() for ids, mask in zip(calibration.input_ids, calibration.attention_mask)]


@pytest.mark.parametrize("family", sorted(TINY_FAMILIES))
def test_replayed_blocks_equal_a_model_that_was_really_cut(make_tiny, family):
    model = make_tiny(family)
    ids = torch.tensor(token_rows([20] * 3))
    replay = Replay(model, ids)
    with torch.inference_mode():
        references = [cut_model(model, cut)(ids, use_cache=False).logits for cut in CUTS]
    head = Head(model)
    with torch.inference_mode():
        for cut, reference in zip(CUTS, references):
            kept = [block for block in range(6) if block not in cut]
            state = replay.norm(replay.through(kept, replay.entry))
            ours = head.logits(state.flatten(0, 1)).view(3, 20, -1)
            torch.testing.assert_close(ours, reference, rtol=1e-5, atol=1e-5)
        stacked = torch.cat([replay.through([0], replay.entry), replay.through([0, 1], replay.entry)])
        both = replay.through([3, 4], stacked)
        torch.testing.assert_close(both[:3], replay.through([0, 3, 4], replay.entry), rtol=1e-5, atol=1e-5)
    assert "forward" not in vars(backbone_of(model))


@pytest.mark.parametrize("family", FAMILIES)
def test_losses_equal_those_of_cut_models_with_padding_and_any_batch_size(make_tiny, ragged, family):
    model = make_tiny(family)
    expected = [plain_loss(cut_model(model, cut), rows_of(ragged)) for cut in CUTS]
    for batch_size in (1, 2, 5):
        objective = Objective(model, text_batches(ragged, batch_size))
        assert objective.many(CUTS) == pytest.approx(expected, rel=2e-5)
    assert objective.whole == pytest.approx(expected[0], rel=2e-5)


def test_memory_limits_change_the_work_but_not_the_values(make_tiny, even):
    model = make_tiny("qwen3")
    base = Objective(model, text_batches(even, 2)).many(CUTS)
    state = 2 * 24 * 32 * 4
    for options in ({"kept_bytes": 0}, {"live_bytes": state}, {"kept_bytes": 3 * state, "live_bytes": 2 * state}):
        assert Objective(model, text_batches(even, 2), **options).many(CUTS) == pytest.approx(base, rel=1e-6)


def test_stacking_more_than_fits_in_one_call_changes_nothing(make_tiny, even, monkeypatch):
    model = make_tiny("gemma3")
    base = Objective(model, text_batches(even, 5)).many(CUTS)
    for limit in (1, 240, 10**6):
        monkeypatch.setattr("regrow.criteria.objective.STACKED_TOKENS_CPU", limit)
        assert Objective(model, text_batches(even, 5)).many(CUTS) == pytest.approx(base, rel=1e-6)


@pytest.mark.parametrize("family", sorted(TINY_FAMILIES))
def test_losses_from_the_head_equal_those_from_its_logits(make_tiny, family, monkeypatch):
    model = make_tiny(family, vocabulary=97)
    head = Head(model)
    assert head.plain == (family != "gemma2")
    final, targets = torch.randn(50, 32), torch.arange(50) + 40
    with torch.inference_mode():
        logits = head.logits(final).double()
    expected = float(torch.nn.functional.cross_entropy(logits, targets, reduction="sum"))
    for words, tokens, room in ((512, 1024, 2**26), (10, 7, 97 * 4 * 3)):
        monkeypatch.setattr("regrow.criteria.head.PIECE_WORDS", words)
        monkeypatch.setattr("regrow.criteria.head.PIECE_TOKENS", tokens)
        monkeypatch.setattr("regrow.criteria.head.LOGITS_BYTES", room)
        with torch.inference_mode():
            assert float(head.losses(final, targets).sum()) == pytest.approx(expected, rel=1e-6)
    assert "forward" not in vars(backbone_of(model))


def test_a_scale_on_the_logits_is_applied_and_noticed(make_tiny):
    model = make_tiny("granite")
    plain = Head(model)
    final, targets = torch.randn(9, 32), torch.arange(9)
    with torch.inference_mode():
        base = plain.logits(final)
        model.config.logits_scaling = model.logits_scaling = 4.0
        head = Head(model)
        assert plain.plain
        assert not head.plain
        torch.testing.assert_close(head.logits(final), base / 4)
        expected = torch.nn.functional.cross_entropy(base / 4, targets, reduction="sum")
        assert float(head.losses(final, targets).sum()) == pytest.approx(float(expected), rel=1e-6)


def test_a_soft_cap_is_applied_and_noticed(make_tiny):
    model = make_tiny("gemma2")
    model.config.final_logit_softcapping = 5.0
    head = Head(model)
    assert not head.plain
    with torch.inference_mode():
        assert head.logits(torch.randn(9, 32) * 100).abs().max() <= 5.0


def test_divergence_from_the_whole_model(make_tiny, ragged):
    model = make_tiny("llama")
    objective = Objective(model, text_batches(ragged, 2), kind="kl")
    assert objective.whole == 0.0
    cut, values = cut_model(model, (2, 3)), []
    for row in rows_of(ragged):
        with torch.no_grad():
            whole, other = (m(torch.tensor([row]), use_cache=False).logits[0, :-1].double() for m in (model, cut))
        values += (whole.softmax(-1) * (whole.log_softmax(-1) - other.log_softmax(-1))).sum(-1).tolist()
    assert objective((2, 3)) == pytest.approx(np.mean(values), rel=1e-5)


def test_only_answers_are_scored(make_tiny):
    model = make_tiny("llama")
    prompts, answers = token_rows([9, 4, 12, 6]), token_rows([3, 8, 5, 30], seed=1)
    batches = answer_batches(list(zip(prompts, answers)), max_tokens=20, batch_size=3)
    rows = [[*prompt, *answer][:20] for prompt, answer in zip(prompts, answers)]
    objective = Objective(model, batches)
    assert objective.scored_tokens == 3 + 8 + 5 + 14
    expected = plain_loss(cut_model(model, (2,)), rows, [len(prompt) for prompt in prompts])
    assert objective((2,)) == pytest.approx(expected, rel=1e-5)
    with pytest.raises(DataError, match="example 0 has no answer token within 20 tokens"):
        answer_batches([(list(range(3, 30)), [1])], max_tokens=20)
    with pytest.raises(DataError, match="no examples to score"):
        answer_batches([])


def test_leaving_out_each_block_costs_the_suffixes_and_one_pass(make_tiny, even):
    objective = Objective(make_tiny("llama"), text_batches(even, 5), kept_bytes=0)
    objective.many([(block,) for block in range(6)])
    trunk, suffixes = 6, 5 + 4 + 3 + 2 + 1 + 0
    assert objective.block_forwards == pytest.approx(trunk + suffixes)
    assert objective.evaluations == 6
    before = objective.block_forwards
    objective.many([(block,) for block in range(6)])
    assert objective.block_forwards == before


def test_the_kept_trunk_is_not_computed_again(make_tiny, even):
    objective = Objective(make_tiny("llama"), text_batches(even, 2))
    objective.many([(2, 3), (2, 4), (2, 5)])
    before = objective.block_forwards
    objective((2,))
    assert objective.block_forwards - before == pytest.approx(2)


@pytest.mark.parametrize("keep", [1, 2, 4])
def test_giving_up_early_never_changes_the_best(make_tiny, even, keep):
    model = make_tiny("llama")
    with torch.no_grad():
        for block, scale in zip(blocks_of(model), (1, 5, 0.1, 3, 0.2, 1)):
            block.mlp.down_proj.weight.mul_(scale)
    cuts = [(block,) for block in range(6)]
    batches = text_batches(even, 1)
    exact = Objective(model, batches).many(cuts)
    racing = Objective(model, batches)
    answers = racing.race(cuts, keep=keep)
    best = sorted(range(6), key=exact.__getitem__)[:keep]
    assert all(answers[place].complete for place in best)
    assert sorted(range(6), key=lambda place: answers[place].value)[:keep] == best
    for answer, value in zip(answers, exact):
        assert answer.value == pytest.approx(value, rel=1e-6) if answer.complete else answer.value <= value


def test_a_hopeless_candidate_is_given_up(make_tiny):
    model = make_tiny("qwen3")
    with torch.no_grad():
        model.lm_head.weight.mul_(20)
        for name in ("self_attn.o_proj.weight", "mlp.down_proj.weight"):
            blocks_of(model)[3].get_parameter(name).mul_(1e-3)
    batches = text_batches(from_examples("its own", own_words(model, 8, 24)), 1)
    cuts = [(block,) for block in range(1, 6)]
    exact, racing = Objective(model, batches, kept_bytes=0), Objective(model, batches)
    values, answers = exact.many(cuts), racing.race(cuts, keep=1)
    assert [answer.complete for answer in answers] == [cut == (3,) for cut in cuts]
    assert answers[2].value == pytest.approx(values[2], rel=1e-6)
    assert all(values[2] < answer.value <= value for answer, value in zip(answers, values) if not answer.complete)
    assert racing.block_forwards < exact.block_forwards


def test_nonsense_is_refused(make_tiny, even):
    model = make_tiny("llama")
    objective = Objective(model, text_batches(even))
    for cut in ((6,), (-1,), range(6)):
        with pytest.raises(ConfigError, match="cannot evaluate the cut"):
            objective(cut)
    with pytest.raises(ConfigError, match="unknown objective"):
        Objective(model, text_batches(even), kind="accuracy")
    with pytest.raises(DataError, match="no text to score"):
        Objective(model, [])
    with pytest.raises(DataError, match="no token of the text can be scored"):
        Objective(model, text_batches(from_examples("single", [[5], [6]])))


def test_a_loss_that_is_not_finite_names_the_cut(make_tiny, even):
    model = make_tiny("llama")
    objective = Objective(model, text_batches(even))
    assert math.isfinite(objective.whole)
    with torch.no_grad():
        blocks_of(model)[3].mlp.down_proj.weight.fill_(math.nan)
    with pytest.raises(ModelError, match=r"the loss without blocks \[1\] is nan"):
        objective((1,))


def test_a_backbone_that_touches_the_stream_between_or_after_blocks_is_refused(make_tiny, even):
    model = make_tiny("llama")
    hook = blocks_of(model)[3].register_forward_pre_hook(lambda block, args: (args[0] * 2, *args[1:]))
    with pytest.raises(ModelError, match="changes the stream between blocks 2 and 3"):
        Replay(model, even.input_ids)
    hook.remove()

    def double(backbone, args, output):
        output["last_hidden_state"] = output.last_hidden_state * 2
        return output

    backbone_of(model).register_forward_hook(double)
    with pytest.raises(ModelError, match="does more after its blocks"):
        Replay(model, even.input_ids)


def test_what_was_given_up_is_not_evaluated_again_while_it_stays_out_of_reach(make_tiny):
    model = make_tiny("llama")
    text = from_examples("own", own_words(model, 6, 24))
    oracle = Objective(model, text_batches(text, 1))
    cuts = [(block,) for block in range(6)]
    first = oracle.race(cuts, keep=1)
    spent, asked = oracle.block_forwards, oracle.evaluations
    assert not all(answer.complete for answer in first)
    assert oracle.race(cuts, keep=1) == first
    assert (oracle.block_forwards, oracle.evaluations) == (spent, asked)
    exact = oracle.many(cuts)
    assert all(answer.value <= value + 1e-9 for answer, value in zip(first, exact))


def test_another_oracle_goes_on_from_what_is_known(make_tiny, even):
    model = make_tiny("llama")
    whole = greedy_perplexity(model, even, remove=3, objective=Objective(model, text_batches(even, 1)))
    known = {}
    for rounds in (1, 2, 3):
        oracle = Objective(model, text_batches(even, 1))
        oracle.recall(known)
        last = greedy_perplexity(model, even, remove=rounds, objective=oracle)
        known = oracle.answers()
    assert last == whole
    assert Objective(model, text_batches(even)).answers() == {}
