"""Seven zero-shot sets of multiple choice, with the prompts, choices and both accuracies of lm-evaluation-harness.

The texts are continued as they stand, without a chat template, as in the tables of the pruning literature.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regrow.capabilities.benchmarks.subsets import content_id
from regrow.capabilities.knowledge import ChoiceLikelihood, kept_likelihoods, refuse_undefined
from regrow.capabilities.prompts import CONTEXTS, PLAIN
from regrow.capabilities.scoring import Benchmark, Kind, mean
from regrow.data.catalogue import data_set
from regrow.data.rows import Row, need, read_part
from regrow.errors import DataError
from regrow.protocols import Capability, Grade, Item
from regrow.records.results import ItemScore, Split

DELIMITER = " "
"""What stands between a context and what follows it."""


@dataclass(frozen=True)
class Asked:
    """One question: a context and its choices, or a context for each choice and the text that follows all of them."""

    contexts: tuple[str, ...]
    texts: tuple[str, ...]
    choices: tuple[str, ...]
    gold: int


class MultipleChoice:
    """Scores 1 when the choice with the highest log-probability is the gold (the harness's ``acc``).

    ``details["acc_norm"]`` is the same for log-probability per character of the choice. Ties go to the earlier choice.
    """

    kind: Kind = "likelihood"

    def __init__(self, name: str, chance: float) -> None:
        self.name, self.chance = name, chance

    def decided(self, text: str) -> bool:
        """Return True: there is no text to wait for."""
        return True

    def grade(self, item: Item, response: str) -> Grade:
        """Return the grade of a chosen text (to grade a record again without the model)."""
        return Grade(float(response == item.choices[item.gold["choice"]]))

    def grade_choices(self, item: Item, likelihoods: Sequence[ChoiceLikelihood]) -> Grade:
        """Return the grade with ``details``: "choice" (index, as float), "acc_norm" and each choice's likelihood."""
        refuse_undefined(item, likelihoods)
        sums = [each.logprob for each in likelihoods]
        norms = [value / max(1, length) for value, length in zip(sums, item.gold["lengths"], strict=True)]
        best, best_norm = (max(range(len(of)), key=of.__getitem__) for of in (sums, norms))
        gold = item.gold["choice"]
        return Grade(
            float(best == gold),
            details={
                "choice": float(best),
                "acc_norm": float(best_norm == gold),
                **kept_likelihoods(likelihoods),
            },
        )

    def summarise(self, scores: Sequence[ItemScore]) -> dict[str, float]:
        """Return ``score`` and ``acc`` (the same number), and ``acc_norm``."""
        acc = mean(score.score for score in scores)
        norm = mean(float(score.details["acc_norm"] or 0.0) for score in scores if "acc_norm" in score.details)
        return {"score": acc, "acc": acc, "acc_norm": norm}


def _boolq(row: Row) -> Asked:
    gold = row["answer"] if "answer" in row else row["label"]
    if isinstance(gold, str) and gold.lower() in ("true", "false"):
        gold = gold.lower() == "true"
    context = f"{row['passage']}\nQuestion: {row['question']}?\nAnswer:"
    return _plain(context, ("no", "yes"), _whole(gold))


def _piqa(row: Row) -> Asked:
    return _plain(f"Question: {row['goal']}\nAnswer:", (row["sol1"], row["sol2"]), _whole(row["label"]))


def _hellaswag(row: Row) -> Asked:
    if "query" in row:
        return _plain(row["query"], _texts(row["choices"]), _whole(row["gold"]))
    start = f"{row['activity_label']}: {row['ctx_a']} {row['ctx_b'].capitalize()}"
    return _plain(_wikihow(start), tuple(map(_wikihow, _texts(row["endings"]))), _whole(row["label"]))


def _wikihow(text: str) -> str:
    """Return a text without the bracketed marks that WikiHow pages left in it."""
    return re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". ")).replace("  ", " ")


def _winogrande(row: Row) -> Asked:
    before, gap, after = row["sentence"].partition("_")
    if not gap:
        raise ValueError("the sentence has no gap '_'")
    options = (row["option1"], row["option2"])
    contexts = tuple(before + option for option in options)
    return Asked(contexts, (after.strip(),) * len(options), contexts, _whole(row["answer"]) - 1)


def _labelled(context: str, row: Row) -> Asked:
    labels, texts = [str(label) for label in row["choices"]["label"]], _texts(row["choices"]["text"])
    if len(labels) != len(texts):
        raise ValueError(f"there are {len(labels)} labels and {len(texts)} choices")
    return _plain(context, texts, labels.index(str(row["answerKey"]).strip()))


def _arc(row: Row) -> Asked:
    return _labelled(f"Question: {row['question']}\nAnswer:", row)


def _openbookqa(row: Row) -> Asked:
    return _labelled(row["question_stem"], row)


def _whole(value: Any) -> int:
    """Return a whole number that may be written as a text; 0.9 is none."""
    return int(value) if isinstance(value, bool | int) else int(str(value))


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError(f"the choices are {type(value).__name__}, not a list")
    return tuple(value)


def _plain(context: str, choices: tuple[str, ...], gold: int) -> Asked:
    return Asked((context,), choices, choices, gold)


@dataclass(frozen=True)
class Task:
    """A set by the harness's name: the part that is measured, how a record is asked, fields it must have."""

    data: str
    part: str
    ask: Callable[[Row], Asked]
    fields: tuple[str, ...]
    chance: float


TASKS: Mapping[str, Task] = {
    "boolq": Task("boolq", "validation", _boolq, ("passage", "question"), 0.5),
    "piqa": Task("piqa", "validation", _piqa, ("goal", "sol1", "sol2", "label"), 0.5),
    "hellaswag": Task("hellaswag", "validation", _hellaswag, (), 0.25),
    "winogrande": Task("winogrande", "validation", _winogrande, ("sentence", "option1", "option2", "answer"), 0.5),
    "arc_easy": Task("arc_easy", "test", _arc, ("question", "choices", "answerKey"), 0.25),
    "arc_challenge": Task("arc_challenge", "test", _arc, ("question", "choices", "answerKey"), 0.25),
    "openbookqa": Task("openbookqa", "test", _openbookqa, ("question_stem", "choices", "answerKey"), 0.25),
}


def capabilities(data: Path | None = None, names: Sequence[str] | None = None) -> list[Capability]:
    """Return the sets as capabilities, those in ``names`` if given; all their records are the test split."""
    return [
        Benchmark(MultipleChoice(name, task.chance), _source(name, task, data), max_new_tokens=0)
        for name, task in TASKS.items()
        if names is None or name in names
    ]


def _source(name: str, task: Task, data: Path | None) -> Callable[[Split], Sequence[Item]]:
    held: list[Item] = []

    def items(split: Split) -> Sequence[Item]:
        if split == "test" and not held:
            held.extend(items_of(name, task, data))
        return held if split == "test" else []

    return items


def items_of(name: str, task: Task, data: Path | None) -> list[Item]:
    """Return an item for every record; gold is {"choice": index, "lengths": characters of each choice}. Records that
    the set holds twice, word for word, count once."""
    read = read_part(data_set(task.data), task.part, data)
    found: dict[str, Item] = {}
    for number, row in enumerate(read.rows):
        need(row, task.fields, read.where(number))
        try:
            asked = task.ask(row)
            if not 0 <= asked.gold < len(asked.choices):
                raise ValueError(f"the gold is number {asked.gold} of {len(asked.choices)} choices")
            if len(asked.choices) < 2:
                raise ValueError("there is nothing to choose")
            strange = [
                text for text in (*asked.contexts, *asked.choices) if not isinstance(text, str) or not text.strip()
            ]
            if strange:
                raise ValueError(f"{strange[0]!r} stands for a text")
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise DataError(
                f"{read.where(number)} is not a record of {name}, or has no gold ({error})",
                hint="correct or delete the record, or fetch the data set again",
            ) from error
        item = _item(name, asked)
        found[item.item_id] = item
    return list(found.values())


def _item(name: str, asked: Asked) -> Item:
    facts: dict[str, Any] = {PLAIN: True}
    if len(asked.contexts) > 1:
        facts[CONTEXTS] = list(asked.contexts)
    return Item(
        capability=name,
        item_id=content_id(name, list(asked.contexts), list(asked.choices), asked.gold),
        split="test",
        messages=({"role": "user", "content": "\n".join(asked.contexts)},),
        gold={"choice": asked.gold, "lengths": [len(choice) for choice in asked.choices]},
        choices=tuple(DELIMITER + text for text in asked.texts),
        facts=facts,
    )
