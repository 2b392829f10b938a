"""Pilot files: what is read, what is refused and in which words, and pilots made from evaluations."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regrow.errors import DataError
from regrow.planning.pilot_counts import items_right, pilots_of
from regrow.planning.pilot_files import read_pilots, write_pilots
from regrow.planning.pilots import PilotRun, Pilots
from regrow.planning.tokens import show_tokens
from regrow.records.quantities import parse_tokens
from regrow.records.results import ItemScore

Change = Callable[[dict[str, Any]], None]


def written(tmp_path: Path, content: Any) -> Path:
    file = tmp_path / "pilots.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return file


def test_the_published_layout(published: dict[str, Any], published_pilots: dict[str, Pilots]) -> None:
    pilots = published_pilots["llama"]
    np.testing.assert_array_equal(pilots.healed[0, 0], np.array([22, 35, 27, 28, 38, 25]) * 0 + [21, 5, 16, 1, 48, 12])
    assert pilots.own == (0, 1, 2, 3, 4, 5) and pilots.largest == 300_000 and not pilots.missing()
    assert pilots.pruned_retention[4] == pytest.approx(41 / 38)


def test_what_is_written_is_read_again(tmp_path: Path, published_pilots: dict[str, Pilots]) -> None:
    counts = published_pilots["qwen"].healed.copy()
    counts[2, 1] = np.nan
    kept = replace(
        published_pilots["qwen"],
        healed=counts,
        scope_counts={"last-k": np.arange(6.0)},
        nll_gap=np.array([0.5, 1, 1.5, 2, math.nan, 0]),
    )
    write_pilots(tmp_path / "pilots.json", [published_pilots["llama"], kept])
    found = {one.family: one for one in read_pilots(tmp_path)}  # the folder stands for its pilots.json
    again = found["qwen"]
    np.testing.assert_array_equal(again.healed, kept.healed)
    np.testing.assert_array_equal(again.scope_counts["last-k"], np.arange(6.0))
    np.testing.assert_array_equal(again.nll_gap, kept.nll_gap)
    assert [run.name for run in again.missing()] == ["instruction_following-100k"]
    assert again.scope == "all-lora"


MISTAKES: list[tuple[str, Change, str]] = [
    (
        "a count above 60",
        lambda d: d["families"]["llama"]["delta_items"]["math"][1].__setitem__(0, 59),
        "61 items right",
    ),
    (
        "a count below 0",
        lambda d: d["families"]["llama"]["delta_items"]["math"][1].__setitem__(0, -3),
        "-1 items right",
    ),
    (
        "unpruned above 60",
        lambda d: d["families"]["llama"]["unpruned_items"].__setitem__(0, 61),
        "61 items right of 60",
    ),
    ("unpruned missing", lambda d: d["families"]["llama"]["unpruned_items"].__setitem__(0, None), "no count for"),
    ("too few numbers", lambda d: d["families"]["qwen"]["pruned_items"].pop(), "must hold 6 numbers"),
    ("a word for a number", lambda d: d["families"]["qwen"]["pruned_items"].__setitem__(0, "x"), "must hold numbers"),
    ("a truth value", lambda d: d["families"]["qwen"]["pruned_items"].__setitem__(0, True), "must hold numbers"),
    ("a negative budget", lambda d: d["budgets"].__setitem__(0, -30000), "positive number of tokens, got -30000"),
    ("a budget twice", lambda d: d["budgets"].__setitem__(0, 100000), "contain a value twice"),
    ("no budgets", lambda d: d.pop("budgets"), "'budgets'"),
    ("an unknown pool", lambda d: d["families"]["qwen"]["delta_items"].__setitem__("maths", []), "unknown key 'maths'"),
    ("an unknown key", lambda d: d.__setitem__("budgts", []), "unknown key 'budgts'"),
    ("a row too many", lambda d: d["families"]["qwen"]["delta_items"]["math"].append([0] * 6), "one row for each"),
    ("no family", lambda d: d.__setitem__("families", {}), "names no family"),
    ("a family that is a list", lambda d: d["families"].__setitem__("qwen", []), "must be an object"),
    ("no own pool", lambda d: d.__setitem__("pools", ["a", "b", "c", "d", "e", "f"]), "unknown key|has no pool"),
    ("a pool twice", lambda d: d["pools"].append("math"), "contain a value twice"),
    ("capabilities not a list", lambda d: d.__setitem__("capabilities", "math"), "'capabilities'"),
    ("no table", lambda d: d["families"]["qwen"].pop("delta_items"), "must map pools to rows"),
    ("scopes not a table", lambda d: d["families"]["qwen"].__setitem__("scope_items", [1]), "must map scopes"),
    ("a scope that is a number", lambda d: d["families"]["qwen"].__setitem__("scope", 3), "must be a name"),
]


@pytest.mark.parametrize(("change", "said"), [case[1:] for case in MISTAKES], ids=[case[0] for case in MISTAKES])
def test_mistakes_are_named(change: Change, said: str, tmp_path: Path, published: dict[str, Any]) -> None:
    content = copy.deepcopy(published)
    change(content)
    with pytest.raises(DataError, match=said) as caught:
        read_pilots(written(tmp_path, content))
    assert caught.value.hint


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "null", '"x"', "\x00\xff", "[" * 100_000])
def test_files_that_are_no_pilots(text: str, tmp_path: Path) -> None:
    with pytest.raises(DataError):
        read_pilots(written(tmp_path, text))


def test_paths_that_are_no_pilots(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no file"):
        read_pilots(tmp_path / "absent.json")
    with pytest.raises(DataError, match=r"holds no pilots\.json"):
        read_pilots(tmp_path)
    (tmp_path / "bad.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="not readable JSON"):
        read_pilots(tmp_path / "bad.json")


def test_a_missing_pilot_is_only_missed_when_it_is_needed(tmp_path: Path, published: dict[str, Any]) -> None:
    content = copy.deepcopy(published)
    del content["families"]["llama"]["delta_items"]["safety"]
    content["families"]["llama"]["delta_items"]["math"][2] = None
    pilots = read_pilots(written(tmp_path, content))[0]
    assert [run.name for run in pilots.missing()] == ["math-300k", "safety-30k", "safety-100k", "safety-300k"]
    with pytest.raises(DataError, match=r"pool math at 300k tokens, scope all-lora is missing and 3 more"):
        pilots.require()


def test_more_than_sixty_items_when_the_file_says_so(tmp_path: Path, published: dict[str, Any]) -> None:
    content = copy.deepcopy(published)
    content["families"]["llama"]["unpruned_items"][0] = 150
    content["dev_items"] = 200
    assert read_pilots(written(tmp_path, content))[0].dev_items[0] == 200


@pytest.mark.parametrize("tokens", [1, 999, 30_000, 61_250, 250_000, 1_000_000, 1_500_000, 4_480_000, 123_456_789])
def test_tokens_are_written_as_they_are_read(tokens: int) -> None:
    assert parse_tokens(show_tokens(tokens), option="--budget") == tokens


def test_names_and_commands_of_pilots() -> None:
    assert PilotRun("math", 100_000).name == "math-100k"
    uniform = PilotRun("uniform", 300_000, "last-k")
    assert uniform.name == "uniform-300k-last-k" and "--mixture uniform" in uniform.command
    assert "--scope last-k" in uniform.command and "echo" not in uniform.command
    assert "echo 'math: 100000' > math-100k.yaml" in PilotRun("math", 100_000).command


def graded(capability: str, scores: list[float], *, split: str = "dev", kinds: list[str] | None = None, tag: str = ""):
    return [
        ItemScore(
            capability=capability,
            item_id=f"{capability}{tag}-{i}",
            split=split,  # type: ignore[arg-type]
            prompt_sha256="0",
            response="",
            score=score,
            details={"kind": kinds[i]} if kinds else {},
        )
        for i, score in enumerate(scores)
    ]


def test_items_right_counts_balanced_rates_as_scored() -> None:
    scores = graded("safety", [1, 1, 0, 1], kinds=["unsafe", "unsafe", "unsafe", "benign"])
    assert items_right(scores, "safety") == (pytest.approx((2 / 3 + 1) / 2 * 4), 4)
    assert items_right(graded("math", [1, 0, 1]), "math") == (2.0, 3)
    assert math.isnan(items_right([], "math")[0])


def test_pilots_from_evaluations() -> None:
    def run(math: list[float], knowledge: list[float]) -> list[ItemScore]:
        return graded("math", math) + graded("knowledge", knowledge)

    pilots = pilots_of(
        "tiny",
        ("math", "knowledge"),
        ("math", "general"),
        (1000, 2000),
        unpruned=run([1, 1, 1, 0], [1, 1, 0]),
        pruned=run([0, 0, 0, 0], [1, 0, 0]),
        runs={
            PilotRun("math", 2000): run([1, 1, 0, 0], [1, 0, 0]),
            PilotRun("uniform", 1000, "last-k"): run([1, 0, 0, 0], [1, 1, 0]),
        },
    )
    np.testing.assert_array_equal(pilots.healed[0, 1], [2, 1])
    assert {one.name for one in pilots.missing()} == {"math-1k", "general-1k", "general-2k"}
    np.testing.assert_array_equal(pilots.scope_counts["last-k"], [1, 2])
    np.testing.assert_array_equal(pilots.dev_items, [4, 3])


def test_evaluations_that_cannot_be_compared() -> None:
    def make(**runs: list[ItemScore]) -> Pilots:
        return pilots_of(
            "tiny",
            ("math",),
            ("math",),
            (1000,),
            unpruned=graded("math", [1, 1]),
            pruned=runs.get("pruned", graded("math", [0, 0])),
            runs={PilotRun("math", 1000): runs["run"]} if "run" in runs else {},
        )

    with pytest.raises(DataError, match=r"other math items.*math-x-0"):
        make(run=graded("math", [1, 1], tag="-x"))
    with pytest.raises(DataError, match="scored on the test split"):
        make(pruned=graded("math", [0, 0], split="test"))
    with pytest.raises(DataError, match="no place in the design"):
        pilots_of(
            "tiny",
            ("math",),
            ("math",),
            (1000,),
            unpruned=graded("math", [1]),
            pruned=graded("math", [0]),
            runs={PilotRun("math", 5000): graded("math", [1])},
        )
