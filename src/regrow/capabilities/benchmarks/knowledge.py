"""MMLU (arXiv 2009.03300), all subjects: four answers, chosen by letter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from regrow.capabilities.benchmarks.subsets import Sizes, content_id, draw, items_of
from regrow.capabilities.letter_choice import LETTERS, letter_choices
from regrow.data.catalogue import data_set
from regrow.data.rows import Row, need, need_text, read_part
from regrow.errors import DataError
from regrow.protocols import Item
from regrow.records.results import Split

NAME = "knowledge"
SIZES = Sizes(dev=60, test=300)

INSTRUCTION = "{question}\n\n{choices}\n\nAnswer with the letter of the right choice only."


def items(folder: Path | None) -> dict[Split, list[Item]]:
    """Return the dev and test items, both drawn from MMLU's test split, the subjects in proportion; gold is
    {"choice": index}. Records that MMLU holds twice, word for word, count once."""
    read = read_part(data_set("mmlu"), "test", folder)
    rows: dict[str, Row] = {}
    for number, row in enumerate(read.rows):
        need(row, ("choices", "answer"), read.where(number))
        need_text(row, ("question", "subject"), read.where(number))
        answer, choices = _answer(row["answer"]), row["choices"]
        four = isinstance(choices, list) and len(choices) == len(LETTERS)
        if not four or answer is None or not all(isinstance(each, str) and each.strip() for each in choices):
            raise DataError(
                f"{read.where(number)} has the choices {str(choices)[:60]!r} and the answer {row['answer']!r}",
                hint="four texts to choose from and an answer 0-3 are expected; correct or delete the record",
            )
        identity = content_id(f"mmlu-{row['subject']}", row["question"], list(choices))
        if identity in rows and rows[identity]["answer"] != answer:
            raise DataError(
                f"{read.where(number)} stands in the file before with another answer",
                hint="correct or delete one of the two, or fetch the data set again",
            )
        rows[identity] = {**row, "subject": str(row["subject"]), "answer": answer}
    ids = list(rows)
    chosen = draw(ids, SIZES, name="MMLU test", strata=[rows[identity]["subject"] for identity in ids])
    return items_of(chosen, lambda split, at: _item(split, ids[at], rows[ids[at]]), ids.__getitem__)


def _answer(value: Any) -> int | None:
    if isinstance(value, str) and value in LETTERS and len(value) == 1:
        return LETTERS.index(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(LETTERS) else None


def _item(split: Split, identity: str, row: Row) -> Item:
    lines = "\n".join(f"{letter}. {choice}" for letter, choice in zip(LETTERS, row["choices"], strict=True))
    return Item(
        capability=NAME,
        item_id=identity,
        split=split,
        messages=({"role": "user", "content": INSTRUCTION.format(question=row["question"], choices=lines)},),
        gold={"choice": row["answer"]},
        choices=letter_choices(),
        facts={"text": str(row["question"]), "subject": row["subject"]},
    )
