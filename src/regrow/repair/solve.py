"""Ridge solutions of streamed least-squares problems, and what to say when the data cannot carry them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from regrow.errors import DataError
from regrow.repair.operators import Affine
from regrow.repair.sums import Problem

# Below this ratio of eigenvalues a float64 solution is rounding noise.
_SINGULAR = 1e-13
RIDGE_GRID = tuple(10.0**power for power in range(-8, 2))


@dataclass(frozen=True)
class Ridge:
    """How strongly a fit shrinks. ``amount`` is a fraction of the mean diagonal of X'X (centred when there is an
    intercept), or with ``absolute`` the number added to the diagonal itself."""

    amount: float
    absolute: bool = False

    def on(self, gram: torch.Tensor) -> float:
        """Return lambda for this X'X."""
        return self.amount if self.absolute else self.amount * gram.diagonal().mean().item()


@dataclass(frozen=True)
class Fit:
    """A solution: the map, the lambda that was added to X'X, X'X as it was solved, and remarks for the user."""

    operator: Affine
    ridge: float
    gram: torch.Tensor
    warnings: tuple[str, ...] = ()


def least_squares(
    problem: Problem, ridge: Ridge, *, intercept: bool, toward_identity: bool, what: str = "the cut"
) -> Fit:
    """Return the affine map of least squared error plus lambda times the squared distance from where it shrinks to.

    ``toward_identity``: W of h' = h + h W + b is shrunk to 0 (LRA, ghost), otherwise A of h' = h A + c. With
    ``intercept`` both sides are centred first and the offset follows from the means; the offset is never shrunk.
    Without ridge both have the same solution; a singular X'X then gets the solution of least norm and a remark.
    Raises DataError when there are fewer rows than unknowns per column and no ridge.
    """
    gram, cross = centred(problem, intercept=intercept, toward_identity=toward_identity)
    amount = ridge.on(gram)
    warnings = shortage(problem, amount, intercept=intercept, what=what)
    solution, remark = solve_symmetric(gram, cross, amount, what=what)
    matrix = solution + torch.eye(problem.inputs, dtype=solution.dtype) if toward_identity else solution
    offset = problem.y_mean - problem.x_mean @ matrix if intercept else None
    return Fit(Affine(matrix, offset), amount, gram, (*warnings, *remark))


def choose_ridge(
    problem: Problem,
    held: Problem,
    *,
    intercept: bool,
    toward_identity: bool,
    grid: Sequence[float] = RIDGE_GRID,
) -> tuple[Ridge, dict[float, float]]:
    """Return the fraction of the mean diagonal with the least error on ``held``, and the error of every one tried.

    One eigendecomposition serves the whole grid.
    """
    gram, cross = centred(problem, intercept=intercept, toward_identity=toward_identity)
    values, vectors = torch.linalg.eigh(gram)
    rotated = vectors.T @ cross
    scale = gram.diagonal().mean().item()
    unit = torch.eye(problem.inputs, dtype=gram.dtype)
    errors: dict[float, float] = {}
    for amount in grid:
        solution = vectors @ (rotated / (values.clamp_min(0) + amount * scale)[:, None])
        matrix = solution + unit if toward_identity else solution
        errors[amount] = held.relative_error(matrix, problem.y_mean - problem.x_mean @ matrix if intercept else None)
    best = min(errors, key=lambda amount: (errors[amount], -amount))
    return Ridge(best), errors


def centred(problem: Problem, *, intercept: bool, toward_identity: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return X'X and X'T of the fit, T being Y or Y - X, centred when there is an intercept."""
    gram, cross = problem.xx, problem.xy
    if intercept:
        gram = gram - torch.outer(problem.x_sum, problem.x_mean)
        cross = cross - torch.outer(problem.x_sum, problem.y_mean)
    return gram, cross - gram if toward_identity else cross


def solve_symmetric(
    gram: torch.Tensor, cross: torch.Tensor, amount: float, *, what: str = "the cut"
) -> tuple[torch.Tensor, tuple[str, ...]]:
    """Return the solution of (``gram`` + ``amount`` I) S = ``cross``, and a remark when it is singular."""
    size = int(gram.shape[0])
    shifted = gram + amount * torch.eye(size, dtype=gram.dtype)
    lower, failed = torch.linalg.cholesky_ex(shifted)
    diagonal = lower.diagonal()
    if not failed and (diagonal.min() / diagonal.max()).item() ** 2 > _SINGULAR:
        return torch.cholesky_solve(cross, lower), ()
    values, vectors = torch.linalg.eigh(shifted)
    keep = values > max(_SINGULAR * size, torch.finfo(values.dtype).eps * size) * values.max().clamp_min(1e-300)
    found = int(keep.sum())
    inverse = torch.where(keep, 1 / torch.where(keep, values, 1.0), 0.0)
    solution = vectors @ (inverse[:, None] * (vectors.T @ cross))
    if found == size:
        return solution, ()
    return solution, (
        f"the stream at {what} spans only {found} of {size} directions: the solution of least norm was taken; "
        "more calibration tokens or a larger ridge make it unique",
    )


def shortage(problem: Problem, amount: float, *, intercept: bool, what: str) -> tuple[str, ...]:
    """Return a remark on few rows for the unknowns. Raises DataError when there are too few and no ridge."""
    unknowns = problem.inputs + int(intercept)
    if problem.rows == 0:
        raise DataError(f"no calibration token is left to fit {what}", hint="raise --calibration-tokens")
    if problem.rows >= unknowns:
        return ()
    need = math.ceil(unknowns * 1.2)
    if amount <= 0:
        raise DataError(
            f"{problem.rows:,} fitting tokens cannot determine {unknowns:,} unknowns per column at {what}",
            hint=f"use at least {need:,} fitting tokens (raise --calibration-tokens), or a ridge: --ridge 1e-4",
        )
    return (
        f"{problem.rows:,} fitting tokens for {unknowns:,} unknowns per column at {what}: only the ridge makes the fit "
        f"unique; at least {need:,} tokens are needed, ten times {unknowns:,} are better",
    )
