"""Sums and the likeliest token of rows of logits, a few rows at a time."""

from __future__ import annotations

import pytest
import torch

import regrow.capabilities.token_scores as token_scores
from regrow.capabilities.token_scores import sums_and_best


@pytest.mark.parametrize("rows", [1, 7, 10, 11])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_in_parts_are_the_rows_at_once(rows: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_scores, "CACHED_BYTES", 3 * 4 * 50)  # three rows of a vocabulary of 50
    logits = torch.randn(rows, 50, generator=torch.Generator().manual_seed(0)).mul(30).to(dtype)
    logits[0, 3] = logits[0, 40] = logits.max() + 1  # a tie: the first counts, as in transformers' greedy decoding
    sums, best = sums_and_best(logits)
    torch.testing.assert_close(sums.double(), logits.double().exp().sum(-1).log(), rtol=1e-6, atol=1e-5)
    assert sums.dtype == torch.float32 and best.tolist() == logits.argmax(-1).tolist() and best[0] == 3


def test_a_row_wider_than_what_is_held_is_a_part_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_scores, "CACHED_BYTES", 8)
    sums, best = sums_and_best(torch.tensor([[0.0, 0.0, 1.0], [5.0, 0.0, 0.0]]))
    assert best.tolist() == [2, 0] and sums.shape == (2,)


def test_logits_without_bound_stay_what_they_are() -> None:
    sums, best = sums_and_best(torch.tensor([[-torch.inf, 0.0], [torch.inf, 0.0]]))
    assert sums.tolist() == [0.0, torch.inf] and best.tolist() == [1, 0]
