"""The full suite, tasks, pools and regrading as their user runs them: the commands on a tiny checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.shared


@pytest.fixture
def run(regrow: Any) -> Any:
    return regrow


@pytest.fixture
def tiny(tiny_folder: Any) -> Path:
    folder = tiny_folder("llama")
    config = json.loads((folder / "config.json").read_text("utf-8"))
    config["max_position_embeddings"] = 2048
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def test_the_full_suite_is_measured_regraded_and_followed(
    run: Any, tiny: Path, shared_data: Path, tmp_path: Path
) -> None:
    pytest.importorskip("lm_eval")
    one = tmp_path / "one"
    command = ("eval", tiny, "--suite", "full", "--data", shared_data, "--items", 2, "--no-perplexity", "-o", one)
    code, out, _ = run(*command, "--json")
    assert code == 0 and len(json.loads(out)["rows"]) >= 6
    lines = [json.loads(line) for line in (one / "items.jsonl").read_text("utf-8").splitlines()]
    assert len(lines) == 12
    for line in lines:
        assert {"prompt_sha256", "response", "parsed", "score", "generated_tokens", "seconds"} <= set(line)
    code, _, err = run(*command)
    assert code == 0 and "already holds this evaluation" in err

    code, out, _ = run("rescore", one, "--data", shared_data, "--json", "-o", tmp_path / "again")
    assert code == 0 and all(row["changed"] == 0 for row in json.loads(out)["capabilities"])
    assert (tmp_path / "again" / "result.json").exists()
    code, out, _ = run("transitions", one, tmp_path / "again", "--json")
    counts = json.loads(out)["counts"]
    assert code == 0 and all(row["broke"] == row["new"] == 0 for row in counts.values()) and len(counts) == 6
    code, _, err = run("transitions", one, one, "--show", "brok")
    assert code == 2 and "did you mean 'broke'" in err


def test_tasks_are_measured_from_local_data(run: Any, tiny: Path, shared_data: Path, tmp_path: Path) -> None:
    code, out, _ = run(
        "eval", tiny, "--tasks", "piqa,winogrande", "--data", shared_data, "--items", 3, "-o", tmp_path / "t", "--json"
    )
    found = json.loads(out)["measurements"]
    assert code == 0 and set(found) == {"piqa.acc", "piqa.acc_norm", "winogrande.acc", "winogrande.acc_norm"}
    code, out, _ = run("rescore", tmp_path / "t", "--data", shared_data, "-o", tmp_path / "again", "--json")
    assert code == 0 and json.loads(out)["changed"] == []
    before, after = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("t", "again"))
    assert before["measurements"] == after["measurements"] and before["suite"] == after["suite"] == "tasks"


def test_an_unknown_pool_is_refused_with_the_nearest(run: Any, tiny: Path, shared_data: Path, tmp_path: Path) -> None:
    code, _, err = run("pools", tiny, "--suite", "full", "--data", shared_data, "--only", "maths", "-o", tmp_path / "p")
    assert code == 2 and "did you mean 'math'" in err and not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--suite", "fulll"), "did you mean 'full'"),
        (("--suite", "full", "--data", "/nowhere-at-all"), "does not exist"),
        (("--suite", "full", "--tasks", "piqa"), "exclude each other"),
        (("--few-shot", "2"), "belong to --tasks"),
        (("--engine", "vlm"), "did you mean 'vllm'"),
        (("--engine", "openai"), "--endpoint"),
        (("--tasks", ","), "no task was named"),
    ],
)
def test_a_mistake_is_a_sentence(words: tuple[str, ...], says: str, run: Any, tiny: Path, tmp_path: Path) -> None:
    code, _, err = run("eval", tiny, *words, "-o", tmp_path / "x")
    assert code == 2 and says in " ".join(err.split()) and "Traceback" not in err
    assert not (tmp_path / "x").exists()
