"""IFEval (arXiv 2311.07911): prompts with one to three instructions that a program can verify."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from regrow.capabilities.benchmarks.subsets import Sizes, draw, items_of
from regrow.data.catalogue import data_set
from regrow.data.rows import Row, need, read_part
from regrow.errors import DataError
from regrow.protocols import Item
from regrow.records.results import Split

NAME = "instruction_following"
SIZES = Sizes(dev=60, test=300)
MAX_NEW_TOKENS = 384


def items(folder: Path | None, known: Collection[str] | None = None) -> dict[Split, list[Item]]:
    """Return the dev and test items; gold is {"prompt", "instruction_id_list", "kwargs"} of the data set.

    ``known``: ids of the instructions that can be checked (None: not looked at).
    """
    read = read_part(data_set("ifeval"), "train", folder)
    for number, row in enumerate(read.rows):
        need(row, ("key", "prompt", "instruction_id_list", "kwargs"), read.where(number))
        if not all(isinstance(row[name], list) for name in ("instruction_id_list", "kwargs")):
            raise DataError(f"{read.where(number)} holds no lists of instructions", hint="fetch the data set again")
        if len(row["instruction_id_list"]) != len(row["kwargs"]):
            raise DataError(
                f"{read.where(number)} has {len(row['instruction_id_list'])} instructions and {len(row['kwargs'])} "
                "sets of arguments",
                hint="correct or delete the record, or fetch the data set again",
            )
        strange = [each for each in row["instruction_id_list"] if known is not None and each not in known]
        if strange:
            raise DataError(
                f"{read.where(number)} has the unknown instruction {strange[0]!r}",
                hint="correct or delete the record, or fetch the data set again",
            )
    chosen = draw([str(row["key"]) for row in read.rows], SIZES, name="IFEval")
    return items_of(chosen, lambda split, at: _item(split, read.rows[at]), read.where)


def _item(split: Split, row: Row) -> Item:
    kwargs = row["kwargs"]
    return Item(
        capability=NAME,
        item_id=f"ifeval-{row['key']}",
        split=split,
        messages=({"role": "user", "content": str(row["prompt"])},),
        gold={
            "prompt": row["prompt"],
            "instruction_id_list": row["instruction_id_list"],
            # The hub's table has a column for every argument, null where an instruction has none of the name.
            "kwargs": [{key: value for key, value in (given or {}).items() if value is not None} for given in kwargs],
        },
        facts={"text": str(row["prompt"])},
    )
