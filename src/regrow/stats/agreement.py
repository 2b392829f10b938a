"""Agreement of a classifier with labels: share, Cohen's kappa, precision, recall."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from regrow.errors import DataError


class Agreement(NamedTuple):
    """``share`` of equal labels, chance-corrected ``kappa``, and ``precision``/``recall`` of the positive label.

    Each is NaN where its denominator is 0 (nothing predicted positive, nothing labelled positive, one label only).
    """

    share: float
    kappa: float
    precision: float
    recall: float


def cohens_kappa(first: Sequence[object], second: Sequence[object]) -> float:
    """Return Cohen's kappa of two labellings of the same things: 1 perfect, 0 as good as chance.

    NaN when both use one and the same label throughout: agreement by chance is then certain.
    """
    _same_length(first, second)
    labels = list(dict.fromkeys([*first, *second]))
    place = {label: index for index, label in enumerate(labels)}
    table = np.zeros((len(labels), len(labels)))
    for one, other in zip(first, second, strict=True):
        table[place[one], place[other]] += 1
    table /= table.sum()
    by_chance = float(table.sum(axis=1) @ table.sum(axis=0))
    return math.nan if by_chance >= 1 else (float(np.trace(table)) - by_chance) / (1 - by_chance)


def agreement(labels: Sequence[bool], predicted: Sequence[bool]) -> Agreement:
    """Return how well ``predicted`` follows ``labels``, both yes/no."""
    _same_length(labels, predicted)
    truth, guess = np.asarray(labels, bool), np.asarray(predicted, bool)
    hits = int((truth & guess).sum())
    return Agreement(
        float((truth == guess).mean()),
        cohens_kappa(truth.tolist(), guess.tolist()),
        hits / int(guess.sum()) if guess.any() else math.nan,
        hits / int(truth.sum()) if truth.any() else math.nan,
    )


def _same_length(first: Sequence[object], second: Sequence[object]) -> None:
    if len(first) != len(second) or not len(first):
        raise DataError(f"{len(first)} labels against {len(second)}", hint="label the same, non-empty set twice")
