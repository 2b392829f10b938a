"""Least-squares fits: known curves come back, derivatives, and the global optimum against many starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.optimize import least_squares

from regrow.errors import DataError
from regrow.planning.cautions import cautions, local_optimum
from regrow.planning.curves import SHAPES, Curves
from regrow.planning.global_fit import best_transfer, fit_global
from regrow.planning.least_squares import PENALTY, TAU_HIGH, fit_study, problem_of
from regrow.planning.pilots import Pilots

from .conftest import FAMILIES, random_curves

MODES = [("exponential", "free"), ("exponential", "none"), ("hyperbolic", "free"), ("exponential", "signed")]


@pytest.mark.parametrize("shape", ["exponential", "hyperbolic"])
@pytest.mark.parametrize("fit", [fit_study, fit_global])
def test_known_curves_come_back(fit: Callable[..., Any], shape: str, pilots_from: Callable[..., Pilots]) -> None:
    """Exact counts and no transfer: three points per curve determine a and tau."""
    curves = Curves(
        np.array([0.1, 0.3, 0.0, 0.2, 0.5, 0.4]),
        np.array([0.9, 0.5, 0.7, 0.3, 0.6, 0.4]),
        np.array([4e4, 9e4, 2e5, 1.5e5, 3e4, 6e4]),
        np.eye(6),
        shape,  # type: ignore[arg-type]
    )
    found = fit(pilots_from(curves), shape=shape, transfer="none")
    np.testing.assert_allclose(found.curves.gain, curves.gain, rtol=2e-3)
    np.testing.assert_allclose(found.curves.tau, curves.tau, rtol=5e-3)
    np.testing.assert_allclose(found.curves.transfer, np.eye(6))
    assert (found.rmse < 1e-4).all()


@pytest.mark.parametrize(("shape", "transfer"), MODES)
def test_derivatives(shape: Any, transfer: Any, published_pilots: dict[str, Pilots]) -> None:
    rng = np.random.default_rng(1)
    for c in range(6):
        problem = problem_of(published_pilots["llama"], c, shape, transfer)
        low, high = problem.bounds()
        point = low + (high - low) * rng.uniform(0.05, 0.95, len(low))
        step = 1e-6
        numeric = np.array(
            [
                (problem.residuals(point + step * unit) - problem.residuals(point - step * unit)) / (2 * step)
                for unit in np.eye(len(point))
            ]
        ).T
        np.testing.assert_allclose(problem.jacobian(point), numeric, atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_are_concave_with_slope_one_at_zero(shape: str) -> None:
    curve = SHAPES[shape]
    z = np.linspace(-3, 8, 4001)
    step = z[1] - z[0]
    np.testing.assert_allclose(np.gradient(curve.rise(z), step)[1:-1], curve.slope(z)[1:-1], atol=3e-3)
    assert (np.diff(curve.slope(z)) <= 1e-15).all()
    assert curve.rise(np.zeros(1))[0] == 0 and curve.slope(np.zeros(1))[0] == 1
    inside = z > 0.01
    np.testing.assert_allclose(np.gradient(curve.slope(z), step)[inside], curve.bend(z)[inside], atol=6e-3)


@pytest.mark.parametrize(("shape", "transfer"), MODES)
@pytest.mark.parametrize("family", FAMILIES)
def test_no_start_finds_a_better_fit(
    family: str, shape: Any, transfer: Any, published_pilots: dict[str, Pilots]
) -> None:
    pilots = published_pilots[family]
    found = fit_global(pilots, shape=shape, transfer=transfer)
    rng = np.random.default_rng(3)
    for c in range(6):
        problem = problem_of(pilots, c, shape, transfer)
        low, high = problem.bounds()
        for _ in range(4):
            start = low + (high - low) * rng.random(len(low))
            end = least_squares(problem.residuals, start, jac=problem.jacobian, bounds=(low, high))
            assert problem.objective(end.x) >= found.objective[c] - 1e-9


def test_the_global_fit_is_never_worse_than_the_study(published_pilots: dict[str, Pilots]) -> None:
    for pilots in published_pilots.values():
        study, better = fit_study(pilots), fit_global(pilots)
        assert (better.objective <= study.objective + 1e-12).all()


def test_where_the_study_sits_in_a_local_optimum(published_pilots: dict[str, Pilots]) -> None:
    """Two of twelve published fits are local: Qwen's instruction following and safety."""
    said = {
        family: local_optimum(fit_study(pilots), fit_global(pilots), pilots)
        for family, pilots in published_pilots.items()
    }
    assert said["llama"] == ()
    assert [sentence.split(":")[0] for sentence in said["qwen"]] == ["instruction_following", "safety"]


def test_the_inner_search_finds_the_best_transfer(published_pilots: dict[str, Pilots]) -> None:
    """Given a and tau each T is the minimum over a fine grid."""
    problem = problem_of(published_pilots["llama"], 5, "exponential", "free")
    gain, tau = 0.5, 6e4
    found = best_transfer(problem, gain, float(np.log(tau)), np.full(5, 0.1))
    grid = np.linspace(0, 3, 30001)
    for place, p in enumerate(problem.others):
        lifted = gain * SHAPES["exponential"].rise(grid[:, None] * problem.tokens / tau)
        cost = ((problem.start + lifted - problem.y[p]) ** 2).sum(axis=1) + PENALTY * grid**2
        assert found[place] == pytest.approx(grid[cost.argmin()], abs=2e-3)


def test_signed_transfer_sees_harm(pilots_from: Callable[..., Pilots]) -> None:
    """A pool that hurts a capability gets a negative T, and the plan spends less on it than the unsigned one."""
    transfer = np.eye(6)
    transfer[3, 0] = -0.8
    harmful = Curves(np.full(6, 0.5), np.full(6, 0.5), np.full(6, 3e5), transfer)
    pilots = pilots_from(harmful)
    signed, unsigned = fit_global(pilots, transfer="signed"), fit_global(pilots)
    assert signed.curves.transfer[3, 0] < -0.3
    assert unsigned.curves.transfer[3, 0] == pytest.approx(0.0, abs=1e-3)
    assert signed.objective[3] < unsigned.objective[3]


def test_a_capability_without_items_is_left_out_with_a_reason(pilots_from: Callable[..., Pilots]) -> None:
    pilots = pilots_from(random_curves(np.random.default_rng(4)))
    gone = pilots.unpruned.copy()
    gone[2] = 0.0
    counts = pilots.healed.copy()
    counts[:, :, 2] = 0.0
    before = pilots.pruned.copy()
    before[2] = 0.0
    pilots = replace(pilots, unpruned=gone, healed=counts, pruned=before)
    fit = fit_study(pilots)
    assert np.isnan(fit.curves.gain[2]) and np.isfinite(np.delete(fit.curves.gain, 2)).all()
    assert sum("no item right" in said for said in cautions(fit, pilots)) == 1


def test_nothing_gained_has_a_defined_answer(pilots_from: Callable[..., Pilots]) -> None:
    """Pilots that leave every capability where it was: a = 0, tau at its bound, no transfer."""
    flat = Curves(np.full(6, 0.5), np.zeros(6), np.full(6, 1e5), np.eye(6))
    np.testing.assert_allclose(fit_study(pilots_from(flat)).curves.gain, 0.0, atol=1e-3)
    exact = fit_global(pilots_from(flat))
    np.testing.assert_array_equal(exact.curves.gain, 0.0)
    np.testing.assert_allclose(exact.curves.tau, TAU_HIGH)
    np.testing.assert_allclose(exact.curves.transfer, np.eye(6))


def test_a_missing_pilot_is_named_with_its_command(published_pilots: dict[str, Pilots]) -> None:
    pilots = published_pilots["llama"]
    counts = pilots.healed.copy()
    counts[3, 1] = np.nan
    broken = pilots.with_healed(counts)
    with pytest.raises(DataError, match=r"pool math at 100k tokens.*missing") as caught:
        fit_study(broken)
    assert caught.value.hint is not None
    assert "regrow heal PRUNED" in caught.value.hint and "--tokens 100000" in caught.value.hint
    assert "regrow eval math-100k" in caught.value.hint and "--split dev" in caught.value.hint


@pytest.mark.parametrize("fit", [fit_study, fit_global])
@pytest.mark.parametrize("family", FAMILIES)
def test_smaller_pilots_give_the_same_curves_on_their_own_scale(
    fit: Callable[..., Any], family: str, published_pilots: dict[str, Pilots]
) -> None:
    """The limits of tau belong to the size of the pilots: a tenth of all budgets is a tenth of every tau."""
    pilots = published_pilots[family]
    large = fit(pilots)
    small = fit(replace(pilots, budgets=tuple(tokens // 10 for tokens in pilots.budgets)))
    np.testing.assert_allclose(small.curves.tau, large.curves.tau / 10, rtol=1e-3)
    np.testing.assert_allclose(small.curves.gain, large.curves.gain, rtol=1e-3)
    np.testing.assert_allclose(small.rmse, large.rmse, rtol=1e-5)
