"""Perplexity against a loop over single tokens."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tokenizers import processors

from regrow.capabilities import token_scores
from regrow.capabilities.perplexity import perplexity_of
from regrow.errors import ConfigError, DataError
from regrow.models.load import LoadedModel
from tests.conftest import tiny_model, tiny_tokenizer

TEXT = "The tide comes in twice a day, and twice it goes.\nNobody on the pier has ever asked it why. " * 3


def loaded_tiny(family: str = "llama", *, bos: bool = False) -> LoadedModel:
    tokenizer = tiny_tokenizer()
    if bos:
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single="<bos> $A", special_tokens=[("<bos>", tokenizer.bos_token_id)]
        )
    return LoadedModel(tiny_model(family), tokenizer, family)


def by_single_tokens(model: Any, window: list[int]) -> list[float]:
    found = []
    for at in range(1, len(window)):
        with torch.no_grad():
            logits = model(torch.tensor([window[:at]])).logits[0, -1].double()
        found.append(-float(torch.log_softmax(logits, -1)[window[at]]))
    return found


@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3", "granite", "gpt2"])
def test_exact_without_bos(family: str) -> None:
    loaded = loaded_tiny(family)
    ids = list(loaded.tokenizer(TEXT).input_ids)
    result = perplexity_of(loaded, TEXT, window_tokens=50)
    windows = [ids[begin : begin + 50] for begin in range(0, len(ids), 50)]
    assert [list(window.ids) for window in result.windows] == windows
    expected = [by_single_tokens(loaded.model, window) for window in windows]
    assert [window.tokens for window in result.windows] == [len(window) - 1 for window in windows]
    assert [window.negative_log_likelihood for window in result.windows] == pytest.approx(
        [sum(losses) for losses in expected], abs=1e-3
    )
    every = [loss for losses in expected for loss in losses]
    assert result.tokens == len(every)
    assert result.per_token == pytest.approx(math.exp(sum(every) / len(every)), rel=1e-5)
    assert result.text_tokens == len(ids) and result.words == len(TEXT.split())
    assert result.per_word == pytest.approx(math.exp(sum(every) / len(every) * len(ids) / len(TEXT.split())), rel=1e-4)


def test_exact_with_bos_where_the_tokenizer_has_one_by_convention() -> None:
    loaded = loaded_tiny(bos=True)
    ids = list(loaded.tokenizer(TEXT, add_special_tokens=False).input_ids)
    result = perplexity_of(loaded, TEXT, window_tokens=40)
    windows = [[1, *ids[begin : begin + 39]] for begin in range(0, len(ids), 39)]
    assert [list(window.ids) for window in result.windows] == windows
    # With a BOS in front every token of the text is predicted.
    assert result.tokens == result.text_tokens == len(ids)
    expected = [sum(by_single_tokens(loaded.model, window)) for window in windows]
    assert [window.negative_log_likelihood for window in result.windows] == pytest.approx(expected, abs=1e-3)


def test_a_last_window_of_one_token_is_left_out() -> None:
    loaded = loaded_tiny()
    result = perplexity_of(loaded, "a" * 21, window_tokens=10)
    assert [window.tokens for window in result.windows] == [9, 9]
    assert [window.tokens for window in perplexity_of(loaded, "a" * 22, window_tokens=10).windows] == [9, 9, 1]


def test_slices_of_the_vocabulary_logits_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = loaded_tiny("gemma2")
    whole = perplexity_of(loaded, TEXT, window_tokens=50)
    sizes: list[int] = []

    def seen(_: Any, __: Any, output: torch.Tensor) -> None:
        sizes.append(output.shape[-2])

    monkeypatch.setattr(token_scores, "LOGIT_BYTES", 7 * 4 * 96)
    handle = loaded.model.lm_head.register_forward_hook(seen)
    sliced = perplexity_of(loaded, TEXT, window_tokens=50)
    handle.remove()
    assert sliced.per_token == pytest.approx(whole.per_token, rel=1e-5)
    assert max(sizes) == 7


def test_a_uniform_model_has_the_perplexity_of_its_vocabulary() -> None:
    loaded = loaded_tiny()
    with torch.no_grad():
        loaded.model.model.norm.weight.zero_()
    assert perplexity_of(loaded, TEXT).per_token == pytest.approx(96, rel=1e-5)


def test_progress_counts_windows() -> None:
    told: list[tuple[int, int]] = []
    result = perplexity_of(
        loaded_tiny(), TEXT, window_tokens=50, on_progress=lambda done, total: told.append((done, total))
    )
    assert told[-1] == (len(result.windows), len(result.windows))


@pytest.mark.parametrize("window_tokens", [1, 513])
def test_windows_that_the_model_cannot_hold_are_refused(window_tokens: int) -> None:
    with pytest.raises(ConfigError, match="window"):
        perplexity_of(loaded_tiny(), TEXT, window_tokens=window_tokens)


@pytest.mark.parametrize("text", ["", "a"])
def test_a_text_without_anything_to_predict_is_refused(text: str) -> None:
    with pytest.raises(DataError):
        perplexity_of(loaded_tiny(), text)


@pytest.mark.slow
def test_smollm2_on_the_bundled_text(smollm2: LoadedModel) -> None:
    from regrow.data.text import bundled_text

    text = bundled_text()[:4000]
    result = perplexity_of(smollm2, text, window_tokens=512)
    ids = torch.tensor([list(result.windows[0].ids)])
    with torch.no_grad():
        loss = smollm2.model(ids, labels=ids).loss
    assert result.windows[0].negative_log_likelihood / result.windows[0].tokens == pytest.approx(float(loss), rel=1e-4)
    assert 5 < result.per_token < 60
