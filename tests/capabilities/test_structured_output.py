"""JSON out of a text, and its check against a schema: tables, laws, and schemas that mean harm."""

from __future__ import annotations

import json
import shutil
import sys
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regrow.capabilities import schema_check
from regrow.capabilities.json_text import first_json, whole_json
from regrow.capabilities.structured_output import StructuredOutput
from regrow.errors import ConfigError
from tests.capabilities.scorers import check_early_decisions, item, scored

SCORER = StructuredOutput()
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
GOOD = '{"name": "Ada", "age": 36}'

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (GOOD, {"name": "Ada", "age": 36}),
        (f"Sure! Here it is:\n```json\n{GOOD}\n```\nAnything else?", {"name": "Ada", "age": 36}),
        (f"{GOOD} {{}} [1]", {"name": "Ada", "age": 36}),
        ("[1, [2]] and more", [1, [2]]),
        ("{not json} [1]", [1]),
        ('{"a": "} ] \\" {"}', {"a": '} ] " {'}),
        ('{{1}} {"a": 1}', {"a": 1}),
        ('{"a": 1]} {"b": 2}', {"b": 2}),
        ('{"a": NaN} {"b": 2}', {"b": 2}),
        ('{"a": 1e999} {"b": 2}', {"b": 2}),
        (f'{{"a": {"9" * 5000}}} {{"b": 2}}', {"b": 2}),
        ("[" * 64 + "]" * 64, json.loads("[" * 64 + "]" * 64)),
    ],
)
def test_the_first_json_value_is_found(text: str, value: Any) -> None:
    read = first_json(text)
    assert read.found
    assert read.value == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no json",
        '{"a": 1',
        '{"a": "never closed',
        "[" * 65 + "]" * 65,
        "[" * 100_000,
        '{"a":' * 100_000,
        "}" * 100_000,
    ],
)
def test_no_json_value_is_found(text: str) -> None:
    assert not first_json(text).found


def test_a_fence_around_a_bare_value_is_taken_off() -> None:
    assert whole_json("```json\n42\n```").value == 42
    assert whole_json(' "text" ').value == "text"
    assert not whole_json("forty-two").found


@pytest.mark.parametrize(
    ("response", "score", "parsed"),
    [
        (GOOD, 1, True),
        (f"Here:\n```json\n{GOOD}\n```", 1, True),
        ('{"name": "Ada", "age": "36"}', 0, True),
        ('{"name": "Ada", "age": 36.5}', 0, True),
        ('{"name": "Ada", "age": 36.0}', 1, True),
        ('{"name": "Ada", "age": true}', 0, True),
        ('{"name": "Ada", "age": 121}', 0, True),
        ('{"name": "Ada"}', 0, True),
        ('{"name": "Ada", "age": 36, "city": "London"}', 0, True),
        ('{"name": null, "age": 36}', 0, True),
        (f"[{GOOD}]", 0, True),
        (f'{{"name": "Ada", "age": 3}} {GOOD}', 1, True),
        (f'{{"name": "Ada"}} {GOOD}', 0, True),
        ("{'name': 'Ada', 'age': 36}", 0, False),
        ("Ada is 36.", 0, False),
        ("", 0, False),
    ],
)
def test_an_answer_is_graded_by_its_schema(response: str, score: float, parsed: bool) -> None:
    grade = SCORER.grade(item({"schema": PERSON}), response)
    assert (grade.score, grade.parsed) == (score, parsed)
    assert bool(grade.details.get("fault")) == (parsed and not score)


def test_a_bare_value_answers_a_schema_of_one() -> None:
    question = item({"schema": {"type": "integer"}})
    assert SCORER.grade(question, "```\n7\n```").score == 1
    assert SCORER.grade(question, "seven").score == 0


@pytest.mark.parametrize(
    ("schema", "value", "valid"),
    [
        ({"$schema": "http://json-schema.org/draft-04/schema#", "maximum": 3, "exclusiveMaximum": True}, 3, False),
        ({"$schema": "http://json-schema.org/draft-04/schema#", "maximum": 3}, 3, True),
        ({"$schema": "http://json-schema.org/draft-07/schema", "exclusiveMaximum": 3}, 3, False),
        ({"$schema": "https://json-schema.org/draft/2020-12/schema", "prefixItems": [{"type": "null"}]}, [1], False),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "prefixItems": [{"type": "null"}]}, [1], True),
        ({"$schema": "http://example.org/unheard-of", "type": "integer"}, 1, True),
        ({"format": "date"}, "no date", True),
        ({"type": "string", "minLength": 1}, "", False),
        (True, 1, True),
        (False, 1, False),
        ({"definitions": {"n": {"type": "integer"}}, "$ref": "#/definitions/n"}, 1, True),
        ({"definitions": {"n": {"type": "integer"}}, "$ref": "#/definitions/n"}, "1", False),
    ],
)
def test_the_draft_that_a_schema_names_decides(schema: Any, value: Any, valid: bool) -> None:
    assert (schema_check.fault(schema, value) == "") == valid


NEWEST = "https://json-schema.org/draft/2020-12/schema"


def linked(steps: list[dict[str, Any]], **start: Any) -> dict[str, Any]:
    return {**start, "definitions": {f"a{at}": step for at, step in enumerate(steps)}}


def doubling(depth: int, through: str) -> dict[str, Any]:
    """Return a schema whose evaluation doubles at each of ``depth`` references."""
    steps: list[dict[str, Any]] = [{through: [{"$ref": f"#/definitions/a{at + 1}"}] * 2} for at in range(depth)]
    return linked([*steps, {"type": "object"}], **{"$ref": "#/definitions/a0"})


def doubling_by_name(depth: int, name: str, target: str, refer: str = "$ref") -> dict[str, Any]:
    """Return the same with ``name`` (an anchor or an embedded identity) at each step; the next is at ``target``."""
    own = target.lstrip("#") if name != "id" else target
    steps = [{name: own.format(at), "allOf": [{refer: target.format(at + 1)}] * 2} for at in range(depth)]
    draft = "http://json-schema.org/draft-04/schema#" if name == "id" else NEWEST
    end = {name: own.format(depth), "type": "object"}
    return linked([*steps, end], **{"$schema": draft, "$id": "http://e.org/root", refer: target.format(0)})


def branching(depth: int) -> dict[str, Any]:
    """Return a schema that tries each next step as a condition and then as its consequence."""
    following = [{"$ref": f"#/definitions/a{at + 1}"} for at in range(depth)]
    steps: list[dict[str, Any]] = [{"if": step, "then": step, "else": step} for step in following]
    return linked([*steps, {"type": "object"}], **{"$ref": "#/definitions/a0"})


def embedded_pointers(depth: int) -> dict[str, Any]:
    """Return a schema whose pointers mean little work in the document, and double in the schema embedded in it."""
    inner = {**doubling(depth, "allOf"), "$id": "http://e.org/inner"}
    return linked([{"type": "object"}, inner], **{"$id": "http://e.org/root", "$ref": "#/definitions/a1"})


def unevaluated(depth: int, keyword: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": {"a": True}}
    for _ in range(depth):
        schema = {"allOf": [schema], keyword: False}
    return schema


def all_to_all(count: int) -> dict[str, Any]:
    """Return a schema with as many ways through it as there are orders of ``count`` steps."""
    steps = [{"allOf": [{"$ref": f"#/definitions/a{to}"} for to in range(count)]} for _ in range(count)]
    return linked(steps, **{"$ref": "#/definitions/a0"})


DESCENDING = {"allOf": [{"properties": {"a": {"$ref": "#"}}}] * 2}
FIRST_BRANCH = {"anyOf": [{"properties": {"a": {"$ref": "#"}}}, {"properties": {"a": {"$ref": "#"}}, "not": {}}]}
BY_NAME = [("$anchor", "#a{}"), ("$dynamicAnchor", "#a{}"), ("$id", "http://e.org/a{}"), ("$id", "a{}"), ("id", "#a{}")]


def nested(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.fixture
def short_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_check, "LONGEST_SECONDS", 0.3)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        *((doubling_by_name(40, name, target), {}) for name, target in BY_NAME),
        (doubling_by_name(40, "$dynamicAnchor", "#a{}", "$dynamicRef"), {}),
        (doubling(60, "allOf"), {}),
        (doubling(60, "oneOf"), {}),
        ({"propertyNames": doubling(40, "allOf"), **doubling(1, "allOf")}, {}),
        (branching(40), {}),
        (embedded_pointers(40), {}),
        (unevaluated(40, "unevaluatedProperties"), {"a": 1}),
        (all_to_all(12), {}),
        ({"pattern": "(?:(?=.*z)|q)x"}, "a" * 100_000),
        ({"items": {"anyOf": [{"enum": list(range(at, at + 300))} for at in range(100)]}}, [0.5] * 1000),
        ({"allOf": [{"type": "string"}] * 10_000}, [1] * 40_000),
    ],
)
def test_a_schema_that_multiplies_is_bounded(schema: Any, value: Any, short_time: None) -> None:
    started = time.monotonic()
    schema_check.fault(schema, value)
    schema_check.schema_fault(schema)
    assert time.monotonic() - started < 60


@pytest.mark.parametrize("schema", [doubling(60, "oneOf"), branching(40), *(doubling_by_name(40, *b) for b in BY_NAME)])
def test_what_takes_too_long_scores_nothing_and_says_so(schema: Any, short_time: None) -> None:
    grade = SCORER.grade(item({"schema": schema}), "{}")
    assert (grade.score, grade.details) == (0, {"fault": schema_check.TOO_LONG})


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        *((doubling_by_name(3, name, target), {}, []) for name, target in BY_NAME),
        (embedded_pointers(3), {}, []),
        (unevaluated(3, "unevaluatedProperties"), {"a": 1}, {"b": 1}),
        (
            {
                "$schema": NEWEST, "$dynamicAnchor": "node", "properties": {"inner": {"$dynamicRef": "#node"}},
                "unevaluatedProperties": False,
            },
            {"inner": {"inner": {}}},
            {"inner": {"other": {}}},
        ),
        ({"type": "object", "additionalProperties": {"$ref": "#"}}, nested(30), {"a": {"b": 1}}),
        ({"type": "object", **FIRST_BRANCH}, nested(40), []),
        ({"items": {"type": "integer"}}, [1] * 45_000, [1] * 45_000 + ["1"]),
    ],
)  # fmt: skip
def test_a_schema_of_another_process_is_checked_as_any_other(schema: Any, good: Any, bad: Any) -> None:
    assert schema_check.schema_fault(schema) == ""
    assert schema_check.fault(schema, good) == ""
    assert schema_check.fault(schema, bad) not in ("", schema_check.TOO_LONG)


def test_a_process_that_cannot_start_is_no_grade(monkeypatch: pytest.MonkeyPatch) -> None:
    for python in ("/nowhere/python", shutil.which("false")):
        monkeypatch.setattr(sys, "executable", python)
        with pytest.raises(ConfigError, match="could not start"):
            schema_check.fault({"$anchor": "a"}, 1)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string", "pattern": "^(a+)+$"}, "a" * 100_000 + "b"),
        ({"type": "string", "pattern": "^(?=a)(a|aa)+\\1$"}, "a" * 60_000 + "b"),
        ({"type": "string", "pattern": "(a{1000}){1000}"}, "a"),
        ({"type": "string", "pattern": "("}, "a"),
        ({"$ref": "http://example.org/schema.json"}, 1),
        ({"$ref": "file:///etc/hostname"}, 1),
        ({"$ref": "#/definitions/absent"}, 1),
        (doubling(60, "allOf"), {}),
        (doubling(60, "oneOf"), {}),
        (DESCENDING, nested(40)),
        ({"type": 12}, 1),
        (12, 1),
        (None, 1),
    ],
)
def test_a_hostile_or_broken_schema_is_bounded_and_satisfied_by_nothing(
    schema: Any, value: Any, short_time: None
) -> None:
    assert schema_check.fault(schema, value)


@pytest.mark.parametrize("schema", [{"$ref": "#"}, {"allOf": [{"$ref": "#"}]}, doubling(10, "allOf")])
def test_a_schema_that_turns_in_a_circle_comes_to_an_end(schema: Any) -> None:
    schema_check.fault(schema, {"a": [1, 2, {"b": 3}]})


def test_a_deeply_nested_schema_is_refused() -> None:
    schema: Any = {"type": "object"}
    for _ in range(5_000):
        schema = {"properties": {"a": schema}}
    assert SCORER.grade(item({"schema": schema}), "{}").score == 0


@pytest.mark.parametrize(
    "response",
    [
        "x" * 100_000,
        "{" * 100_000,
        '{"a"' * 50_000,
        "{x}" * 50_000,
        '{"name": "' + "a" * 100_000 + '", "age": 1}',
        f'{{"name": "a", "age": {"1" * 99_000}}}',
        "[" + "1," * 40_000 + "1]",
        '"' * 100_000,
        "\\" * 100_000,
        "{" + "\\" * 100_000,
        "\ud800\udfff\x00" * 1000,
    ],
)
def test_hostile_answers_score_nothing(response: str) -> None:
    assert SCORER.grade(item({"schema": PERSON}), response).score == 0


@given(JSON_VALUES, st.text(alphabet="ab`\n .,:;!()", max_size=20), st.text(max_size=40))
def test_a_value_is_found_whatever_stands_around_it(value: Any, before: str, after: str) -> None:
    text = before + json.dumps({"v": value}) + after
    assert first_json(text).value == {"v": value}


@given(st.text(alphabet='{}[]",:\\ab1 \n', max_size=60), st.text(alphabet='{}[]",:\\ab1 ', max_size=30))
def test_what_is_decided_stays_as_it_is(text: str, more: str) -> None:
    if SCORER.decided(text):
        assert first_json(text + more) == first_json(text)
    check_early_decisions(SCORER, item({"schema": {"type": "object"}}), text + more)


@given(JSON_VALUES, st.text(max_size=30))
def test_an_object_is_decided_where_it_closes(value: Any, after: str) -> None:
    text = json.dumps({"v": value})
    assert not SCORER.decided(text[:-1])
    assert SCORER.decided(text)
    assert check_early_decisions(SCORER, item({"schema": {"required": ["v"]}}), text + after)


def test_summary() -> None:
    found = SCORER.summarise(
        [scored(1, parsed=True), scored(0, parsed=True), scored(0, parsed=False), scored(1, parsed=True)]
    )
    assert found == {"score": 0.5, "parse_rate": 0.75}
    empty = SCORER.summarise([])
    assert empty["score"] != empty["score"]
    assert set(empty) == set(found)
