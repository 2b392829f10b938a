"""The grid of calibration texts and searches, the sentence it ends in, and the cut that spares a capability."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from regrow.criteria.guided import damage_of, guided_choice
from regrow.criteria.objective import Objective, answer_batches, text_batches
from regrow.criteria.search_study import finding_of, overlap_of, search_study, shares_of
from regrow.data.calibration import from_examples
from regrow.data.overlap import shared_with_calibration
from regrow.errors import ConfigError, DataError
from regrow.models.families import blocks_of
from regrow.records.search_study import CalibrationConfig, SearchRun, SearchStudy
from tests.conftest import tiny_tokenizer
from tests.criteria.conftest import token_rows


@pytest.fixture
def model(make_tiny):
    tiny = make_tiny("llama")
    with torch.no_grad():
        for block, scale in zip(blocks_of(tiny), (1.0, 0.4, 1.2, 0.3, 0.8, 0.5)):
            block.mlp.down_proj.weight.mul_(scale)
    return tiny


TEXTS = [CalibrationConfig(samples=2, chunk_tokens=16), CalibrationConfig(samples=4, chunk_tokens=16)]
OPTIONS = {"remove": 2, "seeds": (0, 1), "budget": 100.0}


def test_the_whole_grid_is_run_and_goes_on_where_it_broke(model, even):
    tokenizer, common = tiny_tokenizer(), text_batches(even)
    seen = []
    study = search_study(model, tokenizer, TEXTS, ["one-shot", "random"], common=common, on_run=seen.append, **OPTIONS)
    assert len(study.runs) == 2 * 2 * 2
    assert {(run.calibration, run.search, run.seed) for run in study.runs} == {
        (config.name, search, seed) for config in TEXTS for search in ("one-shot", "random") for seed in (0, 1)
    }
    outside = Objective(model, common)
    for run in study.runs:
        assert run.outcomes["perplexity"] == pytest.approx(math.exp(outside(run.removed)), rel=1e-6)
        assert len(run.removed) == 2
    assert seen == list(study.runs)
    again = []
    resumed = search_study(
        model, tokenizer, TEXTS, ["one-shot", "random"], common=common, done=seen[:5], on_run=again.append, **OPTIONS
    )
    assert len(again) == 3
    assert [run.removed for run in resumed.runs] == [run.removed for run in study.runs]
    assert resumed.shares == study.shares
    assert SearchStudy.model_validate_json(study.model_dump_json()).finding == study.finding
    assert "variance" in study.finding or "same perplexity" in study.finding


def test_other_measures_are_asked_for_every_cut(model):
    asked = []

    def deepest(removed):
        asked.append(removed)
        return float(max(removed))

    study = search_study(
        model, tiny_tokenizer(), TEXTS[:1], ["one-shot", "greedy"], measures={"deepest": deepest}, **OPTIONS
    )
    assert asked == [run.removed for run in study.runs]
    assert {share.outcome for share in study.shares} == {"deepest"}


def run_of(calibration, search, seed, removed, value):
    return SearchRun(
        calibration=calibration,
        search=search,
        seed=seed,
        removed=removed,
        loss=1.0,
        outcomes={"accuracy": value},
        evaluations=1,
        block_forwards=1.0,
        wall_seconds=0.0,
    )


def test_overlap_is_told_apart_by_what_two_runs_share():
    runs = [
        run_of("a", "x", 0, (1, 2), 0.0),
        run_of("a", "x", 1, (1, 2), 0.0),
        run_of("a", "y", 0, (1, 3), 0.0),
        run_of("b", "x", 0, (4, 5), 0.0),
    ]
    found = overlap_of(runs)
    assert found["same both"] == 1.0
    assert found["same calibration"] == pytest.approx(1 / 3)
    assert found["same search"] == 0.0
    assert found["neither"] == 0.0
    assert math.isnan(overlap_of(runs[:2])["neither"])


def test_the_finding_names_the_stronger_factor_and_admits_a_draw():
    generator = np.random.default_rng(0)

    def runs(calibration, search):
        return [
            run_of(c, s, seed, (1, 2), calibration * i + search * j + generator.normal(0, 0.05))
            for i, c in enumerate("ab")
            for j, s in enumerate("xy")
            for seed in range(4)
        ]

    clear = finding_of(shares_of(runs(3.0, 0.3)))
    assert clear.startswith("For accuracy, the calibration text explains 9")
    assert "overlap" not in clear
    assert "overlap, so this grid does not settle" in finding_of(shares_of(runs(0.1, 0.1)))
    equal = [run_of(c, s, seed, (1,), 1.0) for c in "ab" for s in "xy" for seed in (0, 1)]
    assert "nothing can be said of what matters" in finding_of(shares_of(equal))


def test_the_finding_says_what_was_not_varied_and_when_the_draw_outweighs_both():
    one_text = [run_of("a", s, seed, (1,), float(s == "x") + 0.01 * seed) for s in "xy" for seed in (0, 1, 2)]
    assert finding_of(shares_of(one_text)).endswith("the calibration text was not varied.")
    one_seed = [run_of("a", s, 0, (1,), float(s == "x")) for s in "xyz"]
    assert "not varied, and one seed gives no intervals" in finding_of(shares_of(one_seed))
    noise = [run_of(c, s, seed, (1,), float(seed)) for c in "ab" for s in "xy" for seed in (0, 1, 2)]
    assert "More than either, the draw of samples (the seed) explains 100%" in finding_of(shares_of(noise))
    single = [run_of(c, s, 0, (1,), float(c == "a") + 0.5 * (s == "x")) for c in "ab" for s in "xy"]
    assert "one seed gives no intervals" in finding_of(shares_of(single))


def test_a_study_of_nothing_is_refused(model, even):
    common = text_batches(even)
    with pytest.raises(ConfigError, match="at least two"):
        search_study(model, None, TEXTS[:1], ["greedy"], common=common, **OPTIONS)
    with pytest.raises(ConfigError, match="named twice"):
        search_study(model, None, TEXTS, ["greedy", "greedy"], common=common, **OPTIONS)
    with pytest.raises(ConfigError, match="unknown search algorithm"):
        search_study(model, None, TEXTS, ["gready"], common=common, **OPTIONS)
    with pytest.raises(ConfigError, match="nothing to compare"):
        search_study(model, None, TEXTS, ["greedy"], **OPTIONS)


def test_the_guided_cut_has_the_least_loss_on_the_answers(model):
    examples = list(zip(token_rows([9, 4, 12, 6]), token_rows([3, 8, 5, 7], seed=1)))
    objective = Objective(model, answer_batches(examples))
    pairs = {(a, b): objective((a, b)) for a in range(1, 6) for b in range(a + 1, 6)}
    scores, found = guided_choice(model, examples, remove=2, algorithm="beam")
    assert found.loss <= sorted(pairs.values())[1]
    assert scores.removed == found.removed
    assert scores.criterion == "guided"
    assert scores.data_fingerprint
    exhaustive, _ = guided_choice(
        model, examples, remove=2, algorithm="random", budget=500.0, generator=np.random.default_rng(0)
    )
    assert exhaustive.removed == min(pairs, key=pairs.__getitem__)
    with pytest.raises(DataError):
        guided_choice(model, [], remove=2)


def test_damage_by_capability_is_a_difference_of_losses(model):
    first = list(zip(token_rows([9, 4]), token_rows([3, 8], seed=1)))
    second = list(zip(token_rows([5, 6]), token_rows([6, 2], seed=2)))
    table = damage_of(model, {"math": first, "safety": second}, [(1,), (2, 3)])
    objective = Objective(model, answer_batches(second))
    assert table["safety"] == pytest.approx([objective((1,)) - objective.whole, objective((2, 3)) - objective.whole])
    assert set(table) == {"math", "safety"}


def test_a_text_used_twice_is_noticed():
    tokenizer = tiny_tokenizer()
    passage = "the quick brown fox jumps over the lazy dog while seven old men look on and say nothing at all"
    calibration = from_examples("pool", [tokenizer(f"Once upon a time {passage} indeed").input_ids])
    warning = shared_with_calibration(calibration, tokenizer, f"Well, {passage}!", evaluation_name="the test items")
    assert "the test items and the calibration text 'pool' share text" in warning
    assert not shared_with_calibration(calibration, tokenizer, "Something else. " * 20, evaluation_name="x")
