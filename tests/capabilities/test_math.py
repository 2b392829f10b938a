"""Final numbers: how they are read, which one counts, and when nothing can change any more."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regrow.capabilities.math import Mathematics, final_number
from regrow.capabilities.numbers import numbers_in
from tests.capabilities.scorers import check_early_decisions, item

SCORER = Mathematics()


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("1,234 and 1,234,567.50", ["1234", "1234567.5"]),
        ("3,4 or 12,34", ["3", "4", "12", "34"]),
        ("1,2345", ["1", "2345"]),
        ("$5.00, €7, £ 8", ["5", "7", "8"]),
        ("-3 is \u22123 is -$3 is $-3", ["-3", "-3", "-3", "-3"]),
        ("5-3, 5 - 3, x-3", ["5", "3", "5", "3", "3"]),
        ("(-3) =-3 :-3 - 3", ["-3", "-3", "-3", "3"]),
        (".5 and 0.5 and 2.", ["0.5", "0.5", "2"]),
        ("1.2.3", ["1.2", "3"]),
        ("50% of 3/4", ["50", "3", "4"]),
        ("no number", []),
    ],
)
def test_numbers_are_read_as_people_write_them(text: str, numbers: list[str]) -> None:
    assert numbers_in(text) == [Decimal(number) for number in numbers]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("3 + 4 = 7\n#### 7", "7"),
        ("#### 7\nand then 8", "7"),
        ("#### 7 #### 8", "7"),
        ("#### 7\n#### 8", "7"),
        ("####\n#### 8", "8"),
        ("#### none\nThe answer is 9.", "9"),
        ("####$1,234.50 dollars", "1234.5"),
        ("#### -5", "-5"),
        ("The answer is 3. No, the answer is 4, not 5.", "4"),
        ("The Answer is: $12", "12"),
        ("the answer is unclear, 3 or 4", "3"),
        ("the answer is unclear\n3 or 4", "4"),
        ("2 and 3 make 5", "5"),
        ("The answer is 3.\n#### 4", "4"),
    ],
)
def test_the_final_number_is_found(text: str, number: str) -> None:
    assert final_number(text) == Decimal(number)


@pytest.mark.parametrize(
    ("answer", "response", "score", "parsed"),
    [
        (18, "#### 18", 1, True),
        (18, "#### 18.00", 1, True),
        (18, "so 18", 1, True),
        (18, "#### 81", 0, True),
        (18, "#### -18", 0, True),
        (18, "eighteen", 0, False),
        (18, "", 0, False),
        ("She makes 9 * 2 = 18 dollars.\n#### 18", "It is $18 a day.", 1, True),
        ("#### 1,200", "#### 1200", 1, True),
        (0.1, "#### .1", 1, True),
    ],
)
def test_an_answer_is_graded(answer: object, response: str, score: float, parsed: bool) -> None:
    grade = SCORER.grade(item({"answer": answer}), response)
    assert (grade.score, grade.parsed) == (score, parsed)


def test_a_gold_without_a_number_is_an_error() -> None:
    with pytest.raises(ValueError, match="no number"):
        SCORER.grade(item({"answer": "none"}), "1")


@pytest.mark.parametrize(
    ("text", "decided"),
    [
        ("#### 7", False),
        ("#### 7\n", True),
        ("#### 7,\n", True),
        ("####\n", False),
        ("7\n", False),
        ("#### x\n#### 1\n", True),
    ],
)
def test_a_closed_line_with_the_final_number_decides(text: str, decided: bool) -> None:
    assert SCORER.decided(text) == decided


@pytest.mark.parametrize(
    "response",
    ["9" * 100_000, "#" * 100_000, "-" * 100_000, "1," * 50_000, "1,234" * 20_000, "." * 100_000, "answer is " * 10_000,
     "answer" + " " * 99_000, "#### " * 20_000, "$" * 100_000],
)  # fmt: skip
def test_hostile_answers_are_graded(response: str) -> None:
    assert SCORER.grade(item({"answer": 17}), response).score == 0
    assert not SCORER.decided(response) and not SCORER.decided(response + "\n####\n")


@given(st.text(alphabet="#1,.-$ \nanswer is7", max_size=80), st.text(alphabet="#1,.-$ \nx9", max_size=30))
def test_what_is_decided_stays_as_it_is(text: str, more: str) -> None:
    if SCORER.decided(text):
        assert final_number(text + more) == final_number(text)
    check_early_decisions(SCORER, item({"answer": 1}), text + more)


@given(st.integers(-(10**12), 10**12), st.booleans())
def test_a_written_number_is_read_back(number: int, with_commas: bool) -> None:
    written = f"{number:,}" if with_commas else str(number)
    assert SCORER.grade(item({"answer": number}), f"so it is {written}.\n#### {written}\nbye 3").score == 1
