"""Prompts of the full suite's pools: six, disjoint from what is evaluated, in every layout; the ten constraints."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from regrow.capabilities.constraints import CHECKS, holds
from regrow.capabilities.function_calling import KnownCall
from regrow.capabilities.pool_prompts import PoolPrompts
from regrow.capabilities.pools.prompts import EVALUATED, PROMPTS, SHARED, TWICE
from regrow.capabilities.pools.ten_constraints import MAKERS, constraint_for
from regrow.capabilities.pools.tool_sources import glaive, seal_tools
from regrow.capabilities.suites import healing_suite, suite
from regrow.data.overlap import normalised_words, word_runs
from tests.capabilities.scorers import item

NAMES = ["structured_output", "function_calling", "instruction_following", "math", "safety", "general"]


@pytest.fixture(scope="module")
def pools(shared_data: Path) -> dict[str, PoolPrompts]:
    return {each.name: each for each in healing_suite("full", data=shared_data)}  # type: ignore[misc]


@pytest.mark.shared
def test_six_pools_with_sources_and_licences(pools: dict[str, PoolPrompts]) -> None:
    assert list(pools) == NAMES
    sizes = {name: len(pool.items("heal")) for name, pool in pools.items()}
    # The shared sources hold fewer requests for calls than the hub's 113 thousand conversations.
    assert sizes.pop("function_calling") >= 500 and set(sizes.values()) == {PROMPTS}
    assert [pool.max_new_tokens for pool in pools.values()] == [256, 128, 384, 320, 192, 320]
    for pool in pools.values():
        assert pool.prompts().source and pool.prompts().licence
        assert pool.items("test") == () and pool.items("dev") == ()
    assert "non-commercial" in pools["safety"].prompts().licence


@pytest.mark.shared
def test_nothing_is_shared_with_the_evaluation_or_between_pools(
    pools: dict[str, PoolPrompts], shared_data: Path
) -> None:
    texts: set[str] = set()
    runs: set[str] = set()
    for capability in suite("full", data=shared_data):
        for split in ("dev", "test"):
            for each in capability.items(split):  # type: ignore[arg-type]
                texts.add(" ".join(normalised_words(each.facts["text"])))
                runs |= word_runs(each.facts["text"])
    seen: Counter[str] = Counter()
    for pool in pools.values():
        for prompt in pool.items("heal"):
            text = " ".join(normalised_words(prompt.facts["text"]))
            seen[text] += 1
            assert text not in texts and not word_runs(text) & runs
    assert max(seen.values()) == 1
    ids = [prompt.item_id for pool in pools.values() for prompt in pool.items("heal")]
    assert len(set(ids)) == len(ids)


@pytest.mark.shared
def test_what_is_evaluated_is_left_out_and_counted(shared_data: Path, tmp_path: Path) -> None:
    for name in ("gsm8k", "bfcl", "ifeval", "jsonschemabench", "xstest", "mmlu"):
        shutil.copytree(shared_data / name, tmp_path / name)
    (question,) = [each.facts["text"] for each in suite("full", ["math"], data=shared_data)[0].items("test")[:1]]
    rows = [json.loads(line) for line in (shared_data / "gsm8k" / "train.jsonl").read_text("utf-8").splitlines()[:20]]
    rows += [rows[0], {"question": question.upper(), "answer": "#### 1"}]
    rows.append({"question": f"Listen to this: {question} And why?", "answer": "#### 1"})
    (tmp_path / "gsm8k" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    pool: Any = next(each for each in healing_suite("full", data=tmp_path) if each.name == "math")
    assert len(pool.items("heal")) == 20
    assert pool.prompts().dropped == {TWICE: 1, EVALUATED: 1, SHARED: 1}


@pytest.mark.shared
def test_every_gold_can_be_graded_and_safety_is_balanced(pools: dict[str, PoolPrompts]) -> None:
    for name, pool in pools.items():
        for prompt in pool.items("heal")[:100]:
            assert pool.grade(prompt, "").score in ((0.0, 1.0) if name == "safety" else (0.0,))
    kinds = Counter(prompt.gold["kind"] for prompt in pools["safety"].items("heal"))
    assert abs(kinds["unsafe"] - kinds["benign"]) <= 2
    for prompt in pools["math"].items("heal")[:50]:
        assert pools["math"].grade(prompt, prompt.gold["answer"]).score == 1


@pytest.mark.shared
def test_ten_constraints_come_about_equally_often(pools: dict[str, PoolPrompts]) -> None:
    kinds = Counter(prompt.gold["constraints"][0]["kind"] for prompt in pools["instruction_following"].items("heal"))
    assert len(kinds) == 10 and min(kinds.values()) > PROMPTS / 10 * 0.7


ANSWERS = {
    "lowercase": "all of it small.", "uppercase": "ALL OF IT LARGE.", "no_commas": "One and two.",
    "max_words": "Short.", "quoted": '"Said."',
}  # fmt: skip


def obeying(constraint: dict[str, Any]) -> str:
    kind = constraint["kind"]
    if kind == "sentence_count":
        return " ".join(["So it is."] * constraint["count"])
    if kind == "bullet_count":
        return "\n".join(["- one thing"] * constraint["count"])
    if kind == "has_word":
        return f"Here is {constraint['word']} for you"
    if kind == "starts_with":
        return f"{constraint['phrase']} yes."
    if kind == "ends_with":
        return f"Yes. {constraint['phrase']}"
    return ANSWERS[kind]


def test_each_constraint_can_be_obeyed_and_broken() -> None:
    assert len(MAKERS) == 10 and set(MAKERS) <= set(CHECKS)
    found = {}
    for number in range(300):
        sentence, constraint = constraint_for(f"x{number}")
        assert (sentence, constraint) == constraint_for(f"x{number}")
        assert holds(constraint, obeying(constraint))
        for name in ("word", "phrase", "count"):
            assert name not in constraint or str(constraint[name]) in sentence
        found[constraint["kind"]] = constraint
    assert set(found) == set(MAKERS)
    broken = "A, b. " * 60
    assert not any(holds(constraint, broken) for constraint in found.values())


GLAIVE = {
    "system": 'SYSTEM: You are a helpful assistant with access to the following functions. Use them if required -\n'
    '{"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}\n'
    '{"name": "g", "description": "d", "parameters": {"type": "object", "properties": {}}}\n',
    "chat": "USER: Do f with a.\n\n\n"
    "ASSISTANT: <functioncall> {\"name\": \"f\", \"arguments\": '{\"a\": 1}'} <|endoftext|>",
}  # fmt: skip
TURNS = {
    "conversations": [{"from": "human", "value": "Do f with a."}, {"from": "function_call", "value": "{}"}],
    "tools": json.dumps([{"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"a": {}}}}]),
}


def test_both_layouts_of_glaive_are_read() -> None:
    (own,) = glaive([GLAIVE])
    (turns,) = glaive([TURNS])
    assert own.text == turns.text == "Do f with a."
    assert [function["name"] for function in own.functions] == ["f", "g"]
    assert [function["name"] for function in turns.functions] == ["f"]
    talk = {
        **GLAIVE,
        "chat": "USER: Hi\n\n\nASSISTANT: Hello! <|endoftext|>\n\n\nUSER: f\n\n\nASSISTANT: <functioncall> {}",
    }
    assert [request.text for request in glaive([talk])] == [""]
    assert list(glaive([{"system": "SYSTEM: You are a helpful assistant.", "chat": ""}])) == []
    assert list(glaive([{"conversations": [], "tools": "broken {"}])) == []


def test_requests_that_need_an_earlier_answer_are_left_out() -> None:
    tools = [{"api_name": "f", "api_description": "d", "parameters": {"a": {"type": "str"}}, "required": ["a", "b"]}]
    queries = [
        {"query": "one", "calling": [{"api": "f", "parameters": {"a": "x"}, "responses": ["API_call_0"]}]},
        {"query": "two", "calling": [{"api": "f", "parameters": {"a": "API_call_0"}}]},
        {"query": "three", "calling": [{"api": "f", "parameters": {}}, {"api": "f", "parameters": {}}]},
        {"query": "four", "calling": [{"api": "unknown", "parameters": {}}]},
    ]
    found = list(seal_tools(queries, tools))
    assert [request.text for request in found] == ["one", ""]
    assert found[0].functions[0]["parameters"]["required"] == ["a"]


@pytest.mark.parametrize(
    ("response", "score"),
    [
        ('{"name": "F", "arguments": {"a": 1, "c": 2}}', 1),
        ('{"name": "f", "arguments": {"c": 2}}', 0),
        ('{"name": "h", "arguments": {"a": 1}}', 0),
        ("f(a='x')", 1),
        ("nothing", 0),
    ],
)
def test_a_known_call_is_one_of_the_offered_with_what_is_required(response: str, score: float) -> None:
    tool = {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}, "required": ["a"]}}
    assert KnownCall().grade(item({"functions": [tool]}), response).score == score
