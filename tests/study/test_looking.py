"""Looking at a study: light, early in its refusals, and possible where nothing can be written."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from regrow.study.folder import StudyFolder
from regrow.study.progress import Shown, StepState, _left, progress_of
from tests.study.commands import write_spec
from tests.study.tiny_study import begin, tiny_spec

RegrowCommand = Callable[..., tuple[int, str, str]]
HEAVY = ("torch", "transformers", "scipy", "numpy", "polars", "ray", "submitit")


def test_a_status_imports_nothing_that_computes(model: Path, tmp_path: Path) -> None:
    begin(tmp_path / "study", tiny_spec(model))
    script = (
        "import sys\nfrom regrow.cli.main import main\n"
        f"try:\n    main()\nfinally:\n    print(sorted({set(HEAVY)} & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "study", "status", str(tmp_path / "study"), "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.strip() == "[]" and json.loads(done.stdout)["counts"] == {"pending": 7}


@pytest.mark.parametrize("there", ["a foreign folder", "a file", "another study"])
def test_a_folder_is_refused_before_a_model_is_looked_for(
    there: str, model: Path, tmp_path: Path, regrow: RegrowCommand
) -> None:
    file = write_spec(
        tmp_path / "s.yaml", model, families=[{"name": "tiny", "model": "./not-there", "blocks": [2]}], seeds=[3]
    )
    place = tmp_path / "out"
    if there == "a foreign folder":
        place.mkdir()
        (place / "notes.txt").write_text("mine")
        said = "holds files that are not a study"
    elif there == "a file":
        place.write_text("mine")
        said = "is a file"
    else:
        begin(place, tiny_spec(model))
        said = "holds another study"
    code, out, err = regrow("study", "run", file, "-o", place)
    assert code == 2 and not out and said in " ".join(err.split()) and "reading the models" not in err
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    code, _, err = regrow("study", "run", file, "-o", place)
    assert code == 2 and "there is no model at './not-there'" in err


@pytest.fixture
def readable_only(model: Path, regrow: RegrowCommand) -> Iterator[Path]:
    """A study that its reader may not write to (root may write anywhere, so it becomes another user meanwhile)."""
    place = Path(tempfile.mkdtemp())
    begin(place / "study", tiny_spec(model))
    for words in (["status"], ["clean"], ["run", "smoke", "-o"]):
        regrow("study", *words, place)  # imports what the commands need: the other user may not read the interpreter
    step = StudyFolder(place / "study").steps()[0].id
    (place / "study" / "steps" / step).mkdir(parents=True)
    (place / "study" / "steps" / step / "done.json").write_text('{"finish')
    for one in (place, *place.rglob("*")):
        one.chmod(0o555 if one.is_dir() else 0o444)
    before = os.geteuid()
    if before == 0:
        os.seteuid(65_534)
    try:
        yield place / "study"
    finally:
        os.seteuid(before)
        for one in (place, *place.rglob("*")):
            if one.is_dir():
                one.chmod(0o755)
        shutil.rmtree(place)


def test_a_read_only_study_is_looked_at_and_left_as_it_is(
    readable_only: Path, model: Path, regrow: RegrowCommand
) -> None:
    before = {one: one.stat().st_mtime_ns for one in readable_only.rglob("*")}
    assert progress_of(readable_only).counts == {"pending": 7}
    code, out, err = regrow("study", "status", readable_only, "--json")
    assert code == 0 and json.loads(out)["counts"] == {"pending": 7}, err
    code, out, err = regrow("study", "clean", readable_only)
    assert code == 2 and not out and "cannot write" in err and "Permission denied" in err and "try:" in err, err
    assert before == {one: one.stat().st_mtime_ns for one in readable_only.rglob("*")}


def test_a_run_in_a_read_only_folder_is_refused_at_once(
    readable_only: Path, regrow: RegrowCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in (readable_only, readable_only / "new" / "study"):
        code, out, err = regrow("study", "run", "smoke", "-o", place)
        said = " ".join(err.split())
        assert code == 2 and not out and f"the folder '{readable_only}' cannot be written" in said, err
        assert "--output" in said and "reading the models" not in said and "Traceback" not in said


def test_what_is_left_counts_heals_by_their_tokens() -> None:
    def row(step_id: str, kind: str, state: Shown, seconds: float = math.nan, trained: int = 0) -> StepState:
        state_of = {"step_id": step_id, "kind": kind, "state": state, "seconds": seconds, "training_tokens": trained}
        return StepState(family="f", title="", **state_of)

    tokens = {"pilot": 1_000, "small": 3_000, "main": 100_000, "taken": 100_000}
    rows = [
        row("a", "evaluate", "done", 10),
        row("pilot", "heal", "done", 30, 1_000),
        row("small", "heal", "done", 70, 3_000),
        row("taken", "heal", "done", 0.1),  # from another heal: says nothing about how long one takes
        row("b", "evaluate", "pending"),
        row("main", "heal", "pending"),
    ]
    assert _left(rows, tokens) == pytest.approx(10 + 10 + 100_000 * (20 + 60) / 4_000)
    assert math.isnan(_left([*rows, row("p", "pools", "running")], tokens))
    assert math.isnan(_left(rows[3:], tokens))
    assert _left(rows[:3], tokens) == 0
