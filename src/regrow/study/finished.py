"""Which steps are really finished: those whose result is still there, whole, or that nothing needs any more."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence

from regrow.records.fingerprint import file_sha256
from regrow.records.store import ITEMS, RESULT
from regrow.records.study_runs import COORDINATES, Coordinates
from regrow.study.folder import StudyFolder
from regrow.study.step import Step


def finished_before(folder: StudyFolder, steps: Sequence[Step]) -> set[str]:
    """Return the ids of the steps that need not be done again.

    An evaluation whose files are damaged or gone is done again. So is a cut, a repair or a set of pools that was
    removed (``regrow study clean --checkpoints``, a copy without it) if a step that is still to be done reads it.
    """
    done = {step.id for step in steps if folder.done(step.id) is not None}
    for step in steps:
        if step.id in done and step.place is not None and not _measured(folder, step):
            done.discard(_again(folder, step, "its evaluation is damaged or gone"))
    by_id = {step.id: step for step in steps}
    while True:
        read = {parent for step in steps if step.id not in done for parent in step.parents.values()}
        gone = [by_id[one] for one in sorted(read & done) if by_id[one].place is None and not _made(folder, by_id[one])]
        if not gone:
            return done
        for step in gone:
            done.discard(_again(folder, step, "what it made is gone"))


def _measured(folder: StudyFolder, step: Step) -> bool:
    place = folder.path / "runs" / step.id
    try:
        told = json.loads((place / RESULT).read_bytes()).get("items_sha256", "")
        Coordinates.model_validate_json((place / COORDINATES).read_bytes())
        return told in ("", file_sha256(place / ITEMS))
    except (OSError, ValueError, AttributeError):
        return False


def _made(folder: StudyFolder, step: Step) -> bool:
    if step.kind == "pools":
        return (folder.path / "pools" / step.id).is_dir()
    return (folder.path / "checkpoints" / step.id / "regrow.json").exists()


def _again(folder: StudyFolder, step: Step, why: str) -> str:
    (folder.of(step.id) / "done.json").unlink(missing_ok=True)
    if step.place is not None:
        shutil.rmtree(folder.path / "runs" / step.id, ignore_errors=True)
    folder.log("again", step.id, reason=why)
    return step.id
