"""Plain text and what may follow it, tokenised as lm-evaluation-harness does, so that likelihoods agree with it.

Its conventions differ from a chat's: the tokenizer's own special tokens are added; blanks at the end of a context count
to the continuation; the border between the two lies where the context alone ends, even where a token of the whole text
spans it; a text longer than the context window loses its beginning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from regrow.capabilities.likelihood import LongerThanContextError, Question, score_questions
from regrow.capabilities.model_call import context_limit
from regrow.errors import DataError
from regrow.models.load import LoadedModel

FALLBACK_LIMIT = 2048
"""Tokens of a text where neither the model nor the tokenizer says how many it was made for."""


def window_of(loaded: LoadedModel) -> int:
    """Return the number of tokens of a full window: the model's positions, else the tokenizer's limit."""
    limit = context_limit(loaded.model)
    if limit is not None:
        return limit
    named = getattr(loaded.tokenizer, "model_max_length", None)
    return int(named) if isinstance(named, int) and named < 10**9 else FALLBACK_LIMIT


def prefix_id_of(tokenizer: Any) -> int:
    """Return the token that stands before a text with no context: BOS, else the end of text."""
    found = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    if found is None:
        raise DataError(
            "the tokenizer has neither a BOS nor an end token, so the first token of a text has nothing to follow",
            hint="set bos_token or eos_token in the checkpoint's tokenizer_config.json",
        )
    return int(found)


def encode(tokenizer: Any, text: str) -> list[int]:
    """Return the ids of a text with the special tokens that the tokenizer adds of itself, the BOS never twice."""
    begun = text.startswith(tokenizer.decode([prefix_id_of(tokenizer)]))
    return list(tokenizer(text, add_special_tokens=not begun, verbose=False).input_ids)


def continuation_of(loaded: LoadedModel, context: str, texts: Sequence[str]) -> Question:
    """Return the question which of ``texts`` follows ``context``. Raises DataError for a text without a token."""
    tokenizer = loaded.tokenizer
    blanks = context[len(context.rstrip()) :]
    bare = context.rstrip()
    if bare:
        before = encode(tokenizer, bare)
        after = [encode(tokenizer, bare + blanks + text)[len(before) :] for text in texts]
    else:
        before = [prefix_id_of(tokenizer)]
        after = [list(tokenizer(blanks + text, add_special_tokens=False).input_ids) for text in texts]
        # A text that brings the token itself is not given it a second time.
        after = [ids[1:] if ids[:1] == before and len(ids) > 1 else ids for ids in after]
    if any(not ids for ids in after):
        raise DataError(f"a continuation of {context[-60:]!r} has no token of its own", hint="give it some text")
    room = window_of(loaded) + 1 - max(map(len, after))
    if room < 1:
        raise LongerThanContextError(
            f"a continuation has {max(map(len, after))} tokens, the model's context holds {window_of(loaded)}",
            hint="use a model with a longer context",
        )
    return Question(tuple(before[-room:]), tuple(tuple(ids) for ids in after), tuple(len(text) for text in texts))


def windows_of(ids: Sequence[int], prefix: int, longest: int) -> Iterator[Question]:
    """Yield the windows in which a long text is predicted, each of its tokens once, with as much context as fits.

    The first window begins with ``prefix``; the last one looks back over tokens that were predicted before, so that it
    is full.
    """
    done = 0
    while done < len(ids):
        new = min(longest, len(ids) - done)
        end = done + new
        context = [prefix, *ids[: end - new]][-(longest - new + 1) :] if done else [prefix]
        yield Question(tuple(context), (tuple(ids[done:end]),), (0,))
        done = end


def text_logprob(loaded: LoadedModel, texts: Sequence[str], *, longest: int | None = None) -> list[tuple[float, int]]:
    """Return, for every text, the log-probability (nats) of all of it and the number of its tokens."""
    width = longest or window_of(loaded)
    prefix = prefix_id_of(loaded.tokenizer)
    questions: list[Question] = []
    owner: list[int] = []
    for number, text in enumerate(texts):
        for window in windows_of(encode(loaded.tokenizer, text), prefix, width):
            questions.append(window)
            owner.append(number)
    totals = [(0.0, 0)] * len(texts)
    for number, (score,) in zip(owner, score_questions(loaded, questions, reuse=False), strict=True):
        total, tokens = totals[number]
        totals[number] = (total + score.logprob, tokens + score.tokens)
    return totals
