"""Streamed sums against everything stored: the same solution, the same errors, in any batches, merged or reloaded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.errors import DataError, ModelError
from regrow.repair.operators import Affine
from regrow.repair.solve import Ridge, least_squares
from regrow.repair.sums import NormalSums, Problem


def rows(n: int = 200, p: int = 7, q: int = 5, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, p, generator=generator) * torch.linspace(0.1, 30, p) + 3
    y = x @ torch.randn(p, q, generator=generator) + torch.randn(n, q, generator=generator) - 5
    return x, y


def summed(x: torch.Tensor, y: torch.Tensor, weights: torch.Tensor | None = None, size: int = 64) -> NormalSums:
    sums = NormalSums(x.shape[1], {"y": y.shape[1]})
    for start in range(0, len(x), size):
        part = slice(start, start + size)
        sums.add(x[part], {"y": y[part]}, None if weights is None else weights[part])
    return sums


def same(one: Problem, two: Problem, tolerance: float = 1e-12) -> bool:
    fields = ("xx", "xy", "x_sum", "y_sum", "y_squares")
    close = all(torch.allclose(getattr(one, f), getattr(two, f), rtol=tolerance, atol=1e-9) for f in fields)
    return close and one.rows == two.rows and abs(one.weight - two.weight) < 1e-9


def test_solution_equals_numpy_on_stored_rows() -> None:
    x, y = rows()
    fit = least_squares(summed(x, y).problem("y"), Ridge(0.0), intercept=True, toward_identity=False)
    design = np.hstack([x.double().numpy(), np.ones((len(x), 1))])
    expected, *_ = np.linalg.lstsq(design, y.double().numpy(), rcond=None)
    assert np.allclose(fit.operator.matrix.numpy(), expected[:-1], rtol=1e-9, atol=1e-9)
    assert fit.operator.offset is not None
    assert np.allclose(fit.operator.offset.numpy(), expected[-1], rtol=1e-9, atol=1e-8)


def test_weighted_solution_equals_numpy_on_scaled_rows() -> None:
    x, y = rows(seed=3)
    weights = torch.rand(len(x), generator=torch.Generator().manual_seed(9)) + 0.05
    fit = least_squares(summed(x, y, weights).problem("y"), Ridge(0.0), intercept=True, toward_identity=False)
    root = weights.double().sqrt().numpy()[:, None]
    design = np.hstack([x.double().numpy(), np.ones((len(x), 1))]) * root
    expected, *_ = np.linalg.lstsq(design, y.double().numpy() * root, rcond=None)
    assert np.allclose(fit.operator.matrix.numpy(), expected[:-1], rtol=1e-8, atol=1e-8)


def test_ridge_equals_numpy_on_augmented_rows() -> None:
    x, y = rows(seed=4)
    problem = summed(x, y).problem("y")
    amount = 3.7
    fit = least_squares(problem, Ridge(amount, absolute=True), intercept=False, toward_identity=False)
    design = np.vstack([x.double().numpy(), np.sqrt(amount) * np.eye(x.shape[1])])
    target = np.vstack([y.double().numpy(), np.zeros((x.shape[1], y.shape[1]))])
    expected, *_ = np.linalg.lstsq(design, target, rcond=None)
    assert np.allclose(fit.operator.matrix.numpy(), expected, rtol=1e-9, atol=1e-9)


@given(size=st.integers(1, 200), split=st.integers(0, 200))
@settings(max_examples=25, deadline=None)
def test_batches_and_merging_do_not_matter(size: int, split: int) -> None:
    x, y = rows()
    whole = summed(x, y, size=200).problem("y")
    assert same(summed(x, y, size=size).problem("y"), whole)
    merged = summed(x[:split], y[:split], size=size) + summed(x[split:], y[split:], size=size)
    assert same(merged.problem("y"), whole)
    swapped = summed(x[split:], y[split:], size=size) + summed(x[:split], y[:split], size=size)
    assert same(swapped.problem("y"), whole)


def test_saved_sums_are_the_same(tmp_path: Path) -> None:
    x, y = rows()
    sums = summed(x, y)
    sums.save(tmp_path / "part-0.safetensors")
    again = NormalSums.load(tmp_path / "part-0.safetensors")
    assert same(again.problem("y"), sums.problem("y"), tolerance=0)
    assert same((again + sums).problem("y"), (sums + sums).problem("y"), tolerance=0)


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(2)}, tmp_path / "other.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"nonsense")
    for name in ("other", "broken", "absent"):
        with pytest.raises(DataError):
            NormalSums.load(tmp_path / f"{name}.safetensors")


def test_errors_from_sums_equal_errors_of_rows() -> None:
    x, y = rows()
    problem = summed(x, y).problem("y")
    generator = torch.Generator().manual_seed(1)
    operator = Affine(torch.randn(7, 5, generator=generator).double(), torch.randn(5, generator=generator).double())
    gap = y.double() - operator(x.double())
    assert problem.squared_error(operator.matrix, operator.offset) == pytest.approx(
        gap.square().sum().item(), rel=1e-10
    )
    expected = (gap.norm() / y.double().norm()).item()
    assert problem.relative_error(operator.matrix, operator.offset) == pytest.approx(expected, rel=1e-10)


def test_inputs_can_be_mapped_without_the_data() -> None:
    x, y = rows()
    generator = torch.Generator().manual_seed(2)
    matrix = torch.randn(7, 7, generator=generator).double()
    offset = torch.randn(7, generator=generator).double()
    mapped = summed(x, y).problem("y").through(matrix, offset)
    assert same(mapped, summed(x.double() @ matrix + offset, y).problem("y"), tolerance=1e-9)


def test_sums_do_not_grow_with_the_rows() -> None:
    x, y = rows(n=2000)
    assert summed(x, y).nbytes == summed(x[:10], y[:10]).nbytes


def test_numbers_that_are_not_finite_are_refused_before_anything_is_added() -> None:
    x, y = rows()
    sums = summed(x, y)
    before = sums.problem("y").xx.clone()
    bad = y.clone()
    bad[3, 1] = float("nan")
    with pytest.raises(ModelError, match="not finite"):
        sums.add(x, {"y": bad})
    assert torch.equal(sums.problem("y").xx, before) and sums.rows == len(x)


def test_sums_of_other_shapes_are_not_merged() -> None:
    x, y = rows()
    with pytest.raises(DataError, match="merged"):
        summed(x, y) + summed(x[:, :3], y)


def test_half_precision_rows_are_summed_exactly() -> None:
    x, y = rows()
    half = x.to(torch.bfloat16)
    assert torch.equal(summed(half, y).problem("y").xx, summed(half.double(), y).problem("y").xx)
