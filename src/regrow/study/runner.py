"""Run a study: start every step whose inputs are there, resume what was stopped, retry once, report what fails."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from regrow.protocols import Watcher
from regrow.records.study_spec import EngineSpec
from regrow.study.engines.engine import Engine, Outcome, engine_for
from regrow.study.finished import finished_before
from regrow.study.folder import Failure, StudyFolder
from regrow.study.lease import LeaseWatch, clear_dead
from regrow.study.runners import enrolled
from regrow.study.step import Step
from regrow.study.termination import TerminatedError, terminable

ATTEMPTS = 2
"""A step that fails is tried once more, then reported."""
_WAIT_SECONDS = 1.0
_ELSEWHERE_SECONDS = 2.0
_DYING_SECONDS = 5.0


@dataclass
class Summary:
    """What a run of a study did: steps done (``found`` of them before), failed ones with the reason, and steps that
    could not begin because one they read failed."""

    total: int
    done: int = 0
    found: int = 0
    failed: dict[str, Failure] = field(default_factory=dict)
    blocked: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return self.done == self.total


def run(study: Path, *, watch: Watcher, engine: Engine | None = None, engine_spec: EngineSpec | None = None) -> Summary:
    """Return what came of the study in ``study`` (see :meth:`StudyFolder.begin`) after running all that is left.

    Two runners may work in one folder: a step has one worker at a time. After KeyboardInterrupt (Ctrl-C, or
    TerminatedError after SIGTERM) the workers have saved their state and ended; after SIGTERM the steps that were under
    way are recorded as preempted. The next run takes them up.
    """
    folder = StudyFolder(study)
    folder.steps()  # before anything is written: a folder that holds no study is left as it is
    with enrolled(study):
        steps = folder.steps()
        spec = engine_spec or folder.spec().engine
        made = engine or engine_for(spec, study)
        runner = _Runner(folder, steps, made, watch)
        folder.log("begin", engine=spec.name, workers=made.slots)
        stopped = ""
        try:
            with terminable():
                return runner.run()
        except TerminatedError:
            stopped = "preempted"
            raise
        except KeyboardInterrupt:
            stopped = "interrupted"
            raise
        finally:
            made.stop()
            if stopped:
                runner.stopped(stopped)


class _Runner:
    def __init__(self, folder: StudyFolder, steps: list[Step], engine: Engine, watch: Watcher) -> None:
        self.folder, self.steps, self.engine, self.watch = folder, steps, engine, watch
        self.by_id = {step.id: step for step in steps}
        self.leases = LeaseWatch()
        self.done = finished_before(folder, steps)
        self.summary = Summary(total=len(steps), found=len(self.done))
        self.under_way: dict[str, float] = {}
        self.attempts: Counter[str] = Counter()
        self.elsewhere: dict[str, float] = {}

    def run(self) -> Summary:
        if self.summary.found:
            self.watch.note(f"{self.summary.found} of {len(self.steps)} steps were finished before")
        while True:
            ready = self._ready()
            for step in ready[: self.engine.slots - len(self.under_way)]:
                self._start(step)
            if self.under_way:
                for outcome in self.engine.ended(_WAIT_SECONDS):
                    self._take(outcome)
            elif self.elsewhere:
                time.sleep(_ELSEWHERE_SECONDS)
            elif not self._ready():
                break
        self.summary.done = len(self.done)
        self.summary.blocked = [
            step.id for step in self.steps if step.id not in self.done and step.id not in self.summary.failed
        ]
        self.folder.log("end", done=self.summary.done, failed=len(self.summary.failed))
        return self.summary

    def _ready(self) -> list[Step]:
        """Return the steps that may begin now, in the study's order; look again at those that others work on."""
        self.elsewhere.clear()
        found = []
        for step in self.steps:
            if step.id in self.done or step.id in self.under_way or step.id in self.summary.failed:
                continue
            if not all(parent in self.done for parent in step.parents.values()):
                continue
            state = self.folder.state(step.id, self.leases)
            if state == "done" and self.folder.done(step.id) is not None:
                self._finished(step, "by another runner")
            elif state == "running":
                self.elsewhere[step.id] = time.monotonic()
            else:
                found.append(step)
        return found

    def _start(self, step: Step) -> None:
        self.under_way[step.id] = time.monotonic()
        self.attempts[step.id] += 1
        # A worker has not watched: it would take the lease of a machine that died for one that is held.
        clear_dead(self.folder.lease_file(step.id), self.leases)
        self.folder.log("start", step.id, attempt=self.attempts[step.id], title=step.title)
        self.watch.note(f"start  {step.family}: {step.title}")
        self.engine.start(step.id)

    def _take(self, outcome: Outcome) -> None:
        began = self.under_way.pop(outcome.step_id)
        step = self.by_id[outcome.step_id]
        took = time.monotonic() - began
        if outcome.how == "busy":
            self.attempts[step.id] -= 1
            return
        if outcome.how == "done" and self.folder.done(step.id) is not None:
            self._finished(step, f"{took:.0f} s")
            return
        how = "error" if outcome.how == "done" else outcome.how
        message = outcome.message or "the worker ended without a result"
        attempts = self.attempts[step.id]
        self.folder.log("failed", step.id, reason=how, message=message, attempt=attempts)
        if attempts < ATTEMPTS:
            self.watch.note(f"again  {step.family}: {step.title} ({how}: {message})")
            return
        failure = Failure(reason=how, message=message, attempts=attempts)
        self.folder.write_failure(step.id, failure)
        self._clear_lease(step.id)
        self.summary.failed[step.id] = failure
        self.watch.note(f"FAILED {step.family}: {step.title} ({how}: {message})")

    def _clear_lease(self, step_id: str) -> None:
        """Remove the lease that a killed worker could not give up. An engine may report a process before it is gone."""
        file = self.folder.lease_file(step_id)
        until = time.monotonic() + _DYING_SECONDS
        while file.exists():
            clear_dead(file, self.leases)
            if time.monotonic() > until:
                return
            time.sleep(0.05)

    def stopped(self, why: str) -> None:
        """Write down that the runner was stopped, and after SIGTERM which steps had been under way."""
        left = [step_id for step_id in self.under_way if self.folder.done(step_id) is None]
        if why == "preempted":
            for step_id in left:
                message = "the runner was told to stop (SIGTERM); what the step had saved is kept"
                failure = Failure(reason="preempted", message=message, attempts=self.attempts[step_id])
                self.folder.write_failure(step_id, failure)
        self.folder.log(why, steps=left)

    def _finished(self, step: Step, how: str) -> None:
        self.done.add(step.id)
        self.watch.note(f"done   [{len(self.done)}/{len(self.steps)}] {step.family}: {step.title} ({how})")
