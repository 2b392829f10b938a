"""Chats as the exact text a model reads, and that text as token ids.

A tokenizer's own chat template is used where it has one. Where it has none, every turn is written as::

    ### User:
    text of the turn

    ### Assistant:
    text of the answer

with "System", "User" or "Assistant" for the role and one blank line between turns; a prompt ends after the line
"### Assistant:". The headings end with a line break, so that no token spans the border between prompt and answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from jinja2 import TemplateError

from regrow.errors import DataError
from regrow.protocols import Message

ChatFormat = Literal["tokenizer's own", "fallback"]

_HEADINGS = {"system": "### System:", "user": "### User:", "assistant": "### Assistant:"}


def chat_format_of(tokenizer: Any) -> ChatFormat:
    """Return "tokenizer's own" when the tokenizer has a chat template, else "fallback" (see the module's docstring)."""
    return "tokenizer's own" if getattr(tokenizer, "chat_template", None) else "fallback"


def render_chat(tokenizer: Any, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
    """Return the chat as one text, ending where the assistant is to write when ``add_generation_prompt``.

    A template that rejects or drops a system turn gets its text at the head of the first user turn. Templates run in
    transformers' sandbox. Raises DataError when a message is not a role and a text, or the template is broken.
    """
    turns = [_checked(message) for message in messages]
    if not turns:
        raise DataError("a chat without messages cannot be rendered", hint="give at least one user turn")
    if chat_format_of(tokenizer) == "fallback":
        return _fallback(turns, add_generation_prompt)
    has_system = turns[0]["role"] == "system"
    try:
        text = _own(tokenizer, turns, add_generation_prompt)
        if not has_system or turns[0]["content"].strip() in text:
            return text
    except Exception as error:
        # A template is a program of the checkpoint's author: any exception may come out of it.
        if not has_system:
            raise _broken(error) from error
    try:
        return _own(tokenizer, _system_folded(turns), add_generation_prompt)
    except Exception as error:
        raise _broken(error) from error


def tokenise_prompt(tokenizer: Any, prompt: str) -> list[int]:
    """Return the token ids of a rendered chat.

    The template has written the special tokens that it wants, so none is added; only where the tokenizer puts a BOS
    before every text (see :func:`bos_by_convention`) and the rendered text does not begin with it, it is put there.
    """
    ids = list(tokenizer(prompt, add_special_tokens=False).input_ids)
    bos = bos_by_convention(tokenizer)
    return ids if bos is None or ids[:1] == [bos] else [bos, *ids]


def bos_by_convention(tokenizer: Any) -> int | None:
    """Return the id that the tokenizer puts before every text, None when it puts none there."""
    bos = tokenizer.bos_token_id
    if bos is None:
        return None
    return bos if list(tokenizer("a").input_ids)[:1] == [bos] else None


def end_of_turn_of(tokenizer: Any) -> int | None:
    """Return the special token that the tokenizer's own template puts after an answer, None when there is none."""
    if chat_format_of(tokenizer) == "fallback":
        return None
    marker = "zq"
    chat: list[Message] = [{"role": "user", "content": "a"}, {"role": "assistant", "content": marker}]
    try:
        tail = render_chat(tokenizer, chat, add_generation_prompt=False).rpartition(marker)[2]
    except DataError:
        # Some templates want their own first turn; what they say about the end of an answer is then unknown.
        return None
    after = list(tokenizer(tail.lstrip(), add_special_tokens=False).input_ids) if tail.strip() else []
    return after[0] if after and after[0] in special_ids(tokenizer) else None


def stop_texts_of(tokenizer: Any) -> tuple[str, ...]:
    """Return the texts at which an answer is over although no end token came: the headings of the fallback format."""
    if chat_format_of(tokenizer) == "tokenizer's own":
        return ()
    return tuple("\n" + heading for heading in _HEADINGS.values())


def special_ids(tokenizer: Any) -> set[int]:
    """Return the ids that ``decode(..., skip_special_tokens=True)`` leaves out."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return {*tokenizer.all_special_ids, *(index for index, token in added.items() if token.special)}


def _own(tokenizer: Any, turns: Sequence[Message], add_generation_prompt: bool) -> str:
    text = tokenizer.apply_chat_template(list(turns), tokenize=False, add_generation_prompt=add_generation_prompt)
    if not isinstance(text, str):
        raise TemplateError(f"it gave {type(text).__name__} instead of text")
    return text


def _fallback(turns: Sequence[Message], add_generation_prompt: bool) -> str:
    written = [f"{_HEADINGS[turn['role']]}\n{turn['content']}" for turn in turns]
    if add_generation_prompt:
        written.append(_HEADINGS["assistant"] + "\n")
    return "\n\n".join(written)


def _system_folded(turns: Sequence[Message]) -> list[Message]:
    system, rest = turns[0]["content"], [dict(turn) for turn in turns[1:]]
    first = next((turn for turn in rest if turn["role"] == "user"), None)
    if first is None:
        return [{"role": "user", "content": system}, *rest]
    first["content"] = f"{system}\n\n{first['content']}"
    return rest


def _checked(message: Message) -> Message:
    role, content = message.get("role"), message.get("content")
    if role not in _HEADINGS or not isinstance(content, str):
        raise DataError(
            f"not a chat message: {message!r}",
            hint=f"a message is {{'role': one of {', '.join(_HEADINGS)}, 'content': text}}",
        )
    return {"role": role, "content": content}


def _broken(error: Exception) -> DataError:
    said = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return DataError(
        f"the tokenizer's chat template cannot render this chat: {said}",
        hint="correct chat_template.jinja (or chat_template in tokenizer_config.json) in the checkpoint's folder, "
        "or delete it to use regrow's fallback format",
    )
