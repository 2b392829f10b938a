"""IFEval (arXiv 2311.07911): prompts with one to three instructions that a program can verify."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from regrow.capabilities.benchmarks.subsets import Sizes, draw, items_of
from regrow.data.catalogue import data_set
from regrow.data.rows import Row, need, need_text, read_part
from regrow.errors import DataError
from regrow.protocols import Item
from regrow.records.results import Split

NAME = "instruction_following"
SIZES = Sizes(dev=60, test=300)
MAX_NEW_TOKENS = 384

_RELATION = {"relation": str}
ARGUMENTS: Mapping[str, Mapping[str, type]] = {
    "change_case:capital_word_frequency": {"capital_frequency": int, "capital_relation": str},
    "combination:repeat_prompt": {"prompt_to_repeat": str},
    "detectable_content:number_placeholders": {"num_placeholders": int},
    "detectable_content:postscript": {"postscript_marker": str},
    "detectable_format:multiple_sections": {"num_sections": int, "section_spliter": str},
    "detectable_format:number_bullet_lists": {"num_bullets": int},
    "detectable_format:number_highlighted_sections": {"num_highlights": int},
    "keywords:existence": {"keywords": list},
    "keywords:forbidden_words": {"forbidden_words": list},
    "keywords:frequency": {"keyword": str, "frequency": int, **_RELATION},
    "keywords:letter_frequency": {"letter": str, "let_frequency": int, "let_relation": str},
    "language:response_language": {"language": str},
    "length_constraints:nth_paragraph_first_word": {"first_word": str, "nth_paragraph": int, "num_paragraphs": int},
    "length_constraints:number_paragraphs": {"num_paragraphs": int},
    "length_constraints:number_sentences": {"num_sentences": int, **_RELATION},
    "length_constraints:number_words": {"num_words": int, **_RELATION},
    "startend:end_checker": {"end_phrase": str},
}
"""What an instruction must be told, by its id. Without it the checkers would draw something the prompt never asked."""


def items(folder: Path | None, known: Collection[str] | None = None) -> dict[Split, list[Item]]:
    """Return the dev and test items; gold is {"prompt", "instruction_id_list", "kwargs"} of the data set.

    ``known``: ids of the instructions that can be checked (None: not looked at).
    """
    read = read_part(data_set("ifeval"), "train", folder)
    for number, row in enumerate(read.rows):
        need(row, ("key", "instruction_id_list", "kwargs"), read.where(number))
        need_text(row, ("prompt",), read.where(number))
        if not all(isinstance(row[name], list) for name in ("instruction_id_list", "kwargs")):
            raise DataError(f"{read.where(number)} holds no lists of instructions", hint="fetch the data set again")
        if len(row["instruction_id_list"]) != len(row["kwargs"]):
            raise DataError(
                f"{read.where(number)} has {len(row['instruction_id_list'])} instructions and {len(row['kwargs'])} "
                "sets of arguments",
                hint="correct or delete the record, or fetch the data set again",
            )
        for name, given in zip(row["instruction_id_list"], row["kwargs"], strict=True):
            _refuse_without_arguments(str(name), given, read.where(number))
        strange = [each for each in row["instruction_id_list"] if known is not None and each not in known]
        if strange:
            raise DataError(
                f"{read.where(number)} has the unknown instruction {strange[0]!r}",
                hint="correct or delete the record, or fetch the data set again",
            )
    chosen = draw([str(row["key"]) for row in read.rows], SIZES, name="IFEval")
    return items_of(chosen, lambda split, at: _item(split, read.rows[at]), read.where)


def _refuse_without_arguments(instruction: str, given: Any, where: str) -> None:
    told = given if isinstance(given, dict) else {}
    for name, kind in ARGUMENTS.get(instruction, {}).items():
        value = told.get(name)
        # A table of all arguments turns whole numbers into 3.0.
        good = isinstance(value, kind) or (kind is int and isinstance(value, float) and value.is_integer())
        if isinstance(value, list):
            good = good and all(isinstance(each, str) and each for each in value)
        if not good or value in ("", []):
            raise DataError(
                f"{where} tells '{instruction}' {name} = {value!r}",
                hint=f"a {_KINDS[kind]} is expected; correct or delete the record, or fetch the data set again",
            )


_KINDS = {int: "whole number", str: "text", list: "list of words"}


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
