"""Prompts for the healing pools: read, cleaned, kept apart from each other and from everything that is evaluated."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from regrow.capabilities import benchmarks, schema_check
from regrow.capabilities.benchmarks.math import asked as asked_math
from regrow.capabilities.benchmarks.math import checked as checked_math
from regrow.capabilities.benchmarks.structured_output import INSTRUCTION as SCHEMA_INSTRUCTION
from regrow.capabilities.benchmarks.subsets import content_id
from regrow.capabilities.benchmarks.tools import as_json_schema, with_tools
from regrow.capabilities.pool_prompts import Prompts
from regrow.capabilities.pools.ten_constraints import constraint_for
from regrow.capabilities.pools.tool_sources import Request, glaive, seal_tools
from regrow.data.catalogue import data_set
from regrow.data.overlap import RUN, normalised_words, word_runs
from regrow.data.rows import Rows, local_files, read_part, read_rows
from regrow.protocols import Item, Message
from regrow.seeding import derive_seed

PROMPTS = 1300
"""Prompts of a pool."""

SEED = 0

EMPTY = "no text"
TWICE = "the same prompt twice"
EVALUATED = "the text of an evaluation item"
SHARED = f"shares {RUN} words in a row with an evaluation item"
NO_SCHEMA = "parameters are no usable JSON Schema"


@dataclass(frozen=True)
class _Candidate:
    """A prompt before it is let in. ``text`` is what the source wrote, without the words that regrow puts around it."""

    text: str
    messages: tuple[Message, ...]
    gold: Any


class Sources:
    """The sources of all pools, each read once. No prompt is in two pools."""

    def __init__(self, data: Path | None) -> None:
        self._data = data
        self._taken: set[str] = set()

    def structured_output(self) -> Prompts:
        """JSON instances for the parameters of tools."""

        def candidates() -> Iterator[_Candidate | str]:
            for function in _distinct_functions(self._tool_requests[0]):
                schema = as_json_schema(function["parameters"])
                if not schema.get("properties") or schema_check.schema_fault(schema):
                    yield NO_SCHEMA
                    continue
                text = json.dumps(
                    {"title": function["name"], "description": function.get("description", ""), **schema},
                    ensure_ascii=False,
                )
                chat = ({"role": "user", "content": SCHEMA_INSTRUCTION.format(schema=text)},)
                yield _Candidate(text, chat, {"schema": schema})

        return self._made("structured_output", candidates(), *self._tool_requests[1:])

    def function_calling(self) -> Prompts:
        """Requests that one call of an offered tool answers."""
        candidates = (
            _Candidate(
                request.text, with_tools(request.functions, request.text), {"functions": list(request.functions)}
            )
            for request in self._tool_requests[0]
            if request.text
        )
        return self._made("function_calling", candidates, *self._tool_requests[1:])

    def instruction_following(self) -> Prompts:
        """Alpaca instructions, each with one of ten verifiable constraints."""

        def candidates() -> Iterator[_Candidate | str]:
            for text in self._alpaca_share(0):
                sentence, constraint = constraint_for(content_id("alpaca", text))
                yield _Candidate(
                    text, ({"role": "user", "content": f"{text}\n\n{sentence}"},), {"constraints": [constraint]}
                )

        return self._made("instruction_following", candidates(), *self._alpaca_origin)

    def math(self) -> Prompts:
        """GSM8K's train split."""
        read = checked_math(read_part(data_set("gsm8k"), "train", self._data))
        candidates = (
            _Candidate(str(row["question"]), asked_math(str(row["question"])), {"answer": row["answer"]})
            for row in read.rows
        )
        return self._made("math", candidates, f"GSM8K train ({read.origin})", read.licence)

    def safety(self) -> Prompts:
        """Harmful prompts of PKU-SafeRLHF, mixed with as many benign ones of Alpaca."""
        read = read_part(data_set("pku_saferlhf_prompt"), "train", self._data)

        def one(text: str, kind: str) -> _Candidate:
            return _Candidate(text, ({"role": "user", "content": text},), {"kind": kind})

        harmful = _in_drawn_order([str(row["prompt"] or "").strip() for row in read.rows if _harmful(row)], "pku")
        benign = self._alpaca_share(1)
        pairs = (one(text, kind) for both in zip(harmful, benign) for text, kind in zip(both, ("unsafe", "benign")))
        source, licence = self._alpaca_origin
        return self._made(
            "safety",
            pairs,
            f"PKU-SafeRLHF prompts ({read.origin}) and {source}",
            f"{read.licence}; {licence}",
            drawn=False,
        )

    def general(self) -> Prompts:
        """Alpaca instructions as they are."""
        candidates = (_Candidate(text, ({"role": "user", "content": text},), None) for text in self._alpaca_share(2))
        return self._made("general", candidates, *self._alpaca_origin)

    def _made(
        self,
        pool: str,
        candidates: Iterable[_Candidate | str],
        source: str,
        licence: str,
        *,
        drawn: bool = True,
    ) -> Prompts:
        dropped: Counter[str] = Counter()
        good: list[_Candidate] = []
        for candidate in candidates:
            reason = candidate if isinstance(candidate, str) else ""
            if not isinstance(candidate, str):
                reason = "" if candidate.text.strip() else EMPTY
                if not reason:
                    good.append(candidate)
            if reason:
                dropped[reason] += 1
        if drawn:
            good.sort(key=lambda each: derive_seed(SEED, "pool order", pool, each.text))
        items: list[Item] = []
        for candidate in good:
            if len(items) == PROMPTS:
                break
            plain = " ".join(normalised_words(candidate.text))
            if plain in self._taken:
                dropped[TWICE] += 1
            elif plain in self._evaluated[0]:
                dropped[EVALUATED] += 1
            elif word_runs(candidate.text) & self._evaluated[1]:
                dropped[SHARED] += 1
            else:
                self._taken.add(plain)
                identity = content_id(f"pool-{pool}", list(candidate.messages))
                items.append(
                    Item(pool, identity, "heal", candidate.messages, candidate.gold, facts={"text": candidate.text})
                )
        return Prompts(tuple(items), source, licence, dict(dropped))

    @cached_property
    def _evaluated(self) -> tuple[set[str], set[str]]:
        """All texts of evaluation items, normalised, and all runs of 13 words in them."""
        texts: set[str] = set()
        runs: set[str] = set()
        for capability in benchmarks.capabilities(self._data):
            for split in ("dev", "test"):
                for item in capability.items(split):
                    texts.add(" ".join(normalised_words(item.facts["text"])))
                    runs |= word_runs(item.facts["text"])
        return texts, runs

    @cached_property
    def _tool_requests(self) -> tuple[list[Request], str, str]:
        read = read_part(data_set("glaive_toolcall"), "train", self._data)
        requests = list(glaive(read.rows))
        source, licence = f"glaive-function-calling-v2 ({read.origin})", read.licence
        substitute = data_set("seal_tools")
        files = {part: local_files(substitute, part, self._data) for part in substitute.parts}
        if len(_distinct_functions(requests)) < PROMPTS and all(files.values()):
            rows = {part: [row for file in found for row in read_rows(file)] for part, found in files.items()}
            queries = [row for part, found in rows.items() if part != "tool" for row in found]
            requests += seal_tools(queries, rows["tool"])
            source += f" and Seal-Tools ({files['tool'][0].parent})"
            licence += f"; Seal-Tools: {substitute.licence}"
        return requests, source, licence

    @cached_property
    def _alpaca(self) -> Rows:
        return read_part(data_set("alpaca"), "train", self._data)

    @property
    def _alpaca_origin(self) -> tuple[str, str]:
        return f"Alpaca instructions ({self._alpaca.origin})", self._alpaca.licence

    def _alpaca_share(self, number: int) -> list[str]:
        """Return every third instruction in drawn order, beginning with ``number``: what one of three pools may use."""
        return self._alpaca_texts[number::3]

    @cached_property
    def _alpaca_texts(self) -> list[str]:
        texts: dict[str, None] = {}
        for row in self._alpaca.rows:
            instruction, given = str(row.get("instruction") or "").strip(), str(row.get("input") or "").strip()
            if instruction and str(row.get("output") or "").strip():
                texts[f"{instruction}\n\n{given}" if given else instruction] = None
        return _in_drawn_order(list(texts), "alpaca")


def _harmful(row: dict[str, Any]) -> bool:
    """Return whether a prompt is a harmful one: where answers are judged, one of them must be unsafe."""
    judged = [row[name] for name in ("is_response_0_safe", "is_response_1_safe") if name in row]
    return not judged or not all(judged)


def _in_drawn_order(texts: Sequence[str], name: str) -> list[str]:
    return sorted(dict.fromkeys(texts), key=lambda text: derive_seed(SEED, "pool source", name, text))


def _distinct_functions(requests: Sequence[Request]) -> list[Any]:
    found: dict[str, Any] = {}
    for request in requests:
        for function in request.functions:
            found.setdefault(json.dumps(function, sort_keys=True), function)
    return list(found.values())
