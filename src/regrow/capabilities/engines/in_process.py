"""A loaded transformers model, on CPU, CUDA or MPS: the default engine."""

from __future__ import annotations

from collections.abc import Sequence

from regrow.capabilities.engines.contract import Question
from regrow.capabilities.generation import Answer, OnAnswer, OnProgress, Request, generate
from regrow.capabilities.prompts import prompt_of
from regrow.data.chat import stop_texts_of
from regrow.models.load import LoadedModel
from regrow.protocols import Item


class TransformersEngine:
    """Greedy answers by generation.generate: shared prefixes once, decided rows leave early, freed places refilled."""

    name = "transformers"

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded = loaded

    def prompt_of(self, item: Item) -> str:
        """Return the rendered prompt. Raises DataError when the chat template cannot render it."""
        return prompt_of(self.loaded.tokenizer, item)

    def answer(
        self,
        questions: Sequence[Question],
        *,
        batch_size: int = 32,
        fast_stop: bool = True,
        on_progress: OnProgress | None = None,
        on_answer: OnAnswer | None = None,
    ) -> list[Answer]:
        """Return the answers (see generation.generate for what is raised)."""
        stops = stop_texts_of(self.loaded.tokenizer)
        requests = [Request(self.prompt_of(each.item), each.max_new_tokens, each.decided, stops) for each in questions]
        return generate(
            self.loaded,
            requests,
            batch_size=batch_size,
            fast_stop=fast_stop,
            on_progress=on_progress,
            on_answer=on_answer,
        )
