"""Small capabilities that tiny random models can be graded on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from regrow.models.load import LoadedModel
from regrow.protocols import Grade, Item
from regrow.records.results import ItemScore, Split
from tests.conftest import tiny_model, tiny_tokenizer

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def loaded_toy(family: str = "qwen3") -> LoadedModel:
    """Return a tiny model whose prompts end in the question, for what a random model writes follows from the end."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ '<eos>[' + m['role'] + '] ' + m['content'] }}{% endfor %}"
    return LoadedModel(tiny_model(family), tokenizer, family)


def question(at: int) -> str:
    return " ".join(LETTERS[(at * at + 3 * step) % 26] * (at % 3 + 1) for step in range(at % 5 + 2))


def shots(question: str) -> tuple[dict[str, str], ...]:
    return (
        {"role": "user", "content": "Which letter comes after a? Say it."},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": question},
    )


@dataclass
class HasSign:
    """Scores 1 when one of ``signs`` stands in the answer; decided by the first of them."""

    signs: str
    name: str = "has_sign"
    kind: Literal["generative", "likelihood"] = "generative"
    max_new_tokens: int = 16
    chance: float = 0.0
    count: int = 10

    def items(self, split: Split) -> Sequence[Item]:
        return [
            Item(self.name, f"{self.name}-{split}-{at}", split, shots(question(at)), {"at": at})
            for at in range(self.count)
        ]

    def decided(self, text: str) -> bool:
        return any(sign in text for sign in self.signs)

    def grade(self, item: Item, response: str) -> Grade:
        return Grade(float(self.decided(response)), parsed=bool(response), details={"at": float(item.gold["at"])})

    def summarise(self, scores: Sequence[ItemScore]) -> dict[str, float]:
        return {"score": sum(score.score for score in scores) / len(scores)}


@dataclass
class TwoKinds(HasSign):
    """Items of two kinds, six of each seven of the first."""

    name: str = "two_kinds"
    count: int = 21

    def items(self, split: Split) -> Sequence[Item]:
        return [
            Item(item.capability, item.item_id, split, item.messages, {"at": at, "kind": "ab"[at % 7 == 0]})
            for at, item in enumerate(super().items(split))
        ]


@dataclass
class Choice:
    """Scores 1 when the likeliest choice (per token) is the first. ``own_rule``: grades likelihoods itself."""

    name: str = "choice"
    kind: Literal["generative", "likelihood"] = "likelihood"
    max_new_tokens: int = 0
    chance: float = 0.25

    def items(self, split: Split) -> Sequence[Item]:
        return [
            Item(self.name, f"choice-{at}", split, shots(question(at)), 0, choices=("yes", "no", LETTERS[at], "maybe"))
            for at in range(6)
        ]

    def decided(self, text: str) -> bool:
        return True

    def grade(self, item: Item, response: str) -> Grade:
        return Grade(float(response == item.choices[0]))

    def summarise(self, scores: Sequence[ItemScore]) -> dict[str, float]:
        return {"score": sum(score.score for score in scores) / len(scores)}


@dataclass
class LongestChoice(Choice):
    """Chooses the text with most characters, whatever the model says of it."""

    name: str = "longest_choice"

    def grade_choices(self, item: Item, likelihoods: Sequence[Any]) -> Grade:
        best = max(range(len(likelihoods)), key=lambda at: likelihoods[at].characters)
        return Grade(float(best == 0), details={"choice": float(best), "confidence": 0.5})
