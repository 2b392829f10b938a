"""GSM8K (arXiv 2110.14168): word problems of primary school, answered by one number."""

from __future__ import annotations

from pathlib import Path

from regrow.capabilities.benchmarks.subsets import Sizes, content_id, draw, items_of
from regrow.capabilities.math import final_number
from regrow.data.catalogue import data_set
from regrow.data.rows import Row, Rows, need_text, read_part
from regrow.errors import DataError
from regrow.protocols import Item, Message
from regrow.records.results import Split

NAME = "math"
SIZES = Sizes(dev=60, test=200)
MAX_NEW_TOKENS = 256

INSTRUCTION = "{question}\n\nThink step by step. End with a line of the form: #### NUMBER"


def items(folder: Path | None) -> dict[Split, list[Item]]:
    """Return the dev and test items, both drawn from GSM8K's test split; gold is {"answer": the worked solution}."""
    read = checked(read_part(data_set("gsm8k"), "test", folder))
    chosen = draw([identity(row) for row in read.rows], SIZES, name="GSM8K test")
    return items_of(chosen, lambda split, at: item(split, read.rows[at]), read.where)


def checked(read: Rows) -> Rows:
    """Return ``read``. Raises DataError when a record has no question, no answer or no number in its answer."""
    for number, row in enumerate(read.rows):
        need_text(row, ("question", "answer"), read.where(number))
        _, mark, last = row["answer"].rpartition("####")
        if not mark or final_number(last) is None:
            raise DataError(
                f"the answer of {read.where(number)} does not end in '#### NUMBER'",
                hint="correct or delete the record; the last number of a working that was cut is not its result",
            )
    return read


def item(split: Split, row: Row) -> Item:
    return Item(
        capability=NAME,
        item_id=identity(row),
        split=split,
        messages=asked(str(row["question"])),
        gold={"answer": row["answer"]},
        facts={"text": str(row["question"])},
    )


def asked(question: str) -> tuple[Message, ...]:
    return ({"role": "user", "content": INSTRUCTION.format(question=question)},)


def identity(row: Row) -> str:
    return content_id("gsm8k", row["question"])
