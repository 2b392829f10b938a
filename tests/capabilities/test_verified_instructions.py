"""IFEval's grades: the harness's own verdicts on real prompts, the same every time, bounded on hostile answers."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from regrow.capabilities.suites import suite
from regrow.capabilities.verified_instructions import LONGEST_CHECKED, VerifiedInstructions
from regrow.protocols import Item
from tests.capabilities.scorers import scored

pytest.importorskip("lm_eval", reason="the extra lm-eval is not installed")
pytestmark = pytest.mark.shared

ANSWERS = (
    "First section\n\n* one point\n* another point\n\nI hope this helps, and thank you. P.S. It does!",
    "<<A TITLE>>\n\nno commas here at all. just small letters and [a placeholder] and [another].",
    '"ALL OF THIS IS WRITTEN IN CAPITALS. *highlighted* AND *more* *again*."',
    "My answer is yes.\n***\nMy answer is no.\n***\nMy answer is maybe.",
    '```json\n{"a": 1}\n```',
    "",
    " \n",
)


@pytest.fixture(scope="module")
def items(shared_data: Path) -> list[Item]:
    (capability,) = suite("full", ["instruction_following"], data=shared_data)
    return list(capability.items("test"))


@pytest.fixture(scope="module")
def scorer(shared_data: Path) -> VerifiedInstructions:
    return VerifiedInstructions(shared_data)


def test_both_verdicts_are_the_harnesss_own(items: list[Item], scorer: VerifiedInstructions) -> None:
    scorer.ready()
    from lm_eval.tasks.ifeval.utils import process_results

    seen: Counter[Any] = Counter()
    for item in items[::3]:
        for text in (*ANSWERS, item.gold["prompt"] + "\n\n" + ANSWERS[0]):
            grade = scorer.grade(item, text)
            random.seed(0)  # an argument of 0 counts as missing in the harness, which then draws one
            theirs = process_results({**item.gold, "key": 1}, [text])
            assert grade.score == theirs["prompt_level_strict_acc"]
            assert grade.details["loose"] == theirs["prompt_level_loose_acc"]
            signs = "".join("01"[verdict] for verdict in theirs["inst_level_strict_acc"])
            assert grade.details["strict_by_instruction"] == signs
            seen[grade.score, grade.details["loose"]] += 1
    assert seen[1.0, True] > 20 and seen[0.0, False] > 50 and seen[0.0, True] > 0


def test_a_response_always_gets_the_same_grade_and_leaves_the_dice_alone(
    items: list[Item], scorer: VerifiedInstructions
) -> None:
    before = random.getstate()
    grades = [[scorer.grade(item, ANSWERS[1]) for item in items[:30]] for _ in range(2)]
    assert grades[0] == grades[1] and random.getstate() == before


@pytest.mark.parametrize("unit", ["\n", "* ", "[", "- x\n", "Section 1\n"])
def test_hostile_answers_are_bounded(unit: str, items: list[Item], scorer: VerifiedInstructions) -> None:
    text = (unit * 100_000)[:100_000]
    kinds = {item.gold["instruction_id_list"][0]: item for item in items}
    for item in kinds.values():
        grade = scorer.grade(item, text)
        assert grade.score in (0.0, 1.0) and grade == scorer.grade(item, text[:LONGEST_CHECKED])


def test_the_summary_counts_prompts_and_instructions(scorer: VerifiedInstructions) -> None:
    details = [("11", "11", True), ("01", "11", True), ("0", "0", False)]
    scores = [
        scored(float(strict == loose == "11"), details={
            "loose": right, "strict_by_instruction": strict, "loose_by_instruction": loose,
        })
        for strict, loose, right in details
    ]  # fmt: skip
    found = scorer.summarise(scores)
    assert found == {
        "score": pytest.approx(1 / 3), "prompt_strict": pytest.approx(1 / 3), "prompt_loose": pytest.approx(2 / 3),
        "instruction_strict": pytest.approx(3 / 5), "instruction_loose": pytest.approx(4 / 5),
    }  # fmt: skip


def test_nothing_is_decided_before_the_end(scorer: VerifiedInstructions) -> None:
    assert not scorer.decided("anything")


@pytest.mark.parametrize(
    ("instruction", "arguments"),
    [
        ("keywords:existence", {"keywords": ["plain", "(a+)+$"]}),
        ("keywords:forbidden_words", {"forbidden_words": ["(x+x+)+y"]}),
        ("keywords:frequency", {"keyword": "(a|aa)+$", "frequency": 2, "relation": "at least"}),
    ],
)
def test_a_pattern_in_the_place_of_words_is_not_run(
    instruction: str, arguments: dict[str, Any], items: list[Item], scorer: VerifiedInstructions
) -> None:
    gold = {**items[0].gold, "instruction_id_list": [instruction], "kwargs": [arguments]}
    grade = scorer.grade(replace(items[0], gold=gold), "a" * 40 + "b" + "x" * 40)
    assert grade.score == 0.0 and "is a pattern where words are expected" in str(grade.details["fault"])
    assert grade.details["strict_by_instruction"] == "0"
