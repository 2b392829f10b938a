"""The numbers of a run before it begins."""

from __future__ import annotations

import math

import pytest

from regrow.data.pools import Example, Pool
from regrow.errors import ConfigError
from regrow.heal.plan import plan_heal
from regrow.heal.schedule import learning_rate_factor, updates_of
from regrow.records.specs import HealSpec
from regrow.seeding import stream
from tests.conftest import tiny_tokenizer
from tests.heal.samples import sample_pools, sample_spec


def six_pools(mean_tokens: float, examples: int = 250) -> list[Pool]:
    """Return pools whose sequences have the given mean length under the tokenizer of the tests (one per letter)."""
    rng = stream(1, "lengths")
    pools = []
    for name in ("structured", "function", "instruction", "math", "safety", "general"):
        lengths = rng.integers(int(mean_tokens * 0.6), int(mean_tokens * 1.4) + 1, examples)
        lengths = lengths + round(mean_tokens - lengths.mean())
        rows = (Example(name, f"{at}", "p" * int(length - 21), "r" * 20) for at, length in enumerate(lengths))
        pools.append(Pool(name, tuple(rows)))
    return pools


@pytest.mark.parametrize(
    ("budget", "mean_tokens", "published"),
    [
        # The longest and the shortest sequences of the study's families at one million tokens.
        (1_000_000, 262, (239, 239)),
        (1_000_000, 168.5, (370, 372)),
        (1_000_000, 215, (239, 371)),
        (4_480_000, 209.4, (1_335, 1_339)),
        (4_480_000, 187.6, (1_490, 1_494)),
        (4_480_000, 198, (1_337, 1_493)),
    ],
)
def test_published_numbers_of_updates(budget: int, mean_tokens: float, published: tuple[int, int]) -> None:
    plan = plan_heal(six_pools(mean_tokens), HealSpec(tokens=budget), tiny_tokenizer())
    assert plan.mean_sequence_tokens == pytest.approx(mean_tokens, rel=0.01)
    assert published[0] <= plan.updates <= published[1]
    assert plan.updates == math.ceil(plan.sequences / 16)
    assert 0 <= plan.tokens - budget < 6 * 512


def test_the_plan_counts_what_it_orders() -> None:
    plan = plan_heal(sample_pools(), sample_spec(tokens=3_000), tiny_tokenizer())
    assert plan.tokens == sum(entry.tokens for entry in plan.order) == sum(plan.tokens_by_pool.values())
    assert plan.response_tokens == sum(len(entry.response) + 1 for entry in plan.order)
    updates = [plan.update(index) for index in range(plan.updates)]
    assert tuple(entry for update in updates for entry in update) == plan.order
    assert {len(update) for update in updates[:-1]} == {4}
    assert 1 <= len(updates[-1]) <= 4
    assert plan.fingerprint == plan_heal(sample_pools(), sample_spec(tokens=3_000), tiny_tokenizer()).fingerprint
    other = plan_heal(sample_pools(), sample_spec(tokens=3_000, seed=1), tiny_tokenizer())
    assert other.fingerprint != plan.fingerprint


def test_long_examples_are_counted_as_dropped() -> None:
    plan = plan_heal(sample_pools(), sample_spec(tokens=1_500, max_sequence_tokens=80), tiny_tokenizer())
    assert max(entry.tokens for entry in plan.order) <= 80
    kept = sum(20 - sum(reasons.values()) for reasons in plan.dropped.values())
    assert 0 < kept < 60  # of the 60 there are
    assert plan.unfit == {name: sum(reasons.values()) for name, reasons in plan.dropped.items()}


def test_a_budget_of_less_than_one_update_is_refused() -> None:
    with pytest.raises(ConfigError, match="less than one update of 64"):
        plan_heal(sample_pools(), sample_spec(tokens=1_000, sequences_per_update=64), tiny_tokenizer())


def test_the_schedule_is_a_warm_up_times_a_cosine() -> None:
    updates, warmup = 240, 12
    factors = [learning_rate_factor(step, updates) for step in range(updates)]
    for step in (0, 5, 11):
        assert factors[step] == pytest.approx((step + 1) / warmup * (1 + math.cos(math.pi * step / updates)) / 2)
    assert factors[120] == pytest.approx(0.5)
    assert factors[-1] == pytest.approx((1 + math.cos(math.pi * 239 / 240)) / 2)
    assert 0 < factors[-1] < 1e-4
    assert learning_rate_factor(0, 1) == 1.0
    assert learning_rate_factor(0, 10) == 1.0
    assert learning_rate_factor(0, 10, warmup_fraction=0.5) == pytest.approx(0.2)
    with pytest.raises(ConfigError):
        learning_rate_factor(240, 240)
    assert [updates_of(count, 16) for count in (1, 16, 17)] == [1, 1, 2]
