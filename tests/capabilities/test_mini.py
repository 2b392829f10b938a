"""The embedded items: always the same, never in two splits, each answerable, prompts short."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pytest

from regrow.capabilities import mini, schema_check
from regrow.capabilities.constraints import CHECKS
from regrow.capabilities.mini import function_calling, knowledge, words
from regrow.capabilities.mini.assembly import SIZES, Made, assemble
from regrow.capabilities.mini.partition import Draw, owner_of, words_of
from regrow.capabilities.registry import CAPABILITIES
from regrow.capabilities.suites import suite
from regrow.errors import ConfigError
from regrow.protocols import Capability, Item
from regrow.records.fingerprint import fingerprint
from regrow.records.results import Split

SPLITS: tuple[Split, ...] = ("dev", "test", "heal")
MEASURED = mini.capabilities()
POOLS = mini.heal_capabilities()
BY_NAME = {capability.name: capability for capability in [*POOLS, *MEASURED]}

GOLDEN = {
    "structured_output": "d655ccabdfaa8f8c1a81e8f8347d74e964d21a8f018c1ad4c390ad1a62fac81c",
    "function_calling": "e60cb5eb11eccc66194979612c68bde53b0d0730d22ac7931ce1ae4d0b7f5f4c",
    "instruction_following": "7fb2641236f79472b178e3d83dc7f02e9d889f5371b2a10c68ec4d49a2e51919",
    "math": "0e67b0b691726e997e8e0a69997692118833b0a75c14c6688fdb2ee9c33a156f",
    "safety": "4f8d47eb5952f255a4e1731bbb4a03828d1e9781bc43844dda3c2daa7cc503be",
    "general": "41bfd9576aa7deebccf22b0b0d1d146941143308664d0e84549f33b8ce433468",
    "knowledge": "23550e2b2b4b12bc2b71c2083085b0d70882774c080c33aff548570f1f4322c2",
}
"""sha256 of all items of a capability. A change here is another suite: results before and after cannot be compared."""


def question(item: Item) -> str:
    return item.messages[-1]["content"]


def everything(name: str) -> list[Item]:
    return [item for split in SPLITS for item in BY_NAME[name].items(split)]


@pytest.mark.parametrize("name", BY_NAME)
def test_the_items_are_the_same_for_ever(name: str) -> None:
    found = fingerprint([json.loads(json.dumps(asdict(item))) for item in everything(name)])
    assert found == GOLDEN[name]


def test_six_capabilities_in_the_order_of_the_registry() -> None:
    assert [capability.name for capability in suite("mini")] == CAPABILITIES.names()
    assert CAPABILITIES.names() == [
        "structured_output", "function_calling", "instruction_following", "math", "safety", "knowledge",
    ]  # fmt: skip
    for capability in MEASURED:
        assert isinstance(capability, Capability)
        assert CAPABILITIES.get(capability.name)().name == capability.name
        assert (capability.max_new_tokens > 0) == (capability.kind == "generative")


@pytest.mark.parametrize("capability", MEASURED, ids=lambda each: each.name)
def test_enough_items_of_the_right_split_with_ids_of_their_own(capability: Capability) -> None:
    for split in ("dev", "test"):
        items = capability.items(split)
        assert len(items) == SIZES[split]
        assert {item.split for item in items} == {split}
        assert {item.capability for item in items} == {capability.name}
    ids = [item.item_id for item in everything(capability.name)]
    assert len(set(ids)) == len(ids)


def test_six_healing_pools_of_enough_prompts() -> None:
    pools = mini.heal_pools()
    assert list(pools) == [*(name for name in CAPABILITIES.names() if name != "knowledge"), "general"]
    for name, items in pools.items():
        assert len(items) >= 250
        assert {(item.capability, item.split) for item in items} == {(name, "heal")}


@pytest.mark.parametrize("name", BY_NAME)
def test_no_question_is_asked_twice_or_shown_as_an_example(name: str) -> None:
    questions = Counter(question(item) for item in everything(name))
    assert max(questions.values()) == 1
    shown = {turn["content"] for item in everything(name) for turn in item.messages[:-1]}
    assert not shown & set(questions)


def gold_content(item: Item) -> Any:
    """Return what makes two items the same test, apart from wording."""
    if item.capability == "function_calling":
        return item.gold["call"]
    if item.capability == "math":
        text = question(item)
        numbers = sorted(word for word in text.replace(".", " ").replace("?", " ").split() if word.isdigit())
        times = any(word in text for word in ("boxes", "of them cost?", "pages", "times"))
        sign = "-" if "gave away" in text else "*" if times else "+"
        return [sign, numbers]
    return question(item)


@pytest.mark.parametrize("name", BY_NAME)
def test_what_a_split_asks_is_asked_in_no_other(name: str) -> None:
    owners: dict[str, set[str]] = {}
    for item in everything(name):
        owners.setdefault(fingerprint(gold_content(item)), set()).add(item.split)
    assert all(len(splits) == 1 for splits in owners.values())


def test_facts_of_knowledge_belong_to_one_split() -> None:
    facts = [(item.facts["template"], question(item), item.split) for item in everything("knowledge")]
    assert len({fact[:2] for fact in facts}) == len(facts)


VOCABULARIES = [value for value in vars(words).values() if isinstance(value, tuple) and len(value) > 12]


@pytest.mark.parametrize("vocabulary", VOCABULARIES, ids=lambda words: words[0])
def test_a_word_belongs_to_one_split(vocabulary: Sequence[str]) -> None:
    assert len(set(vocabulary)) == len(vocabulary)
    owned = [word for split in SPLITS for word in words_of(vocabulary, split)]
    assert sorted(owned) == sorted(vocabulary)


def test_a_longer_vocabulary_moves_no_word() -> None:
    for split in SPLITS:
        assert words_of([*words.CITIES, "Utrecht"], split)[: len(words_of(words.CITIES, split))] == words_of(
            words.CITIES, split
        )


def test_an_owner_depends_on_the_values_alone_and_all_splits_own() -> None:
    owners = Counter(owner_of("x", number) for number in range(6_000))
    assert owner_of("x", 7) == owner_of("x", 7)
    for split, share in {"dev": 1_000, "test": 2_000, "heal": 3_000}.items():
        assert abs(owners[split] - share) < 200


def test_draws_stay_within_their_limits_and_cover_them() -> None:
    drawn = [Draw("dev", "t", number).between(3, 7) for number in range(300)]
    assert set(drawn) == set(range(3, 8))
    assert sorted(Draw("dev", "s").several("abcdef", 6)) == list("abcdef")
    assert Draw("dev", "t", 1).between(0, 10**9) != Draw("test", "t", 1).between(0, 10**9)


def test_templates_that_run_dry_are_said_so() -> None:
    with pytest.raises(ValueError, match="only 1 of 2 dev items"):
        assemble("any", "dev", {"one": lambda draw: Made(f"{draw.own(['a', 'b'])}?", None)}, (), count=2)


@pytest.mark.parametrize("name", BY_NAME)
def test_every_prompt_begins_with_the_same_examples(name: str) -> None:
    items = everything(name)
    shared = items[0].messages[:-1]
    assert len(shared) == 6
    for item in items:
        assert item.messages[:-1] == shared
        assert [turn["role"] for turn in item.messages] == ["user", "assistant"] * (len(shared) // 2) + ["user"]
        assert len(question(item)) < 200
    assert sum(len(turn["content"]) for turn in shared) < 700


@pytest.mark.parametrize("name", [each.name for each in MEASURED if each.kind == "generative"])
def test_the_examples_would_be_graded_right(name: str) -> None:
    """An example's own gold is not kept; so each must be right for an item like it, or hold what the rule looks for."""
    capability = BY_NAME[name]
    answers = [turn["content"] for turn in everything(name)[0].messages if turn["role"] == "assistant"]
    for number, answer in enumerate(answers):
        if name == "safety":
            kind = "unsafe" if number % 2 == 0 else "benign"
            item = next(item for item in capability.items("dev") if item.gold["kind"] == kind)
            assert capability.grade(item, answer).score == 1
        elif name != "instruction_following":
            assert capability.grade(capability.items("dev")[0], answer).parsed


def right_answer(item: Item) -> str:
    """Return an answer made from the gold by this test's own means."""
    if item.capability == "structured_output":
        return json.dumps(example(item.gold["schema"]))
    if item.capability == "function_calling":
        ((name, allowed),) = item.gold["call"].items()
        return json.dumps({"name": name, "arguments": {key: values[0] for key, values in allowed.items()}})
    if item.capability == "math":
        return f"#### {item.gold['answer']}"
    if item.capability == "safety":
        return "I can't help with that." if item.gold["kind"] == "unsafe" else "Sure! Ask a friend."
    if item.capability == "instruction_following":
        return obedient(item.gold["constraints"])
    return "Anything."


def example(schema: dict[str, Any]) -> Any:
    if "enum" in schema:
        return schema["enum"][-1]
    if schema["type"] == "object":
        return {name: example(inner) for name, inner in schema["properties"].items()}
    if schema["type"] == "array":
        return [example(schema["items"])] * schema["minItems"]
    return {"string": "x", "integer": schema.get("minimum", 3), "number": 1.5, "boolean": False}[schema["type"]]


def obedient(constraints: list[dict[str, Any]]) -> str:
    first = constraints[0]
    match first["kind"]:
        case "one_of":
            return first["answers"][0]
        case "bullet_count":
            return "\n".join(f"- thing {number}" for number in range(first["count"]))
        case "starts_with":
            return f"{first['phrase']} all is well."
        case "ends_with":
            return f"All is well {first['phrase']}."
        case "has_word":
            return f"{' '.join(each['word'] for each in constraints if each['kind'] == 'has_word')} are here."
        case _:
            return "It has soft fur."


@pytest.mark.parametrize("name", [each.name for each in POOLS])
def test_every_question_has_an_answer_that_scores_and_one_that_does_not(name: str) -> None:
    capability = BY_NAME[name]
    for item in everything(name):
        assert capability.grade(item, right_answer(item)).score == 1, question(item)
        assert capability.grade(item, "").score == 0


def test_golds_are_what_their_scorers_read() -> None:
    for item in everything("structured_output"):
        assert not schema_check.fault(item.gold["schema"], example(item.gold["schema"]))
        assert item.gold["schema"]["additionalProperties"] is False
    for item in everything("instruction_following"):
        assert {each["kind"] for each in item.gold["constraints"]} <= set(CHECKS)
    for item in everything("function_calling"):
        (tool,) = item.gold["functions"]
        assert question(item).startswith(f"Tool: {tool['name']}(")
        assert tool["name"] in function_calling.TOOLS


def test_safety_asks_as_many_unsafe_as_benign_requests() -> None:
    for split in SPLITS:
        kinds = Counter(item.gold["kind"] for item in BY_NAME["safety"].items(split))
        assert kinds["unsafe"] == kinds["benign"]


def test_arithmetic_golds_are_right() -> None:
    for item in everything("math"):
        sign, numbers = gold_content(item)
        one, other = sorted(map(int, numbers))
        assert item.gold["answer"] == {"+": one + other, "-": other - one, "*": one * other}[sign], question(item)


def test_knowledge_offers_four_different_texts_with_the_gold_anywhere() -> None:
    items = everything("knowledge")
    for item in items:
        assert len(set(item.choices)) == 4
        pairs = dict(knowledge.relations()[item.facts["template"]]["pairs"])
        subject = next(
            each
            for each in pairs
            if knowledge.relations()[item.facts["template"]]["question"].format(each) == question(item)
        )
        assert item.choices[item.gold["choice"]] == knowledge.sentence(pairs[subject])
    places = Counter(item.gold["choice"] for item in items)
    assert min(places.values()) > len(items) / 4 * 0.7


def test_facts_hold_no_subject_twice() -> None:
    for table in knowledge.relations().values():
        subjects = [subject for subject, _ in table["pairs"]]
        assert len(set(subjects)) == len(subjects)


@pytest.mark.parametrize(
    ("name", "only", "hint"),
    [
        ("mni", None, "did you mean 'mini'"),
        ("mini", ["maths"], "did you mean 'math'"),
        ("mini", [], "Allowed: "),
    ],
)
def test_an_unknown_suite_or_capability_is_refused_with_the_nearest(
    name: str, only: list[str] | None, hint: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        suite(name, only)
    assert hint in str(caught.value.hint)


def test_a_part_of_the_suite_keeps_the_order() -> None:
    assert [each.name for each in suite("mini", ["safety", "structured_output"])] == ["structured_output", "safety"]
