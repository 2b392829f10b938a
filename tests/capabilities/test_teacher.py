"""Pools answered by a model: what is kept, what is dropped and why."""

from __future__ import annotations

from typing import Any

import pytest

from regrow.capabilities.generation import Request, generate
from regrow.capabilities.teacher import UNFINISHED, WRONG, build_pool
from regrow.data.chat import render_chat, tokenise_prompt
from regrow.errors import ConfigError
from regrow.models.load import LoadedModel
from tests.capabilities.test_evaluate import Recorder
from tests.capabilities.toys import HasSign, loaded_toy


@pytest.fixture(scope="module")
def taught() -> tuple[LoadedModel, HasSign, list[Any]]:
    """Return a model with a sign that some of its answers hold and an end token that some of them reach."""
    loaded = loaded_toy()
    probe = HasSign("", max_new_tokens=24, count=20)
    written = answers_of(loaded, probe)
    ids = [token for answer in written for token in answer.token_ids[4:20]]
    common = sorted(set(ids), key=lambda token: -len([1 for answer in written if token in answer.token_ids]))
    for end in common:
        loaded.model.generation_config.eos_token_id = [2, end]
        answers = answers_of(loaded, probe)
        ended = [answer.text for answer in answers if answer.stopped == "eos" and answer.text]
        if len(ended) < 4 or all(answer.stopped == "eos" for answer in answers):
            continue
        for sign in sorted(set("".join(ended))):
            if 2 <= sum(sign in text for text in ended) < len(ended):
                return loaded, HasSign(sign, max_new_tokens=24, count=20), answers
    raise AssertionError("no such model")


def answers_of(loaded: LoadedModel, capability: HasSign) -> list[Any]:
    return generate(loaded, [Request(prompt, capability.max_new_tokens) for prompt in prompts_of(loaded, capability)])


def prompts_of(loaded: LoadedModel, capability: HasSign) -> list[str]:
    return [
        render_chat(loaded.tokenizer, item.messages, add_generation_prompt=True) for item in capability.items("heal")
    ]


def test_only_whole_answers_that_show_the_skill_are_kept(taught: tuple[LoadedModel, HasSign, list[Any]]) -> None:
    loaded, capability, answers = taught
    items = capability.items("heal")
    pool = build_pool(loaded, capability, items, batch_size=3, source="toys", licence="none")
    right = {
        item.item_id: answer.text
        for item, answer in zip(items, answers, strict=True)
        if answer.stopped == "eos" and capability.decided(answer.text)
    }
    assert {example.example_id: example.response for example in pool.examples} == right
    unfinished = sum(answer.stopped != "eos" for answer in answers)
    assert pool.dropped == {UNFINISHED: unfinished, WRONG: len(items) - len(right) - unfinished}
    assert min(pool.dropped.values()) > 0 and len(right) > 1
    assert (pool.name, pool.source, pool.licence) == ("has_sign", "toys", "none")
    prompts = dict(zip((item.item_id for item in items), prompts_of(loaded, capability), strict=True))
    for example in pool.examples:
        assert example.prompt == prompts[example.example_id]
        assert list(example.prompt_ids) == tokenise_prompt(loaded.tokenizer, example.prompt)
        assert example.response_ids[-1] == loaded.tokenizer.eos_token_id
        # The whole answer is the target, although its grade was decided earlier.
        assert loaded.tokenizer.decode(example.response_ids[:-1]) == example.response


def test_the_first_so_many_are_kept(taught: tuple[LoadedModel, HasSign, list[Any]]) -> None:
    loaded, capability, _ = taught
    whole = build_pool(loaded, capability, capability.items("heal"))
    some = build_pool(loaded, capability, capability.items("heal"), max_examples=2, batch_size=2, name="first")
    assert [example.example_id for example in some.examples] == [example.example_id for example in whole.examples[:2]]
    assert some.name == "first" and {example.pool for example in some.examples} == {"first"}
    with pytest.raises(ConfigError):
        build_pool(loaded, capability, [], max_examples=0)


def test_sequences_longer_than_the_window_are_dropped(taught: tuple[LoadedModel, HasSign, list[Any]]) -> None:
    loaded, capability, _ = taught
    items = capability.items("heal")
    whole = build_pool(loaded, capability, items)
    window = min(example.tokens for example in whole.examples)
    pool = build_pool(loaded, capability, items, max_sequence_tokens=window)
    assert pool.examples == tuple(example for example in whole.examples if example.tokens <= window)
    assert pool.dropped[f"longer than {window} tokens"] >= len(whole.examples) - len(pool.examples) > 0
    assert len(pool.examples) + sum(pool.dropped.values()) == len(items)


def test_progress_counts_answered_items(taught: tuple[LoadedModel, HasSign, list[Any]]) -> None:
    loaded, capability, _ = taught
    watch = Recorder()
    build_pool(loaded, capability, capability.items("heal"), max_examples=3, batch_size=4, watch=watch)
    counts = [done for kind, done in watch.told if kind == "advance"]
    assert counts == sorted(counts) and 0 < counts[-1] <= 20
