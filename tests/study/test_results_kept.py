"""What a study believes of what it finds: whole results, of this design, with no holder that is gone."""

from __future__ import annotations

import errno
import json
import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import regrow.study.runner as runner
from regrow.errors import StudyError
from regrow.protocols import SilentWatcher
from regrow.records.checkpoint import read_facts
from regrow.records.specs import PruneSpec
from regrow.records.study_runs import read_study
from regrow.study.folder import Failure, StudyFolder
from regrow.study.lease import LeaseWatch, lease
from regrow.study.progress import progress_of
from regrow.study.runner import run
from regrow.study.stages.prune import prune
from tests.study.tiny_study import begin, steps_for, tiny_spec


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "study")
    return tmp_path / "study"


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = (folder / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


@pytest.mark.parametrize("left", ['{"token": "x", "host": "a-machine-that-died", "process": 1, "count": 3}', ""])
def test_the_lease_of_a_machine_that_died_is_taken_over(
    left: str, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = next(step for step in StudyFolder(copied).steps() if step.kind == "evaluate")
    (copied / "steps" / step.id / "done.json").unlink()
    (copied / "steps" / step.id / "lease.json").write_text(left)
    before = len(events(copied, "start"))
    monkeypatch.setattr(runner, "LeaseWatch", partial(LeaseWatch, stale_seconds=0.5))
    monkeypatch.setattr(runner, "_ELSEWHERE_SECONDS", 0.2)
    assert run(copied, watch=SilentWatcher()).complete
    assert len(events(copied, "start")) == before + 1
    assert not (copied / "steps" / step.id / "lease.json").exists()


def test_a_lease_that_cannot_be_written_is_not_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fdopen", full)
    with pytest.raises(StudyError, match="No space left"), lease(tmp_path / "lease.json"):
        pass
    monkeypatch.undo()
    assert not (tmp_path / "lease.json").exists()


@pytest.mark.parametrize("damage", ["items", "record", "folder"])
def test_an_evaluation_that_is_damaged_or_gone_is_made_again(damage: str, copied: Path, finished: Path) -> None:
    heal = next(step.id for step in StudyFolder(copied).steps() if step.kind == "heal")
    place = copied / "runs" / heal
    if damage == "items":
        (place / "items.jsonl").write_text("{")
    elif damage == "record":
        (place / "result.json").unlink()
    else:
        shutil.rmtree(place)
    if damage != "items":
        assert progress_of(copied).counts == {"done": 6, "pending": 1}
    summary = run(copied, watch=SilentWatcher())
    assert summary.complete and summary.found == summary.total - 1
    assert [event["step"] for event in events(copied, "again")] == [heal]
    (one, other) = ([item.response for item in run_.items] for run_ in _healed(copied, finished))
    assert one == other


def _healed(*folders: Path) -> list[Any]:
    return [run for folder in folders for run in read_study(folder).runs if run.coordinates.stage == "healed"]


def test_a_cut_that_was_cleaned_away_is_made_again_when_it_is_needed(copied: Path, model: Path) -> None:
    cut = next(step.id for step in StudyFolder(copied).steps() if step.kind == "prune")
    shutil.rmtree(copied / "checkpoints" / cut)
    assert run(copied, watch=SilentWatcher()).found == 7  # nothing reads it any more
    begin(copied, tiny_spec(model, seeds=[0, 1]), update=True)
    summary = run(copied, watch=SilentWatcher())
    assert summary.complete and summary.found == summary.total - 2
    assert [event["step"] for event in events(copied, "again")] == [cut]


def test_a_model_that_two_families_share_counts_for_both(copied: Path, model: Path) -> None:
    families = [
        {"name": "tiny", "model": str(model), "blocks": [2]},
        {"name": "second", "model": str(model), "blocks": [3]},
    ]
    begin(copied, tiny_spec(model, families=families), update=True)
    assert run(copied, watch=SilentWatcher()).complete
    stages: dict[str, list[str]] = {}
    for one in read_study(copied).runs:
        stages.setdefault(one.coordinates.family, []).append(one.coordinates.stage)
    expected = ["healed", "pruned", "pruned", "unpruned", "unpruned"]
    assert {name: sorted(found) for name, found in stages.items()} == {"tiny": expected, "second": expected}


def test_what_is_no_longer_in_the_design_is_not_reported(copied: Path, model: Path) -> None:
    families = [{"name": "renamed", "model": str(model), "blocks": [2]}]
    begin(copied, tiny_spec(model, families=families, seeds=[5]), update=True)
    found = read_study(copied).runs
    assert {one.coordinates.family for one in found} == {"renamed"}
    assert {one.coordinates.stage for one in found} == {"unpruned", "pruned"}


def test_a_step_behind_a_failed_one_is_blocked_and_the_study_over(copied: Path) -> None:
    steps = StudyFolder(copied).steps()
    pools = next(step.id for step in steps if step.kind == "pools")
    heal = next(step.id for step in steps if step.kind == "heal")
    for one in (pools, heal):
        (copied / "steps" / one / "done.json").unlink()
    StudyFolder(copied).write_failure(pools, Failure(reason="error", message="no", attempts=2))
    found = progress_of(copied)
    assert found.counts == {"done": 5, "failed": 1, "blocked": 1} and found.over
    assert next(row for row in found.steps if row.step_id == heal).message == f"step {pools} failed"


def test_another_calibration_text_under_the_same_name_is_another_cut(model: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    families = [{"name": "tiny", "model": str(model), "remove": 1, "calibration": str(text)}]

    def cut() -> str:
        return next(step.id for step in steps_for(tiny_spec(model, families=families)) if step.kind == "prune")

    text.write_text("The tide comes in twice a day.\n" * 50)
    before = cut()
    assert cut() == before
    text.write_text("Nobody on the pier has asked it why.\n" * 50)
    assert cut() != before


def test_two_cuts_of_a_model_on_one_text_share_a_pass(model: Path, tmp_path: Path) -> None:
    cut = {"name": "tiny", "model": str(model), "remove": 2, "calibration": "bundled", "calibration_tokens": 1_024}
    steps = begin(tmp_path, tiny_spec(model, families=[{**cut, "light_remove": 1}]))
    assert run(tmp_path, watch=SilentWatcher()).complete
    main, light = [step for step in steps if step.kind == "prune"]
    read = [StudyFolder(tmp_path).done(step.id).cost for step in (main, light)]  # type: ignore[union-attr]
    assert read[0].prompt_tokens >= 1_000 and read[0].flops > 0
    assert read[1].prompt_tokens == 0 and read[1].flops == 0
    assert len(list((tmp_path / "similarity").iterdir())) == 1
    alone = prune(
        str(model),
        PruneSpec(**light.request["prune"]),
        tmp_path / "alone",
        watch=SilentWatcher(),
        dtype="float32",
        device="cpu",
    )
    shared = read_facts(tmp_path / "checkpoints" / light.id)
    assert shared is not None and shared.scores == alone.scores and shared.removed_blocks == alone.removed_blocks
