"""Whatever file of a study is cut short, the next run makes it again or says what is broken, and believes nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from regrow.errors import RegrowError
from regrow.protocols import SilentWatcher
from regrow.records.study_runs import read_study
from regrow.study.folder import StudyFolder
from regrow.study.progress import progress_of
from regrow.study.runner import run
from tests.study.tiny_study import begin, tiny_spec

KINDS = {
    "the design": "study.json",
    "a step that is done": "steps/{heal}/done.json",
    "a result": "runs/{heal}/result.json",
    "items": "runs/{heal}/items.jsonl",
    "the request of a run": "runs/{heal}/run.json",
    "coordinates": "runs/{heal}/coordinates.json",
    "the log": "events.jsonl",
}


def answers(folder: Path) -> list[tuple[str, str, str, float]]:
    """Return all that the report reads of a study's answers."""
    return sorted(
        (one.coordinates.stage, item.item_id, item.response, item.score)
        for one in read_study(folder).runs
        for item in one.items
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", [0.0, 0.5])
def test_a_file_cut_short_is_made_again_or_named(
    kind: str, part: float, finished: Path, model: Path, tmp_path: Path, regrow: Callable[..., tuple[int, str, str]]
) -> None:
    folder = tmp_path / "study"
    shutil.copytree(finished, folder)
    heal = next(step.id for step in StudyFolder(folder).steps() if step.kind == "heal")
    file = folder / KINDS[kind].format(heal=heal)
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * part)])
    try:
        summary = run(folder, watch=SilentWatcher())
    except RegrowError as error:
        assert kind == "the design", "everything else can be made again"
        assert str(file) in str(error) and error.hint
        code, out, err = regrow("study", "status", folder)
        assert code == 2 and not out and str(file) in err.replace("\n", "") and "Traceback" not in err
        file.unlink()
        begin(folder, tiny_spec(model))
        summary = run(folder, watch=SilentWatcher())
        assert summary.found == summary.total, "the steps were not lost with it"
    assert summary.complete and summary.found >= summary.total - 1
    assert answers(folder) == answers(finished)
    assert progress_of(folder).counts == {"done": summary.total}
