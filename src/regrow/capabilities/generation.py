"""Greedy answers to many prompts, fast: common prefixes run once, decided rows leave, new ones take their place.

Prompts are grouped by the tokens that they begin with (prefix_groups.py). Within a group the longest start first; all
rows of a batch are continued by one model call, by a token each or by more where the text so far suggests what comes
next (prompt_lookup.py); a row leaves at an end token, at its length, or as soon as its grade is decided; freed places
are filled from the queue. The answers are those of full greedy decoding.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from regrow.capabilities.decoding_way import Way, choose_way, engine_of, rows_that_fit
from regrow.capabilities.growing_text import GrowingText, decode
from regrow.capabilities.model_call import ModelCall, context_limit, end_ids, evaluation_mode, out_of_memory
from regrow.capabilities.plain_generation import generate_plainly
from regrow.capabilities.prefix_groups import group_by_prefix
from regrow.capabilities.prompt_lookup import PromptLookup, worthwhile_chance
from regrow.data.chat import tokenise_prompt
from regrow.errors import ConfigError, DataError, ModelError
from regrow.models.load import LoadedModel

Stop = Literal["decided", "eos", "length"]
OnProgress = Callable[[int, int, float], None]
"""Called with answers finished, answers wanted, and tokens generated per second so far."""
OnAnswer = Callable[[int, "Answer"], None]
"""Called with the number of a request and its answer."""

REFILL_SHARE = 8
"""Places are filled when one in so many is free. Opening one row at a time repeats the reading of all weights for each
(10 % of its cost on SmolLM2-135M); waiting for many makes the steps in between as dear for fewer rows."""

_PROGRESS_SECONDS = 0.5


@dataclass(frozen=True)
class Request:
    """One prompt, already rendered as the model reads it (data.chat.render_chat).

    ``decided(text)`` may return True only when no continuation of the answer ``text`` changes what is asked of it.
    ``stop_texts`` end an answer and are cut off (data.chat.stop_texts_of); one that is a special token of the tokenizer
    ends it too. ``longest`` is the most that prompt and answer may have together, in tokens: a longer prompt loses its
    beginning. Without it, a prompt that fills the model's context is refused.
    """

    prompt: str
    max_new_tokens: int
    decided: Callable[[str], bool] | None = None
    stop_texts: tuple[str, ...] = ()
    longest: int | None = None


@dataclass(frozen=True)
class Answer:
    """What the model wrote: ``text`` and ``token_ids`` without the end token.

    ``generated_tokens`` counts the end token. ``seconds`` is this row's share of the time of every call it was part of.
    ``stopped``: "decided" (grade settled), "eos" (end token or stop text), "length" (max_new_tokens or the model's
    context reached).
    """

    text: str
    prompt_tokens: int
    generated_tokens: int
    seconds: float
    stopped: Stop
    token_ids: tuple[int, ...] = ()


class _Row:
    """A request on its way: takes tokens until it knows that it is done."""

    def __init__(
        self, number: int, request: Request, ids: list[int], budget: int, tokenizer: Any, *, fast_stop: bool
    ) -> None:
        self.number, self.request, self.ids, self.budget = number, request, ids, budget
        self.ends: frozenset[int] = frozenset()
        """Ids that end this answer, beyond those that end every one."""
        self.told = False
        self.tokenizer = tokenizer
        self.decided = request.decided if fast_stop else None
        self.restart()

    def restart(self) -> None:
        self.new: list[int] = []
        self.seconds = 0.0
        self.stopped: Stop | None = None
        self.cut: int | None = None
        watched = self.decided is not None or self.request.stop_texts
        self.text = GrowingText(self.tokenizer) if watched else None
        self.lookup: PromptLookup | None = None

    def draft(self, least_chance: float) -> list[int]:
        """Return tokens that may follow, fewer than the answer may still have (see PromptLookup.draft)."""
        if self.lookup is None:
            self.lookup = PromptLookup(self.ids)
        self.lookup.extend(self.new[len(self.lookup.ids) - len(self.ids) :])
        return self.lookup.draft(self.budget - len(self.new) - 1, least_chance)

    def take(self, token: int, ends: frozenset[int]) -> bool:
        """Add the next token; return True when the answer is complete."""
        self.new.append(token)
        if token in ends or token in self.ends:
            self.stopped = "eos"
        elif self.text is not None and self._stopped_by_text(self.text, token):
            pass
        elif len(self.new) >= self.budget:
            self.stopped = "length"
        return self.stopped is not None

    def _stopped_by_text(self, text: GrowingText, token: int) -> bool:
        text.add(token)
        found = [at for stop in self.request.stop_texts if (at := text.text.find(stop)) >= 0]
        if found:
            self.cut, self.stopped = min(found), "eos"
        elif self.decided is not None and self.decided(text.text):
            self.stopped = "decided"
        return self.stopped is not None

    def answer(self, ends: frozenset[int]) -> Answer:
        assert self.stopped is not None
        kept = self.new[:-1] if self.new[-1] in ends or self.new[-1] in self.ends else self.new
        return Answer(
            text=decode(self.tokenizer, kept)[: self.cut],
            prompt_tokens=len(self.ids),
            generated_tokens=len(self.new),
            seconds=self.seconds,
            stopped=self.stopped,
            token_ids=tuple(kept),
        )


def generate(
    loaded: LoadedModel,
    requests: Sequence[Request],
    *,
    batch_size: int = 32,
    fast_stop: bool = True,
    on_progress: OnProgress | None = None,
    on_answer: OnAnswer | None = None,
) -> list[Answer]:
    """Return the greedy answer to every request, in the order given; ``on_answer`` gets each as soon as it is there.

    With ``fast_stop`` off, ``Request.decided`` is never asked and every answer runs to its end. An answer stops at the
    number of positions that the model was made for. When memory does not suffice, the batch is halved and the
    unfinished rows start again. Raises DataError when a prompt is empty or fills the context, ConfigError for counts
    below one.

    The same answers come out for any ``batch_size`` and order in float32; in bfloat16 a tie within rounding may fall
    the other way, as in any batched decoding.
    """
    if batch_size < 1:
        raise ConfigError(f"the batch size is {batch_size}", hint="allowed: 1 or more")
    rows = _rows_of(loaded, requests, fast_stop)
    if not rows:
        return []
    call = ModelCall(loaded.model)
    ends = end_ids(loaded.model, loaded.tokenizer)
    clock = _Clock(len(rows), on_progress)
    if on_answer is not None:
        clock.on_done = lambda row: on_answer(row.number, row.answer(ends))
    with evaluation_mode(loaded.model):
        longest = max(rows, key=lambda row: len(row.ids) + row.budget)
        tokens = len(longest.ids) + longest.budget
        try:
            way = choose_way(call, longest.ids, tokens)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            raise _too_little(longest) from error
        _run_halving(call, way, rows, ends, min(batch_size, rows_that_fit(call, tokens)), clock)
    return [row.answer(ends) for row in rows]


def _rows_of(loaded: LoadedModel, requests: Sequence[Request], fast_stop: bool) -> list[_Row]:
    limit = context_limit(loaded.model)
    rows: list[_Row] = []
    ends: dict[tuple[str, ...], frozenset[int]] = {}
    for number, request in enumerate(requests):
        if request.max_new_tokens < 1:
            raise ConfigError(
                f"request {number} asks for {request.max_new_tokens} new tokens", hint="allowed: 1 or more"
            )
        ids = tokenise_prompt(loaded.tokenizer, request.prompt)
        if not ids:
            raise DataError(f"prompt {number} is empty", hint="every prompt needs at least one token")
        if request.longest is not None:
            if request.longest <= request.max_new_tokens:
                raise ConfigError(
                    f"request {number} asks for {request.max_new_tokens} new tokens where prompt and answer together "
                    f"may have {request.longest}",
                    hint=f"allowed: fewer than {request.longest} new tokens",
                )
            ids = ids[request.max_new_tokens - request.longest :]
        if limit is not None and len(ids) >= limit:
            raise DataError(
                f"prompt {number} has {len(ids)} tokens, the model's context holds {limit}",
                hint="use fewer or shorter worked examples, or a model with a longer context",
            )
        budget = request.max_new_tokens if limit is None else min(request.max_new_tokens, limit - len(ids))
        row = _Row(number, request, ids, budget, loaded.tokenizer, fast_stop=fast_stop)
        if request.stop_texts not in ends:
            ends[request.stop_texts] = _special_ids_of(loaded.tokenizer, request.stop_texts)
        row.ends = ends[request.stop_texts]
        rows.append(row)
    return rows


def _special_ids_of(tokenizer: Any, texts: Sequence[str]) -> frozenset[int]:
    """Return the ids of the tokens among ``texts`` that decoding leaves out, so that no text shows them."""
    if not texts:
        return frozenset()
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return frozenset(index for index, token in added.items() if token.special and token.content in texts)


class _Clock:
    """Time shared out to rows, and progress told."""

    def __init__(self, total: int, on_progress: OnProgress | None) -> None:
        self.total, self.on_progress = total, on_progress
        self.on_done: Callable[[_Row], None] = lambda row: None
        self.done = self.tokens = 0
        self.started = self.told = time.perf_counter()

    @contextmanager
    def shared_by(self, rows: Sequence[_Row]) -> Iterator[None]:
        """Charge the time of the block to ``rows`` in equal parts."""
        began = time.perf_counter()
        yield
        share = (time.perf_counter() - began) / len(rows)
        for row in rows:
            row.seconds += share

    def note(self, *, tokens: int, finished: Sequence[_Row]) -> None:
        self.tokens += tokens
        self.done += len(finished)
        for row in finished:
            row.told = True
            self.on_done(row)
        now = time.perf_counter()
        if self.on_progress is not None and (finished or now - self.told >= _PROGRESS_SECONDS):
            self.told = now
            self.on_progress(self.done, self.total, self.tokens / max(now - self.started, 1e-9))


def _run_halving(
    call: ModelCall, way: Way, rows: list[_Row], ends: frozenset[int], batch_size: int, clock: _Clock
) -> None:
    """Answer all rows; after an allocation failure go on with what is left and half the batch."""
    waiting = rows
    while waiting:
        batch_size = min(batch_size, len(waiting))
        try:
            if way == "none":
                return _run_plainly(call.model, waiting, ends, batch_size, clock)
            return _Batch(call, way, waiting, ends, batch_size, clock).run()
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            clock.note(tokens=0, finished=[row for row in waiting if row.stopped is not None and not row.told])
            waiting = [row for row in waiting if row.stopped is None]
            if batch_size == 1 and waiting:
                raise _too_little(waiting[0]) from error
        batch_size = max(1, batch_size // 2)
        for row in waiting:
            row.restart()


def _too_little(row: _Row) -> ModelError:
    return ModelError(
        f"not enough memory to answer one prompt of {len(row.ids)} tokens",
        hint="use a smaller dtype (--dtype bfloat16), shorter prompts or another device",
    )


class _Batch:
    """The live rows of an engine, the rows that wait, and who of them is next."""

    def __init__(
        self, call: ModelCall, way: Way, rows: list[_Row], ends: frozenset[int], most: int, clock: _Clock
    ) -> None:
        self.ends, self.most, self.clock = ends, most, clock
        groups = group_by_prefix([row.ids for row in rows])
        self.groups = deque(([rows[index] for index in group.members], group.shared) for group in groups)
        self.queue: deque[_Row] = deque()
        self.live: list[_Row] = []
        longest = max(
            len(row.ids) + row.budget - (shared if way == "ragged" else 0)
            for members, shared in self.groups
            for row in members
        )
        self.engine = engine_of(call, way, most=most, longest=longest)

    def run(self) -> None:
        with self.engine:
            while self.queue or self.groups or self.live:
                free = self.most - len(self.live)
                if (self.queue or self.groups) and free >= max(1, self.most // REFILL_SHARE):
                    self._fill(free)
                else:
                    self._step()

    def _fill(self, free: int) -> None:
        if not self.queue:
            members, shared = self.groups.popleft()
            self.queue.extend(members)
            with self.clock.shared_by(members):
                self.prefix = self.engine.run_prefix(members[0].ids[:shared])
        new = [self.queue.popleft() for _ in range(min(free, len(self.queue)))]
        self.live += new
        with self.clock.shared_by(new):
            best = self.engine.open(self.prefix, [row.ids for row in new]).argmax(-1).tolist()
            finished = self._remove([row for row, token in zip(new, best, strict=True) if row.take(token, self.ends)])
        self.clock.note(tokens=len(new), finished=finished)

    def _step(self) -> None:
        rows = list(self.live)
        with self.clock.shared_by(rows):
            chance = worthwhile_chance(len(rows))
            given = [[row.new[-1], *(row.draft(chance) if self.engine.drafts else ())] for row in rows]
            best = self.engine.step(given).argmax(-1).tolist()
            taken = [
                self._take(row, tokens, [best[place] for place in places])
                for row, tokens, places in zip(rows, given, self.engine.places, strict=True)
            ]
            self.engine.keep(taken)
            finished = self._remove([row for row in rows if row.stopped is not None])
        self.clock.note(tokens=sum(taken), finished=finished)

    def _take(self, row: _Row, given: list[int], best: list[int]) -> int:
        """Give a row the likeliest token after each one it was given, as long as those are right; return how many."""
        taken = 0
        for token in best:
            taken += 1
            if row.take(token, self.ends) or given[taken : taken + 1] != [token]:
                break
        return taken

    def _remove(self, finished: list[_Row]) -> list[_Row]:
        for row in reversed(finished):
            for to, origin in self.engine.drop(self.live.index(row)):
                self.live[to] = self.live[origin]
            self.live.pop()
        return finished


def _run_plainly(model: Any, rows: list[_Row], ends: frozenset[int], batch_size: int, clock: _Clock) -> None:
    """Answer through transformers, in batches of equal length: padding would enter a recurrent state."""
    by_length: dict[int, list[_Row]] = {}
    for row in sorted(rows, key=lambda row: -len(row.ids)):
        by_length.setdefault(len(row.ids), []).append(row)
    for alike in by_length.values():
        for begin in range(0, len(alike), batch_size):
            batch = alike[begin : begin + batch_size]
            with clock.shared_by(batch):
                budget = max(row.budget for row in batch)
                prompts = [row.ids for row in batch]
                written = generate_plainly(model, prompts, max_new_tokens=budget, end_ids=ends)
                for row, tokens in zip(batch, written, strict=True):
                    any(row.take(token, ends) for token in tokens)
            clock.note(tokens=sum(len(row.new) for row in batch), finished=batch)
