"""What the family of fits has in common, where its members part, and what is said when data is short."""

from __future__ import annotations

import pytest
import torch

from regrow.errors import DataError, ModelError
from regrow.repair.operators import Affine, bridge_of, identity, low_rank_bridge, merge, truncate
from regrow.repair.solve import RIDGE_GRID, Ridge, choose_ridge, least_squares
from regrow.repair.sums import NormalSums, Problem

D = 9


def data(n: int = 400, seed: int = 0, noise: float = 0.3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = (torch.randn(n, D, generator=generator) * torch.linspace(0.2, 20, D) + 2).double()
    w = torch.randn(D, D, generator=torch.Generator().manual_seed(77)).double() * 0.2
    y = x + x @ w + 1.5 + noise * torch.randn(n, D, generator=generator).double()
    return x, y


def problem_of(x: torch.Tensor, y: torch.Tensor) -> Problem:
    sums = NormalSums(x.shape[1], {"y": y.shape[1]})
    sums.add(x, {"y": y})
    return sums.problem("y")


def test_without_ridge_generic_affine_is_lra() -> None:
    problem = problem_of(*data())
    lra = least_squares(problem, Ridge(0), intercept=True, toward_identity=True).operator
    affine = least_squares(problem, Ridge(0), intercept=True, toward_identity=False).operator
    assert torch.allclose(lra.matrix, affine.matrix, rtol=1e-9, atol=1e-9)
    assert lra.offset is not None and affine.offset is not None
    assert torch.allclose(lra.offset, affine.offset, rtol=1e-7, atol=1e-7)


def test_a_huge_ridge_shows_what_each_shrinks_to() -> None:
    problem = problem_of(*data())
    lra = least_squares(problem, Ridge(1e9), intercept=True, toward_identity=True).operator
    affine = least_squares(problem, Ridge(1e9), intercept=True, toward_identity=False).operator
    assert torch.allclose(lra.matrix, identity(D).matrix, atol=1e-6)
    assert torch.allclose(affine.matrix, torch.zeros(D, D).double(), atol=1e-6)
    assert torch.allclose(affine.offset, problem.y_mean, atol=1e-3)


def test_truncation_parts_them_too() -> None:
    problem = problem_of(*data())
    operator = least_squares(problem, Ridge(0), intercept=True, toward_identity=True).operator
    down, up = truncate(operator.change, 2)
    as_change = problem.relative_error(down @ up + identity(D).matrix, operator.offset)
    down, up = truncate(operator.matrix, 2)
    assert as_change < problem.relative_error(down @ up, operator.offset)


def test_the_merge_of_consecutive_maps_is_exact() -> None:
    generator = torch.Generator().manual_seed(3)
    maps = [
        Affine(
            identity(D).matrix + 0.3 * torch.randn(D, D, generator=generator).double(),
            torch.randn(D, generator=generator).double(),
        )
        for _ in range(4)
    ]
    rows = torch.randn(50, D, generator=generator).double() * 100
    step_by_step = rows
    for one in maps:
        step_by_step = one(step_by_step)
    gap = (merge(maps)(rows) - step_by_step).norm() / step_by_step.norm()
    assert gap < 1e-14
    first, second = maps[0], maps[1]
    both = first.then(second)
    assert torch.allclose(both.change, first.change + second.change + first.change @ second.change, atol=1e-13)
    assert torch.allclose(both.offset, first.offset @ second.matrix + second.offset, atol=1e-13)


def test_merging_without_offsets_has_none() -> None:
    plain = Affine(2 * identity(D).matrix)
    assert plain.then(plain).offset is None
    shifted = Affine(2 * identity(D).matrix, torch.ones(D).double())
    assert torch.equal(shifted.then(plain).offset, 2 * torch.ones(D).double())
    assert torch.equal(plain.then(shifted).offset, torch.ones(D).double())


def test_plain_truncation_is_the_best_of_its_rank() -> None:
    matrix = torch.randn(D, D, generator=torch.Generator().manual_seed(1)).double()
    sizes = torch.linalg.svdvals(matrix)
    for rank in (1, 4, D):
        down, up = truncate(matrix, rank)
        assert torch.linalg.matrix_norm(matrix - down @ up).item() == pytest.approx(
            sizes[rank:].square().sum().sqrt().item(), abs=1e-10
        )


def test_weighted_truncation_is_reduced_rank_regression() -> None:
    x, y = data()
    problem = problem_of(x, y)
    operator = least_squares(problem, Ridge(0), intercept=False, toward_identity=True).operator
    for rank in (1, 3, 5):
        plain = identity(D).matrix + torch.matmul(*truncate(operator.change, rank))
        weighted = identity(D).matrix + torch.matmul(*truncate(operator.change, rank, problem.xx))
        assert problem.squared_error(weighted) <= problem.squared_error(plain) + 1e-9
        # Eckart-Young on the fitted values: no rank-r map of X is nearer to them.
        fitted = x @ operator.change
        left, sizes, right = torch.linalg.svd(fitted, full_matrices=False)
        best = left[:, :rank] * sizes[:rank] @ right[:rank]
        assert torch.allclose(x @ (weighted - identity(D).matrix), best, atol=1e-7)


def test_rank_above_the_width_is_refused() -> None:
    with pytest.raises(ModelError, match="rank"):
        truncate(torch.eye(D), D + 1)


def test_bridges_compute_their_operator() -> None:
    generator = torch.Generator().manual_seed(8)
    operator = Affine(torch.randn(D, D, generator=generator).double(), torch.randn(D, generator=generator).double())
    rows = torch.randn(20, D, generator=generator)
    assert torch.allclose(bridge_of(operator)(rows), operator(rows.double()).float(), atol=1e-5)
    down, up = truncate(operator.change, D)
    assert torch.allclose(low_rank_bridge(down, up, operator.offset)(rows), operator(rows.double()).float(), atol=1e-5)


class TestShortData:
    def test_without_ridge_it_is_refused_and_says_how_many(self) -> None:
        x, y = data(n=D)
        with pytest.raises(DataError, match=f"{D} fitting tokens cannot determine {D + 1} unknowns") as caught:
            least_squares(problem_of(x, y), Ridge(0), intercept=True, toward_identity=True)
        assert "12" in str(caught.value.hint)

    def test_with_a_ridge_it_is_told(self) -> None:
        x, y = data(n=5)
        fit = least_squares(problem_of(x, y), Ridge(1e-3), intercept=True, toward_identity=True, what="block 3")
        assert len(fit.warnings) == 1 and "block 3" in fit.warnings[0]
        assert torch.isfinite(fit.operator.matrix).all()

    def test_no_row_at_all(self) -> None:
        with pytest.raises(DataError, match="no calibration token"):
            least_squares(
                problem_of(torch.zeros(0, D), torch.zeros(0, D)), Ridge(1), intercept=True, toward_identity=True
            )

    def test_singular_sums_give_the_least_change(self) -> None:
        x, y = data()
        x[:, 4] = 3 * x[:, 2]
        x[:, 7] = 0
        fit = least_squares(problem_of(x, y), Ridge(0), intercept=False, toward_identity=True)
        assert any("7 of 9 directions" in warning for warning in fit.warnings)
        target = y - x
        expected = torch.linalg.lstsq(x, target, driver="gelsd").solution
        assert torch.allclose(fit.operator.change, expected, atol=1e-6)
        assert torch.equal(fit.operator.change[7], torch.zeros(D).double())


def test_the_chosen_ridge_has_the_least_held_out_error() -> None:
    fit_on, held = problem_of(*data(n=14, noise=3.0)), problem_of(*data(n=400, seed=1, noise=3.0))
    ridge, errors = choose_ridge(fit_on, held, intercept=True, toward_identity=True)
    assert set(errors) == set(RIDGE_GRID)
    assert errors[ridge.amount] == min(errors.values())
    for amount, error in errors.items():
        operator = least_squares(fit_on, Ridge(amount), intercept=True, toward_identity=True).operator
        assert held.relative_error(operator.matrix, operator.offset) == pytest.approx(error, rel=1e-6)
    assert ridge.amount > min(RIDGE_GRID)
