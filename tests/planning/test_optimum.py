"""The certified optimum: closed forms, other solvers, brute force, and properties."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from regrow.planning.curves import Curves
from regrow.planning.max_min import max_min_split, nearest_to_uniform, tokens_needed
from regrow.planning.optimum import maximise, upper_bound, value_of
from regrow.planning.planner import plan_mixture
from regrow.planning.study_solver import study_split

from .conftest import random_curves

OBJECTIVES = ("sum", "capped", "min")


def independent(start: list[float], gain: list[float], tau: list[float], shape: str = "exponential") -> Curves:
    """Return curves without transfer, one pool a capability."""
    return Curves(np.array(start), np.array(gain), np.array(tau), np.eye(len(start)), shape)  # type: ignore[arg-type]


def test_equal_slopes_in_closed_form() -> None:
    """Without transfer and bounds the slopes a / tau exp(-t / tau) of all used pools are equal to some m:
    t = tau log(a / tau / m), and m follows from the budget."""
    gain, tau = np.array([0.9, 0.6, 0.4]), np.array([50_000.0, 20_000.0, 80_000.0])
    budget = 200_000.0
    log_m = ((tau * np.log(gain / tau)).sum() - budget) / tau.sum()
    expected = tau * (np.log(gain / tau) - log_m)
    assert (expected > 0).all()
    found = maximise(independent([0, 0, 0], gain.tolist(), tau.tolist()), budget, budget)
    np.testing.assert_allclose(found.tokens, expected, atol=0.01)
    assert found.gap < 1e-13


def test_hyperbolic_equal_slopes_in_closed_form() -> None:
    """a tau / (t + tau)^2 = m gives t = sqrt(a tau / m) - tau."""
    gain, tau = np.array([0.9, 0.6]), np.array([50_000.0, 20_000.0])
    budget = 300_000.0
    root_m = np.sqrt(gain * tau).sum() / (budget + tau.sum())
    found = maximise(independent([0, 0], gain.tolist(), tau.tolist(), "hyperbolic"), budget, budget)
    np.testing.assert_allclose(found.tokens, np.sqrt(gain * tau) / root_m - tau, atol=0.01)


def test_a_worthless_pool_gets_nothing_and_the_cap_binds() -> None:
    curves = independent([0, 0, 0], [0.0, 1.0, 0.2], [1e5, 1e6, 1e6])
    found = maximise(curves, 1e6, 6e5)
    assert found.tokens[0] == 0.0
    assert found.tokens[1] == pytest.approx(6e5, abs=1e-6)
    assert found.tokens[2] == pytest.approx(4e5, abs=1e-6)


def test_capped_stops_where_one_is_reached() -> None:
    """A capability that passes 1 gets just the tokens for 1, the rest goes to the other."""
    curves = independent([0.5, 0.0], [0.7, 0.5], [40_000.0, 900_000.0])
    found = maximise(curves, 1e6, 9e5, "capped")
    reach_one = -40_000.0 * np.log(1 - 0.5 / 0.7)
    assert found.tokens[0] == pytest.approx(max(reach_one, 1e5), abs=0.5)
    assert maximise(curves, 1e6, 9e5, "sum").tokens[0] > found.tokens[0] + 1000


@pytest.mark.parametrize("objective", ["sum", "capped"])
@pytest.mark.parametrize("shape", ["exponential", "hyperbolic"])
@pytest.mark.parametrize("seed", range(4))
def test_against_another_solver_from_many_starts(seed: int, shape: str, objective: str) -> None:
    """SciPy's trust-region interior point / SLSQP never finds anything better, and comes close."""
    rng = np.random.default_rng([seed, len(shape), len(objective)])
    curves = random_curves(rng, shape=shape)
    budget, cap = 1e6, 6e5
    found = maximise(curves, budget, cap, objective)  # type: ignore[arg-type]
    best = -np.inf
    for _ in range(6):
        end = minimize(
            lambda w: -float(value_of(curves, w * budget, objective)),  # type: ignore[arg-type]
            rng.dirichlet(np.ones(6)),
            method="SLSQP",
            bounds=[(0, cap / budget)] * 6,
            constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
            options={"ftol": 1e-14, "maxiter": 500},
        )
        if abs(end.x.sum() - 1) < 1e-9:
            best = max(best, -end.fun)
    assert best <= found.value + 1e-8
    # Descent along gradients stalls at the kinks of the capped objective.
    assert best == pytest.approx(float(found.value), abs=1e-5 if objective == "sum" else 1e-3)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("seed", range(3))
def test_against_every_point_of_a_grid(seed: int, objective: str) -> None:
    curves = random_curves(np.random.default_rng([7, seed]), capabilities=3, pools=3)
    budget, cap, parts = 900_000.0, 6e5, 60
    found = maximise(curves, budget, cap, objective)  # type: ignore[arg-type]
    best = -np.inf
    for i, j in product(range(parts + 1), repeat=2):
        split = np.array([i, j, parts - i - j]) / parts * budget
        if split.min() >= 0 and split.max() <= cap:
            best = max(best, float(value_of(curves, split, objective)))  # type: ignore[arg-type]
    assert best <= found.value + 1e-12
    assert best >= found.value - 0.02


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    objective=st.sampled_from(OBJECTIVES),
    shape=st.sampled_from(["exponential", "hyperbolic"]),
    capabilities=st.integers(1, 7),
    pools=st.integers(2, 7),
    budget=st.floats(1e3, 1e8),
    room=st.floats(1.001, 10),
)
def test_properties(
    seed: int, objective: str, shape: str, capabilities: int, pools: int, budget: float, room: float
) -> None:
    """Feasible, certified, never beaten by a random split, and the same for any order of the pools."""
    rng = np.random.default_rng(seed)
    curves = random_curves(rng, capabilities=capabilities, pools=pools, shape=shape)
    cap = min(room * budget / pools, budget)
    found = maximise(curves, budget, cap, objective)  # type: ignore[arg-type]
    assert found.tokens.sum() == pytest.approx(budget, rel=1e-12)
    assert (found.tokens >= 0).all() and (found.tokens <= cap * (1 + 1e-12)).all()
    assert found.gap < 1e-7  # usually 1e-13; less where a far saturated curve is all that is left to gain on
    for split in _random_splits(rng, pools, budget, cap, 20):
        assert value_of(curves, split, objective) <= found.bound + 1e-12  # type: ignore[arg-type]
    order = rng.permutation(pools)
    shuffled = Curves(curves.start, curves.gain, curves.tau, curves.transfer[:, order], curves.shape)
    again = maximise(shuffled, budget, cap, objective)  # type: ignore[arg-type]
    assert again.value == pytest.approx(float(found.value), abs=1e-9)


def _random_splits(rng: np.random.Generator, pools: int, budget: float, cap: float, count: int) -> list[np.ndarray]:
    found = []
    for _ in range(count):
        split = rng.dirichlet(np.full(pools, 0.7)) * budget
        mixed = split
        for share in (0.5, 0.9, 0.99, 1.0):
            if mixed.max() <= cap:
                break
            mixed = (1 - share) * split + share * budget / pools
        found.append(mixed)
    return found


def test_permuting_pools_permutes_a_unique_answer() -> None:
    curves = random_curves(np.random.default_rng(3))
    order = np.array([3, 1, 5, 0, 2, 4])
    shuffled = Curves(curves.start, curves.gain, curves.tau, curves.transfer[:, order], curves.shape)
    one, two = maximise(curves, 1e6, 6e5), maximise(shuffled, 1e6, 6e5)
    np.testing.assert_allclose(two.tokens, one.tokens[order], atol=0.5)


def test_many_curves_at_once_are_each_solved() -> None:
    batch = random_curves(np.random.default_rng(5), batch=7)
    together = maximise(batch, 1e6, 6e5, "capped")
    for s in range(7):
        alone = Curves(batch.start[s], batch.gain[s], batch.tau[s], batch.transfer[s])
        single = maximise(alone, 1e6, 6e5, "capped")
        assert together.value[s] == pytest.approx(float(single.value), abs=1e-10)
    assert (together.gap < 1e-9).all()


def test_nothing_to_gain_is_uniform() -> None:
    found = maximise(independent([0.3, 0.4, 0.5], [0, 0, 0], [1e5, 1e5, 1e5]), 3e5, 2e5)
    np.testing.assert_allclose(found.tokens, 1e5, rtol=1e-9)


def test_the_bound_holds_for_any_weights() -> None:
    rng = np.random.default_rng(11)
    curves = random_curves(rng)
    for objective in OBJECTIVES:
        weights = {"sum": np.ones(6), "capped": rng.random(6), "min": rng.dirichlet(np.ones(6))}[objective]
        at = rng.dirichlet(np.full(6, 3.0)) * 1e6
        bound = upper_bound(curves, at, weights, 6e5, objective)  # type: ignore[arg-type]
        for split in _random_splits(rng, 6, 1e6, 6e5, 50):
            assert value_of(curves, split, objective) <= bound + 1e-12  # type: ignore[arg-type]


def test_the_ceiling_is_part_of_the_curve() -> None:
    """A curve that would pass 1.2 is worth nothing beyond it."""
    curves = independent([0.9, 0.1], [0.9, 0.5], [50_000.0, 500_000.0])
    assert curves.retention([1e9, 0.0])[0] == 1.2
    assert curves.below_ceiling().limit[0] == pytest.approx(1.2)
    with_start_above = Curves(np.array([1.3, 0.0]), np.array([0.1, 0.5]), np.full(2, 1e5), np.eye(2))
    assert maximise(with_start_above, 1e5, 9e4).tokens[1] == pytest.approx(9e4, abs=1.0)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), budget=st.sampled_from([1e5, 2.5e5, 1e6, 3e6]))
def test_the_study_solver_is_certified_and_feasible(seed: int, budget: float) -> None:
    """The planner's answer lies within 2e-6 of the optimum whichever solver made it."""
    curves = random_curves(np.random.default_rng(seed))
    mixture = plan_mixture(curves, budget, 300_000)
    assert mixture.gap <= 2e-6
    assert mixture.tokens.sum() == pytest.approx(budget, rel=1e-12)
    assert (mixture.tokens >= 0).all() and (mixture.tokens <= 600_000 * (1 + 1e-12)).all()


def test_the_study_solver_is_deterministic() -> None:
    curves = random_curves(np.random.default_rng(2))
    np.testing.assert_array_equal(study_split(curves, 1e6, 6e5), study_split(curves, 1e6, 6e5))


def test_max_min_takes_the_simplest_of_equal_plans() -> None:
    saturated = independent([0.2, 0.5, 0.5], [0.1, 0.5, 0.5], [3e3, 1e5, 1e5])
    np.testing.assert_allclose(max_min_split(saturated, 9e5, 6e5), 3e5)  # rule 1: uniform attains the limit 0.3
    one_slow = independent([0.2, 0.0, 0.5], [0.1, 1.0, 0.5], [3e3, 1e6, 1e5])
    # 0.3 is the limit of the first; the second needs 357k tokens for it, more than its even share.
    np.testing.assert_allclose(max_min_split(one_slow, 9e5, 6e5), [1.5e5, 6e5, 1.5e5])  # rule 2


def test_max_min_without_ties_is_the_optimum() -> None:
    """Two slow capabilities: at the optimum both have the same retention."""
    curves = independent([0.0, 0.1, 0.9], [1.0, 1.0, 0.1], [1e6, 1e6, 1e5])
    split = max_min_split(curves, 9e5, 6e5)
    kept = curves.retention(split)
    best = maximise(curves, 9e5, 6e5, "min")
    assert kept.min() == pytest.approx(float(best.value), abs=2e-6)
    assert kept[0] == pytest.approx(kept[1], abs=1e-3)


def test_nearest_to_uniform_is_a_projection() -> None:
    """With one constraint t_0 >= need the projection moves the excess evenly off the others."""
    curves = independent([0.0, 0.995, 0.995], [1.0, 0.0, 0.0], [1e5, 1e5, 1e5])
    need = tokens_needed(curves, 0.99)[0]
    split = nearest_to_uniform(curves, 6e5, 6e5, 0.99, np.array([6e5, 0.0, 0.0]))
    np.testing.assert_allclose(split, [need, (6e5 - need) / 2, (6e5 - need) / 2], rtol=1e-6)


@pytest.mark.parametrize("shape", ["exponential", "hyperbolic"])
def test_tokens_needed_inverts_the_curve(shape: str) -> None:
    curves = independent([0.1, 0.5], [0.8, 0.6], [1e5, 3e4], shape)
    needed = tokens_needed(curves, 0.7)
    np.testing.assert_allclose(curves.retention(needed), 0.7, atol=1e-12)
    assert (tokens_needed(curves, 0.05) == -np.inf).all()
    assert tokens_needed(curves, 0.95)[0] == np.inf
