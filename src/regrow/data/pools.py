"""Healing pools: prompts with the answers a model is to learn, kept as a folder that is whole or absent.

A pool folder holds ``examples.jsonl`` (one JSON object a line: ``id``, ``prompt``, ``response``) and ``pool.json``, the
card: how many examples there are, how many were dropped and why, where they come from, and the fingerprint of the
lines. A folder with ``examples.jsonl`` alone, written by hand, is a pool too; it is named after the folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from regrow.data.chat import end_of_turn_of, tokenise_prompt
from regrow.errors import DataError, ModelError
from regrow.records.atomic import new_folder, write_json, write_text
from regrow.records.fingerprint import fingerprint

EXAMPLES = "examples.jsonl"
CARD = "pool.json"
SCHEMA_VERSION = 1
NO_RESPONSE = "no response"
TOO_LONG = "longer than {tokens} tokens"

_KEYS = {"id", "prompt", "response"}


@dataclass(frozen=True)
class Example:
    """One training sequence. ``prompt`` is the rendered chat up to where the answer begins, ``response`` the answer.

    ``prompt_ids`` and ``response_ids`` (the end token last) are empty until :func:`tokenise` has filled them.
    """

    pool: str
    example_id: str
    prompt: str
    response: str
    prompt_ids: tuple[int, ...] = ()
    response_ids: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        """Number of tokens that the example costs of a budget: prompt, response and end token."""
        return len(self.prompt_ids) + len(self.response_ids)


@dataclass(frozen=True)
class Pool:
    """Examples of one kind. ``dropped`` counts what was left out on the way here, by reason; ``source`` and ``licence``
    say in words where the prompts come from and who wrote the answers. ``teacher`` (as it was named) and the hash of
    its weights say which model answered, "" when unknown; ``asked`` is how many examples were wanted, None when that
    is unknown."""

    name: str
    examples: tuple[Example, ...]
    dropped: Mapping[str, int] = field(default_factory=dict)
    source: str = ""
    licence: str = ""
    teacher: str = ""
    teacher_weights_sha256: str = ""
    asked: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "examples", tuple(self.examples))

    @property
    def fingerprint(self) -> str:
        """The sha256 (hex) of the name and the texts in their order."""
        return fingerprint([self.name, [[entry.example_id, entry.prompt, entry.response] for entry in self.examples]])


def save_pool(pool: Pool, folder: Path) -> Path:
    """Return ``folder`` after writing the pool there, whole or not at all. Raises StudyError when it is in use."""
    with new_folder(folder) as beside:
        rows = ({"id": entry.example_id, "prompt": entry.prompt, "response": entry.response} for entry in pool.examples)
        write_text(beside / EXAMPLES, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        card = {
            "schema_version": SCHEMA_VERSION,
            "name": pool.name,
            "examples": len(pool.examples),
            "dropped": dict(pool.dropped),
            "source": pool.source,
            "licence": pool.licence,
            "teacher": pool.teacher,
            "teacher_weights_sha256": pool.teacher_weights_sha256,
            "asked": pool.asked,
            "fingerprint": pool.fingerprint,
        }
        write_json(beside / CARD, card)
    return folder


def load_pool(folder: Path) -> Pool:
    """Return the pool in ``folder``. Raises DataError naming the file and the line of the first fault, or when the
    examples are not those that the card was written for."""
    file = folder / EXAMPLES
    if not file.is_file():
        raise DataError(f"'{folder}' holds no pool (no {EXAMPLES})", hint="pass a folder that holds one pool")
    card = _read_card(folder / CARD)
    name = str(card.get("name", folder.name))
    pool = Pool(
        name,
        tuple(_read_examples(file, name)),
        dropped=dict(card.get("dropped", {})),
        source=str(card.get("source", "")),
        licence=str(card.get("licence", "")),
        teacher=str(card.get("teacher", "")),
        teacher_weights_sha256=str(card.get("teacher_weights_sha256", "")),
        asked=card["asked"] if isinstance(card.get("asked"), int) else None,
    )
    if card and card.get("fingerprint") != pool.fingerprint:
        raise DataError(
            f"the examples in '{file}' are not those that {CARD} beside it describes",
            hint=f"delete '{folder / CARD}' to use the file as it is, or make the pool again",
        )
    return pool


def load_pools(folder: Path) -> dict[str, Pool]:
    """Return the pools in the subfolders of ``folder`` by name, sorted. Raises DataError when there are none."""
    places = sorted(path.parent for path in folder.glob(f"*/{EXAMPLES}") if not path.parent.name.startswith("."))
    if not places:
        raise DataError(f"'{folder}' holds no pools", hint=f"expected: {folder}/POOL/{EXAMPLES}")
    return by_name(load_pool(place) for place in places)


def by_name(pools: Mapping[str, Pool] | Iterable[Pool]) -> dict[str, Pool]:
    """Return pools by their own name, sorted by it. Raises DataError when two have the same."""
    found: dict[str, Pool] = {}
    for pool in pools.values() if isinstance(pools, Mapping) else pools:
        if pool.name in found:
            raise DataError(f"two pools are called '{pool.name}'", hint="give each pool its own name")
        found[pool.name] = pool
    return dict(sorted(found.items()))


def tokenise(pool: Pool, tokenizer: Any, max_sequence_tokens: int) -> Pool:
    """Return the pool with token ids, without the examples that are longer than the window or have no response.

    Those are counted in ``dropped``; nothing is cut short. The response ends with the token that ends an answer of the
    chat template, or the tokenizer's end of text where the template has none.
    """
    end = end_of_turn_of(tokenizer)
    end = tokenizer.eos_token_id if end is None else end
    if end is None:
        raise ModelError(
            "the tokenizer has no end token, so a model could not learn where an answer ends",
            hint="set eos_token in the checkpoint's tokenizer_config.json",
        )
    responses = _encode(tokenizer, [entry.response for entry in pool.examples])
    kept: list[Example] = []
    dropped = dict(pool.dropped)
    for entry, response in zip(pool.examples, responses, strict=True):
        reason = ""
        if not response:
            reason = NO_RESPONSE
        else:
            prompt = tokenise_prompt(tokenizer, entry.prompt)
            if len(prompt) + len(response) + 1 > max_sequence_tokens:
                reason = TOO_LONG.format(tokens=max_sequence_tokens)
        if reason:
            dropped[reason] = dropped.get(reason, 0) + 1
        else:
            kept.append(replace(entry, prompt_ids=tuple(prompt), response_ids=(*response, end)))
    return replace(pool, examples=tuple(kept), dropped=dropped)


def _encode(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    return [list(ids) for ids in tokenizer(texts, add_special_tokens=False).input_ids] if texts else []


def _read_card(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        card = json.loads(file.read_text("utf-8"))
        if not isinstance(card, dict) or not isinstance(card.get("dropped", {}), dict):
            raise ValueError("not a pool card")
        return card
    except (OSError, ValueError) as error:
        raise DataError(
            f"'{file}' is not readable: {error}", hint="delete it to use the examples as they are"
        ) from error


def _read_examples(file: Path, name: str) -> Iterable[Example]:
    seen: dict[str, int] = {}
    try:
        # Not splitlines: a response may hold separators that end a line for Python but not for JSON Lines.
        lines = file.read_bytes().decode("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"'{file}' cannot be read: {error}", hint="the file must be UTF-8 text") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"line {number} of '{file}'"
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DataError(f"{where} is not JSON: {error}", hint="correct or delete the line") from error
        if not isinstance(row, dict) or not row.keys() >= _KEYS or not all(isinstance(row[key], str) for key in _KEYS):
            raise DataError(
                f"{where} must hold texts under {', '.join(sorted(_KEYS))}", hint="correct or delete the line"
            )
        if row["id"] in seen:
            raise DataError(f"{where} has the id of line {seen[row['id']]}: {row['id']!r}", hint="ids must differ")
        seen[row["id"]] = number
        yield Example(name, row["id"], row["prompt"], row["response"])
