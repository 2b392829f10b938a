"""The contract every rule keeps, and each rule's own arithmetic by hand or by another solver."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from regrow.errors import ConfigError, DataError
from regrow.planning.clusters import kmeans
from regrow.planning.least_squares import fit_study
from regrow.planning.pilots import Pilots
from regrow.planning.registry import RULES, canonical, rule_named
from regrow.planning.reweighting import reweight
from regrow.planning.rule import Design, Evidence
from regrow.planning.rules.data_mixing import Laws, MixingRuns, best_shares, fit_laws
from regrow.planning.rules.dynamic_loading import DynamicLoading
from regrow.planning.rules.paser import Paser, Prompts, pick
from regrow.planning.rules.proxy import line
from regrow.planning.rules.slowest import SlowestFirst

from .conftest import POOLS


def full_evidence(pilots: dict[str, Pilots], **more: Any) -> Evidence:
    """Return evidence that suffices for every rule."""
    rng = np.random.default_rng(0)
    gap = np.array([1.2, 0.9, 0.4, 1.5, 0.1, 0.6])
    own, other = replace(pilots["llama"], nll_gap=gap), replace(pilots["qwen"], nll_gap=gap[::-1].copy())
    return Evidence.of(
        own,
        others=(other,),
        losses=rng.uniform(0.5, 2.0, (6, 6)),
        reference_losses=rng.uniform(0.5, 1.5, 6),
        runs=mixing_runs(),
        prompts=some_prompts(),
        **more,
    )


def some_prompts(n: int = 90) -> Prompts:
    rng = np.random.default_rng(1)
    pools = tuple(POOLS[i % 6] for i in range(n))
    centres = rng.normal(size=(6, 4)) * 6
    embeddings = np.array([centres[i % 6] + rng.normal(size=4) * 0.3 for i in range(n)])
    return Prompts.of(
        pools, [f"p{i}" for i in range(n)], embeddings, rng.random(n), rng.integers(50, 400, n).astype(float)
    )


LAWS = Laws(
    scale=np.array([20.0, 30.0, 8.0, 60.0, 4.0, 10.0]),
    exchange=np.array([0.3, 0.8, 0.5, 0.05, 1.0, 2.0]),
    discount=np.array([0.8, 0.7, 0.9, 0.6, 0.7, 0.85]),
    decay=np.array([0.3, 0.35, 0.25, 0.4, 0.2, 0.3]),
    floor=np.array([0.3, 0.2, 0.8, 0.1, 0.5, 0.6]),
)


def mixing_runs() -> MixingRuns:
    """Return 13 perturbed runs that follow known laws exactly."""
    base = np.full(6, 50_000.0)
    tokens = [base]
    for p in range(6):
        for factor in (3.0, 1 / 3):
            row = base.copy()
            row[p] *= factor
            tokens.append(row)
    table = np.array(tokens)
    rest = table.sum(axis=1, keepdims=True) - table
    return MixingRuns.of(table, [LAWS.losses(own, others) for own, others in zip(table, rest, strict=True)])


@pytest.mark.parametrize("name", RULES.names())
@pytest.mark.parametrize("budget", [1.0, 12_345.0, 250_000.0, 1_000_000.0, 4_000_000.0])
def test_every_rule_spends_exactly_the_budget(name: str, budget: float, published_pilots: dict[str, Pilots]) -> None:
    evidence = full_evidence(published_pilots)
    answer = rule_named(name).allocate(evidence, budget)
    assert list(answer.tokens) == list(POOLS)
    assert min(answer.tokens.values()) >= 0
    assert sum(answer.tokens.values()) == pytest.approx(budget, rel=1e-9)
    assert answer.scope in ("all-lora", "last-k", "cut-lora")


@pytest.mark.parametrize("name", RULES.names())
def test_every_rule_is_an_allocation_rule_and_says_its_needs(name: str, published_pilots: dict[str, Pilots]) -> None:
    rule = rule_named(name)
    evidence = full_evidence(published_pilots)
    given_ = {
        "pilots": evidence.pilots,
        "others": evidence.others,
        "losses": evidence.losses,
        "reference_losses": evidence.reference_losses,
        "runs": evidence.runs,
        "prompts": evidence.prompts,
    }
    assert rule(POOLS, 1e5, **given_) == rule.allocate(evidence, 1e5).tokens
    needs = rule.needs(Design())
    assert needs.training_tokens >= 0 and needs.words
    entry = RULES.entry(name)
    assert entry.summary and entry.paper and dict(entry.facts)["needs"]


@pytest.mark.parametrize("name", RULES.names())
@pytest.mark.parametrize("budget", [0.0, -1.0, float("nan"), float("inf")])
def test_every_rule_refuses_an_impossible_budget(name: str, budget: float, published_pilots: dict[str, Pilots]) -> None:
    with pytest.raises(ConfigError, match="positive number of tokens"):
        rule_named(name).allocate(full_evidence(published_pilots), budget)


@pytest.mark.parametrize("name", [name for name in RULES.names() if name not in ("uniform", "slowest-first")])
def test_rules_say_what_they_lack(name: str) -> None:
    with pytest.raises(DataError) as caught:
        rule_named(name).allocate(Evidence(pools=POOLS), 1e6)
    assert caught.value.hint


def test_names_as_people_write_them() -> None:
    for text in ("rah-max-min", "max-min", "Max_Min", "RAH max min", "rah_max_min"):
        assert rule_named(text).name == "rah-max-min"
    assert rule_named("no-scope").name == "rah-no-scope"
    assert rule_named("slowest-first(0.5)")(POOLS, 100)["math"] == pytest.approx(50)
    assert canonical("DoReMi") == "doremi"
    for text, message in (
        ("rahh", "unknown rule"),
        ("", "does not name a rule"),
        ("rah(0.5)", "takes no number"),
        ("slowest-first(1.5)", "between 0 and 1"),
        ("slowest-first(1.2.3)", "not a number"),
    ):
        with pytest.raises(ConfigError, match=message):
            rule_named(text)


def test_damage_by_hand(published_pilots: dict[str, Pilots]) -> None:
    """Llama: 1 - 2/22, 1, 1 - 11/27, 1 - 2/28, none, 1 - 13/25 over their sum."""
    lost = np.array([20 / 22, 1.0, 16 / 27, 26 / 28, 0.0, 12 / 25])
    answer = rule_named("damage-proportional")(POOLS, 1.0, pilots=published_pilots["llama"])
    np.testing.assert_allclose(list(answer.values()), lost / lost.sum())


def test_damage_without_damage_is_uniform(published_pilots: dict[str, Pilots]) -> None:
    whole = replace(published_pilots["llama"], pruned=published_pilots["llama"].unpruned)
    answer = rule_named("damage-proportional").allocate(Evidence.of(whole), 600.0)
    assert set(answer.tokens.values()) == {100.0} and "uniform" in answer.notes[0]


def test_damage_of_two_capabilities_with_one_pool_adds_up() -> None:
    pilots = Pilots(
        "shared",
        ("math", "knowledge", "history"),
        ("math", "general"),
        (1000,),
        np.full(3, 40.0),
        np.array([20.0, 30.0, 10.0]),
        np.full((2, 1, 3), np.nan),
        np.full(3, 60.0),
    )
    answer = rule_named("damage-proportional")(("math", "general"), 6.0, pilots=pilots)
    np.testing.assert_allclose(list(answer.values()), np.array([0.5, 0.25 + 0.75]) * 4)


def test_slowest_first() -> None:
    answer = SlowestFirst()(POOLS, 1e6)
    assert answer["math"] == pytest.approx(6e5) and answer["safety"] == pytest.approx(8e4)
    with pytest.raises(DataError, match="'math', which is not there"):
        SlowestFirst()(("a", "b"), 1e6)
    assert SlowestFirst(slowest="a")(("a",), 10.0) == {"a": 10.0}


def test_rah_without_transfer_reads_own_pilots_only(published_pilots: dict[str, Pilots]) -> None:
    pilots = published_pilots["llama"]
    counts = pilots.healed.copy()
    for p in range(6):
        for c in range(6):
            if pilots.own[c] != p:
                counts[p, :, c] = 0.0
    same = rule_named("no-transfer")(POOLS, 1e6, pilots=pilots)
    assert rule_named("no-transfer")(POOLS, 1e6, pilots=pilots.with_healed(counts)) == same
    # A pool that is nobody's own is not needed: its pilots may be missing.
    wide = Pilots(
        "wide",
        ("math",),
        ("math", "general"),
        pilots.budgets,
        np.array([28.0]),
        np.array([2.0]),
        np.stack([pilots.healed[3][:, [3]], np.full((3, 1), np.nan)]),
        np.array([60.0]),
    )
    assert rule_named("no-transfer")(("math", "general"), 1e6, pilots=wide)["math"] == pytest.approx(6e5, abs=1)
    with pytest.raises(DataError, match=r"pool general at 30k.*missing and 2 more"):
        rule_named("rah")(("math", "general"), 1e6, pilots=wide)


def test_the_scope_is_the_one_that_keeps_most(published_pilots: dict[str, Pilots]) -> None:
    pilots = published_pilots["qwen"]
    better = pilots.pruned + np.array([10, 20, 5, 5, 0, 0])
    scoped = replace(pilots, scope_counts={"all-lora": pilots.pruned, "cut-lora": better, "last-k": pilots.pruned})
    assert rule_named("rah").allocate(Evidence.of(scoped), 1e6).scope == "cut-lora"


def test_the_proxy_line_and_its_donor(published_pilots: dict[str, Pilots]) -> None:
    level, slope = line(np.array([0.0, 1.0, 2.0]), np.array([1.0, 3.0, 5.0]))
    assert (level, slope) == pytest.approx((1.0, 2.0))
    evidence = full_evidence(published_pilots)
    answer = rule_named("proxy").allocate(evidence, 1e6)
    donor = fit_study(evidence.others[0]).curves
    assert answer.fit is not None and evidence.pilots is not None
    np.testing.assert_allclose(answer.fit.curves.tau, np.median(donor.tau))
    assert evidence.others[0].nll_gap is not None
    level, slope = np.linalg.lstsq(np.column_stack([np.ones(6), evidence.others[0].nll_gap]), donor.gain, rcond=None)[0]
    guess = level + slope * evidence.pilots.nll_gap  # type: ignore[operator]
    high = np.maximum(1e-3, 1.2 - evidence.pilots.pruned_retention)
    np.testing.assert_allclose(answer.fit.curves.gain, np.clip(guess, 0, high), rtol=1e-9)
    with pytest.raises(DataError, match="another family"):
        rule_named("proxy").allocate(replace(evidence, others=()), 1e6)


def test_one_step_of_reweighting_by_hand() -> None:
    weights = reweight(np.array([0.5, 0.5]), np.array([np.log(3.0), 0.0]), eta=1.0, smoothing=0.1)
    np.testing.assert_allclose(weights, 0.9 * np.array([0.75, 0.25]) + 0.05)


def test_dynamic_loading_moves_towards_what_is_behind() -> None:
    rule = DynamicLoading(smoothing=0.0)
    answer = rule(("a", "b"), 3.0, losses=[[2.0, 1.0], [1.0, 1.0], [9.0, 9.0]], reference_losses=[1.0, 1.0])
    # Rounds at 1/2, then softmax(1, 0), then unchanged (no excess); the last round's losses are never used.
    e = np.e / (1 + np.e)
    np.testing.assert_allclose(answer["a"], 0.5 + e + e)
    below = {"losses": [[0.0, 1.0], [0.0, 1.0]], "reference_losses": [1.0, 1.0]}
    assert rule(("a", "b"), 1.0, **below)["a"] == pytest.approx(0.5)  # clipped at 0
    assert DynamicLoading(clipped=False)(("a", "b"), 1.0, **below)["a"] < 0.4


def test_doremi_averages_its_path() -> None:
    from regrow.planning.rules.doremi import DoReMi

    answer = DoReMi(smoothing=0.0)(("a", "b"), 2.0, losses=[[2.0, 1.0], [2.0, 1.0]], reference_losses=[1.0, 1.0])
    first, second = np.e / (1 + np.e), np.e**2 / (1 + np.e**2)
    np.testing.assert_allclose(answer["a"], first + second)


@pytest.mark.parametrize("name", ["doremi", "dynamic-batch-loading"])
def test_losses_that_cannot_be_used(name: str) -> None:
    rule = rule_named(name)
    for losses, reference, message in (
        ([[1.0, 2.0, 3.0]], [1.0, 1.0], "losses have shape"),
        ([[1.0, float("nan")]], [1.0, 1.0], "not finite"),
        ([[1.0, 1.0]], None, "reference losses"),
    ):
        with pytest.raises(DataError, match=message):
            rule(("a", "b"), 1.0, losses=losses, reference_losses=reference)


def test_mixing_laws_come_back() -> None:
    """Exact losses of known laws: predictions at other mixtures agree to a tenth of a percent."""
    laws = fit_laws(mixing_runs())
    for shares in (np.full(6, 1 / 6), np.array([0.4, 0.1, 0.1, 0.2, 0.1, 0.1])):
        own = shares * 4e5
        np.testing.assert_allclose(laws.losses(own, 4e5 - own), LAWS.losses(own, 4e5 - own), rtol=2e-3)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), budget=st.floats(1e4, 1e7))
def test_mixing_optimum_against_another_solver(seed: int, budget: float) -> None:
    rng = np.random.default_rng(seed)
    laws = Laws(
        rng.uniform(2, 60, 5), rng.uniform(0, 2, 5), rng.uniform(0.3, 1, 5), rng.uniform(0.05, 0.6, 5), rng.random(5)
    )

    def total(shares: np.ndarray) -> float:
        return float(laws.losses(shares * budget, (1 - shares) * budget).sum())

    shares, gap = best_shares(laws, budget)
    assert shares.min() >= 0 and shares.sum() == pytest.approx(1.0)
    ends = [
        minimize(
            total,
            start,
            method="SLSQP",
            bounds=[(0, 1)] * 5,
            constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
            options={"ftol": 1e-13},
        )
        for start in (np.full(5, 0.2), rng.dirichlet(np.ones(5)))
    ]
    best = min(end.fun for end in ends if abs(end.x.sum() - 1) < 1e-9)
    assert total(shares) <= best + 1e-6
    assert gap < 1e-4


def test_mixing_runs_that_cannot_be_used() -> None:
    good = mixing_runs()
    for tokens, losses, message in (
        (good.tokens[:4], good.losses[:4], "cannot determine"),
        (good.tokens, good.losses[:, :5], "tokens of shape"),
        (good.tokens, np.full_like(good.losses, np.nan), "losses positive"),
    ):
        with pytest.raises(DataError, match=message):
            MixingRuns.of(tokens, losses)
    with pytest.raises(DataError, match="6 pools for 2 pools"):
        rule_named("data-mixing")(("a", "b"), 1.0, runs=good)


def test_paser_follows_degradation() -> None:
    """Two clusters, one pool each, degradation 3 to 1: tokens 3 to 1, the most efficient prompts first."""
    prompts = Prompts.of(
        ["a"] * 4 + ["b"] * 4,
        [str(i) for i in range(8)],
        [[0.0, 0.0]] * 4 + [[9.0, 9.0]] * 4,
        [0.6, 0.2, 0.4, 0.0, 0.1, 0.1, 0.1, 0.1],
        [100.0] * 8,
    )
    answer = Paser().allocate(Evidence(pools=("a", "b"), prompts=prompts), 400.0)
    assert answer.tokens == pytest.approx({"a": 300.0, "b": 100.0})
    assert answer.chosen == ("0", "1", "2", "4")
    # What one cluster cannot spend goes to the other; beyond all prompts they are used again.
    more = Paser().allocate(Evidence(pools=("a", "b"), prompts=prompts), 700.0)
    assert more.tokens == pytest.approx({"a": 400.0, "b": 300.0})
    twice = Paser().allocate(Evidence(pools=("a", "b"), prompts=prompts), 1600.0)
    assert twice.tokens == pytest.approx({"a": 800.0, "b": 800.0}) and "2.00 times" in twice.notes[1]


def test_paser_without_any_degradation_is_even() -> None:
    prompts = replace(some_prompts(), degradation=np.zeros(90))
    taken = pick(prompts, np.arange(90) % 3, 300.0)
    assert taken.sum() == pytest.approx(300.0)


def test_prompts_that_cannot_be_used() -> None:
    with pytest.raises(DataError, match="ids, embeddings"):
        Prompts.of(["a"], ["1", "2"], [[0.0]], [1.0], [1.0])
    with pytest.raises(DataError, match="degradations must be"):
        Prompts.of(["a"], ["1"], [[0.0]], [-1.0], [1.0])
    with pytest.raises(DataError, match="'z' that is not there"):
        Paser()(("a",), 1.0, prompts=Prompts.of(["z"], ["1"], [[0.0]], [1.0], [1.0]))


def test_clusters_are_found_whatever_the_order() -> None:
    rng = np.random.default_rng(2)
    points = np.concatenate([rng.normal(size=(20, 3)) + shift for shift in (0.0, 12.0, -12.0)])
    labels = kmeans(points, 3, np.random.default_rng(0))
    assert [len(set(labels[i : i + 20])) for i in (0, 20, 40)] == [1, 1, 1] and len(set(labels)) == 3
    assert labels[0] == 0
    assert set(kmeans(np.zeros((5, 2)), 3, np.random.default_rng(0))) == {0}
