"""The shape of a mini prompt: worked examples as earlier turns of the chat, then the question."""

from __future__ import annotations

from collections.abc import Sequence

from regrow.protocols import Message

Shot = tuple[str, str]
"""A question and the answer wished for. Shots hold content that no split uses."""


def messages(shots: Sequence[Shot], question: str) -> tuple[Message, ...]:
    """Return the chat that shows ``shots`` and ends with ``question``. There is no system turn: where a tokenizer's
    template adds its own, that text comes first and is part of the prompt that all items share."""
    turns: list[Message] = []
    for asked, answered in shots:
        turns.append({"role": "user", "content": asked})
        turns.append({"role": "assistant", "content": answered})
    turns.append({"role": "user", "content": question})
    return tuple(turns)
