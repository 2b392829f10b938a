"""What a study leaves behind, as its report reads it: evaluated runs and the place of each in the design.

A study folder is ``STUDY/runs/ID/``: one evaluation folder a run (``result.json``, ``items.jsonl``; see
:mod:`regrow.records.store`) with ``coordinates.json`` beside the result. The id is the folder's name and means nothing
else. A model scored on two splits is two runs. A folder without ``result.json`` is a run that has not finished: it is
named, not read. Whoever makes such folders, a study runner or a person, needs nothing more::

    RunFolder(study / "runs" / run_id).write_evaluation(record, items)
    write_coordinates(study / "runs" / run_id, Coordinates(family="llama", stage="healed", rule="uniform", ...))
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field, ValidationError, field_validator, model_validator

from regrow.errors import DataError, did_you_mean
from regrow.records.atomic import write_json
from regrow.records.results import Frozen, ItemScore, RunRecord, Stage
from regrow.records.store import RESULT, read_evaluation

RUNS = "runs"
DESIGN = "study.json"
"""What a study runner was asked, beside the runs; folders made by hand have none."""
COORDINATES = "coordinates.json"
MAIN_CUT = "main"


class Coordinates(Frozen):
    """The place of an evaluated model in a study's design.

    ``family`` is the study's name for the unpruned model and all that was made from it; ``cut`` tells a light cut from
    the main one. The rest belongs to healed models and is empty for others: ``rule`` that split the budget (a name of
    ``regrow ls rules``, or "token-matched" for the control that heals longer on the uniform mixture), ``scope`` that
    was trained, ``budget`` in healing tokens, ``mixture`` in tokens per pool, ``seed`` of the heal. ``pilot`` names the
    pool that a pilot healed on alone, or "uniform" for a pilot that chooses the scope; it is empty for runs that are
    compared with each other.
    """

    family: str = Field(min_length=1)
    stage: Stage
    cut: str = MAIN_CUT
    rule: str = ""
    scope: str = ""
    budget: int = Field(default=0, ge=0)
    mixture: dict[str, float] = Field(default_factory=dict)
    seed: int = 0
    pilot: str = ""

    @field_validator("mixture")
    @classmethod
    def _not_negative(cls, mixture: Mapping[str, float]) -> Mapping[str, float]:
        for pool, tokens in mixture.items():
            if not tokens >= 0:
                raise ValueError(f"pool '{pool}' has {tokens:g} tokens")
        return mixture

    @model_validator(mode="after")
    def _healed_or_not(self) -> Coordinates:
        if self.stage == "healed":
            if not self.budget:
                raise ValueError("a healed model has a 'budget' above 0")
            if not (self.rule or self.pilot):
                raise ValueError("a healed model names the 'rule' that split its budget, or is a 'pilot'")
            if not self.scope:
                raise ValueError("a healed model names the 'scope' that was trained")
        elif self.rule or self.pilot or self.budget or self.mixture or self.scope:
            raise ValueError(f"rule, scope, budget, mixture and pilot belong to healed models, not to '{self.stage}'")
        return self


class StudyRun(Frozen):
    """One finished run: its folder, its place in the design, its record and its graded items."""

    path: Path
    coordinates: Coordinates
    record: RunRecord
    items: tuple[ItemScore, ...] = Field(repr=False)

    @property
    def run_id(self) -> str:
        return self.path.name

    @property
    def place(self) -> str:
        """Return the run's folder as seen from the study folder ("runs/ID"): what a number is traced to."""
        return f"{self.path.parent.name}/{self.path.name}"

    @model_validator(mode="after")
    def _of_one_stage(self) -> StudyRun:
        if self.record.stage != self.coordinates.stage:
            told, found = self.coordinates.stage, self.record.stage
            raise ValueError(f"the record is of a {found} model, the coordinates say {told}")
        return self


class Study(NamedTuple):
    """The finished runs of a study folder, by id, and the ids of those that have not finished. ``pending`` are phrases
    about what the design asks for and nobody has run to its end yet ("rah-capped: 2 heals pending")."""

    path: Path
    runs: tuple[StudyRun, ...]
    unfinished: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.path.resolve().name


def is_study(folder: Path) -> bool:
    """Return whether a folder holds runs with coordinates."""
    return any((folder / RUNS).glob(f"*/{COORDINATES}"))


def read_study(folder: Path) -> Study:
    """Return the runs of a study folder. Raises DataError when it holds none, or one that cannot be read."""
    if folder.is_file():
        raise DataError(f"'{folder}' is a file, the folder of a study is wanted", hint="regrow study run FILE -o DIR")
    if not folder.is_dir():
        raise DataError(f"there is no folder '{folder}'", hint="name the folder of a study")
    families = _families_by_run(folder)
    places = sorted(
        file.parent
        for file in (folder / RUNS).glob(f"*/{COORDINATES}")
        if families is None or file.parent.name in families
    )
    if not places:
        raise DataError(
            f"'{folder}' holds no run of a study (no {RUNS}/ID/{COORDINATES})",
            hint="name a study's folder, or evaluation folders written by `regrow eval`",
        )
    finished = [place for place in places if (place / RESULT).exists()]
    if not finished:
        raise DataError(f"none of the {len(places)} runs in '{folder}' has finished", hint="run the study to its end")
    return Study(
        folder,
        tuple(
            run.model_copy(update={"coordinates": run.coordinates.model_copy(update={"family": family})})
            for run in map(_read_run, finished)
            for family in ((families or {}).get(run.path.name) or [run.coordinates.family])
        ),
        tuple(place.name for place in places if place not in finished),
        _pending(folder),
    )


def _pending(folder: Path) -> tuple[str, ...]:
    """Return what the design beside the runs asks for and is not there, in the design's order; none without one."""
    try:
        steps = [step for step in json.loads((folder / DESIGN).read_text("utf-8"))["steps"] if step["place"]]
        rows = [(_part(step["place"]), step["id"], (step["family"], *step.get("also", ()))) for step in steps]
    except (OSError, ValueError, KeyError, TypeError):
        return ()
    every = {family for _, _, families in rows for family in families}
    found = []
    for part, what in dict.fromkeys(part for part, _, _ in rows):
        ids = {run: families for named, run, families in rows if named == (part, what)}
        left = [run for run in ids if not (folder / RUNS / run / RESULT).exists()]
        if not left:
            continue
        failed = sum((folder / "steps" / run / "failed.json").exists() for run in left)
        waits = {family for run in left for family in ids[run]}
        said = f"{part}: {len(left)} {what}{'s' if len(left) > 1 else ''} pending"
        said += f" of {len(ids)}" if len(left) < len(ids) else ""
        said += f", {failed} of them failed" if failed else ""
        found.append(said + (f" ({', '.join(sorted(waits))})" if len(every) > 1 else ""))
    return tuple(found)


def _part(place: Mapping[str, Any]) -> tuple[str, str]:
    """Return the part of the design that a run belongs to, and what such runs are called."""
    if place.get("pilot"):
        return "pilots", "heal"
    if place["stage"] != "healed":
        return f"{place['stage']} model" + (f", {place['cut']} cut" if place.get("cut") else ""), "evaluation"
    scope = str(place.get("scope", ""))
    return str(place["rule"]) + (f" under {scope}" if scope not in ("", "all-lora") else ""), "heal"


def _families_by_run(folder: Path) -> dict[str, list[str]] | None:
    """Return the families that each run of the design belongs to, by its id: one that two families share counts for
    both, one that is no longer in the design for none. None for a folder without a design."""
    try:
        steps = json.loads((folder / DESIGN).read_text("utf-8"))["steps"]
        if not all("id" in step for step in steps):
            return None  # written before ids were
        return {step["id"]: [step["family"], *step.get("also", ())] for step in steps if step["place"] is not None}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_coordinates(folder: Path, coordinates: Coordinates) -> None:
    """Write the coordinates of the run in ``folder``, whole or not at all."""
    write_json(folder / COORDINATES, coordinates.model_dump(mode="json", exclude_defaults=True))


def _read_run(place: Path) -> StudyRun:
    file = place / COORDINATES
    record, items = read_evaluation(place)
    try:
        coordinates = Coordinates.model_validate_json(file.read_bytes())
        return StudyRun(path=place, coordinates=coordinates, record=record, items=tuple(items))
    except (ValidationError, OSError) as error:
        raise DataError(f"'{file}' does not place its run: {_fault(error)}", hint=_hint(error)) from error


def _fault(error: ValidationError | OSError) -> str:
    if isinstance(error, OSError):
        return str(error)
    faults = []
    for fault in error.errors():
        where = ".".join(str(part) for part in fault["loc"])
        said = fault["msg"].removeprefix("Value error, ")
        faults.append(f"{where}: {said}" if where else said)
    return "; ".join(faults)


def _hint(error: ValidationError | OSError) -> str:
    if isinstance(error, ValidationError):
        for fault in error.errors():
            if fault["type"] == "extra_forbidden":
                return did_you_mean(str(fault["loc"][-1]), Coordinates.model_fields)
    return "the fields are in docs/report.md; correct the file, or leave the run out"
