"""Packed forests against a forward pass for every text."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from regrow.capabilities import likelihood
from regrow.capabilities.likelihood import choice_logprobs
from regrow.capabilities.model_call import ModelCall
from regrow.capabilities.packed_texts import PackedTexts, Planted, can_pack
from regrow.capabilities.token_forest import ROOT, TokenForest
from regrow.models.load import LoadedModel
from tests.capabilities.test_likelihood import by_full_passes, questions
from tests.conftest import tiny_model, tiny_tokenizer

PACKED = ["llama", "qwen3", "granite", "gpt_neox", "olmo2", "qwen2_moe"]


def some_texts(seed: int) -> list[list[int]]:
    draw = np.random.default_rng(seed)
    texts: list[list[int]] = []
    for _ in range(12):
        start = texts[int(draw.integers(len(texts)))][: int(draw.integers(0, 20))] if texts else []
        texts.append([*start, *draw.integers(3, 90, size=int(draw.integers(1, 15))).tolist()])
    return texts


def test_a_forest_holds_every_beginning_once_and_every_text_on_its_path() -> None:
    texts = some_texts(0)
    forest = TokenForest()
    paths = [forest.add(text) for text in texts]
    assert len(forest) == len({tuple(text[:end]) for text in texts for end in range(1, len(text) + 1)})
    seen = forest.visible()
    for text, path in zip(texts, paths, strict=True):
        assert [forest.tokens[node] for node in path] == text
        assert [forest.depths[node] for node in path] == list(range(len(text)))
        for place, node in enumerate(path):
            assert seen[node].nonzero()[0].tolist() == sorted(path[: place + 1])
    assert all(parent < node for node, parent in enumerate(forest.parents))
    assert forest.parents[0] == ROOT


@pytest.mark.parametrize("family", PACKED)
@pytest.mark.parametrize("prefix", [0, 5])
def test_logits_are_those_of_texts_run_alone(family: str, prefix: int) -> None:
    model = tiny_model(family)
    call = ModelCall(model)
    begin = [7, 8, 9, 10, 11][:prefix]
    groups = [some_texts(1), some_texts(2), [[5]]]
    with torch.no_grad():
        with PackedTexts(call) as packed:
            planted = [Planted(TokenForest(), packed.run_prefix(begin)) for _ in groups]
            paths = [[each.forest.add(text) for text in texts] for each, texts in zip(planted, groups, strict=True)]
            starts, logits = packed.run(planted, keep=0)
        for start, texts, nodes in zip(starts, groups, paths, strict=True):
            for text, path in zip(texts, nodes, strict=True):
                alone = model(torch.tensor([[*begin, *text]])).logits[0, prefix:]
                assert torch.allclose(logits[[start + node for node in path]], alone, atol=1e-4)
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("family", PACKED)
def test_these_families_are_packed(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("went another way")

    monkeypatch.setattr(likelihood, "_in_rows", never)
    loaded = LoadedModel(tiny_model(family), tiny_tokenizer(), family)
    asked = questions(count=40)
    for (prompt, choices), scores in zip(asked, choice_logprobs(loaded, asked, batch_size=7), strict=True):
        expected = [by_full_passes(loaded, prompt, choice) for choice in choices]
        assert [score.logprob for score in scores] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("family", ["gemma2", "gpt2"])
def test_models_that_cannot_be_packed_are_found_out(family: str) -> None:
    model = tiny_model(family)
    if family == "gpt2":
        model.set_attn_implementation("eager")
    with torch.no_grad():
        assert not can_pack(ModelCall(model), [5, 6, 7], 500)


def test_a_window_shorter_than_the_texts_is_not_packed() -> None:
    model = tiny_model("gemma3")
    with torch.no_grad():
        assert not can_pack(ModelCall(model), [5, 6, 7], 10_000)
