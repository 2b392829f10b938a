"""Healing targets: prompts answered by the unpruned model, kept only where the answer shows the skill."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from regrow.capabilities.answer_journal import AnswerJournal
from regrow.capabilities.generation import Answer, Request, generate
from regrow.data.chat import render_chat, stop_texts_of, tokenise_prompt
from regrow.data.pools import TOO_LONG, Example, Pool, tokenise
from regrow.errors import ConfigError
from regrow.models.load import LoadedModel
from regrow.protocols import Capability, Item, Watcher

UNFINISHED = "unfinished answer"
WRONG = "answer does not show the skill"


def build_pool(
    loaded: LoadedModel,
    capability: Capability,
    items: Sequence[Item],
    *,
    name: str | None = None,
    max_examples: int | None = None,
    max_sequence_tokens: int = 512,
    batch_size: int = 32,
    source: str = "",
    licence: str = "",
    watch: Watcher | None = None,
    journal: AnswerJournal | None = None,
) -> Pool:
    """Return the pool of the items whose greedy answer by ``loaded`` (the unpruned model) has grade 1, tokenised.

    An answer becomes a target only as the model wrote it, to its own end token; the end token is part of the target. So
    no row leaves when its grade is decided: a refusal is decided at its first words, JSON at its closing brace, but a
    model that learned to stop there would stop in the middle of a sentence or before a closing fence. An answer that
    did not end within ``capability.max_new_tokens`` is dropped, as is a prompt with answer and end token of more than
    ``max_sequence_tokens``; ``Pool.dropped`` counts them by reason.

    With ``max_examples``, items are answered in their order until so many are kept. ``name``: of the pool (default: the
    capability's). ``watch`` gets the number of items answered and kept, and the speed. ``journal`` keeps
    every answer as it comes; answers that it holds already are not asked again.
    """
    if max_examples is not None and max_examples < 1:
        raise ConfigError(f"a pool of {max_examples} examples was asked for", hint="allowed: 1 or more")
    pool_name = name or capability.name
    kept: list[Example] = []
    dropped: Counter[str] = Counter()
    at = 0
    while at < len(items) and (max_examples is None or len(kept) < max_examples):
        wanted = len(items) if max_examples is None else max_examples - len(kept)
        part = items[at : at + max(wanted, batch_size)]
        for reason, example in _answered(
            loaded,
            capability,
            part,
            pool_name,
            max_sequence_tokens,
            batch_size,
            watch,
            journal,
            before=at,
            kept=len(kept),
        ):
            if example is None:
                dropped[reason] += 1
            elif max_examples is None or len(kept) < max_examples:
                kept.append(example)
        at += len(part)
    pool = Pool(pool_name, tuple(kept), dropped=dict(dropped), source=source, licence=licence)
    return tokenise(pool, loaded.tokenizer, max_sequence_tokens)


def _answered(
    loaded: LoadedModel,
    capability: Capability,
    items: Sequence[Item],
    pool_name: str,
    max_sequence_tokens: int,
    batch_size: int,
    watch: Watcher | None,
    journal: AnswerJournal | None,
    *,
    before: int,
    kept: int,
) -> list[tuple[str, Example | None]]:
    """Return an example, or the reason why there is none, for every item. ``before`` were answered and ``kept`` of them
    kept by earlier calls."""
    prompts = [render_chat(loaded.tokenizer, item.messages, add_generation_prompt=True) for item in items]
    # An answer and its end token must fit behind the prompt; more of it need not be written to know that it does not.
    room = [max_sequence_tokens - len(tokenise_prompt(loaded.tokenizer, prompt)) for prompt in prompts]
    fitting = [at for at in range(len(items)) if room[at] >= 2]
    stops = stop_texts_of(loaded.tokenizer)
    requests = {at: Request(prompts[at], min(capability.max_new_tokens, room[at]), stop_texts=stops) for at in fitting}
    by_item = {at: known for at in fitting if journal is not None and (known := journal.find(requests[at])) is not None}
    open_ = [at for at in fitting if at not in by_item]
    told = before + len(by_item)
    shows = {at for at, known in by_item.items() if _shows_the_skill(capability, items[at], known)}

    def keep(number: int, answer: Answer) -> None:
        by_item[open_[number]] = answer
        if _shows_the_skill(capability, items[open_[number]], answer):
            shows.add(open_[number])
        if journal is not None:
            journal.keep(requests[open_[number]], answer)

    generate(
        loaded,
        [requests[at] for at in open_],
        batch_size=batch_size,
        fast_stop=False,
        on_answer=keep,
        on_progress=None
        if watch is None
        else lambda done, _, speed: watch.advance(told + done, kept=kept + len(shows), tokens_per_second=speed),
    )
    found: list[tuple[str, Example | None]] = []
    for at, item in enumerate(items):
        answer = by_item.get(at)
        if answer is None:
            found.append((TOO_LONG.format(tokens=max_sequence_tokens), None))
        elif answer.stopped != "eos":
            full = answer.generated_tokens < capability.max_new_tokens
            found.append((TOO_LONG.format(tokens=max_sequence_tokens) if full else UNFINISHED, None))
        elif at not in shows:
            found.append((WRONG, None))
        else:
            found.append(("", Example(pool_name, item.item_id, prompts[at], answer.text)))
    return found


def _shows_the_skill(capability: Capability, item: Item, answer: Answer) -> bool:
    return answer.stopped == "eos" and capability.grade(item, answer.text).score >= 1
