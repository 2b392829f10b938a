"""Remove what a study no longer needs. Results and pools are never touched."""

from __future__ import annotations

import shutil
from pathlib import Path

from regrow.study.folder import StudyFolder
from regrow.study.runners import alone


def tidy(study: Path, *, checkpoints: bool = False) -> tuple[list[Path], int]:
    """Return what was removed and the bytes freed.

    Checkpoints and healing states of finished heals, and those of steps that are no longer in the study; with
    ``checkpoints`` also finished cuts and repairs, once everything that reads them is done. Raises StudyError while a
    runner or a worker lives, with who it is.
    """
    StudyFolder(study).steps()
    with alone(study, "removing leftovers"):
        return _tidied(study, checkpoints=checkpoints)


def _tidied(study: Path, *, checkpoints: bool) -> tuple[list[Path], int]:
    folder = StudyFolder(study)
    steps = {step.id: step for step in folder.steps()}
    done = {step_id for step_id in steps if folder.done(step_id) is not None}
    read_by: dict[str, set[str]] = {}
    for step in steps.values():
        for parent in step.parents.values():
            read_by.setdefault(parent, set()).add(step.id)
    keep_heals = folder.spec().keep_checkpoints
    removed: list[Path] = []
    freed = 0
    places = study / "checkpoints"
    for place in sorted(places.iterdir()) if places.is_dir() else []:
        step_id = place.name.lstrip(".").split(".")[0]
        known = steps.get(step_id)
        if known is not None:
            if step_id not in done:
                continue
            state_only = place.name != step_id
            if known.kind == "heal" and keep_heals and not state_only:
                continue
            if known.kind != "heal" and not state_only and not (checkpoints and read_by.get(step_id, set()) <= done):
                continue
        freed += sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
        shutil.rmtree(place, ignore_errors=True)
        removed.append(place)
    return removed, freed
