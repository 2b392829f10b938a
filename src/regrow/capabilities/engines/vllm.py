"""vLLM in this process: the fastest engine for plain checkpoints on a CUDA machine (extra ``vllm``)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regrow.capabilities.engines.contract import Question
from regrow.capabilities.generation import Answer, OnAnswer, OnProgress
from regrow.capabilities.prompts import prompt_of
from regrow.data.chat import stop_texts_of, tokenise_prompt
from regrow.errors import ConfigError, DataError, ModelError
from regrow.protocols import Item
from regrow.records.checkpoint import read_facts


class VllmEngine:
    """Greedy answers by ``vllm.LLM``. The prompts are rendered and tokenised here, as for every other engine.

    Only checkpoints that vLLM's own model code can run: one with bridges is refused (fold them first, or use the
    transformers engine). Rows cannot be watched while they grow, so ``fast_stop`` has no effect.
    """

    name = "vllm"

    def __init__(self, source: str, *, dtype: str = "auto", **options: Any) -> None:
        folder = Path(source)
        facts = read_facts(folder) if folder.is_dir() else None
        if facts is not None and facts.bridges:
            raise ModelError(
                f"'{source}' has bridges, which vLLM's model code does not know",
                hint="use --engine transformers, or repair with a method that folds (see `regrow ls repairs`)",
            )
        try:
            from vllm import LLM, SamplingParams
        except ImportError as error:
            raise ModelError("the engine vllm needs another package", hint='pip install "regrow[vllm]"') from error
        self._sampling = SamplingParams
        self._model = LLM(model=source, dtype=dtype, trust_remote_code=False, enable_prefix_caching=True, **options)
        self.tokenizer = self._model.get_tokenizer()

    def prompt_of(self, item: Item) -> str:
        """Return the rendered prompt."""
        return prompt_of(self.tokenizer, item)

    def answer(
        self,
        questions: Sequence[Question],
        *,
        batch_size: int = 32,
        fast_stop: bool = True,
        on_progress: OnProgress | None = None,
        on_answer: OnAnswer | None = None,
    ) -> list[Answer]:
        """Return the answers; vLLM batches as it sees fit, ``batch_size`` questions are handed over at a time eight
        times over, so that progress is told and a stopped run loses little."""
        if batch_size < 1:
            raise ConfigError(f"the batch size is {batch_size}", hint="allowed: 1 or more")
        found: list[Answer] = []
        began, tokens = time.perf_counter(), 0
        step = 8 * batch_size
        for first in range(0, len(questions), step):
            for answer in self._some(questions[first : first + step]):
                tokens += answer.generated_tokens
                if on_answer is not None:
                    on_answer(len(found), answer)
                found.append(answer)
            if on_progress is not None:
                on_progress(len(found), len(questions), tokens / max(time.perf_counter() - began, 1e-9))
        return found

    def _some(self, questions: Sequence[Question]) -> list[Answer]:
        stops = list(stop_texts_of(self.tokenizer))
        prompts = [tokenise_prompt(self.tokenizer, self.prompt_of(each.item)) for each in questions]
        for each, ids in zip(questions, prompts, strict=True):
            if not ids:
                raise DataError(f"the prompt of {each.item.item_id} is empty", hint="every prompt needs a token")
            if each.max_new_tokens < 1:
                raise ConfigError(f"{each.max_new_tokens} new tokens are asked for", hint="allowed: 1 or more")
        params = [
            self._sampling(temperature=0.0, max_tokens=each.max_new_tokens, stop=stops or None) for each in questions
        ]
        began = time.perf_counter()
        written = self._model.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
        share = (time.perf_counter() - began) / max(1, len(questions))
        return [
            Answer(
                text=output.outputs[0].text,
                prompt_tokens=len(ids),
                generated_tokens=len(output.outputs[0].token_ids),
                seconds=share,
                stopped="length" if output.outputs[0].finish_reason == "length" else "eos",
                token_ids=tuple(output.outputs[0].token_ids),
            )
            for ids, output in zip(prompts, written, strict=True)
        ]
