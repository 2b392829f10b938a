"""Verdicts on thousands of mutated answers: those of the leaderboard's own checker.

``bfcl-eval`` pins packages that cannot live beside regrow's, so its one file is loaded from an unpacked wheel, with the
modules it imports but does not use for Python left empty::

    pip download --no-deps bfcl-eval==2026.3.23 && unzip bfcl_eval-*.whl -d /somewhere
    BFCL_EVAL=/somewhere python -m pytest tests/capabilities/test_bfcl_agreement.py

Without it the verdicts are compared with the fingerprint that they had when both agreed on every answer.
"""

from __future__ import annotations

import copy
import importlib.util
import os
import random
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from regrow.capabilities import call_match
from regrow.capabilities.call_text import Call
from regrow.records.fingerprint import fingerprint
from tests.capabilities.test_function_calling import bfcl, chosen

pytestmark = pytest.mark.shared

MUTANTS = 20
VERDICTS = "e9ccb2e5bde77f47"
ODD_ANSWERS = 30_000
ODD_VERDICTS = "358e867d68de6bd4"

ODD: tuple[Any, ...] = (
    "", None, [], {}, 0, 1, True, False, "true", 1.5, [1], ["a"], {"a": 1}, [[1]], [{}],
)  # fmt: skip


def mutated(dice: random.Random, value: Any) -> Any:
    """Return a value that is changed a little, or beyond recognition, or left as it is."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    match dice.randrange(16), value:
        case 0, str():
            return value.upper()
        case 1, str():
            return value.replace(" ", "-") + "."
        case 2, str():
            return value + "x"
        case 3, str():
            return value.replace("'", '"')
        case 4, _ if number:
            return float(value)
        case 5, _ if number:
            return int(value)
        case 6, int() | float():
            return str(value)
        case 7, int() | float():
            return bool(value)
        case 8, list():
            return dice.sample(value, len(value))
        case 9, list():
            return value + value[:1]
        case 10, list() if value:
            return [mutated(dice, value[0]), *value[1:]]
        case 11, dict() if value:
            return {key: value[key] for key in list(value)[1:]}
        case 12, dict() if value:
            key = dice.choice(list(value))
            return {**value, key: mutated(dice, value[key])}
        case 13, dict():
            return {**value, "unknown": 1}
        case 14, _:
            return [value]
        case 15, _:
            return copy.deepcopy(dice.choice(ODD))
    return value


def answers(shared: Path) -> Iterator[tuple[list[Any], dict[str, Any], str, dict[str, Any]]]:
    """Yield (tools, gold, name, arguments): MUTANTS answers to each question of v3 and v4, about two thirds right."""
    dice = random.Random(7)
    for version in ("v3", "v4"):
        for _, functions, gold in bfcl(shared, version):
            ((name, allowed),) = gold.items()
            for _ in range(MUTANTS):
                arguments: dict[str, Any] = {}
                for key, values in allowed.items():
                    real = [value for value in values if value != ""]
                    if real and not ("" in values and dice.random() < 0.3):
                        arguments[key] = chosen(copy.deepcopy(dice.choice(real)))
                for _ in range(dice.choice((0, 1, 1, 1, 2))):
                    roll = dice.random()
                    if arguments and roll < 0.75:
                        key = dice.choice(list(arguments))
                        arguments[key] = mutated(dice, arguments[key])
                    elif arguments and roll < 0.85:
                        arguments.pop(dice.choice(list(arguments)))
                    elif roll < 0.95:
                        known = list(functions[0]["parameters"]["properties"]) or ["z"]
                        arguments[dice.choice(known)] = mutated(dice, "x")
                    else:
                        arguments["extra"] = 1
                yield functions, gold, name, arguments


KINDS = ("string", "integer", "float", "boolean", "array", "tuple", "dict", "any")
NESTED: tuple[Any, ...] = (
    [], [""], ["x"], ["X", 1], [1], [True], [1.0], [1.5, 2.0], [1.5, 2], [[1]], [["A"]], [None], [{}], [{"k": 1}],
    [{"k": [1]}], [{"k": [1, ""], "m": [""]}], [{"k": ["a", "A b"]}, {}],
    {}, {"k": 1}, {"k": [1]}, {"k": ["a.b", ""]}, {"k": "A B"}, {"k": True}, {"k": ["A b"]}, {"k": [["A b"]]},
    {"k": [1, 2.0], "m": ["x"]}, {"k": 2}, {"k": [{}]}, {"k": {}},
)  # fmt: skip
PLAIN: tuple[Any, ...] = ("", "", "x", "X", "a-b", "A b", "it's", 0, 1, 2, -1, 1.0, 1.5, 0.0, True, False, None)


def odd_answers() -> Iterator[tuple[list[Any], dict[str, Any], str, dict[str, Any]]]:
    """Yield (tools, gold, name, arguments) for declared types, allowed values and answers that need not fit at all."""
    dice = random.Random(11)
    for _ in range(ODD_ANSWERS):
        kind = dice.choice(KINDS)
        pool = dice.choice((PLAIN, NESTED, PLAIN + NESTED))
        allowed = [copy.deepcopy(dice.choice((*pool, ""))) for _ in range(dice.choice((1, 1, 2, 2, 3)))]
        value = chosen_oddly(dice, copy.deepcopy(dice.choice((*allowed, dice.choice(PLAIN + NESTED)))))
        described = {"type": kind, "items": {"type": dice.choice(KINDS)}}
        tool = {"name": "f", "parameters": {"type": "dict", "properties": {"x": described}, "required": []}}
        yield [tool], {"f": {"x": allowed}}, "f", {} if dice.random() < 0.05 else {"x": value}


def chosen_oddly(dice: random.Random, value: Any) -> Any:
    """Return an allowed value as an answer would give it: in dictionaries one of the lists' entries, often."""
    if isinstance(value, dict):
        return {
            key: dice.choice(options) if isinstance(options, list) and options and dice.random() < 0.8 else options
            for key, options in value.items()
        }
    if isinstance(value, list):
        value = [chosen_oddly(dice, entry) for entry in value]
    return mutated(dice, value) if dice.random() < 0.3 else value


def odd_verdicts() -> list[bool]:
    return [call_match.fault(Call(name, given), tools, gold) == "" for tools, gold, name, given in odd_answers()]


def test_odd_verdicts_are_those_on_which_both_agreed() -> None:
    found = odd_verdicts()
    assert 0.1 < sum(found) / len(found) < 0.6
    assert fingerprint([int(verdict) for verdict in found])[:16] == ODD_VERDICTS


def verdicts(shared: Path) -> list[bool]:
    return [call_match.fault(Call(name, given), tools, gold) == "" for tools, gold, name, given in answers(shared)]


def test_the_verdicts_are_those_on_which_both_agreed(shared_data: Path) -> None:
    found = verdicts(shared_data)
    assert len(found) == 2 * 600 * MUTANTS and 0.4 < sum(found) / len(found) < 0.8
    assert fingerprint([int(verdict) for verdict in found])[:16] == VERDICTS


def leaderboards_checker(folder: Path) -> Any:
    empty: dict[str, dict[str, Any]] = {
        "constants": {},
        "constants.enums": {"Language": types.SimpleNamespace(PYTHON="python", JAVA="java", JAVASCRIPT="js")},
        "constants.model_config": {"MODEL_CONFIG_MAPPING": {"plain": types.SimpleNamespace(underscore_to_dot=False)}},
        "constants.type_mappings": {"JAVA_TYPE_CONVERSION": {}, "JS_TYPE_CONVERSION": {}},
        "eval_checker": {},
        "eval_checker.ast_eval": {},
        "eval_checker.ast_eval.type_convertor": {},
        "eval_checker.ast_eval.type_convertor.java_type_converter": {"java_type_converter": None},
        "eval_checker.ast_eval.type_convertor.js_type_converter": {"js_type_converter": None},
    }
    for name, content in {"": {}, **empty}.items():
        module = types.ModuleType(f"bfcl_eval.{name}".rstrip("."))
        module.__dict__.update(content)
        sys.modules[module.__name__] = module
    file = folder / "bfcl_eval" / "eval_checker" / "ast_eval" / "ast_checker.py"
    spec = importlib.util.spec_from_file_location("leaderboards_checker", file)
    assert spec is not None and spec.loader is not None
    checker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(checker)
    return checker


@pytest.mark.skipif("BFCL_EVAL" not in os.environ, reason="BFCL_EVAL names no unpacked wheel of bfcl-eval")
def test_the_verdicts_are_the_leaderboards_own(shared_data: Path) -> None:
    checker = leaderboards_checker(Path(os.environ["BFCL_EVAL"]))
    for tools, gold, name, given in (*answers(shared_data), *odd_answers()):
        category = "multiple" if len(tools) > 1 else "simple"
        ours = call_match.fault(Call(name, given), tools, gold) == ""
        try:
            theirs = checker.ast_checker(tools, [{name: copy.deepcopy(given)}], [gold], "python", category, "plain")
        except (TypeError, AttributeError, KeyError, IndexError):
            continue  # a gold that is not well formed breaks their checker
        assert ours == theirs["valid"], (tools, gold, given)
