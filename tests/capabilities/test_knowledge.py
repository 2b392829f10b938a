"""Choices by likelihood, confidence and its calibration."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regrow.capabilities.calibration import expected_calibration_error
from regrow.capabilities.knowledge import Knowledge, softmax
from regrow.capabilities.likelihood import ChoiceScore
from regrow.errors import ModelError
from tests.capabilities.scorers import item, scored

SCORER = Knowledge()


@dataclass(frozen=True)
class Likelihood:
    logprob: float
    tokens: int = 1
    characters: int = 1


QUESTION = item({"choice": 1}, ("Rome.", "Paris.", "A very long wrong answer.", "Oslo."))


def test_the_engine_gives_what_the_rule_reads() -> None:
    grade = SCORER.grade_choices(QUESTION, [ChoiceScore(-1.0, 1, 5), ChoiceScore(-0.5, 1, 6)] * 2)
    assert grade.details["choice"] == 1


def test_the_choice_is_the_best_per_token_and_the_confidence_is_that_of_the_texts() -> None:
    grade = SCORER.grade_choices(QUESTION, [Likelihood(-4, 2), Likelihood(-3, 2), Likelihood(-6, 5), Likelihood(-9, 1)])
    assert (grade.score, grade.details["choice"]) == (0, 2)
    expected = math.exp(-6) / (math.exp(-4) + math.exp(-3) + math.exp(-6) + math.exp(-9))
    assert grade.details["confidence"] == pytest.approx(expected)


def test_a_tie_goes_to_the_earlier_choice() -> None:
    grade = SCORER.grade_choices(QUESTION, [Likelihood(-2, 1), Likelihood(-4, 2), Likelihood(-2, 1), Likelihood(-3, 1)])
    assert grade.details["choice"] == 0


def test_impossible_choices_still_give_a_grade() -> None:
    grade = SCORER.grade_choices(QUESTION, [Likelihood(-math.inf)] * 4)
    assert grade.details["confidence"] == 0.25


def test_missing_likelihoods_are_an_error() -> None:
    with pytest.raises(ValueError, match="needs one log-probability"):
        SCORER.grade_choices(QUESTION, [Likelihood(-1)] * 3)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_likelihoods_that_are_no_numbers_are_a_fault_of_the_model(value: float) -> None:
    with pytest.raises(ModelError, match="no finite probabilities"):
        SCORER.grade_choices(QUESTION, [Likelihood(-1)] * 3 + [Likelihood(value)])


def test_a_recorded_answer_can_be_graded_again() -> None:
    assert SCORER.grade(QUESTION, "Paris.").score == 1
    assert SCORER.grade(QUESTION, "Rome.").score == 0


def by_hand(confidences: list[float], right: list[float], bins: int) -> float:
    """The definition, bin by bin over a grid, as an independent check."""
    edges = np.linspace(0, 1, bins + 1)
    total = 0.0
    for low, high in pairwise(edges):
        inside = [(c, r) for c, r in zip(confidences, right) if low < c <= high or (low == 0 == c)]
        if inside:
            gap = abs(float(np.mean([r for _, r in inside])) - float(np.mean([c for c, _ in inside])))
            total += len(inside) / len(confidences) * gap
    return total


@given(st.lists(st.tuples(st.floats(0, 1), st.sampled_from([0.0, 1.0])), min_size=1, max_size=40))
def test_ece_is_its_definition(pairs: list[tuple[float, float]]) -> None:
    # Confidences on an edge fall to either bin by rounding; keep off the edges.
    confidences = [min(1.0, max(0.0, round(confidence, 2) + 0.003)) for confidence, _ in pairs]
    right = [correct for _, correct in pairs]
    assert expected_calibration_error(confidences, right) == pytest.approx(by_hand(confidences, right, 10))


def test_ece_of_known_cases() -> None:
    assert expected_calibration_error([1.0, 1.0], [1.0, 1.0]) == 0
    assert expected_calibration_error([1.0, 1.0], [0.0, 0.0]) == 1
    assert expected_calibration_error([0.75] * 4, [1, 1, 1, 0]) == 0
    assert expected_calibration_error([0.2, 0.9], [0.0, 0.0]) == pytest.approx(0.55)
    assert math.isnan(expected_calibration_error([], []))


@pytest.mark.parametrize(("confidences", "right"), [([0.5], []), ([1.5], [1.0]), ([math.nan], [1.0])])
def test_ece_refuses_nonsense(confidences: list[float], right: list[float]) -> None:
    with pytest.raises(ValueError):
        expected_calibration_error(confidences, right)


@given(st.lists(st.floats(-1e6, 0), min_size=1, max_size=8))
def test_softmax_is_a_distribution_in_the_same_order(values: list[float]) -> None:
    shares = softmax(values)
    assert math.fsum(shares) == pytest.approx(1)
    assert shares[values.index(max(values))] == max(shares)


def test_summary() -> None:
    scores = [scored(1, details={"confidence": 0.8}), scored(0, details={"confidence": 0.6})]
    found = SCORER.summarise(scores)
    assert found["score"] == found["accuracy"] == 0.5
    assert found["confidence"] == pytest.approx(0.7)
    assert found["ece"] == pytest.approx((0.2 + 0.6) / 2)
    assert math.isnan(SCORER.summarise([scored(1)])["ece"])
    assert math.isnan(SCORER.summarise([])["score"])
