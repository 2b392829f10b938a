"""How far a study is, from its files: states, times, what is left."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Literal

from regrow.records.results import Frozen, Number
from regrow.records.store import RESULT
from regrow.study.folder import EVENTS, StudyFolder
from regrow.study.lease import LeaseWatch

Shown = Literal["pending", "running", "stale", "done", "failed", "blocked"]
_STOPPED = ("failed", "blocked")


class StepState(Frozen):
    """One step as it stands; ``message`` says why it failed, ``remedy`` what to do, ``seconds`` how long it took."""

    step_id: str
    family: str
    kind: str
    title: str
    state: Shown
    message: str = ""
    remedy: str = ""
    seconds: Number = float("nan")
    training_tokens: int = 0


class Progress(Frozen):
    """Every step of a study, and how many are in each state. ``left_seconds`` is what the steps that have not begun
    would take at the pace of those of their kind that are done, one after another, heals by their tokens; NaN while
    none of a kind is."""

    study: str
    steps: tuple[StepState, ...]
    counts: dict[str, int]
    left_seconds: Number = float("nan")

    @property
    def over(self) -> bool:
        return not any(self.counts.get(state) for state in ("pending", "running", "stale"))


def progress_of(study: Path, watch: LeaseWatch | None = None) -> Progress:
    """Return how far the study in a folder is."""
    folder = StudyFolder(study)
    leases = watch or LeaseWatch()
    rows: list[StepState] = []
    steps = folder.steps()
    for step in steps:
        state = folder.state(step.id, leases)
        done = folder.done(step.id) if state == "done" else None
        measured = step.place is None or (folder.path / "runs" / step.id / RESULT).exists()
        if state == "done" and (done is None or not measured):
            state, done = "pending", None
        failure = folder.failure(step.id) if state == "failed" else None
        rows.append(
            StepState(
                step_id=step.id,
                family=step.family,
                kind=step.kind,
                title=step.title,
                state=state,
                message=f"{failure.reason}: {failure.message}" if failure else "",
                remedy=failure.remedy if failure else "",
                seconds=done.cost.wall_seconds if done else float("nan"),
                training_tokens=done.cost.training_tokens if done else 0,
            )
        )
    rows = _with_blocked(rows, {step.id: set(step.parents.values()) for step in steps})
    counts: Counter[str] = Counter(row.state for row in rows)
    tokens = {step.id: int(step.request["heal"]["tokens"]) for step in steps if step.kind == "heal"}
    return Progress(study=str(study), steps=tuple(rows), counts=dict(counts), left_seconds=_left(rows, tokens))


def _with_blocked(rows: list[StepState], reads: dict[str, set[str]]) -> list[StepState]:
    """Return the rows with those blocked that read, directly or not, what a failed step should have made."""
    out: dict[str, StepState] = {}
    for row in rows:  # steps come after those they read
        stopped = [parent for parent in reads[row.step_id] if parent in out and out[parent].state in _STOPPED]
        waits = row.state == "pending" and stopped
        out[row.step_id] = (
            row.model_copy(update={"state": "blocked", "message": f"step {stopped[0]} failed"}) if waits else row
        )
    return list(out.values())


def _left(rows: list[StepState], tokens: dict[str, int]) -> float:
    """Return the seconds of what is left. A heal takes an evaluation, and training time by its ``tokens``."""
    done: dict[str, list[StepState]] = {}
    for row in rows:
        if row.state == "done":
            done.setdefault(row.kind, []).append(row)
    # A heal that took another's result says nothing about how long one takes.
    done["heal"] = [row for row in done.get("heal", ()) if row.training_tokens]
    mean = {kind: sum(row.seconds for row in of) / len(of) for kind, of in done.items() if of}
    measuring = min(mean.get("evaluate", 0.0), min((row.seconds for row in done["heal"]), default=0.0))
    trained = sum(tokens[row.step_id] for row in done["heal"])
    pace = sum(row.seconds - measuring for row in done["heal"]) / trained if trained else float("nan")
    total = 0.0
    for row in rows:
        if row.state in ("pending", "stale", "running"):
            total += measuring + pace * tokens[row.step_id] if row.kind == "heal" else mean.get(row.kind, float("nan"))
    return total


def last_events(study: Path, count: int = 10) -> list[dict[str, object]]:
    """Return the last events of a study's log; a line cut by a crash is left out."""
    try:
        lines = (study / EVENTS).read_bytes().decode("utf-8", "replace").split("\n")
    except OSError:
        return []
    found: list[dict[str, object]] = []
    for line in lines[-count - 1 :]:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict):
            found.append(entry)
    return found[-count:]
