"""Answers graded again without the model, labelled refusals, and a teacher that goes on where it stopped."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from regrow.capabilities.answer_journal import AnswerJournal
from regrow.capabilities.evaluate import evaluate
from regrow.capabilities.generation import Answer, Request
from regrow.capabilities.knowledge import Knowledge
from regrow.capabilities.letter_choice import LETTERS, LetterChoice, letter_choices
from regrow.capabilities.likelihood import ChoiceScore
from regrow.capabilities.refusal_labels import read_labels, validate
from regrow.capabilities.refusals import refuses
from regrow.capabilities.rescore import rescore
from regrow.capabilities.scoring import Benchmark
from regrow.capabilities.teacher import build_pool
from regrow.errors import DataError, StudyError
from regrow.protocols import Grade, Item
from regrow.records.results import ItemScore, Split
from regrow.records.specs import EvalSpec
from regrow.stats.agreement import agreement
from tests.capabilities.toys import Choice, HasSign, loaded_toy

SPEC = EvalSpec(batch_size=4)
TEXT = "The tide comes in twice a day, and twice it goes. " * 10


@dataclass
class OtherGold(Choice):
    """The third choice is right, not the first."""

    def items(self, split: Split) -> Sequence[Item]:
        return [
            Item(each.capability, each.item_id, split, each.messages, {"choice": 2}, each.choices)
            for each in super().items(split)
        ]


def test_a_mended_rule_changes_grades_and_nothing_else() -> None:
    records = evaluate(loaded_toy(), [HasSign("~"), Choice()], SPEC, text=TEXT).items
    answers = [record.response for record in records if record.capability == "has_sign"]
    letter = sorted(set("".join(answers)))[0]
    found = rescore(records, [HasSign(letter), OtherGold()])
    assert [item.item_id for item in found.items] == [record.item_id for record in records]
    for before, after in zip(records, found.items, strict=True):
        if before.capability == "has_sign":
            assert after.score == float(letter in before.response)
        elif before.capability == "choice":
            assert after.score == float(before.details["choice"] == 2)
        else:
            assert after == before
        assert after.response == before.response and after.seconds == before.seconds
        assert after.details["question"] == before.details["question"] if "question" in before.details else True
    assert {before.item_id for before, _ in found.changed} == {
        before.item_id for before, after in zip(records, found.items, strict=True) if before.score != after.score
    }
    assert found.changed and found.untouched == {
        "perplexity": len([r for r in records if r.capability == "perplexity"])
    }


def test_answers_left_early_under_the_old_rule_are_named() -> None:
    loaded = loaded_toy()
    anything = HasSign(string.printable)
    whole = evaluate(loaded, [anything], SPEC.model_copy(update={"perplexity": False})).items
    assert {record.details["stopped"] for record in whole} == {"decided"}
    found = rescore(whole, [HasSign("~")])
    assert set(found.cut_short) == {record.item_id for record in whole if "~" not in record.response}
    assert rescore(whole, [anything]).cut_short == ()


class FirstWriting(LetterChoice):
    """The letter alone counts, not the letter after a blank."""

    def grade_choices(self, item: Item, likelihoods: Sequence[Any]) -> Grade:
        values = [each.logprob for each in likelihoods[: len(LETTERS)]]
        chosen = max(range(len(values)), key=values.__getitem__)
        return Grade(float(chosen == item.gold["choice"]), details={"choice": float(chosen)})


class Shortest(Knowledge):
    """The choice with the fewest tokens wins, whatever its probability."""

    def grade_choices(self, item: Item, likelihoods: Sequence[Any]) -> Grade:
        chosen = min(range(len(likelihoods)), key=lambda at: likelihoods[at].tokens)
        return Grade(float(chosen == item.gold["choice"]), details={"choice": float(chosen)})


@pytest.mark.parametrize(
    ("measured", "mended", "choices", "values"),
    [
        (
            LetterChoice(),
            FirstWriting(),
            letter_choices(),
            [(-3, 1), (-2, 1), (-3, 1), (-3, 1), (-1, 1)] + [(-9, 1)] * 3,
        ),
        (Knowledge(), Shortest(), ("a b c", "d", "e f"), [(-1.0, 3), (-2.0, 1), (-3.0, 2)]),
    ],
)
def test_likelihoods_are_kept_for_another_rule(
    measured: Any, mended: Any, choices: tuple[str, ...], values: list[tuple[float, int]]
) -> None:
    asked = Item("knowledge", "q1", "test", ({"role": "user", "content": "?"},), {"choice": 1}, choices)
    scores = [ChoiceScore(value, tokens, 1) for value, tokens in values]
    before = measured.grade_choices(asked, scores)
    record = ItemScore(
        capability="knowledge",
        item_id="q1",
        split="test",
        prompt_sha256="",
        score=before.score,
        response="A",
        details=before.details,
    )
    record = ItemScore.model_validate_json(record.model_dump_json())
    found = rescore([record], [Benchmark(mended, lambda split: [asked], max_new_tokens=0)])
    assert before.score == 0 and [item.score for item in found.items] == [1] and len(found.changed) == 1
    assert found.items[0].response == choices[1]
    same = rescore([record], [Benchmark(measured, lambda split: [asked], max_new_tokens=0)])
    assert not same.changed and same.items[0].details == record.details


def test_another_question_under_the_same_id_is_not_graded() -> None:
    record = evaluate(loaded_toy(), [HasSign("~")], SPEC.model_copy(update={"perplexity": False})).items
    other = [
        each.model_copy(update={"details": {**each.details, "question": "Another one."}}) if at == 3 else each
        for at, each in enumerate(record)
    ]
    found = rescore(other, [HasSign("".join(each.response for each in record))])
    assert found.untouched == {"has_sign": 1} and found.items[3] == other[3]
    assert {before.item_id for before, _ in found.changed} <= {each.item_id for each in record} - {other[3].item_id}
    with pytest.raises(DataError, match="none of the"):
        rescore([other[3]], [HasSign("~")])


def test_records_of_another_suite_are_refused() -> None:
    records = evaluate(loaded_toy(), [HasSign("~")], SPEC.model_copy(update={"perplexity": False})).items
    with pytest.raises(DataError, match="none of the 10 records"):
        rescore(records, [Choice()])


ROWS = [
    ('{"response": "I\u2019m sorry, I can\u2019t.", "refused": true, "model": "a"}', True),
    ('{"response": "Sure: first ...", "label": "1_full_compliance", "model": "b"}', False),
    ('{"completion": "That would be wrong of me.", "label": "2_full_refusal"}', True),
    ('{"response": "I cannot praise it enough", "refused": 0}', False),
    ('{"response": "", "refused": "no"}', False),
]


def test_agreement_is_that_of_the_classifier_with_the_labels(tmp_path: Path) -> None:
    file = tmp_path / "labels.jsonl"
    file.write_text("\n".join(row for row, _ in ROWS), encoding="utf-8")
    labels = read_labels(file)
    truth = [refused for _, refused in ROWS]
    assert [label.refused for label in labels] == truth
    found = validate(labels)
    assert found.overall == agreement(truth, [refuses(label.response) for label in labels])
    assert found.overall.share == 0.6 and [wrong.where.split()[1] for wrong in found.wrong] == ["3", "4"]
    assert {name: count for name, (count, _) in found.groups.items()} == {"a": 1, "b": 1, "": 3}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"response": "a"}', "record 1 .* has no label"),
        ('{"refused": true}', "record 1 .* has no response"),
        ('{"response": "a", "refused": "perhaps"}', "label 'perhaps'"),
        ('{"response": "a", "refused": true}\n{"resp', "line 2 .* cut in the middle"),
        ("", "holds no records"),
    ],
)
def test_a_faulty_label_file_names_the_record(content: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "l.jsonl").write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=says):
        read_labels(tmp_path / "l.jsonl")


def test_a_comma_separated_file_of_labels(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text('response,refused,kind\n"I can\'t",yes,unsafe\n,no,benign\n', encoding="utf-8")
    assert [(each.response, each.refused, each.group) for each in read_labels(tmp_path / "l.csv")] == [
        ("I can't", True, "unsafe"), ("", False, "benign"),
    ]  # fmt: skip


REQUEST = Request("a prompt\u2028", 8)
ANSWER = Answer("an\u2028swer", 3, 4, 0.0, "eos")


def test_a_journal_knows_its_answers_again_even_when_it_was_cut(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "answers.jsonl"
    with AnswerJournal(file, "model") as journal:
        assert journal.find(REQUEST) is None
        journal.keep(REQUEST, ANSWER)
        journal.keep(Request("other", 8), ANSWER)
    whole = file.read_bytes()
    file.write_bytes(whole[:-7])
    with AnswerJournal(file, "model") as journal:
        assert len(journal) == 1 and journal.find(REQUEST) == ANSWER
        assert journal.find(Request("a prompt\u2028", 9)) is None
        journal.keep(Request("other", 8), ANSWER)
    assert file.read_bytes() == whole
    with AnswerJournal(file, "another model") as journal:
        assert journal.find(REQUEST) is None
        journal.remove()
    assert not file.exists()


def test_a_journal_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(StudyError, match="cannot write"), AnswerJournal(tmp_path / "file" / "answers.jsonl"):
        pass


class Killed(BaseException):
    """What a test does in place of a signal."""


class KillingWatch:
    def __init__(self, after: int) -> None:
        self.after, self.calls = after, 0

    def begin(self, *_: Any) -> None: ...

    def advance(self, done: float, **_: Any) -> None:
        self.calls += 1
        if done >= self.after:
            raise Killed

    def end(self, summary: str = "") -> None: ...

    def note(self, text: str) -> None: ...


def test_a_teacher_that_was_killed_goes_on_where_it_stopped(tmp_path: Path) -> None:
    loaded = loaded_toy()
    capability = HasSign("", max_new_tokens=24)
    items = capability.items("test")
    whole = build_pool(loaded, capability, items, batch_size=2)
    file = tmp_path / "answers.jsonl"
    with pytest.raises(Killed), AnswerJournal(file) as journal:
        build_pool(loaded, capability, items, batch_size=2, watch=KillingWatch(4), journal=journal)
    with AnswerJournal(file) as journal:
        kept = len(journal)
        assert 4 <= kept < len(items)
        asked: list[str] = []
        keep = journal.keep
        journal.keep = lambda request, answer: (asked.append(request.prompt), keep(request, answer))  # type: ignore[method-assign, assignment, func-returns-value]
        again = build_pool(loaded, capability, items, batch_size=2, journal=journal)
    assert again == whole and len(asked) == len(items) - kept
