"""The shape of an engine. Every one passes the same suite of tests (tests/capabilities/test_engines.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from regrow.capabilities.generation import Answer, OnAnswer, OnProgress
from regrow.protocols import Item


@dataclass(frozen=True)
class Question:
    """An item to be answered by at most ``max_new_tokens``. ``decided``: see generation.Request."""

    item: Item
    max_new_tokens: int
    decided: Callable[[str], bool] | None = None


@runtime_checkable
class Engine(Protocol):
    """Answers items greedily.

    ``prompt_of`` returns the text that identifies what the model is asked (the rendered prompt; for an endpoint, which
    renders itself, the messages as JSON): the same item gives the same text. ``answer`` returns an answer for every
    question, in their order, and tells each as soon as it is there. An engine that cannot watch a text while it grows
    ignores ``fast_stop``; the grades are the same. An answer of no text is an answer.
    """

    name: str

    def prompt_of(self, item: Item) -> str: ...

    def answer(
        self,
        questions: Sequence[Question],
        *,
        batch_size: int = 32,
        fast_stop: bool = True,
        on_progress: OnProgress | None = None,
        on_answer: OnAnswer | None = None,
    ) -> list[Answer]: ...
