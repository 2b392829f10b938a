"""Verifiable constraints: an accept and a reject table for each, and hostile texts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regrow.capabilities.constraints import CHECKS, count_sentences, holds, words
from regrow.capabilities.instruction_following import InstructionFollowing
from tests.capabilities.scorers import item, scored

SCORER = InstructionFollowing()

TABLE: list[tuple[dict[str, Any], list[str], list[str]]] = [
    ({"kind": "lowercase"}, ["all small, 3 of them", "straße"], ["One capital", "123"]),
    ({"kind": "uppercase"}, ["ALL LARGE: 3", "ÉTÉ"], ["ONE small", "123"]),
    ({"kind": "no_commas"}, ["one and two."], ["one, two"]),
    ({"kind": "word_count", "count": 3}, ["one two three", "it's well-known, yes!"], ["one two", "one two three 4"]),
    ({"kind": "max_words", "count": 2}, ["one", "one two."], ["one two three"]),
    (
        {"kind": "sentence_count", "count": 2},
        ["One. Two!", 'He said "no." Then he left.', "One? two"],
        ["One.", "A. B. C."],
    ),
    (
        {"kind": "bullet_count", "count": 2},
        ["- a\n- b", "Here:\n* a\n  • b\n"],
        ["- a", "- a\n- b\n- c", "-a\n-b", "a - b - c"],
    ),
    ({"kind": "has_word", "word": "cat"}, ["The Cat sat.", "cat"], ["The cats sat.", "concatenate", "cat-like"]),
    ({"kind": "lacks_word", "word": "cat"}, ["The cats sat.", "dog"], ["A CAT."]),
    ({"kind": "one_of", "answers": ["yes", "no"]}, ["Yes", " no.\n", '"YES!"'], ["Yes, it is.", "maybe", "yesno"]),
    (
        {"kind": "starts_with", "phrase": "In short"},
        ["In short, yes.", " in SHORT: no", "In short"],
        ["Well. In short", "In shorts"],
    ),
    (
        {"kind": "ends_with", "phrase": "the end."},
        ["This is the end.", "THE END!", 'the end"\n'],
        ["the end of it", "breathe end"],
    ),
    ({"kind": "quoted"}, ['"all of it"', '\n"yes"\n'], ['"half" of it', "'single'", '""', '"', "plain"]),
]


def test_the_table_knows_every_check() -> None:
    assert {constraint["kind"] for constraint, _, _ in TABLE} == set(CHECKS)


@pytest.mark.parametrize(("constraint", "accepted", "rejected"), TABLE, ids=lambda value: str(value)[:40])
def test_a_constraint(constraint: dict[str, Any], accepted: list[str], rejected: list[str]) -> None:
    assert [text for text in accepted if not holds(constraint, text)] == []
    assert [text for text in [*rejected, "", " \n", "...", "\x00"] if holds(constraint, text)] == []


def test_all_constraints_must_hold() -> None:
    question = item({"constraints": [{"kind": "lowercase"}, {"kind": "word_count", "count": 2}]})
    assert SCORER.grade(question, "two words").score == 1
    refused = SCORER.grade(question, "Three words here")
    assert (refused.score, refused.details) == (0, {"broken": "lowercase,word_count"})


def test_an_unknown_constraint_or_a_wrong_argument_is_an_error() -> None:
    with pytest.raises(KeyError):
        holds({"kind": "rhymes"}, "text")
    with pytest.raises(TypeError):
        holds({"kind": "word_count", "number": 3}, "text")


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("One", 1),
        ("One.", 1),
        ("One. Two", 2),
        ("Wait... what?!", 2),
        ("3.5 metres.", 1),
        ('"Go!" he said.', 2),
        ("...", 1),
    ],
)
def test_sentences_are_counted(text: str, count: int) -> None:
    assert count_sentences(text) == count


@pytest.mark.parametrize(
    "text",
    [
        "!" * 99_999 + "x",
        '."' * 50_000,
        "- " * 50_000,
        "-" + " " * 99_998 + "\n",
        "a-" * 50_000,
        "'" * 100_000,
        "\n" * 100_000,
    ],
)
def test_hostile_texts_are_checked(text: str) -> None:
    for constraint, _, _ in TABLE:
        assert holds(constraint, text) in (True, False)


@given(st.text(max_size=80))
def test_no_text_breaks_a_check_and_none_is_decided_early(text: str) -> None:
    for constraint, _, _ in TABLE:
        assert holds(constraint, text) in (True, False)
        assert SCORER.grade(item({"constraints": [constraint]}), text).score in (0.0, 1.0)
    assert not SCORER.decided(text)


@given(st.lists(st.from_regex(r"[a-z]{1,6}", fullmatch=True), min_size=1, max_size=12))
def test_words_are_counted_as_they_were_joined(parts: list[str]) -> None:
    text = " ".join(parts) + "."
    assert words(text) == parts
    assert holds({"kind": "word_count", "count": len(parts)}, text)
    assert holds({"kind": "ends_with", "phrase": parts[-1]}, text)


def test_summary() -> None:
    assert SCORER.summarise([scored(1), scored(0)]) == {"score": 0.5}
