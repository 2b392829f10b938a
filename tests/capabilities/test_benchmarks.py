"""The full suite's items: sizes, disjoint splits, golds that pass, faults that are named."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regrow.capabilities.benchmarks.subsets import Sizes, draw
from regrow.capabilities.benchmarks.tools import as_json_schema
from regrow.capabilities.suites import suite
from regrow.data.chat import render_chat
from regrow.errors import DataError
from regrow.protocols import Capability
from regrow.records.fingerprint import fingerprint
from tests.conftest import tiny_tokenizer

SIZES = {
    "structured_output": (60, 150), "function_calling": (60, 200), "instruction_following": (60, 300),
    "math": (60, 200), "safety": (60, 200), "knowledge": (60, 300),
}  # fmt: skip


DRAWN = {
    "structured_output": "425a0e150bc1", "function_calling": "9b15982f5b32", "instruction_following": "d9f8153116a4",
    "math": "b2316ef42800", "safety": "57255b41966c", "knowledge": "e2a7a0f71b38",
}  # fmt: skip
"""Fingerprints of the drawn ids: another value is another suite."""


@pytest.fixture(scope="module")
def full(shared_data: Path) -> dict[str, Capability]:
    return {each.name: each for each in suite("full", data=shared_data)}


@pytest.mark.shared
@pytest.mark.parametrize("name", list(SIZES))
def test_splits_have_their_sizes_and_share_nothing(name: str, full: dict[str, Capability]) -> None:
    dev, test = full[name].items("dev"), full[name].items("test")
    assert (len(dev), len(test)) == SIZES[name]
    ids = [item.item_id for item in (*dev, *test)]
    assert len(set(ids)) == len(ids)
    assert len({json.dumps(item.messages) for item in (*dev, *test)}) == len(ids)
    assert {item.split for item in dev} == {"dev"} and {item.capability for item in test} == {name}
    assert full[name].items("heal") == []


@pytest.mark.shared
def test_the_draw_is_the_same_everywhere(full: dict[str, Capability]) -> None:
    drawn = {
        name: fingerprint([item.item_id for split in ("dev", "test") for item in capability.items(split)])[:12]  # type: ignore[arg-type]
        for name, capability in full.items()
    }
    assert drawn == DRAWN


@pytest.mark.shared
def test_kinds_and_subjects_are_balanced(full: dict[str, Capability]) -> None:
    for split in ("dev", "test"):
        kinds = Counter(item.gold["kind"] for item in full["safety"].items(split))  # type: ignore[arg-type]
        assert kinds["unsafe"] == kinds["benign"]
    subjects = Counter(item.facts["subject"] for item in full["knowledge"].items("test"))
    assert len(subjects) >= 50
    parts = Counter(item.item_id.split("_")[0] for item in full["function_calling"].items("test"))
    assert parts == {"bfcl-simple": 133, "bfcl-multiple": 67}


def answer_of(name: str, gold: Any) -> str:
    if name == "function_calling":
        ((called, allowed),) = gold["call"].items()
        from tests.capabilities.test_function_calling import gold_arguments

        return json.dumps({"name": called, "arguments": gold_arguments(allowed, 0)})
    if name == "math":
        return gold["answer"]
    return "I'm sorry, I can't help with that." if gold["kind"] == "unsafe" else "Sure: one, two, three."


@pytest.mark.shared
@pytest.mark.parametrize("name", ["function_calling", "math", "safety"])
def test_every_gold_scores_and_an_empty_answer_does_not(name: str, full: dict[str, Capability]) -> None:
    for item in full[name].items("test"):
        assert full[name].grade(item, answer_of(name, item.gold)).score == 1, item.item_id
        assert full[name].grade(item, "").score == 0
        assert full[name].grade(item, "x" * 100_000).score in (0.0, 1.0)


@pytest.mark.shared
def test_prompts_render_whatever_the_template_thinks_of_a_system_turn(full: dict[str, Capability]) -> None:
    tokenizer = tiny_tokenizer()
    rejecting = tiny_tokenizer()
    rejecting.chat_template = (
        "{% for m in messages %}{% if m['role'] not in ['user', 'assistant'] %}"
        "{{ raise_exception('only user and assistant roles') }}{% endif %}"
        "[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
    )
    for capability in full.values():
        for item in capability.items("dev")[:5]:
            for each in (tokenizer, rejecting):
                text = render_chat(each, item.messages, add_generation_prompt=True)
                assert item.messages[-1]["content"].strip() in text and item.messages[0]["content"].strip() in text


@pytest.mark.shared
def test_schemas_of_prompts_are_the_ones_that_are_checked(full: dict[str, Capability]) -> None:
    for item in full["structured_output"].items("dev"):
        assert json.loads(item.messages[0]["content"].partition("JSON Schema:\n")[2]) == item.gold["schema"]


def copied(shared: Path, folder: Path, name: str) -> Path:
    shutil.copytree(shared / name, folder / name)
    return folder


def edited(file: Path, change: Callable[[list[str]], list[str]]) -> None:
    lines = file.read_text("utf-8").split("\n")
    file.write_text("\n".join(change(lines)), encoding="utf-8")


def without(field: str) -> Callable[[list[str]], list[str]]:
    def change(lines: list[str]) -> list[str]:
        row = json.loads(lines[3])
        del row[field]
        return [*lines[:3], json.dumps(row), *lines[4:]]

    return change


def changed(field: str, value: Any) -> Callable[[list[str]], list[str]]:
    return lambda lines: [json.dumps({**json.loads(line), field: value}) if line.strip() else line for line in lines]


ANSWERS = "bfcl/possible_answer/BFCL_v3_simple.jsonl"
QUESTIONS = "bfcl/BFCL_v3_simple.jsonl"


def told(instruction: str, **arguments: Any) -> Callable[[list[str]], list[str]]:
    """Return what makes the first record one of a single instruction with these arguments."""

    def edit(lines: list[str]) -> list[str]:
        row = {**json.loads(lines[0]), "instruction_id_list": [instruction], "kwargs": [arguments]}
        return [json.dumps(row), *lines[1:]]

    return edit


def tool(**parameters: Any) -> Callable[[list[str]], list[str]]:
    """Return what changes the parameters of the first record's tool."""

    def edit(lines: list[str]) -> list[str]:
        row = json.loads(lines[0])
        row["function"][0]["parameters"] |= parameters
        return [json.dumps(row), *lines[1:]]

    return edit


FAULTS = [
    ("function_calling", ANSWERS, changed("ground_truth", []), "has no 'ground_truth'"),
    ("function_calling", ANSWERS, changed("ground_truth", [{}]), "does not hold one call"),
    ("function_calling", ANSWERS, changed("ground_truth", [{"f": 1}]), "does not hold one call"),
    ("function_calling", QUESTIONS, changed("question", []), "has no 'question'"),
    ("function_calling", QUESTIONS, changed("question", [[]]), "there is no request"),
    ("function_calling", QUESTIONS, changed("function", []), "has no 'function'"),
    ("function_calling", QUESTIONS, changed("function", [{"x": 1}]), "is no tool with a name and parameters"),
    ("instruction_following", "ifeval/train.jsonl", changed("kwargs", 7), "holds no lists of instructions"),
    ("instruction_following", "ifeval/train.jsonl", changed("instruction_id_list", []), "has no 'instruction_id_list'"),
    ("instruction_following", "ifeval/train.jsonl", changed("instruction_id_list", ["x:y"]), "record 1 of .*"),
    ("instruction_following", "ifeval/train.jsonl", told("keywords:existence"), "tells 'keywords:existence' keywords"),
    (
        "instruction_following",
        "ifeval/train.jsonl",
        told("keywords:existence", keywords=5),
        "tells 'keywords:existence' keywords = 5",
    ),
    (
        "instruction_following",
        "ifeval/train.jsonl",
        told("length_constraints:number_words", num_words="many", relation="at least"),
        "num_words = 'many'",
    ),
    ("function_calling", ANSWERS, changed("ground_truth", [{"f": {"base": 10}}]), "allows '10' for 'base'"),
    ("function_calling", ANSWERS, changed("ground_truth", [{"f": {"base": []}}]), r"allows '\[\]' for 'base'"),
    ("function_calling", QUESTIONS, tool(required=None), "is no tool with a name and parameters"),
    ("function_calling", QUESTIONS, tool(properties=["base"]), "is no tool with a name and parameters"),
    ("safety", "xstest/train.jsonl", changed("label", ["safe"]), "the label"),
    ("safety", "xstest/train.jsonl", changed("prompt", "   "), "has no 'prompt'"),
    ("safety", "xstest/train.jsonl", changed("prompt", {"text": "?"}), "which is not a text"),
    ("knowledge", "mmlu/test.jsonl", changed("choices", ["a", None, "c", "d"]), "has the choices"),
    ("knowledge", "mmlu/test.jsonl", changed("choices", 5), "has the choices '5'"),
    ("knowledge", "mmlu/test.jsonl", changed("answer", True), "answer True"),
    ("knowledge", "mmlu/test.jsonl", lambda lines: [*lines, lines[0].replace('r": 2', 'r": 1')], "another answer"),
    ("math", "gsm8k/test.jsonl", without("answer"), "record 4 of .* has no 'answer'"),
    ("math", "gsm8k/test.jsonl", lambda lines: [*lines[:400], lines[400][:30]], "line 401 .* cut in the middle"),
    ("math", "gsm8k/test.jsonl", lambda lines: [*lines, lines[7]], "twice"),
    ("math", "gsm8k/test.jsonl", lambda lines: lines[:200], "200 usable records, 60 dev and 200 test"),
    ("math", "gsm8k/test.jsonl", lambda lines: ['{"question": "?", "answer": "many"}', *lines], "does not end in"),
    ("math", "gsm8k/test.jsonl", changed("answer", "48 / 2 = 24, so 48 + 24 = 72"), "does not end in '#### NUMBER'"),
    ("math", "gsm8k/test.jsonl", changed("question", ["a list"]), "which is not a text"),
    ("safety", "xstest/train.jsonl", without("label"), "record 4 of .* has no 'label'"),
    ("safety", "xstest/train.jsonl", lambda lines: [*lines, lines[0]], "the id '1' twice"),
    ("safety", "xstest/train.jsonl", lambda lines: [lines[0].replace('"safe"', '"odd"'), *lines[1:]], "label 'odd'"),
    ("knowledge", "mmlu/test.jsonl", without("answer"), "record 4 of .* has no 'answer'"),
    ("knowledge", "mmlu/test.jsonl", lambda lines: [lines[0].replace('r": 2', 'r": 7'), *lines[1:]], "answer 7"),
    ("instruction_following", "ifeval/train.jsonl", without("kwargs"), "record 4 of .* has no 'kwargs'"),
    ("function_calling", "bfcl/possible_answer/BFCL_v3_simple.jsonl", lambda lines: lines[:100], "has no gold"),
    ("function_calling", "bfcl/possible_answer/BFCL_v3_simple.jsonl", without("ground_truth"), "has no 'ground_truth'"),
    ("structured_output", "jsonschemabench/Github_easy.jsonl", without("json_schema"), "has no 'json_schema'"),
    ("structured_output", "jsonschemabench/Github_easy.jsonl", lambda lines: [*lines, lines[0]], "twice"),
]  # fmt: skip


@pytest.mark.shared
@pytest.mark.parametrize(("name", "file", "change", "says"), FAULTS)
def test_a_damaged_benchmark_is_refused_with_the_place(
    name: str, file: str, change: Callable[[list[str]], list[str]], says: str, shared_data: Path, tmp_path: Path
) -> None:
    folder = copied(shared_data, tmp_path, file.split("/")[0])
    edited(folder / file, change)
    (capability,) = suite("full", [name], data=folder)
    with pytest.raises(DataError, match=says) as caught:
        capability.items("test")
    assert caught.value.hint


@pytest.mark.shared
def test_mmlu_in_the_layout_of_its_csv_and_doubled_rows_count_once(shared_data: Path, tmp_path: Path) -> None:
    folder = copied(shared_data, tmp_path, "mmlu")
    before = [item.item_id for item in suite("full", ["knowledge"], data=shared_data)[0].items("test")]

    def change(lines: list[str]) -> list[str]:
        rows = [json.loads(line) for line in lines if line]
        rows = [{**row, "answer": "ABCD"[row["answer"]]} for row in rows]
        return [json.dumps(row) for row in (*rows, rows[5])]

    edited(folder / "mmlu" / "test.jsonl", change)
    assert [item.item_id for item in suite("full", ["knowledge"], data=folder)[0].items("test")] == before


@pytest.mark.shared
def test_the_gold_that_names_no_tool_is_mended(shared_data: Path, full: dict[str, Capability]) -> None:
    items = [item for split in ("dev", "test") for item in full["function_calling"].items(split)]  # type: ignore[arg-type]
    for item in items:
        (called,) = item.gold["call"]
        offered = [function["name"].replace(".", "_") for function in item.gold["functions"]]
        assert called.replace(".", "_") in offered


def test_a_draw_does_not_depend_on_the_order_of_the_file() -> None:
    ids = [f"item-{number}" for number in range(50)]
    first = draw(ids, Sizes(5, 10), name="x")
    again = draw(ids[::-1], Sizes(5, 10), name="x")
    for split in ("dev", "test"):
        assert {ids[at] for at in first[split]} == {ids[::-1][at] for at in again[split]}
    assert draw(ids, Sizes(5, 10), name="y") != first


def test_python_types_become_those_of_json_schema() -> None:
    described = {
        "type": "dict",
        "properties": {"a": {"type": "float"}, "b": {"type": "tuple", "items": {"type": "any"}}},
    }
    assert as_json_schema(described) == {
        "type": "object",
        "properties": {"a": {"type": "number"}, "b": {"type": "array", "items": {}}},
    }
