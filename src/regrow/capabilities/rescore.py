"""Answers graded again without the model, after a grading rule was mended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from regrow.capabilities.perplexity import CAPABILITY as WINDOWS
from regrow.capabilities.zero_shot import TASKS
from regrow.errors import DataError
from regrow.protocols import Capability, Item
from regrow.records.results import ItemScore
from regrow.records.storable import storable


@dataclass(frozen=True)
class Rescored:
    """``items`` with their new grades, in the old order; ``changed`` are those whose score is another one, before.

    ``untouched`` counts, by capability, items that the suite no longer holds, or holds with another question under the
    same id, or that are no questions (windows of text). ``cut_short`` are ids of answers that were left early because
    their grade was settled under the old rule, and whose grade is not settled under the new one: measure those again.
    """

    items: tuple[ItemScore, ...]
    changed: tuple[tuple[ItemScore, ItemScore], ...]
    untouched: dict[str, int]
    cut_short: tuple[str, ...]


def rescore(records: Sequence[ItemScore], suite: Sequence[Capability]) -> Rescored:
    """Return ``records`` graded by ``suite``. Raises DataError when no record is of an item of the suite."""
    capabilities = {capability.name: capability for capability in suite}
    items: dict[tuple[str, str], dict[str, Item]] = {}
    found: list[ItemScore] = []
    changed: list[tuple[ItemScore, ItemScore]] = []
    untouched: dict[str, int] = {}
    cut_short: list[str] = []
    for record in records:
        capability = capabilities.get(record.capability)
        key = (record.capability, record.split)
        if capability is not None and key not in items:
            items[key] = {item.item_id: item for item in capability.items(record.split)}
        item = items.get(key, {}).get(record.item_id)
        if item is not None and not _same_question(record, item):
            item = None
        never_asked = record.generated_tokens == 0 and "stopped" not in record.details and "fault" in record.details
        if capability is None or item is None or never_asked:
            untouched[record.capability] = untouched.get(record.capability, 0) + 1
            found.append(record)
            continue
        again = _graded(record, capability, item)
        if again.score != record.score:
            changed.append((record, again))
        if record.details.get("stopped") == "decided" and not capability.decided(record.response):
            cut_short.append(record.item_id)
        found.append(again)
    left = sum(count for name, count in untouched.items() if name != WINDOWS)
    if left and left + untouched.get(WINDOWS, 0) == len(records):
        raise DataError(
            f"none of the {left} records is of an item of this suite",
            hint="pass the same --data folder that the run was measured with",
        )
    return Rescored(tuple(found), tuple(changed), untouched, tuple(cut_short))


def _same_question(record: ItemScore, item: Item) -> bool:
    """Return whether a record is of this question: data sets number their items, and another copy of one may give the
    same number to another text."""
    asked = record.details.get("question")
    return asked is None or asked == storable(str(item.messages[-1]["content"]))


def own_tasks(records: Sequence[ItemScore]) -> list[str]:
    """Return the tasks among the records' that regrow measured itself and can grade again: its zero-shot sets, whose
    records keep the likelihoods. Other tasks have the harness's rules."""
    return [name for name in TASKS if any(each.capability == name and "logprob_0" in each.details for each in records)]


def _graded(record: ItemScore, capability: Capability, item: Item) -> ItemScore:
    if capability.kind == "likelihood":
        return _chosen_again(record, capability, item)
    grade = capability.grade(item, record.response)
    kept = {name: record.details[name] for name in ("question", "stopped") if name in record.details}
    return record.model_copy(
        update={"score": grade.score, "parsed": grade.parsed, "details": {**kept, **grade.details}}
    )


@dataclass(frozen=True)
class _Kept:
    """A likelihood as a record keeps it."""

    logprob: float
    tokens: int
    characters: int


def _chosen_again(record: ItemScore, capability: Capability, item: Item) -> ItemScore:
    """Grade by the likelihoods where the record keeps each; else only which choice is right can have changed."""
    rule = getattr(getattr(capability, "scorer", capability), "grade_choices", None)
    kept = [_kept(record, at, choice) for at, choice in enumerate(item.choices)]
    known = [each for each in kept if each is not None]
    if rule is not None and known and len(known) == len(kept):
        grade = rule(item, known)
        chosen = grade.details.get("choice")
        response = item.choices[int(chosen)] if isinstance(chosen, float | int) else record.response
        return record.model_copy(
            update={"score": grade.score, "response": response, "details": {**record.details, **grade.details}}
        )
    choice = record.details.get("choice")
    if not isinstance(choice, float | int) or not isinstance(item.gold, dict):
        return record
    return record.model_copy(update={"score": float(int(choice) == item.gold["choice"])})


def _kept(record: ItemScore, at: int, choice: str) -> _Kept | None:
    value, tokens = record.details.get(f"logprob_{at}"), record.details.get(f"tokens_{at}", 1)
    if not isinstance(value, float | int) or not isinstance(tokens, float | int):
        return None
    return _Kept(float(value), int(tokens), len(choice))
