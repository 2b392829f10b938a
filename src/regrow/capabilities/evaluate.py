"""A model measured on a suite: every item graded, perplexity, and what it cost."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from regrow.capabilities.cost_meter import CostMeter, WallMeter
from regrow.capabilities.engines.contract import Engine, Question
from regrow.capabilities.engines.in_process import TransformersEngine
from regrow.capabilities.generation import Answer
from regrow.capabilities.likelihood import ChoiceScore, LongerThanContextError, score_questions
from regrow.capabilities.likelihood import Question as Weighed
from regrow.capabilities.model_call import context_limit
from regrow.capabilities.perplexity import CAPABILITY, Perplexity, Window, perplexity_of
from regrow.capabilities.prompts import questions_of
from regrow.capabilities.rates import rates_of
from regrow.data.chat import tokenise_prompt
from regrow.data.text import bundled_text
from regrow.errors import ConfigError, DataError, ModelError
from regrow.models.load import LoadedModel
from regrow.protocols import Capability, Grade, Item, Watcher
from regrow.records.fingerprint import fingerprint, text_fingerprint
from regrow.records.results import Cost, ItemScore, Measurement, Split
from regrow.records.specs import EvalSpec
from regrow.records.storable import storable, storable_values
from regrow.seeding import stream
from regrow.stats.intervals import perplexity_interval

WINDOW_TOKENS = 512
"""Tokens of a perplexity window (shorter where a model's context is)."""

PART_SECONDS = 20.0
"""Graded items are handed over at least this often, so that a killed run loses little."""


@dataclass(frozen=True)
class Evaluation:
    """``items``: one for every question, in the suite's order, then one for every perplexity window. A window is the
    item "window-0007" of the capability "perplexity", its score the mean negative log-likelihood (nats) of its
    predicted tokens and ``details["tokens"]`` their number, so that windows can be resampled without the model.
    ``details["question"]`` of the other items is the last turn of the chat.

    ``measurements``: "perplexity" (per token), its 95 % limits "perplexity_low" and "perplexity_high" from resampled
    windows, "word_perplexity" and "perplexity_tokens" (predicted); none of them when it was not asked for. Then the
    rates beside the scores, named "capability.rate" (:func:`regrow.capabilities.rates.rates_of`).
    """

    items: list[ItemScore]
    measurements: tuple[Measurement, ...]
    cost: Cost


@dataclass(frozen=True)
class Asked:
    """An item and the exact text that the model gets for it."""

    capability: Capability
    item: Item
    prompt: str

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.capability.name, self.item.item_id, text_fingerprint(self.prompt))


OnFinished = Callable[[list[ItemScore]], None]
"""Called with all items of a capability as soon as the last of them is graded."""

OnPart = Callable[[list[ItemScore]], None]
"""Called now and then with the items of one capability that are graded so far, in the suite's order."""


def evaluate(
    loaded: LoadedModel | None,
    suite: Sequence[Capability],
    spec: EvalSpec,
    *,
    engine: Engine | None = None,
    watch: Watcher | None = None,
    resume_from: Iterable[ItemScore] = (),
    on_finished: OnFinished | None = None,
    on_part: OnPart | None = None,
    text: str | None = None,
) -> Evaluation:
    """Return the graded items of every capability in ``suite``, the perplexity of ``text``, and the cost.

    ``text``: what perplexity is measured on (default: the bundled evaluation sample). Items in ``resume_from`` with the
    same capability, id and prompt text are taken over and not asked again. ``engine`` writes the answers (default:
    transformers, with ``loaded``). Without ``loaded`` nothing but answers can be measured: likelihoods and perplexity
    are refused, and the cost is wall time and tokens.

    The questions of all generative capabilities are answered as one stream, so that the few long answers of one do not
    leave the machine idle; likelihood capabilities follow, then perplexity. A question that does not fit the model's
    context scores 0, and ``details["fault"]`` says so. Raises DataError when two items of a capability have the same id
    or a prompt cannot be rendered, and ModelError when the model gives likelihoods that are no numbers.
    """
    split = cast(Split, spec.split)
    writer = engine or TransformersEngine(_needed(loaded))
    if loaded is None:
        _refuse_likelihoods(suite, spec, writer)
    known = {(score.capability, score.item_id, score.prompt_sha256): score for score in resume_from}
    asked = [entry for capability in suite for entry in _asked(writer, capability, spec, split)]
    found = _Found(asked, known, on_finished, on_part)
    with CostMeter(loaded.model) if loaded is not None else WallMeter() as meter:
        try:
            _answer(loaded, writer, found, spec, watch)
            if loaded is not None:
                _choose(loaded, found, spec, watch)
        finally:
            found.hand_over()
        windows: list[ItemScore] = []
        measurements: tuple[Measurement, ...] = ()
        if spec.perplexity and loaded is not None:
            windows, measurements = _perplexity(loaded, spec, split, watch, text)
            if on_finished is not None:
                on_finished(windows)
        items = [*found.scores(), *windows]
        measurements = (*measurements, *rates_of(suite, items))
        cost = meter.cost(
            prompt_tokens=sum(item.prompt_tokens for item in items),
            generated_tokens=sum(item.generated_tokens for item in items),
        )
    return Evaluation(items, measurements, cost)


def _needed(loaded: LoadedModel | None) -> LoadedModel:
    if loaded is None:
        raise ConfigError("there is neither a model nor an engine", hint="pass a loaded model or an engine")
    return loaded


def _refuse_likelihoods(suite: Sequence[Capability], spec: EvalSpec, engine: Engine) -> None:
    weighed = [capability.name for capability in suite if capability.kind == "likelihood"]
    if weighed:
        answered = [capability.name for capability in suite if capability.kind == "generative"]
        raise ConfigError(
            f"the engine '{engine.name}' writes answers only; {', '.join(weighed)} needs likelihoods of given texts",
            hint=f"measure what it can answer: --capabilities {','.join(answered) or 'math'}",
        )
    if spec.perplexity:
        raise ConfigError(
            f"the engine '{engine.name}' writes answers only and cannot measure perplexity",
            hint="leave perplexity out: --no-perplexity",
        )


def chosen_items(capability: Capability, split: Split, count: int | None, seed: int) -> list[Item]:
    """Return the items of a split that are asked, in the capability's order: all, or ``count`` drawn by ``seed``.

    The draw depends on the capability, the split and the seed alone, so every checkpoint gets the same items, and a
    larger count holds the items of a smaller one. Where gold names a ``kind`` (unsafe, benign), the kinds take turns,
    because a score that balances them needs both.
    """
    items = list(capability.items(split))
    ids = [item.item_id for item in items]
    if len(set(ids)) < len(ids):
        twice = next(name for name in ids if ids.count(name) > 1)
        raise DataError(
            f"the items of {capability.name} hold the id '{twice}' twice", hint="every item needs an id of its own"
        )
    if count is None or count >= len(items):
        return items
    drawn = stream(seed, "items", capability.name, split).permutation(len(items))
    return [items[index] for index in sorted(_kinds_in_turn(items, drawn)[:count])]


def _kinds_in_turn(items: Sequence[Item], drawn: np.ndarray) -> list[int]:
    queues: dict[Any, list[int]] = {}
    for index in drawn.tolist():
        gold = items[index].gold
        queues.setdefault(gold.get("kind") if isinstance(gold, dict) else None, []).append(index)
    place = {index: (turn, kind) for kind, queue in enumerate(queues.values()) for turn, index in enumerate(queue)}
    return sorted(place, key=place.__getitem__)


def _asked(engine: Engine, capability: Capability, spec: EvalSpec, split: Split) -> list[Asked]:
    return [
        Asked(capability, item, engine.prompt_of(item))
        for item in chosen_items(capability, split, spec.items, spec.seed)
    ]


class _Found:
    """Scores as they come in, in whatever order; tells of a capability when its last one is there, and of what there
    is of it every PART_SECONDS."""

    def __init__(
        self,
        asked: list[Asked],
        known: dict[tuple[str, str, str], ItemScore],
        on_finished: OnFinished | None,
        on_part: OnPart | None,
    ) -> None:
        self.asked = asked
        self._on_finished, self._on_part = on_finished, on_part
        self._scores: list[ItemScore | None] = [known.get(entry.key) for entry in asked]
        self._missing: dict[str, int] = {}
        self._new: set[str] = set()
        self._told = time.monotonic()
        for entry, score in zip(asked, self._scores, strict=True):
            name = entry.capability.name
            self._missing[name] = self._missing.get(name, 0) + (score is None)

    def open(self, kind: str) -> list[int]:
        """Return the places of the items of ``kind`` that have no score yet."""
        return [at for at, entry in enumerate(self.asked) if self._scores[at] is None and entry.capability.kind == kind]

    def put(self, at: int, score: ItemScore) -> None:
        self._scores[at] = score
        name = score.capability
        self._missing[name] -= 1
        self._new.add(name)
        if not self._missing[name]:
            self._new.discard(name)
            if self._on_finished is not None:
                self._on_finished(self._of(name))
        elif time.monotonic() - self._told >= PART_SECONDS:
            self.hand_over()

    def hand_over(self) -> None:
        """Tell of every capability that has graded items which were not told of."""
        self._told = time.monotonic()
        for name in sorted(self._new):
            if self._on_part is not None:
                self._on_part(self._of(name))
        self._new.clear()

    def _of(self, name: str) -> list[ItemScore]:
        return [score for score in self.scores() if score.capability == name]

    def scores(self) -> list[ItemScore]:
        return [score for score in self._scores if score is not None]


def _answer(loaded: LoadedModel | None, engine: Engine, found: _Found, spec: EvalSpec, watch: Watcher | None) -> None:
    """Let the model write the answers that are missing, and grade each as it comes."""
    places = _fitting(loaded, found, watch)
    if not places:
        return
    questions = []
    for at in places:
        capability = found.asked[at].capability
        questions.append(Question(found.asked[at].item, capability.max_new_tokens, capability.decided))
    latest = ""

    def graded(number: int, answer: Answer) -> None:
        nonlocal latest
        entry = found.asked[places[number]]
        latest = entry.capability.name
        text = storable(answer.text)
        grade = entry.capability.grade(entry.item, text)
        found.put(
            places[number],
            _item_score(
                entry,
                Grade(grade.score, grade.parsed, {**grade.details, "stopped": answer.stopped}),
                response=text,
                prompt_tokens=answer.prompt_tokens,
                generated_tokens=answer.generated_tokens,
                seconds=answer.seconds,
            ),
        )

    def told(done: int, total: int, tokens_per_second: float) -> None:
        if watch is not None:
            facts = {"of": latest.replace("_", " ")} if latest else {}
            watch.advance(done, **facts, tokens_per_second=tokens_per_second)

    if watch is not None:
        watch.begin("answering questions", len(questions), "items")
    engine.answer(questions, batch_size=spec.batch_size, fast_stop=spec.fast_stop, on_progress=told, on_answer=graded)
    if watch is not None:
        watch.end()


def _fitting(loaded: LoadedModel | None, found: _Found, watch: Watcher | None) -> list[int]:
    """Return the places of the questions to be answered. One that leaves no room for an answer is graded here: 0."""
    places = found.open("generative")
    limit = context_limit(loaded.model) if loaded is not None else None
    if loaded is None or limit is None:
        return places
    kept: list[int] = []
    too_long: Counter[str] = Counter()
    for at in places:
        entry = found.asked[at]
        tokens = len(tokenise_prompt(loaded.tokenizer, entry.prompt))
        if tokens < limit:
            kept.append(at)
            continue
        fault = f"the prompt has {tokens} tokens, the model's context holds {limit}"
        too_long[entry.capability.name] += 1
        found.put(at, _unanswered(entry, fault, tokens))
    _tell_too_long(too_long, watch, limit)
    return kept


def _unanswered(entry: Asked, fault: str, tokens: int) -> ItemScore:
    """Return the score of a question that was not asked: 0, counted as an empty answer in every rate."""
    nothing = entry.capability.grade(entry.item, "") if entry.capability.kind == "generative" else Grade(0.0)
    grade = Grade(0.0, nothing.parsed, {**nothing.details, "fault": fault})
    return _item_score(entry, grade, response="", prompt_tokens=tokens, generated_tokens=0, seconds=0.0)


def _tell_too_long(too_long: Mapping[str, int], watch: Watcher | None, limit: int | None) -> None:
    for name, count in too_long.items():
        if watch is not None:
            watch.note(
                f"note: {count} items of {name.replace('_', ' ')} score 0, because their prompts are longer than the "
                f"model's context of {limit} tokens"
            )


def _choose(loaded: LoadedModel, found: _Found, spec: EvalSpec, watch: Watcher | None) -> None:
    """Let the model choose where it is missing, one capability after the other."""
    places = found.open("likelihood")
    for name in dict.fromkeys(found.asked[at].capability.name for at in places):
        mine = [at for at in places if found.asked[at].capability.name == name]
        questions: list[Weighed] = []
        owner: list[int] = []
        too_long: Counter[str] = Counter()
        for at in mine:
            try:
                its = questions_of(loaded, found.asked[at].prompt, found.asked[at].item)
            except LongerThanContextError as error:
                too_long[name] += 1
                tokens = len(tokenise_prompt(loaded.tokenizer, found.asked[at].prompt))
                found.put(at, _unanswered(found.asked[at], str(error), tokens))
                continue
            questions += its
            owner += [at] * len(its)
        _tell_too_long(too_long, watch, context_limit(loaded.model))
        if not questions:
            continue
        _weigh(loaded, found, questions, owner, spec, watch, name)


def _weigh(
    loaded: LoadedModel,
    found: _Found,
    questions: Sequence[Weighed],
    owner: Sequence[int],
    spec: EvalSpec,
    watch: Watcher | None,
    name: str,
) -> None:
    """Score one capability's questions; grade an item as soon as all of its own are scored."""
    wanted: dict[int, list[int]] = {}
    for number, at in enumerate(owner):
        wanted.setdefault(at, []).append(number)
    scores: dict[int, list[ChoiceScore]] = {}
    began, done = time.perf_counter(), 0

    def scored(number: int, likelihoods: list[ChoiceScore]) -> None:
        nonlocal began, done
        scores[number] = likelihoods
        at = owner[number]
        if any(other not in scores for other in wanted[at]):
            return
        done += 1
        now = time.perf_counter()
        together = [score for part in wanted[at] for score in scores[part]]
        found.put(at, _chosen(loaded, found.asked[at], together, now - began))
        began = now
        if watch is not None:
            watch.advance(done)

    if watch is not None:
        watch.begin(f"weighing choices of {name.replace('_', ' ')}", len(wanted), "items")
    score_questions(loaded, questions, batch_size=spec.batch_size, on_scores=scored)
    if watch is not None:
        watch.end()


def _chosen(loaded: LoadedModel, entry: Asked, likelihoods: list[ChoiceScore], seconds: float) -> ItemScore:
    item = entry.item
    if any(math.isnan(each.logprob) or each.logprob == math.inf for each in likelihoods):
        raise ModelError(
            f"'{loaded.source}' gives no finite probabilities (item {item.item_id} of {entry.capability.name})",
            hint="its weights hold NaN or infinity, or it overflows in this precision: try --dtype float32, "
            "or make the checkpoint again",
        )
    grade_choices = _grader(entry.capability)
    if grade_choices is not None:
        grade = grade_choices(item, likelihoods)
    else:
        best = max(range(len(likelihoods)), key=lambda at: likelihoods[at].logprob / likelihoods[at].tokens)
        grade = entry.capability.grade(item, item.choices[best])
        grade = Grade(grade.score, grade.parsed, {**grade.details, "choice": float(best)})
    choice = grade.details.get("choice")
    return _item_score(
        entry,
        grade,
        response=item.choices[int(choice)] if isinstance(choice, float | int) else "",
        prompt_tokens=len(tokenise_prompt(loaded.tokenizer, entry.prompt)),
        generated_tokens=0,
        seconds=seconds,
    )


def _grader(capability: Capability) -> Callable[[Item, Sequence[ChoiceScore]], Grade] | None:
    """Return the capability's own rule for likelihoods (``grade_choices``), which it or its scorer may have."""
    for owner in (capability, getattr(capability, "scorer", None)):
        rule = getattr(owner, "grade_choices", None)
        if rule is not None:
            return cast(Callable[[Item, Sequence[ChoiceScore]], Grade], rule)
    return None


def _item_score(
    entry: Asked, grade: Grade, *, response: str, prompt_tokens: int, generated_tokens: int, seconds: float
) -> ItemScore:
    return ItemScore(
        capability=entry.capability.name,
        item_id=entry.item.item_id,
        split=entry.item.split,
        prompt_sha256=text_fingerprint(entry.prompt),
        response=response,
        score=grade.score,
        parsed=grade.parsed,
        prompt_tokens=prompt_tokens,
        generated_tokens=generated_tokens,
        seconds=seconds,
        # The question is kept so that answers can be read side by side without the suite at hand.
        details=storable_values({"question": str(entry.item.messages[-1]["content"]), **grade.details}),
    )


def _perplexity(
    loaded: LoadedModel, spec: EvalSpec, split: Split, watch: Watcher | None, text: str | None
) -> tuple[list[ItemScore], tuple[Measurement, ...]]:
    if watch is not None:
        watch.begin("reading text for perplexity", None, "windows")
    began = time.perf_counter()
    try:
        measured = perplexity_of(
            loaded,
            bundled_text() if text is None else text,
            window_tokens=min(WINDOW_TOKENS, context_limit(loaded.model) or WINDOW_TOKENS),
            on_progress=None if watch is None else lambda done, total: watch.advance(done),
        )
    except DataError as error:
        if watch is not None:
            watch.end(str(error))
        return [], (Measurement(name="perplexity", value=math.nan, unit="per token", reason=str(error)),)
    if watch is not None:
        watch.end()
    seconds = (time.perf_counter() - began) / len(measured.windows)
    items = [_window_score(number, window, split, seconds) for number, window in enumerate(measured.windows)]
    return items, _measurements(measured, spec.seed)


def _window_score(number: int, window: Window, split: Split, seconds: float) -> ItemScore:
    return ItemScore(
        capability=CAPABILITY,
        item_id=f"window-{number:04d}",
        split=split,
        prompt_sha256=fingerprint(list(window.ids)),
        response="",
        score=window.negative_log_likelihood / window.tokens,
        prompt_tokens=len(window.ids),
        seconds=seconds,
        details={"tokens": float(window.tokens)},
    )


def _measurements(measured: Perplexity, seed: int) -> tuple[Measurement, ...]:
    limits = perplexity_interval(
        [window.negative_log_likelihood for window in measured.windows],
        [window.tokens for window in measured.windows],
        stream(seed, "perplexity"),
    )
    return (
        Measurement(name="perplexity", value=measured.per_token, unit="per token"),
        Measurement(name="perplexity_low", value=limits.low, unit="per token", reason=limits.reason),
        Measurement(name="perplexity_high", value=limits.high, unit="per token", reason=limits.reason),
        Measurement(name="word_perplexity", value=measured.per_word, unit="per word"),
        Measurement(name="perplexity_tokens", value=float(measured.tokens), unit="tokens"),
    )
