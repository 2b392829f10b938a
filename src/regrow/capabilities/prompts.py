"""The exact text that a model reads for an item, and the tokens of its choices."""

from __future__ import annotations

from typing import Any

from regrow.capabilities.continuation import continuation_of
from regrow.capabilities.likelihood import Question, question_of
from regrow.data.chat import render_chat
from regrow.models.load import LoadedModel
from regrow.protocols import Item

PLAIN = "plain"
"""A fact of items that are continued as they stand, not asked in a chat."""

CONTEXTS = "contexts"
"""A fact of plain items whose choices follow each a text of its own (WinoGrande): one context a choice."""


def prompt_of(tokenizer: Any, item: Item) -> str:
    """Return the rendered chat of an item up to where the answer begins, or a plain item's text as it stands."""
    if item.facts.get(PLAIN):
        return item.messages[-1]["content"]
    return render_chat(tokenizer, item.messages, add_generation_prompt=True)


def questions_of(loaded: LoadedModel, prompt: str, item: Item) -> list[Question]:
    """Return what a likelihood item asks: one question with all choices, or one for each choice's own context."""
    if not item.facts.get(PLAIN):
        return [question_of(loaded, item.item_id, prompt, item.choices)]
    contexts = item.facts.get(CONTEXTS)
    if contexts is None:
        return [continuation_of(loaded, prompt, item.choices)]
    return [continuation_of(loaded, context, (text,)) for context, text in zip(contexts, item.choices, strict=True)]
