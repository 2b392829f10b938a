"""Sample answers: for each capability one item that broke, one that came back and one that was kept."""

from __future__ import annotations

from typing import NamedTuple

from regrow.records.results import ItemScore
from regrow.report.inputs import Paired
from regrow.stats.transitions import Fate, fates

RIGHT_AT = 0.5
LONGEST = 4_000
"""Characters of an answer that a report shows."""


class Answer(NamedTuple):
    """One model's answer to an item; ``cut`` counts the characters that are not shown."""

    label: str
    stage: str
    response: str
    score: float
    right: bool
    cut: int


class Sample(NamedTuple):
    """One item with the answers of all models, in column order. ``fate`` is its way to the last model ("" unknown)."""

    capability: str
    item_id: str
    kind: str
    fate: str
    question: str
    answers: tuple[Answer, ...]


def samples_of(paired: Paired) -> dict[str, list[Sample]]:
    """Return up to three samples of each capability, judged at the last model.

    They are the first items of each fate in the suite's order, so nobody has picked them: came back, broke, kept; where
    one fate is absent, new or never right stands in. Without an unpruned model the first model takes its place.
    """
    found: dict[str, list[Sample]] = {}
    for capability in paired.capabilities:
        ways = item_fates(paired, capability)
        wanted = [Fate.CAME_BACK, Fate.BROKE, Fate.KEPT, Fate.NEW, Fate.NEVER]
        chosen = [ways.index(fate) for fate in wanted if fate in ways][:3]
        found[capability] = [sample(paired, capability, index, ways[index]) for index in chosen]
    return found


def item_fates(paired: Paired, capability: str) -> list[Fate]:
    """Return the fate of each item of a capability at the last model."""
    scores = paired.scores[capability]
    first = paired.base if paired.base is not None else 0
    last = len(paired.records) - 1
    stages = [record.stage for record in paired.records]
    between = [index for index in range(first + 1, last) if stages[index] != stages[last]]
    return fates(scores[first], scores[last], scores[between], right_at=RIGHT_AT)


def sample(paired: Paired, capability: str, index: int, fate: Fate) -> Sample:
    """Return item ``index`` of a capability with all answers."""
    rows = [items[index] for items in paired.items[capability]]
    first = rows[0]
    answers = tuple(
        Answer(label, record.stage, *_response(item))
        for label, record, item in zip(paired.labels, paired.records, rows, strict=True)
    )
    shown = "" if len(paired.records) == 1 else fate.value
    return Sample(capability, first.item_id, str(first.details.get("kind") or ""), shown, question_of(first), answers)


def question_of(item: ItemScore) -> str:
    """Return the question where the record holds it; "" otherwise (records need only hold the prompt's hash)."""
    return str(item.details.get("question") or "")


def _response(item: ItemScore) -> tuple[str, float, bool, int]:
    shown = item.response[:LONGEST]
    return shown, item.score, item.score >= RIGHT_AT, len(item.response) - len(shown)
