"""Rates beside a capability's score: how many answers could be read, loose grading, calibration error."""

from __future__ import annotations

import math
from collections.abc import Sequence

from regrow.protocols import Capability
from regrow.records.results import ItemScore, Measurement

THE_SCORE = frozenset({"score", "accuracy", "prompt_strict", "acc"})
"""Names under which a summary repeats the score itself."""


def rates_of(suite: Sequence[Capability], items: Sequence[ItemScore]) -> tuple[Measurement, ...]:
    """Return what each capability's summary holds beside the score, named "capability.rate" ("math.parse_rate").

    Rates are shares of the capability's items, 0 to 1; NaN with a reason where no item says anything about one.
    """
    found: list[Measurement] = []
    for capability in suite:
        own = [item for item in items if item.capability == capability.name]
        for rate, value in capability.summarise(own).items() if own else ():
            if rate not in THE_SCORE:
                reason = "" if math.isfinite(value) else "no item of this kind was asked"
                found.append(Measurement(name=f"{capability.name}.{rate}", value=value, unit="share", reason=reason))
    return tuple(found)


def task_measurements(tasks: Sequence[Capability], items: Sequence[ItemScore]) -> tuple[Measurement, ...]:
    """Return what the harness would report of regrow's own tasks, named "task.metric" ("boolq.acc")."""
    return tuple(
        Measurement(name=f"{task.name}.{metric}", value=value)
        for task in tasks
        for metric, value in task.summarise([item for item in items if item.capability == task.name]).items()
        if metric != "score"
    )
