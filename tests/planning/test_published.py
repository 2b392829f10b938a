"""The published fits and allocations, to the digits that are asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from regrow.planning.least_squares import fit_study
from regrow.planning.pilots import Pilots
from regrow.planning.registry import rule_named
from regrow.planning.rule import Design, Evidence

from .conftest import FAMILIES

RULES = {
    "damage_proportional": "damage-proportional",
    "rah": "rah",
    "rah_capped": "rah-capped",
    "rah_no_transfer": "rah-no-transfer",
    "rah_max_min": "rah-max-min",
    "rah_hyperbolic": "rah-hyperbolic",
}


@pytest.mark.parametrize("family", FAMILIES)
def test_fits(family: str, published: dict[str, Any], published_pilots: dict[str, Pilots]) -> None:
    fit = fit_study(published_pilots[family])
    known = published["families"][family]["fit"]
    np.testing.assert_allclose(fit.curves.gain, known["a"], rtol=1e-5, atol=1e-12)
    np.testing.assert_allclose(fit.curves.tau, known["tau"], rtol=1e-5)
    np.testing.assert_allclose(fit.rmse, known["rmse"], rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", RULES)
def test_allocations_at_a_million(
    name: str, family: str, published: dict[str, Any], published_pilots: dict[str, Pilots]
) -> None:
    known = published["families"][family]["allocations"].get(name)
    if known is None:
        pytest.skip("not published")
    pilots = published_pilots[family]
    answer = rule_named(RULES[name]).allocate(Evidence.of(pilots), 1_000_000)
    tokens = np.array([answer.tokens[pool] for pool in pilots.pools])
    np.testing.assert_allclose(tokens, known, atol=1.0)
    assert tokens.sum() == pytest.approx(1_000_000, abs=1e-6)
    if answer.mixture is not None:
        assert answer.mixture.gap < 1e-7


def test_allocation_at_a_quarter_million(published: dict[str, Any], published_pilots: dict[str, Pilots]) -> None:
    pilots = published_pilots["qwen"]
    answer = rule_named("rah").allocate(Evidence.of(pilots), 250_000)
    known = published["families"]["qwen"]["allocations"]["rah_at_250k"]
    np.testing.assert_allclose([answer.tokens[pool] for pool in pilots.pools], known, atol=1.0)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", [name for name in RULES.values() if name.startswith("rah")])
@pytest.mark.parametrize("solver", ["study", "exact"])
@pytest.mark.parametrize("budget", [3_600_000, 4_000_000])
def test_exactly_uniform_beyond_the_trust_region(
    budget: int, solver: Any, name: str, family: str, published_pilots: dict[str, Pilots]
) -> None:
    answer = rule_named(name).allocate(Evidence.of(published_pilots[family], solver=solver), budget)
    assert set(answer.tokens.values()) == {budget / 6}
    assert any("uniform" in note for note in answer.notes)


@pytest.mark.parametrize("family", FAMILIES)
def test_scope_and_what_is_said(family: str, published: dict[str, Any], published_pilots: dict[str, Pilots]) -> None:
    answer = rule_named("rah").allocate(Evidence.of(published_pilots[family]), 1_000_000)
    assert answer.scope == published["families"][family]["scope"]
    assert any("they may not hold there" in note for note in answer.notes) == (answer.scope != "all-lora")
    assert rule_named("rah-no-scope").allocate(Evidence.of(published_pilots[family]), 1e6).scope == "all-lora"
    saturated = [note for note in answer.notes if "saturated" in note]
    assert len(saturated) == {"llama": 2, "qwen": 1}[family]


@pytest.mark.parametrize("family", FAMILIES)
def test_capped_and_uncapped_differ_only_where_something_passes_one(
    family: str, published_pilots: dict[str, Pilots]
) -> None:
    evidence = Evidence.of(published_pilots[family])
    plain, capped = (rule_named(name).allocate(evidence, 1e6).tokens for name in ("rah", "rah-capped"))
    apart = max(abs(plain[pool] - capped[pool]) for pool in plain)
    assert (apart > 1000) == (family == "llama")


def test_what_the_planner_costs() -> None:
    needs = rule_named("rah").needs(Design())
    assert len(needs.pilots) == 21 and needs.training_tokens == 3_480_000
    assert sum(run.tokens for run in needs.pilots if run.pool != "uniform") == 6 * 430_000
    assert {run.scope for run in needs.pilots if run.pool == "uniform"} == {"all-lora", "cut-lora", "last-k"}
    assert all(run.scope == "all-lora" and run.seed == 42 for run in needs.pilots if run.pool != "uniform")
