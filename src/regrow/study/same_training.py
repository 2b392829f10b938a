"""Heals of a study that are the same work, which their ids cannot say.

A rule splits the budget only once its pilots are measured, so two rules may come to one split (a cap that holds nothing
back, damage that is alike everywhere). And a heal that is asked other items is trained as before. What a heal turned
out to be is therefore written down when it begins, and looked up before another one is trained.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass

from regrow.records.atomic import write_json
from regrow.records.fingerprint import fingerprint
from regrow.study.folder import StudyFolder
from regrow.study.step import Step

TRAINING = "training.json"
_DECIMALS = 6
"""Of a pool's tokens: sums in another order differ behind them."""


@dataclass(frozen=True)
class Training:
    """What a heal trains, and what is asked of it, each as a content hash."""

    training: str
    evaluation: str


def training_of(step: Step, tokens_by_pool: Mapping[str, float], scope: str) -> Training:
    """Return what a heal turned out to be once its rule has decided."""
    shapes = ("model_sha256", "dtype", "suite", "pools")
    heal = {name: value for name, value in step.request["heal"].items() if name != "scope"}
    trained = [
        {name: step.request[name] for name in shapes},
        heal,
        scope,
        sorted((name, round(tokens, _DECIMALS)) for name, tokens in tokens_by_pool.items()),
        [step.parents["checkpoint"], step.parents["pools"]],
    ]
    return Training(fingerprint(trained), fingerprint(step.request["evaluation"]))


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
    for file in sorted((folder.path / "steps").glob(f"*/{TRAINING}")):
        with suppress(OSError, ValueError, TypeError):  # a broken note is none
            yield file.parent.name, Training(**json.loads(file.read_bytes()))
