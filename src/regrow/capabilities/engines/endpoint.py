"""Any server that speaks OpenAI's chat completions: vLLM, SGLang, llama.cpp, Ollama, LM Studio, TGI, hosted models."""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

from regrow.capabilities.engines.contract import Question
from regrow.capabilities.generation import Answer, OnAnswer, OnProgress
from regrow.capabilities.prompts import PLAIN
from regrow.errors import ConfigError, DataError, ModelError
from regrow.protocols import Item, Message

KEY_VARIABLE = "OPENAI_API_KEY"

_AGAIN = (408, 409, 425, 429, 500, 502, 503, 504)
_BUSY_SECONDS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)


class EndpointEngine:
    """Greedy answers over HTTP, ``batch_size`` requests at a time.

    ``url`` is the API's base (``http://localhost:8000/v1``), ``model`` the name it serves. A key is read from
    OPENAI_API_KEY, never written anywhere. Requests are repeated, with growing pauses, when the server is busy or the
    connection breaks. A server whose chat template rejects the system role gets the system text at the head of the
    first user turn instead. The server renders the prompts: that every checkpoint gets the same bytes is up to it.
    """

    name = "openai"

    def __init__(
        self, url: str, model: str, *, seconds: float = 600.0, pauses: Sequence[float] = _BUSY_SECONDS
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"'{url}' is not the address of an endpoint", hint="write http://HOST:PORT/v1")
        self.url, self.model = url.rstrip("/"), model
        self._seconds, self._pauses = seconds, tuple(pauses)
        self._fold_system = False

    def prompt_of(self, item: Item) -> str:
        """Return the messages as JSON. Raises DataError for a plain item, which a chat endpoint cannot continue."""
        if item.facts.get(PLAIN):
            raise DataError(
                f"{item.item_id} is text to be continued, not a chat", hint="measure it with --engine transformers"
            )
        return json.dumps(list(item.messages), ensure_ascii=False)

    def answer(
        self,
        questions: Sequence[Question],
        *,
        batch_size: int = 32,
        fast_stop: bool = True,
        on_progress: OnProgress | None = None,
        on_answer: OnAnswer | None = None,
    ) -> list[Answer]:
        """Return the answers. Raises ModelError when the server cannot be reached, refuses or answers nonsense."""
        if batch_size < 1:
            raise ConfigError(f"the batch size is {batch_size}", hint="allowed: 1 or more")
        found: dict[int, Answer] = {}
        began, tokens = time.perf_counter(), 0
        pool = ThreadPoolExecutor(max_workers=batch_size, thread_name_prefix="endpoint")
        open_: dict[Future[Answer], int] = {}
        waiting = list(enumerate(questions))[::-1]
        try:
            while waiting or open_:
                while waiting and len(open_) < batch_size:
                    number, question = waiting.pop()
                    open_[pool.submit(self._one, question)] = number
                for done in wait(open_, return_when=FIRST_COMPLETED).done:
                    number = open_.pop(done)
                    found[number] = done.result()
                    tokens += found[number].generated_tokens
                    if on_answer is not None:
                        on_answer(number, found[number])
                    if on_progress is not None:
                        on_progress(len(found), len(questions), tokens / max(time.perf_counter() - began, 1e-9))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        return [found[number] for number in range(len(questions))]

    def _one(self, question: Question) -> Answer:
        if question.max_new_tokens < 1:
            raise ConfigError(f"{question.max_new_tokens} new tokens are asked for", hint="allowed: 1 or more")
        self.prompt_of(question.item)
        began = time.perf_counter()
        reply = self._ask(question.item.messages, question.max_new_tokens)
        try:
            choice = reply["choices"][0]
            text = choice["message"].get("content") or ""
            usage = reply.get("usage") or {}
            length = choice.get("finish_reason") == "length"
            return Answer(
                text=str(text),
                prompt_tokens=int(usage.get("prompt_tokens") or 0),
                generated_tokens=int(usage.get("completion_tokens") or 0),
                seconds=time.perf_counter() - began,
                stopped="length" if length else "eos",
            )
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            raise ModelError(
                f"the endpoint '{self.url}' answered something that is no chat completion: {str(reply)[:200]}",
                hint="is this the base of an OpenAI-compatible API (…/v1)?",
            ) from error

    def _ask(self, messages: Sequence[Message], max_new_tokens: int) -> dict[str, Any]:
        has_system = bool(messages) and messages[0]["role"] == "system"
        folded = self._fold_system and has_system
        try:
            return self._post(folded_system(messages) if folded else list(messages), max_new_tokens)
        except _Refused as refusal:
            if not has_system or folded or refusal.status not in (400, 422, 500):
                raise refusal.as_error(self.url) from refusal
            try:
                reply = self._post(folded_system(messages), max_new_tokens)
            except _Refused:
                raise refusal.as_error(self.url) from refusal
            self._fold_system = True
            return reply

    def _post(self, messages: list[Message], max_new_tokens: int) -> dict[str, Any]:
        body = {
            "model": self.model,
            "messages": messages,
            "max_tokens": max_new_tokens,
            "temperature": 0.0,
            "stream": False,
        }
        headers = {"Content-Type": "application/json"}
        key = os.environ.get(KEY_VARIABLE)
        if key:
            headers["Authorization"] = f"Bearer {key}"
        request = urllib.request.Request(
            f"{self.url}/chat/completions", json.dumps(body).encode("utf-8"), headers, method="POST"
        )
        for pause in (*self._pauses, None):
            try:
                with urllib.request.urlopen(request, timeout=self._seconds) as response:
                    return _object(response.read(), self.url)
            except urllib.error.HTTPError as error:
                said = error.read().decode("utf-8", "replace")
                if error.code not in _AGAIN or pause is None or "template" in said.lower():
                    raise _Refused(error.code, said) from error
            except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
                if pause is None or isinstance(getattr(error, "reason", error), ConnectionRefusedError):
                    raise ModelError(
                        f"the endpoint '{self.url}' cannot be reached: {getattr(error, 'reason', error) or error!r}",
                        hint="start the server, or correct --endpoint",
                    ) from error
            time.sleep(pause)
        raise AssertionError("unreachable")


class _Refused(Exception):
    """The server said no."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(f"HTTP {status}")
        self.status, self.said = status, said

    def as_error(self, url: str) -> ModelError:
        hints = {
            401: f"set {KEY_VARIABLE}",
            403: f"set {KEY_VARIABLE} to a key with access to this model",
            404: "check --endpoint (it ends in /v1) and the model's name",
        }
        return ModelError(
            f"the endpoint '{url}' refused with HTTP {self.status}: {' '.join(self.said.split())[:300]}",
            hint=hints.get(self.status, "see the server's log"),
        )


def folded_system(messages: Sequence[Message]) -> list[Message]:
    """Return a chat with its system text at the head of the first user turn."""
    system, first, *rest = messages
    return [{"role": first["role"], "content": f"{system['content']}\n\n{first['content']}"}, *rest]


def _object(content: bytes, url: str) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except ValueError:
        found = content[:200]
    if not isinstance(found, dict):
        raise ModelError(
            f"the endpoint '{url}' answered something that is not JSON: {str(found)[:200]}",
            hint="is this the base of an OpenAI-compatible API (…/v1)?",
        )
    return found
