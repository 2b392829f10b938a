"""Log-probabilities of choices against a full forward pass for each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from regrow.capabilities import token_scores
from regrow.capabilities.likelihood import ChoiceScore, choice_logprobs
from regrow.data.chat import tokenise_prompt
from regrow.errors import ConfigError, DataError
from regrow.models.load import LoadedModel
from tests.conftest import tiny_model, tiny_tokenizer

FAMILIES = ["llama", "qwen3", "gemma2", "gemma3", "granite", "gpt2", "gpt_neox", "olmo2", "qwen2_moe"]


def questions(seed: int = 0, count: int = 9) -> list[tuple[str, list[str]]]:
    draw = np.random.default_rng(seed)
    letters = [chr(code) for code in range(33, 120)]

    def text(length: int) -> str:
        return "".join(draw.choice(letters, length))

    first, second = text(40), text(70)
    found = []
    for number in range(count):
        head = first if number % 2 else second
        lengths = [1, 1, 1, 1] if number == 3 else draw.integers(1, 8, size=int(draw.integers(1, 5)))
        found.append((head + text(int(draw.integers(0, 9))), [text(int(length)) for length in lengths]))
    return found


def by_full_passes(loaded: LoadedModel, prompt: str, choice: str) -> float:
    context = tokenise_prompt(loaded.tokenizer, prompt)
    whole = tokenise_prompt(loaded.tokenizer, prompt + choice)
    assert whole[: len(context)] == context
    with torch.no_grad():
        logits = loaded.model(torch.tensor([whole])).logits[0].double()
    scores = torch.log_softmax(logits, -1)
    return sum(float(scores[at - 1, whole[at]]) for at in range(len(context), len(whole)))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("batch_size", [2, 32])
def test_exact_against_full_forward_passes(family: str, batch_size: int) -> None:
    loaded = LoadedModel(tiny_model(family), tiny_tokenizer(), family)
    told: list[tuple[int, int]] = []
    asked = questions()
    got = choice_logprobs(
        loaded, asked, batch_size=batch_size, on_progress=lambda done, total: told.append((done, total))
    )
    for (prompt, choices), scores in zip(asked, got, strict=True):
        assert [score.tokens for score in scores] == [len(choice) for choice in choices]
        assert [score.characters for score in scores] == [len(choice) for choice in choices]
        expected = [by_full_passes(loaded, prompt, choice) for choice in choices]
        assert [score.logprob for score in scores] == pytest.approx(expected, abs=1e-4)
    assert told[-1] == (len(asked), len(asked))


def test_exact_where_nothing_can_be_reused() -> None:
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "lfm2",
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        layer_types=["conv", "full_attention"] * 2,
        vocab_size=96,
        pad_token_id=0,
    )
    loaded = LoadedModel(AutoModelForCausalLM.from_config(config).eval(), tiny_tokenizer(), "lfm2")
    for (prompt, choices), scores in zip(questions(), choice_logprobs(loaded, questions(), batch_size=3), strict=True):
        expected = [by_full_passes(loaded, prompt, choice) for choice in choices]
        assert [score.logprob for score in scores] == pytest.approx(expected, abs=1e-4)


def test_logits_in_small_slices_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = LoadedModel(tiny_model("gemma2"), tiny_tokenizer(), "gemma2")
    whole = choice_logprobs(loaded, questions())
    monkeypatch.setattr(token_scores, "LOGIT_BYTES", 3 * 4 * 96)
    sliced = choice_logprobs(loaded, questions())
    for first, second in zip(whole, sliced, strict=True):
        assert [each.logprob for each in first] == pytest.approx([each.logprob for each in second], abs=1e-5)


def test_the_model_is_left_as_it_was() -> None:
    loaded = LoadedModel(tiny_model("llama"), tiny_tokenizer(), "llama")
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        before = loaded.model(ids).logits
        choice_logprobs(loaded, questions())
        assert torch.equal(loaded.model(ids).logits, before)
    assert "forward" not in loaded.model.model.__dict__
    assert not loaded.model.model._forward_hooks


def merging_tokenizer() -> Any:
    """A tokenizer that writes "ab" as one token, so that a choice "b" melts into a prompt that ends in "a"."""
    table = {"<pad>": 0, "<bos>": 1, "<eos>": 2, "a": 3, "b": 4, "c": 5, "ab": 6}
    backend = Tokenizer(models.BPE(vocab=table, merges=[("a", "b")]))
    backend.pre_tokenizer = pre_tokenizers.Split(" ", "isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>")


def test_a_token_across_the_border_counts_to_the_choice() -> None:
    loaded = LoadedModel(tiny_model("llama", vocabulary=7), merging_tokenizer(), "llama")
    scores = choice_logprobs(loaded, [("cca", ["b", "c", "cb"])])[0]
    # The context that all have in common is "cc": "a" is part of the token "ab" in one of them.
    with torch.no_grad():
        logprobs = torch.log_softmax(loaded.model(torch.tensor([[5, 5, 3, 5, 4]])).logits[0], -1)
        merged = torch.log_softmax(loaded.model(torch.tensor([[5, 5, 6]])).logits[0], -1)
    expected = [float(merged[1, 6]), float(logprobs[1, 3] + logprobs[2, 5])]
    expected.append(float(logprobs[1, 3] + logprobs[2, 5] + logprobs[3, 4]))
    assert [score.logprob for score in scores] == pytest.approx(expected, abs=1e-4)
    assert [score.tokens for score in scores] == [1, 2, 3]
    assert [score.characters for score in scores] == [1, 1, 2]


def test_probabilities_of_all_single_tokens_sum_to_one() -> None:
    loaded = LoadedModel(tiny_model("llama", vocabulary=95), tiny_tokenizer(95), "llama")
    letters = [token for token in loaded.tokenizer.get_vocab() if len(token) == 1]
    scores = choice_logprobs(loaded, [("hello", letters)])[0]
    assert sum(np.exp([score.logprob for score in scores])) < 1
    specials = choice_logprobs(loaded, [("hello", [*letters, "<pad>", "<bos>", "<eos>"])])[0]
    assert len(specials) == 95
    assert sum(np.exp([score.logprob for score in specials])) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("pair", [("", ["a"]), ("a", []), ("a", ["b", ""]), ("a" * 511, ["bc"])])
def test_what_cannot_be_scored_is_refused(pair: tuple[str, list[str]]) -> None:
    loaded = LoadedModel(tiny_model("llama"), tiny_tokenizer(), "llama")
    with pytest.raises(DataError):
        choice_logprobs(loaded, [pair])
    with pytest.raises(ConfigError):
        choice_logprobs(loaded, [("a", ["b"])], batch_size=0)
    assert choice_logprobs(loaded, []) == []


def test_bfloat16_is_close_to_float32() -> None:
    loaded = LoadedModel(tiny_model("llama"), tiny_tokenizer(), "llama")
    exact = choice_logprobs(loaded, questions())
    loaded.model.to(torch.bfloat16)
    for first, second in zip(exact, choice_logprobs(loaded, questions()), strict=True):
        assert [each.logprob for each in first] == pytest.approx([each.logprob for each in second], rel=0.05, abs=0.3)


@pytest.mark.slow
def test_smollm2_knows_the_capital(smollm2: LoadedModel) -> None:
    chat = [
        {"role": "user", "content": "What is the capital of Italy?"},
        {"role": "assistant", "content": "Rome."},
        {"role": "user", "content": "What is the capital of France?"},
    ]
    prompt = smollm2.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    choices = ["Berlin.", "Paris.", "Madrid.", "Lisbon."]
    scores = choice_logprobs(smollm2, [(prompt, choices)])[0]
    assert max(range(4), key=lambda index: scores[index].logprob) == 1
    expected = [by_full_passes(smollm2, prompt, choice) for choice in choices]
    assert [score.logprob for score in scores] == pytest.approx(expected, abs=1e-3)
    assert isinstance(scores[0], ChoiceScore)
