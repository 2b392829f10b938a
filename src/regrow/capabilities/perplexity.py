"""Perplexity of a text: how surprised the model is by each token, window by window."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from regrow.capabilities.batch_engine import right_padded
from regrow.capabilities.model_call import ModelCall, context_limit, evaluation_mode
from regrow.capabilities.token_scores import HiddenStates
from regrow.data.chat import bos_by_convention
from regrow.errors import ConfigError, DataError
from regrow.models.load import LoadedModel

CAPABILITY = "perplexity"
"""The name under which windows are kept as items."""

_TOKENS_AT_ONCE = 2048


@dataclass(frozen=True)
class Window:
    """``negative_log_likelihood`` (nats) summed over the ``tokens`` predicted tokens of one window; ``ids`` are all its
    tokens, a BOS put before it included."""

    ids: tuple[int, ...]
    tokens: int
    negative_log_likelihood: float


@dataclass(frozen=True)
class Perplexity:
    """What a model makes of a text. ``words`` and ``text_tokens`` count the whole text, predicted or not."""

    windows: tuple[Window, ...]
    words: int
    text_tokens: int

    @property
    def tokens(self) -> int:
        """Number of predicted tokens."""
        return sum(window.tokens for window in self.windows)

    @property
    def mean(self) -> float:
        """Mean negative log-likelihood in nats per predicted token."""
        return math.fsum(window.negative_log_likelihood for window in self.windows) / self.tokens

    @property
    def per_token(self) -> float:
        """exp of the mean negative log-likelihood per predicted token."""
        return math.exp(self.mean)

    @property
    def per_word(self) -> float:
        """exp of the text's negative log-likelihood per word (run of characters that are not white space).

        The tokens that begin windows without a BOS are not predicted; each is taken to cost the mean of the others.
        """
        return math.exp(self.mean * self.text_tokens / self.words)


def perplexity_of(
    loaded: LoadedModel,
    text: str,
    *,
    window_tokens: int = 512,
    on_progress: Callable[[int, int], None] | None = None,
) -> Perplexity:
    """Return the perplexity of ``text``, measured on windows that do not overlap.

    The text is tokenised as a whole, without special tokens, and cut into windows of ``window_tokens`` tokens; the last
    one is shorter, and left out when nothing in it would be predicted. Where the tokenizer puts a BOS before every
    text, each window begins with one, which takes the place of a text token, and every text token is predicted.
    Otherwise the first token of a window is context only. ``on_progress`` gets the windows done and wanted.

    Raises ConfigError for windows longer than the model's context, DataError for a text too short to predict anything.
    """
    limit = context_limit(loaded.model)
    if window_tokens < 2 or (limit is not None and window_tokens > limit):
        raise ConfigError(
            f"a window of {window_tokens} tokens cannot be used with this model",
            hint=f"allowed: 2 to {limit if limit is not None else 'the length of its context'}",
        )
    ids = list(loaded.tokenizer(text, add_special_tokens=False, verbose=False).input_ids)
    bos = bos_by_convention(loaded.tokenizer)
    front = [] if bos is None else [bos]
    step = window_tokens - len(front)
    windows = [front + ids[begin : begin + step] for begin in range(0, len(ids), step)]
    windows = [window for window in windows if len(window) > 1]
    if not windows:
        raise DataError("the text is too short to predict a token of it", hint="give a text of at least two tokens")
    done: list[Window] = []
    call = ModelCall(loaded.model)
    hidden = HiddenStates(loaded.model)
    at_once = max(1, _TOKENS_AT_ONCE // window_tokens)
    with evaluation_mode(loaded.model), hidden.watched():
        for begin in range(0, len(windows), at_once):
            done += _score(call, hidden, windows[begin : begin + at_once])
            if on_progress is not None:
                on_progress(len(done), len(windows))
    return Perplexity(tuple(done), words=len(text.split()), text_tokens=len(ids))


def _score(call: ModelCall, hidden: HiddenStates, windows: Sequence[list[int]]) -> list[Window]:
    call.last_logits(right_padded(windows, call.device), cache=None)
    found: list[Window] = []
    states_BTD = hidden.last
    for row, window in enumerate(windows):
        targets = torch.tensor(window[1:], device=call.device)
        values = hidden.logprobs(states_BTD[row, : len(window) - 1], targets)
        found.append(Window(tuple(window), len(targets), -float(values.double().sum())))
    return found
