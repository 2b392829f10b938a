"""Costs: the study's token counts, FLOPs by hand, unknown stays unknown."""

from __future__ import annotations

import math

import pytest

from regrow.planning.cost import STUDY_NEW_TOKENS, Workload, cost_of, matched_budget
from regrow.planning.overview import rules_needs, whole_tokens
from regrow.planning.pilots import PilotRun
from regrow.planning.registry import RULES, rule_named
from regrow.planning.rule import Design, Needs


def test_the_token_matched_control() -> None:
    needs = rule_named("rah").needs(Design())
    assert matched_budget(needs, 1_000_000) == 4_480_000
    cost = cost_of(needs, 1_000_000, Workload())
    assert cost.total.training_tokens == 4_480_000 and cost.before.training_tokens == 3_480_000
    assert cost.total.generated_tokens == 23 * 60 * sum(STUDY_NEW_TOKENS)


def test_flops_and_seconds_by_hand() -> None:
    needs = Needs(pilots=(PilotRun("math", 1000),), evaluations=1, read_tokens=500)
    work = Workload(
        dev_items=10,
        new_tokens=(20, 30),
        prompt_tokens=100,
        parameters=1e6,
        training_rate=50,
        generation_rate=10,
        reading_rate=1000,
    )
    cost = cost_of(needs, 2000, work)
    generated, read = 2 * 10 * 50, 2 * 10 * 100 * 2 + 500
    assert (cost.before.generated_tokens, cost.before.prompt_tokens) == (generated, read)
    assert cost.before.flops == 1e6 * (6 * 1000 + 2 * (generated + read))
    assert cost.before.wall_seconds == pytest.approx(1000 / 50 + generated / 10 + read / 1000)
    assert cost.total.flops == cost.before.flops + 1e6 * 6 * 2000
    assert cost.total.wall_seconds == pytest.approx(cost.before.wall_seconds + 40)


def test_unknown_rates_give_no_number_and_nothing_takes_no_time() -> None:
    cost = cost_of(rule_named("rah").needs(Design()), 1e6, Workload(training_rate=100))
    assert math.isnan(cost.before.wall_seconds) and math.isnan(cost.total.flops)
    alone = cost_of(rule_named("uniform").needs(Design()), 1e6, Workload(training_rate=100))
    assert alone.before.wall_seconds == 0 and alone.total.wall_seconds == 1e4
    assert alone.before.flops == 0


def test_every_rule_is_in_the_list_of_needs() -> None:
    rows = rules_needs(1_000_000, Workload())
    assert [row.name for row in rows] == RULES.names()
    before = {row.name: row.cost.before.training_tokens for row in rows}
    assert before["uniform"] == before["slowest-first"] == before["damage-proportional"] == before["rah-proxy"] == 0
    assert before["rah"] == 3_480_000 and before["rah-no-scope"] == 2_580_000
    assert before["data-mixing"] == pytest.approx(4_300_000, abs=10)
    assert all(row.as_json()["before"]["training_tokens"] == before[row.name] for row in rows)


@pytest.mark.parametrize("budget", [1, 7, 100, 999_999])
def test_whole_tokens_sum_to_the_budget(budget: int) -> None:
    tokens = {pool: budget * share for pool, share in zip("abcd", (0.5, 0.3, 0.2, 0.0), strict=True)}
    found = whole_tokens(tokens, budget)
    assert sum(found.values()) == budget and "d" not in found
    assert all(abs(found.get(pool, 0) - value) < 1 for pool, value in tokens.items())
