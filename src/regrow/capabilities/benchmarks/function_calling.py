"""The Berkeley Function Calling Leaderboard, v3, simple and multiple: one call with the right arguments."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regrow.capabilities.benchmarks.subsets import Sizes, draw, items_of, refuse_twice
from regrow.capabilities.benchmarks.tools import with_tools
from regrow.capabilities.call_match import same_name
from regrow.data.catalogue import data_set
from regrow.data.rows import Rows, need, read_part
from regrow.errors import DataError
from regrow.protocols import Item
from regrow.records.results import Split

NAME = "function_calling"
SIZES = Sizes(dev=60, test=200)
MAX_NEW_TOKENS = 128
PARTS = ("simple", "multiple")


def items(folder: Path | None) -> dict[Split, list[Item]]:
    """Return the dev and test items, simple and multiple in proportion; gold is {"functions": ..., "call": ...}."""
    data = data_set("bfcl")
    questions: list[dict[str, Any]] = []
    where: list[str] = []
    golds: dict[str, Any] = {}
    parts: list[str] = []
    for part in PARTS:
        asked = read_part(data, part, folder)
        answers = _answers(read_part(data, f"possible_answer/{part}", folder))
        for number, row in enumerate(asked.rows):
            need(row, ("id", "question", "function"), asked.where(number))
            for function in row["function"] if isinstance(row["function"], list) else [row["function"]]:
                _refuse_unsound_tool(function, asked.where(number))
            if str(row["id"]) not in answers:
                raise DataError(
                    f"{asked.where(number)} ('{row['id']}') has no gold among the possible answers",
                    hint=f"fetch the answers again: {data.fetch_command(f'possible_answer/{part}')}",
                )
            questions.append(row)
            where.append(asked.where(number))
            parts.append(part)
        golds.update(answers)
    chosen = draw([str(row["id"]) for row in questions], SIZES, name="BFCL v3", strata=parts)
    return items_of(
        chosen, lambda split, at: _item(split, questions[at], golds[str(questions[at]["id"])]), where.__getitem__
    )


def _refuse_unsound_tool(function: Any, where: str) -> None:
    """Raise DataError for a tool that no answer could be compared with."""
    tool = function if isinstance(function, dict) else {}
    parameters = tool.get("parameters")
    told = parameters if isinstance(parameters, dict) else {}
    properties, required = told.get("properties", {}), told.get("required", [])
    sound = isinstance(tool.get("name"), str) and isinstance(parameters, dict)
    sound = sound and isinstance(properties, dict) and all(isinstance(each, dict) for each in properties.values())
    if not sound or not isinstance(required, list) or not all(isinstance(each, str) for each in required):
        raise DataError(
            f"{where} offers {str(function)[:60]!r}, which is no tool with a name and parameters",
            hint="correct or delete the record, or fetch the data set again",
        )


def _answers(read: Rows) -> dict[str, Any]:
    for number, row in enumerate(read.rows):
        need(row, ("id", "ground_truth"), read.where(number))
        calls = row["ground_truth"]
        one = isinstance(calls, list) and len(calls) == 1 and isinstance(calls[0], dict) and len(calls[0]) == 1
        if not one or not all(isinstance(arguments, dict) for arguments in calls[0].values()):
            raise DataError(f"{read.where(number)} does not hold one call as its gold", hint="fetch the data set again")
        for arguments in calls[0].values():
            for name, allowed in arguments.items():
                if not isinstance(allowed, list) or not allowed:
                    raise DataError(
                        f"{read.where(number)} allows {str(allowed)[:60]!r} for '{name}', not a list of values",
                        hint="correct or delete the record, or fetch the data set again",
                    )
    refuse_twice([str(row["id"]) for row in read.rows], read.origin)
    return {str(row["id"]): row["ground_truth"][0] for row in read.rows}


def _item(split: Split, row: Mapping[str, Any], gold: Mapping[str, Any]) -> Item:
    functions, call = row["function"], _corrected(gold, row["function"])
    request = "\n".join(turn["content"] for turn in row["question"][0])
    if not request.strip():
        raise ValueError("there is no request")
    return Item(
        capability=NAME,
        item_id=f"bfcl-{row['id']}",
        split=split,
        messages=with_tools(functions, request),
        gold={"functions": functions, "call": call},
        facts={"text": request, **({"gold_corrected": True} if call is not gold else {})},
    )


def _corrected(gold: Mapping[str, Any], functions: list[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the gold under the name of an offered tool. v3's ``simple_363`` leaves out the tool's module (corrected
    upstream in v4), so that no answer could pass."""
    ((name, arguments),) = gold.items()
    offered = [str(function["name"]) for function in functions]
    if any(same_name(each, name) for each in offered):
        return gold
    meant = [each for each in offered if each.rpartition(".")[2] == name]
    if len(meant) != 1:
        raise ValueError(f"the gold calls '{name}', which is not among the tools")
    return {meant[0]: arguments}
