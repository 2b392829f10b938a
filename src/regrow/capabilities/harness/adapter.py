"""The model type ``regrow`` of lm-evaluation-harness: pruned, repaired, healed or plain checkpoints, run by regrow.

Importing this module registers it. From the harness's own command line::

    python -m regrow.capabilities.harness --model regrow --model_args pretrained=DIR --tasks piqa,wikitext
"""

from __future__ import annotations

from typing import Any

import torch
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

from regrow.capabilities.continuation import continuation_of, text_logprob
from regrow.capabilities.generation import Answer, Request, generate
from regrow.capabilities.harness.responses import ResponseJournal
from regrow.capabilities.likelihood import ChoiceScore, Question, score_questions
from regrow.capabilities.model_call import context_limit
from regrow.data.chat import render_chat
from regrow.errors import ConfigError
from regrow.models.load import LoadedModel, load_model

DEFAULT_NEW_TOKENS = 256
"""What the harness's own models write at most where a task does not say."""


CHOICES_AT_ONCE = 32
"""Continuations of one context that are weighed as one question."""


@register_model("regrow")
class RegrowLM(LM):
    """A model of regrow behind the harness's interface.

    ``pretrained``: what regrow.models.load takes, or a LoadedModel. Decoding is greedy; a task that samples is refused.
    Likelihoods agree with the harness's ``hf`` backend up to rounding; answers are those of greedy decoding, whatever
    the batch size.
    """

    def __init__(
        self,
        pretrained: str | LoadedModel,
        *,
        dtype: str = "auto",
        device: str | None = None,
        batch_size: int | str = 32,
        max_batch_size: int | None = None,
        max_length: int | None = None,
        **unknown: Any,
    ) -> None:
        super().__init__()
        if unknown:
            raise ConfigError(
                f"unknown model argument '{next(iter(unknown))}' of the model type regrow",
                hint="allowed: pretrained, dtype, device, batch_size, max_length",
            )
        if isinstance(pretrained, LoadedModel):
            self.loaded = pretrained
        else:
            self.loaded = load_model(pretrained, dtype=str(dtype), device=_present(device))
        self._rows = int(batch_size) if str(batch_size).isdecimal() else 32
        self._longest = max_length
        self.watch: Any = None
        self.journal = ResponseJournal()

    @property
    def tokenizer_name(self) -> str:
        return str(self.loaded.tokenizer.name_or_path or self.loaded.source).replace("/", "__")

    @property
    def tokenizer(self) -> Any:
        return self.loaded.tokenizer

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        return str(self.loaded.tokenizer.chat_template or "") if chat_template else ""

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        return render_chat(self.loaded.tokenizer, chat_history, add_generation_prompt=add_generation_prompt)

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Return (log-probability, greedy?) of each continuation. Choices of one context are scored together."""
        known = self.journal.known("loglikelihood", requests)
        found: dict[int, tuple[float, bool]] = {number: (value[0], value[1]) for number, value in known.items()}
        together: dict[str, list[int]] = {}
        for number, request in enumerate(requests):
            if number not in found:
                together.setdefault(request.args[0], []).append(number)
        # Requests without a context (BLiMP) all share it: they are no question of a thousand choices.
        members = [
            numbers[begin : begin + CHOICES_AT_ONCE]
            for numbers in together.values()
            for begin in range(0, len(numbers), CHOICES_AT_ONCE)
        ]
        questions: list[Question] = [
            continuation_of(self.loaded, requests[numbers[0]].args[0], [requests[number].args[1] for number in numbers])
            for numbers in members
        ]

        def keep(question: int, scores: list[ChoiceScore]) -> None:
            for number, one in zip(members[question], scores, strict=True):
                found[number] = (one.logprob, one.greedy)
                self._keep("loglikelihood", requests[number], found[number])

        self._begin("weighing continuations", len(questions), len(known))
        score_questions(
            self.loaded,
            questions,
            batch_size=self._rows,
            on_progress=lambda done, _: self._advance(done),
            on_scores=keep,
        )
        self._end()
        return [found[number] for number in range(len(requests))]

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Return the log-probability of each whole text."""
        kind = "loglikelihood_rolling"
        found: dict[int, float] = self.journal.known(kind, requests)
        waiting = [number for number in range(len(requests)) if number not in found]
        self._begin("reading texts", len(waiting), len(found))
        for done, number in enumerate(waiting, start=1):
            ((found[number], _),) = text_logprob(self.loaded, [requests[number].args[0]], longest=self._longest)
            self._keep(kind, requests[number], found[number])
            self._advance(done)
        self._end()
        return [found[number] for number in range(len(requests))]

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Return the greedy answer to each context, cut at the first of the task's stop texts. A context that is too
        long for the model together with its answer loses its beginning, as with the harness's ``hf`` backend."""
        kind = "generate_until"
        limits = [each for each in (self._longest, context_limit(self.loaded.model)) if each]
        longest = min(limits, default=None)
        asked = [_request(context, options, longest) for context, options in (each.args for each in requests)]
        found: dict[int, str] = self.journal.known(kind, requests)
        waiting = [number for number in range(len(requests)) if number not in found]
        self._begin("answering", len(waiting), len(found))

        def keep(place: int, answer: Answer) -> None:
            number = waiting[place]
            found[number] = answer.text
            self._keep(kind, requests[number], answer.text)

        generate(
            self.loaded,
            [asked[number] for number in waiting],
            batch_size=self._rows,
            on_progress=lambda done, *_: self._advance(done),
            on_answer=keep,
        )
        self._end()
        return [found[number] for number in range(len(requests))]

    def _keep(self, kind: str, request: Any, response: Any) -> None:
        self.cache_hook.add_partial(kind, request.args, response)
        self.journal.keep(kind, request, response)

    def _begin(self, task: str, total: int, known: int) -> None:
        if self.watch is not None:
            if known:
                self.watch.note(f"{known} requests were answered before; the rest follows")
            self.watch.begin(task, total, "requests")

    def _advance(self, done: int) -> None:
        if self.watch is not None:
            self.watch.advance(done)

    def _end(self) -> None:
        if self.watch is not None:
            self.watch.end()


def _present(device: str | None) -> str:
    """Return the device asked for; "auto" for a CUDA device that is not there, which the harness asks for unbidden."""
    return "auto" if device is None or (device.startswith("cuda") and not torch.cuda.is_available()) else device


def _request(context: str, options: dict[str, Any], longest: int | None = None) -> Request:
    temperature = options.get("temperature")
    if options.get("do_sample") and (temperature is None or float(temperature) > 0):
        raise ConfigError(
            "this task samples its answers; regrow decodes greedily", hint="choose a task without sampling"
        )
    until = options.get("until") or []
    named = (options.get(name) for name in ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens"))
    most = next((each for each in named if each), DEFAULT_NEW_TOKENS)
    stops = [until] if isinstance(until, str) else until
    return Request(context, int(most), stop_texts=tuple(stop for stop in stops if stop), longest=longest)
