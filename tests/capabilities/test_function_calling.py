"""Calls out of a text, and their match against a gold call: tables, laws, hostile input, the benchmark's own golds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regrow.capabilities import call_match
from regrow.capabilities.call_text import Call, first_call, python_call
from regrow.capabilities.function_calling import FunctionCalling, OnlyCall
from tests.capabilities.scorers import check_early_decisions, item

SCORER = FunctionCalling()


def tool(name: str, required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    described = {key: kind if isinstance(kind, dict) else {"type": kind} for key, kind in properties.items()}
    wanted = list(described) if required is None else required
    return {"name": name, "parameters": {"type": "dict", "properties": described, "required": wanted}}


WEATHER = tool("weather.get", ["city"], city="string", days="integer", metric="boolean")
GOLD = {
    "functions": [WEATHER],
    "call": {"weather.get": {"city": ["Lima", "Lima, Peru"], "days": [3, ""], "metric": [True, ""]}},
}


@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ('{"name": "f", "arguments": {"a": 1}}', "f", {"a": 1}),
        ('```json\n{"name": "f", "arguments": {}}\n```', "f", {}),
        ('<tool_call>[{"name": "f", "arguments": "{\\"a\\": [1]}"}]</tool_call>', "f", {"a": [1]}),
        ("[f(a=1, b='x')]", "f", {"a": 1, "b": "x"}),
        (
            "I call maths.f(a=-1.5, b=[1, (2, 3)], c={'k': None}).",
            "maths.f",
            {"a": -1.5, "b": [1, [2, 3]], "c": {"k": None}},
        ),
        ("f(a=true, b=False, c=null)", "f", {"a": True, "b": False, "c": None}),
        ("f(a=Paris)", "f", {"a": "Paris"}),
        ("f(a=x**2 + 1, g=lambda x: x)", "f", {"a": "x ** 2 + 1", "g": "lambda x: x"}),
        ("f(a=9**9**9)", "f", {"a": "9 ** 9 ** 9"}),
        ("f(a=__import__('os').system('true'))", "f", {"a": "__import__('os').system('true')"}),
        ("now() then f(a=1)", "now", {}),
        ("the function(s) asked for: f(a=1)", "f", {"a": 1}),
        ("f(1) g(a=1)", "g", {"a": 1}),
        ("f(a=1, a=2) g(a=1)", "g", {"a": 1}),
        ("f(**x) g(a=1)", "g", {"a": 1}),
        ('{"a": 1} f(a=2)', "f", {"a": 2}),
        ('f(a="it\'s (fine)")', "f", {"a": "it's (fine)"}),
        ("f(a={1: 2})", "f", {"a": {"1": 2}}),
        ("f(a='\\d')", "f", {"a": "\\d"}),
    ],
)
def test_the_first_call_is_found(text: str, name: str, arguments: dict[str, Any]) -> None:
    assert first_call(text) == Call(name, arguments)


@pytest.mark.parametrize(
    "text",
    [
        "", "no call", "f(a=1", "f (a=1)", "f(1)", "f(a=)", "f(a=1]", '{"name": "f"}', '{"name": 1, "arguments": {}}',
        '{"name": "f", "arguments": []}', '{"name": "f", "arguments": "no json"}',
        "f(" * 50_000, "(" * 100_000, "f(a=" + "(" * 64 + ")" * 64 + ")", "f(a='" + "x" * 100_000 + "')",
        "f(a=" + "1" * 4_500 + ")", "a" * 100_000, "f(x)" * 5_000, "f(a=" + "not " * 900 + ")", "f(a=\x00)",
    ],
)  # fmt: skip
def test_no_call_is_found(text: str) -> None:
    assert first_call(text) is None


@pytest.mark.parametrize("inside", ["-" * 3_900 + "1", "not " * 950 + "1", "+".join("1" * 1_900), "x" + ".a" * 1_900])
def test_a_long_expression_neither_hangs_nor_crashes(inside: str) -> None:
    python_call(f"f(a={inside})")


@pytest.mark.parametrize(
    ("response", "score"),
    [
        ('{"name": "weather.get", "arguments": {"city": "Lima", "days": 3, "metric": true}}', 1),
        ('{"name": "weather_get", "arguments": {"city": "Lima"}}', 1),
        ('{"name": "Weather.Get", "arguments": {"city": "lima, peru"}}', 1),
        ('weather_get(city="Lima", days=3)', 1),
        ("weather.get(city='LIMA')", 1),
        ('weather.get(city="Lima", days=4)', 0),
        ('weather.get(city="Lima", days="3")', 0),
        ('weather.get(city="Lima", days=3.0)', 0),
        ('weather.get(city="Lima", days=True)', 0),
        ('weather.get(city="Lima", metric=1)', 0),
        ('weather.get(city="Lima", hours=3)', 0),
        ("weather.get(days=3)", 0),
        ("weather.get(city=7)", 0),
        ('weather.get(city="")', 0),
        ('weather(city="Lima")', 0),
        ('{"name": "weather.get", "arguments": {"city": ["Lima"]}}', 0),
    ],
)
def test_a_call_is_graded(response: str, score: float) -> None:
    grade = SCORER.grade(item(GOLD), response)
    assert (grade.score, grade.parsed) == (score, True)


RIGHT = 'weather.get(city="Lima")'


@pytest.mark.parametrize(
    ("response", "first", "only"),
    [
        (RIGHT, 1, 1),
        (f"I call {RIGHT} (a function).", 1, 1),
        (f"{RIGHT} {RIGHT}", 1, 0),
        (f"[{RIGHT}, weather.get(city='Oslo')]", 1, 0),
        ('[{"name": "weather.get", "arguments": {"city": "Lima"}}, {"name": "f", "arguments": {}}]', 1, 0),
        (f"{RIGHT} g(b=2", 1, 1),
    ],
)
def test_more_than_one_call_is_wrong_where_only_one_is_asked(response: str, first: float, only: float) -> None:
    assert SCORER.grade(item(GOLD), response).score == first
    assert OnlyCall().grade(item(GOLD), response).score == only
    check_early_decisions(OnlyCall(), item(GOLD), response + " and g(a=1)")


def test_an_answer_without_a_call_is_not_parsed() -> None:
    assert SCORER.grade(item(GOLD), "It is sunny in Lima.").parsed is False


@pytest.mark.parametrize(
    ("kind", "allowed", "value", "matches"),
    [
        ("float", [2.0], 2, True),
        ("float", [2], 2.0, True),
        ("float", [2.0], 10**400, False),
        ("integer", [2], 10**400, False),
        ("integer", [2], 2.0, False),
        ("integer", [2], True, False),
        ("boolean", [True], 1, False),
        ("string", ["New York, NY"], "new york NY", True),
        ("string", ["it's"], 'it"s', True),
        ("any", ["x"], "X", True),
        ("float", ["interest_rate"], "interest_rate", True),
        ("float", ["interest_rate"], "Interest_Rate", False),
        ("integer", [1.0], 1, True),
        ("integer", [1.0], 2, False),
        ("integer", [""], 1, False),
        ({"type": "array", "items": {"type": "string"}}, [["x"], ""], [], True),
        ({"type": "array", "items": {"type": "string"}}, [["x"]], [], False),
        ({"type": "array", "items": {"type": "string"}}, [["x"], ""], [1], False),
        ({"type": "array", "items": {"type": "string"}}, [["x"], ""], "", False),
        ({"type": "array", "items": {"type": "dict"}}, [[{"k": [1]}], ""], [], True),
        ({"type": "array", "items": {"type": "dict"}}, [[{"k": [1]}], ""], [1], False),
        ({"type": "array", "items": {"type": "float"}}, [[1.5, 2.0], ""], [1.5, 2], True),
        ({"type": "array", "items": {"type": "float"}}, [[1.5, 2.0]], [1.5, 2], False),
        ({"type": "array", "items": {"type": "boolean"}}, [[True], ""], [1], True),
        ({"type": "array", "items": {"type": "boolean"}}, [[True]], [1], False),
        ({"type": "array", "items": {"type": "string"}}, [["A b", "C"]], ["ab", "c"], True),
        ({"type": "array", "items": {"type": "string"}}, [["a", "b"]], ["b", "a"], False),
        ({"type": "array", "items": {"type": "integer"}}, [[1, 2]], [1, "2"], False),
        ({"type": "array", "items": {"type": "integer"}}, [[1, 2]], "1,2", False),
        ({"type": "tuple", "items": {"type": "float"}}, [[1.5, 2.5]], [1.5, 2.5], True),
        ({"type": "dict"}, [{"a": [1], "b": [2, ""]}], {"a": 1}, True),
        ({"type": "dict"}, [{"a": [1], "b": [2, ""]}], {"b": 2}, False),
        ({"type": "dict"}, [{"a": [1]}], {"a": 1, "c": 2}, False),
        ({"type": "dict"}, [{"a": ["X y"]}], {"a": "xY"}, True),
        ({"type": "dict"}, [{"a": [["X", "y"]]}], {"a": ["X", "y"]}, True),
        ({"type": "dict"}, [{"a": [["X", "y"]]}], {"a": ["x", "Y"]}, False),
        ({"type": "dict"}, [{"a": [["New York"]]}], {"a": ["new york"]}, False),
        ({"type": "dict"}, [""], {}, False),
        ({"type": "array", "items": {"type": "dict"}}, [[{"a": [1]}, {"a": [2]}]], [{"a": 1}, {"a": 2}], True),
        ({"type": "array", "items": {"type": "dict"}}, [[{"a": [1]}]], [{"a": 1}, {"a": 2}], False),
    ],
)
def test_values_match_by_type_and_content(kind: Any, allowed: list[Any], value: Any, matches: bool) -> None:
    fault = call_match.fault(Call("f", {"x": value}), [tool("f", x=kind)], {"f": {"x": allowed}})
    assert (fault == "") == matches


def test_an_optional_argument_may_be_missing_and_another_may_not() -> None:
    functions = [tool("f", [], a="integer", b="integer")]
    assert call_match.fault(Call("f", {"b": 1}), functions, {"f": {"a": [1, ""], "b": [1]}}) == ""
    assert call_match.fault(Call("f", {"a": 1}), functions, {"f": {"a": [1, ""], "b": [1]}}) == "missing: b"


def test_a_gold_that_names_no_tool_passes_nothing() -> None:
    assert call_match.fault(Call("g", {}), [tool("f")], {"g": {}}).startswith("gold")


VALUES = st.none() | st.booleans() | st.integers(-999, 999) | st.text(max_size=8)
ARGUMENTS = st.dictionaries(st.from_regex(r"[a-z]{1,4}_", fullmatch=True), VALUES, max_size=4)


@given(ARGUMENTS, st.text(max_size=30))
def test_both_notations_read_alike_and_are_decided_where_they_close(arguments: dict[str, Any], after: str) -> None:
    as_json = json.dumps({"name": "f", "arguments": arguments})
    as_python = f"f({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"
    gold = item({"functions": [tool("f", a="string")], "call": {"f": {"a": ["x"]}}})
    for text in (as_json, as_python):
        assert first_call(text) == Call("f", arguments)
        assert not SCORER.decided(text[:-1])
        assert check_early_decisions(SCORER, gold, text + after)


@given(st.text(alphabet="f()={}[]\"',: \\1a", max_size=60), st.text(alphabet="f()={}[]\"',: \\1a", max_size=30))
def test_what_is_decided_stays_as_it_is(text: str, more: str) -> None:
    if SCORER.decided(text):
        assert first_call(text + more) == first_call(text)


@given(st.text(max_size=200))
def test_no_text_breaks_the_scorer(text: str) -> None:
    assert SCORER.grade(item(GOLD), text).score in (0.0, 1.0)


def bfcl(shared: Path, version: str) -> list[tuple[str, list[dict[str, Any]], dict[str, dict[str, list[Any]]]]]:
    simple = "simple" if version == "v3" else "simple_python"
    found = []
    for part in (simple, "multiple"):
        name = f"BFCL_{version}_{part}.jsonl"
        questions = [json.loads(line) for line in (shared / "bfcl" / name).open(encoding="utf-8")]
        golds = [json.loads(line) for line in (shared / "bfcl" / "possible_answer" / name).open(encoding="utf-8")]
        for question, gold in zip(questions, golds, strict=True):
            assert question["id"] == gold["id"]
            found.append((question["id"], question["function"], gold["ground_truth"][0]))
    return found


def chosen(value: Any) -> Any:
    """Return a plain value out of a gold's allowed values inside dictionaries."""
    if isinstance(value, dict):
        return {key: chosen(options[0]) for key, options in value.items() if options[0] != ""}
    return [chosen(entry) for entry in value] if isinstance(value, list) else value


def gold_arguments(allowed: dict[str, list[Any]], place: int) -> dict[str, Any]:
    """Return for each argument the allowed value at ``place`` (the last one where there are fewer), "" left out."""
    picked = {}
    for name, values in allowed.items():
        real = [value for value in values if value != ""]
        if real:
            picked[name] = chosen(real[min(place, len(real) - 1)])
    return picked


def in_json(name: str, arguments: dict[str, Any]) -> str:
    return json.dumps({"name": name, "arguments": arguments})


def in_python(name: str, arguments: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


@pytest.mark.shared
@pytest.mark.parametrize("version", ["v3", "v4"])
@pytest.mark.parametrize("written", [in_json, in_python])
def test_every_gold_of_the_benchmark_passes_its_own_check(shared_data: Path, version: str, written: Any) -> None:
    failed = set()
    for identity, functions, gold in bfcl(shared_data, version):
        ((name, allowed),) = gold.items()
        for place in range(3):
            grade = SCORER.grade(
                item({"functions": functions, "call": gold}), written(name, gold_arguments(allowed, place))
            )
            assert grade.parsed
            if not grade.score:
                failed.add(identity)
    assert failed == ({"simple_363"} if version == "v3" else set())


@pytest.mark.shared
def test_mutated_golds_of_the_benchmark_fail(shared_data: Path) -> None:
    for _, functions, gold in bfcl(shared_data, "v4"):
        ((name, allowed),) = gold.items()
        arguments = gold_arguments(allowed, 0)
        question = item({"functions": functions, "call": gold})
        wrong = [in_json(name + "_x", arguments), in_json(name, {**arguments, "not_in_the_signature": 1})]
        for key in arguments:
            others = {other: value for other, value in arguments.items() if other != key}
            wrong += [
                in_json(name, {**others, key: value}) for value in ("another value", 987654, ["other"], {"a": 1}, None)
            ]
            if "" not in allowed[key]:
                wrong.append(in_json(name, others))
        for text in wrong:
            assert SCORER.grade(question, text).score == 0, text
