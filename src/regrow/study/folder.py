"""A study's folder: what was asked, the state of every step, the log of what happened.

::

    study.json              the spec, what each family's model is, every step (written when the study starts)
    steps/ID/               done.json or failed.json, lease.json while somebody works, log.txt of the worker
    runs/ID/                an evaluation with its coordinates: what the report reads
    checkpoints/ID/, pools/ID/, allocations/ID.json
    similarity/             the similarity of residual streams, one pass for all cuts of a model on a text
    events.jsonl            one line for everything that happened

A step is done when done.json is there, which is written last and whole; there is no other way to be done.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from regrow.errors import StudyError
from regrow.records.atomic import disk_error, write_json
from regrow.records.results import Cost, Frozen
from regrow.records.store import differences
from regrow.records.study_spec import StudySpec
from regrow.study.lease import LeaseWatch
from regrow.study.step import Step

ASKED = "study.json"
EVENTS = "events.jsonl"

State = Literal["pending", "running", "stale", "done", "failed"]
Reason = Literal["error", "killed", "out of memory", "GPU failed", "preempted", "timeout"]
GPU_FAILED = "gpu-failed.json"
REMEDIES = {
    "GPU failed": "look at the GPU (nvidia-smi, the system's log), then run the study again: what the step had saved "
    "is kept; to go on without one, write device: cpu in the study's file and run it with --update",
    "out of memory": "fewer engine.workers, a smaller heal.microbatch_tokens, or dtype: bfloat16",
    "timeout": "a longer engine.timeout_minutes; what the step had saved is kept",
}
"""What to do about a failure, by its reason, where there is more to say than to run again."""


class Failure(Frozen):
    """Why a step failed, in a word and in a sentence; ``attempts`` counts tries of this step so far."""

    reason: Reason
    message: str
    attempts: int = 1

    @property
    def remedy(self) -> str:
        return REMEDIES.get(self.reason, "")


class Done(Frozen):
    """What a finished step used and where it ran; ``device`` is what "auto" meant there."""

    finished: str
    cost: Cost
    machine: str = ""
    device: str = ""


@dataclass(frozen=True)
class StudyFolder:
    """The folder of one study."""

    path: Path

    def begin(self, spec: StudySpec, identities: Mapping[str, str], steps: Iterable[Step], *, update: bool) -> None:
        """Write down what is asked. A folder that holds another study is refused unless ``update`` is set, which
        keeps every result that still belongs to the changed study."""
        file = self.path / ASKED
        self.refuse(spec, update=update)
        if file.exists() and not update and self._content()["identities"] != dict(identities):
            raise self._another("the files of a family's model changed")
        content = {
            "spec": spec.model_dump(mode="json"),
            "identities": dict(identities),
            "steps": [_plain(step) for step in steps],
        }
        if not file.exists() or json.loads(file.read_text("utf-8")) != json.loads(json.dumps(content)):
            write_json(file, content)

    def refuse(self, spec: StudySpec, *, update: bool) -> None:
        """Raise StudyError where :meth:`begin` would whatever the models are, so that nobody waits for them to be read:
        the folder cannot be written, holds foreign files, or holds another study and ``update`` is not set."""
        place = next((one for one in (self.path, *self.path.absolute().parents) if one.exists()), self.path)
        effective = {"effective_ids": True} if os.access in os.supports_effective_ids else {}
        if place.is_dir() and not os.access(place, os.W_OK | os.X_OK, **effective):
            raise StudyError(f"the folder '{place}' cannot be written", hint="name another folder with --output")
        if (self.path / ASKED).exists():
            before = self._content()["spec"].science
            if before != spec.science and not update:
                raise self._another(differences("study", _named(before), "study", _named(spec.science)))
        elif self.path.is_file():
            raise StudyError(f"the study's folder '{self.path}' is a file", hint="name another folder with --output")
        elif (self.path / EVENTS).exists() and (self.path / "steps").is_dir():
            return  # a study whose broken study.json was deleted, as the error about it says
        elif self.path.is_dir() and any(not entry.name.startswith(".") for entry in self.path.iterdir()):
            raise StudyError(f"'{self.path}' holds files that are not a study", hint="name another folder")

    def _another(self, said: str) -> StudyError:
        return StudyError(
            f"'{self.path}' holds another study ({said})",
            hint="name another folder with --output, or add --update to change this study: results that "
            "still belong to it are kept",
        )

    def spec(self) -> StudySpec:
        """Return the spec of the study here. Raises StudyError when there is none."""
        spec: StudySpec = self._content()["spec"]
        return spec

    def steps(self) -> list[Step]:
        """Return the steps of the study here, in order."""
        steps: list[Step] = self._content()["steps"]
        return steps

    def step(self, step_id: str) -> Step:
        """Return one step by id."""
        for step in self.steps():
            if step.id == step_id:
                return step
        raise StudyError(f"the study in '{self.path}' has no step '{step_id}'", hint=f"regrow study status {self.path}")

    def of(self, step_id: str) -> Path:
        return self.path / "steps" / step_id

    def lease_file(self, step_id: str) -> Path:
        return self.of(step_id) / "lease.json"

    def state(self, step_id: str, watch: LeaseWatch) -> State:
        """Return the state of a step as the files say."""
        place = self.of(step_id)
        if (place / "done.json").exists():
            return "done"
        if (place / "lease.json").exists() and watch.live(place / "lease.json"):
            return "running"
        if (place / "failed.json").exists():
            return "failed"
        return "stale" if (place / "lease.json").exists() else "pending"

    def done(self, step_id: str) -> Done | None:
        """Return what a finished step used; a record that cannot be read counts as not finished and is removed."""
        file = self.of(step_id) / "done.json"
        try:
            return Done.model_validate_json(file.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError:
            with suppress(OSError):  # a folder that can only be read keeps it
                file.unlink(missing_ok=True)
            return None
        except OSError as error:  # not a broken record: a disk or a network that will be back
            raise StudyError(f"'{file}' cannot be read: {error}", hint="check the disk and its rights") from error

    def failure(self, step_id: str) -> Failure | None:
        try:
            return Failure.model_validate_json((self.of(step_id) / "failed.json").read_bytes())
        except (ValidationError, OSError):
            return None

    def write_done(self, step_id: str, done: Done) -> None:
        """Declare a step finished."""
        write_json(self.of(step_id) / "done.json", done.model_dump(mode="json"))
        (self.of(step_id) / "failed.json").unlink(missing_ok=True)

    def write_failure(self, step_id: str, failure: Failure) -> None:
        """Say why a step failed; running the study again tries it again."""
        write_json(self.of(step_id) / "failed.json", failure.model_dump(mode="json"))

    def log(self, event: str, step_id: str = "", **facts: Any) -> None:
        """Append a line to the log of events. One write call, so that lines of several processes do not mix."""
        line = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "event": event}
        line |= {"step": step_id} if step_id else {}
        text = json.dumps({**line, "process": os.getpid(), **facts}, ensure_ascii=False) + "\n"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with (self.path / EVENTS).open("a+b", buffering=0) as stream:
                if stream.seek(0, os.SEEK_END) and stream.seek(-1, os.SEEK_END) is not None and stream.read(1) != b"\n":
                    text = "\n" + text  # a crash cut the last line
                stream.write(text.encode("utf-8"))
        except OSError as error:
            raise disk_error(self.path / EVENTS, error) from error

    def _content(self) -> dict[str, Any]:
        file = self.path / ASKED
        try:
            raw = json.loads(file.read_text("utf-8"))
            return {
                "spec": StudySpec.model_validate(raw["spec"]),
                "identities": raw["identities"],
                "steps": [_step(entry) for entry in raw["steps"]],
            }
        except (FileNotFoundError, NotADirectoryError):
            if self.path.is_file():
                raise self._a_file() from None
            raise StudyError(
                f"'{self.path}' holds no study (no {ASKED})", hint="regrow study run FILE --output DIR"
            ) from None
        except OSError as error:  # not a broken record: rights, a disk or a network that will be back
            raise StudyError(
                f"'{file}' cannot be read: {error.strerror or error}", hint="check the disk and its rights"
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise StudyError(
                f"'{file}' cannot be read ({type(error).__name__})",
                hint=f"delete the file and run the study again with --output {self.path}; finished runs are kept",
            ) from error

    def _a_file(self) -> StudyError:
        """Return what to say to who named a file where a study's folder is wanted."""
        if self.path.name == ASKED:
            hint = f"name its folder: {self.path.parent}"
        elif self.path.suffix.lower() in (".yaml", ".yml"):
            hint = f"name the folder that `regrow study run {self.path} -o DIR` writes"
        else:
            hint = "name the folder that `regrow study run FILE -o DIR` writes"
        return StudyError(f"'{self.path}' is a file, the folder of a study is wanted", hint=hint)


def _plain(step: Step) -> dict[str, Any]:
    return {
        "id": step.id,
        "kind": step.kind,
        "family": step.family,
        "title": step.title,
        "request": dict(step.request),
        "parents": dict(step.parents),
        "place": dict(step.place) if step.place is not None else None,
        "also": list(step.also),
    }


def _step(entry: Mapping[str, Any]) -> Step:
    known = {key: value for key, value in entry.items() if key != "id"}
    return Step(**{**known, "place": entry.get("place"), "also": tuple(entry.get("also", ()))})


def _named(science: dict[str, Any]) -> dict[str, Any]:
    families = {family["name"]: family for family in science["families"]}
    return {**science, "families": families}
