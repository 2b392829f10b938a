"""Heals of a study that are the same work, which their ids cannot say.

A rule splits the budget only once its pilots are measured, so two rules may come to one split (a cap that holds nothing
back, damage that is alike everywhere). And a heal that is asked other items is trained as before. What a heal turned
out to be is therefore written down when it begins, and looked up before another one is trained.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from regrow.data.pools import Pool
from regrow.errors import DataError, ModelError
from regrow.heal.mixture import token_quotas
from regrow.records.atomic import write_json
from regrow.records.checkpoint import CheckpointFacts, read_facts
from regrow.records.fingerprint import fingerprint
from regrow.records.results import ItemScore, RunRecord
from regrow.records.store import read_evaluation
from regrow.records.study_runs import COORDINATES, Coordinates
from regrow.study.folder import StudyFolder
from regrow.study.stages.chain import changed_file
from regrow.study.step import Step

TRAINING = "training.json"
TAKEN = "taken.json"
"""Beside it while the checkpoint is one that another heal has trained."""

_NOTHING = 0.5
"""A quota below half a token draws nothing."""


@dataclass(frozen=True)
class Training:
    """What a heal trains, and what is asked of it, each as a content hash."""

    training: str
    evaluation: str


def training_of(step: Step, tokens_by_pool: Mapping[str, float], scope: str) -> Training:
    """Return what a heal turned out to be once its rule has decided."""
    shapes = ("model_sha256", "dtype", "suite", "pools")
    heal = {name: value for name, value in step.request["heal"].items() if name != "scope"}
    quotas = token_quotas(tokens_by_pool, {name: Pool(name, ()) for name in tokens_by_pool}, heal["tokens"])
    trained = [
        {name: step.request[name] for name in shapes},
        heal,
        scope,
        [(name, _draw_of(quotas[name])) for name in sorted(quotas) if quotas[name] >= _NOTHING],
        [step.parents["checkpoint"], step.parents["pools"]],
    ]
    return Training(fingerprint(trained), fingerprint(step.request["evaluation"]))


def _draw_of(quota: float) -> tuple[int, int]:
    """Return between which half tokens a quota lies: quotas that lie between the same ones draw the same sequences.

    Sequences are drawn until whole tokens reach the quota, and a quota below the shortest example draws it from half of
    its length on (:func:`regrow.heal.mixture.draw_mixture`). A planner ends a hundredth of a token from where another
    one does.
    """
    return math.floor(2 * quota), math.ceil(2 * quota)


def write_training(folder: StudyFolder, step_id: str, training: Training) -> None:
    """Write down what a heal is, before it is done."""
    write_json(folder.of(step_id) / TRAINING, asdict(training))


def same_training(folder: StudyFolder, step_id: str, wanted: Training) -> list[tuple[str, bool]]:
    """Return the ids of other finished heals that were the same training, and whether the same was asked of each;
    those of which the same was asked come first."""
    found = [
        (other, there.evaluation == wanted.evaluation)
        for other, there in _written(folder)
        if other != step_id and there.training == wanted.training and folder.done(other) is not None
    ]
    return sorted(found, key=lambda one: (not one[1], one[0]))


def _written(folder: StudyFolder) -> Iterator[tuple[str, Training]]:
    noted = set()
    for file in sorted((folder.path / "steps").glob(f"*/{TRAINING}")):
        with suppress(OSError, ValueError, TypeError):  # a broken note is none
            yield file.parent.name, Training(**json.loads(file.read_bytes()))
            noted.add(file.parent.name)
    for step in folder.steps():  # heals of a study that was begun before such notes were made
        if step.kind == "heal" and step.id not in noted:
            with suppress(OSError, ValueError):
                there = Coordinates.model_validate_json((folder.path / "runs" / step.id / COORDINATES).read_bytes())
                yield step.id, training_of(step, there.mixture, there.scope)


def whole_checkpoint(folder: Path) -> CheckpointFacts | None:
    """Return the facts of a checkpoint whose files are those that were saved, None for any other."""
    try:
        facts = read_facts(folder)
        known = facts is not None and facts.weights_sha256
        return facts if facts is not None and known and changed_file(folder, facts) is None else None
    except (ModelError, OSError):
        return None


def evaluation_or_none(run: Path) -> tuple[RunRecord | None, list[ItemScore]]:
    """Return the record and items of a finished evaluation; None and nothing where it is damaged or gone."""
    try:
        return read_evaluation(run)
    except DataError:
        return None, []


def linked(checkpoint: Path, copy: Path) -> None:
    """Make ``copy`` the same checkpoint, by hard links where the disk has them; it is there whole or not at all."""
    shutil.rmtree(beside := copy.with_name(f".{copy.name}.taken"), ignore_errors=True)
    shutil.copytree(checkpoint, beside, copy_function=_link)
    beside.rename(copy)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
