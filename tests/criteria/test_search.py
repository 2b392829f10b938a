"""Search algorithms on one oracle: the best cut when there is room for it, budgets kept, counts right."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
import torch

from regrow.criteria.objective import Objective, text_batches
from regrow.criteria.search import SEARCHES, as_scores, search
from regrow.errors import ConfigError
from regrow.models.families import blocks_of

ALGORITHMS = SEARCHES.names()
ENDLESS = ("random", "evolutionary", "annealing")


@pytest.fixture
def objective(make_tiny, ragged):
    model = make_tiny("llama", blocks=8)
    with torch.no_grad():
        for block, scale in zip(blocks_of(model), (1.0, 0.4, 1.2, 0.3, 0.8, 0.5, 1.1, 0.9)):
            block.mlp.down_proj.weight.mul_(scale)
    return Objective(model, text_batches(ragged, 2))


def exhaustive(objective, remove):
    values = {cut: objective(cut) for cut in combinations(range(1, 8), remove)}
    return min(values.values())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_loss_reported_is_the_loss_of_the_cut_and_the_seed_decides(objective, algorithm):
    options = {"remove": 3, "budget": 400.0}
    results = [search(objective, algorithm, **options, generator=np.random.default_rng(seed)) for seed in (0, 0)]
    assert results[0].removed == results[1].removed
    assert len(results[0].removed) == 3
    assert 0 not in results[0].removed
    assert results[0].loss == objective(results[0].removed)
    losses = [loss for _, loss in results[0].trace]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] == results[0].loss


@pytest.mark.parametrize("algorithm", ["random", "evolutionary", "annealing", "swap"])
def test_with_enough_budget_the_best_of_all_cuts_is_found(make_tiny, ragged, objective, algorithm):
    best = exhaustive(Objective(objective._model, text_batches(ragged, 2)), 2)
    found = search(objective, algorithm, remove=2, budget=2000.0, generator=np.random.default_rng(1))
    assert found.loss == pytest.approx(best, rel=1e-6)


def test_a_wider_beam_than_there_are_cuts_is_exhaustive(objective, ragged):
    best = exhaustive(Objective(objective._model, text_batches(ragged, 2)), 3)
    found = search(objective, "beam", remove=3, options={"width": 100})
    assert found.loss == pytest.approx(best, rel=1e-6)
    assert found.within_budget


def test_greedy_and_one_shot_are_what_they_say(objective, ragged):
    fresh = Objective(objective._model, text_batches(ragged, 2))
    single = {block: fresh((block,)) for block in range(1, 8)}
    assert search(objective, "one-shot", remove=3).removed == tuple(sorted(sorted(single, key=single.get)[:3]))
    cut: list[int] = []
    for _ in range(3):
        cut.append(min((b for b in range(1, 8) if b not in cut), key=lambda block: fresh((*cut, block))))
    assert search(objective, "greedy", remove=3).removed == tuple(sorted(cut))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("budget", [1.0, 60.0])
def test_a_small_budget_ends_the_search_with_a_valid_cut(objective, algorithm, budget):
    found = search(objective, algorithm, remove=3, budget=budget, generator=np.random.default_rng(0))
    assert len(found.removed) == 3
    assert math.isfinite(found.loss)
    whole_round = 12 * 8
    assert found.block_forwards <= budget + whole_round + 8


def test_work_is_counted_from_where_the_search_began(objective):
    before = objective.block_forwards
    found = search(objective, "one-shot", remove=2)
    assert found.block_forwards == pytest.approx(objective.block_forwards - before)
    assert found.evaluations == 8
    again = search(objective, "one-shot", remove=2)
    assert (again.block_forwards, again.evaluations) == (0.0, 0)


@pytest.mark.parametrize("algorithm", ["greedy", "annealing"])
def test_a_contiguous_search_tries_every_window(objective, algorithm):
    found = search(objective, algorithm, remove=3, contiguous=True)
    best = min((objective(range(first, first + 3)), first) for first in range(1, 6))[1]
    assert found.removed == tuple(range(best, best + 3))


def test_impossible_requests(objective):
    with pytest.raises(ConfigError, match="unknown search algorithm 'gready'"):
        search(objective, "gready", remove=2)
    for algorithm in ENDLESS:
        with pytest.raises(ConfigError, match="only ends with its budget"):
            search(objective, algorithm, remove=2)
    with pytest.raises(ConfigError, match="must be positive"):
        search(objective, "random", remove=2, budget=0)
    with pytest.raises(ConfigError, match="cannot remove 8 of 8"):
        search(objective, "greedy", remove=8)


def test_a_result_becomes_scores_that_rank_the_cut_first(objective):
    found = search(objective, "swap", remove=3, generator=np.random.default_rng(0))
    answer = as_scores(found, objective, criterion="guided")
    assert answer.removed == found.removed
    assert set(answer.order[:3]) == set(found.removed)
    kept = next(block for block in range(1, 8) if block not in found.removed)
    assert answer.scores[kept] == pytest.approx(objective({*found.removed, kept}) - found.loss)
    gone = found.removed[0]
    assert answer.scores[gone] == pytest.approx(found.loss - objective(set(found.removed) - {gone}))
