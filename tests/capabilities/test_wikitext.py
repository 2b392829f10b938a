"""Perplexity by the word: lm-evaluation-harness with its own backend on the same articles."""

from __future__ import annotations

import math
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from regrow.capabilities.continuation import encode, prefix_id_of, text_logprob, windows_of
from regrow.capabilities.wikitext import article_perplexity, detokenised
from regrow.data.text import open_text
from regrow.errors import DataError
from regrow.models.load import LoadedModel
from tests.capabilities.toys import loaded_toy


@pytest.fixture(scope="module")
def articles(shared_data: Path) -> list[str]:
    source = open_text("wikitext2:validation", data_dir=shared_data)
    return list(islice(source.documents(), 8))


def theirs(loaded: LoadedModel, articles: list[str], longest: int) -> dict[str, float]:
    from lm_eval.api.instance import Instance
    from lm_eval.api.metrics import weighted_perplexity
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks.wikitext.preprocess_wikitext import process_results, wikitext_detokenizer

    model = HFLM(pretrained=loaded.model, tokenizer=loaded.tokenizer, batch_size=1, max_length=longest)
    docs = [{"page": article} for article in articles]
    requests = [
        Instance("loglikelihood_rolling", doc, (wikitext_detokenizer(doc),), number) for number, doc in enumerate(docs)
    ]
    totals = model.loglikelihood_rolling(requests, disable_tqdm=True)
    results = [process_results(doc, (total,)) for doc, total in zip(docs, totals, strict=True)]
    return {
        name: weighted_perplexity([result[name] for result in results])
        for name in ("word_perplexity", "byte_perplexity")
    } | {"total": sum(totals)}


@pytest.mark.shared
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_words_and_bytes_are_the_harnesss(family: str, articles: list[str]) -> None:
    pytest.importorskip("lm_eval")
    loaded = loaded_toy(family)
    some = [article[:900] for article in articles[:3]]
    ours, wanted = article_perplexity(loaded, some, longest=128), theirs(loaded, some, 128)
    assert ours.logprob == pytest.approx(wanted["total"], abs=1e-3 * ours.tokens**0.5)
    # A random model's word perplexity is astronomical: its logarithm is what can be compared.
    assert math.log(ours.per_word) == pytest.approx(math.log(wanted["word_perplexity"]), rel=1e-5)
    assert ours.per_byte == pytest.approx(wanted["byte_perplexity"], rel=1e-4)
    assert ours.bits_per_byte == pytest.approx(math.log2(ours.per_byte))
    assert math.log(ours.per_token) * ours.tokens == pytest.approx(-ours.logprob)


@pytest.mark.slow
@pytest.mark.shared
def test_they_are_on_the_real_model(smollm2: LoadedModel, articles: list[str]) -> None:
    pytest.importorskip("lm_eval")
    some = [articles[0][:4000]]
    ours, wanted = article_perplexity(smollm2, some, longest=512), theirs(smollm2, some, 512)
    assert ours.per_word == pytest.approx(wanted["word_perplexity"], rel=1e-4)


@pytest.mark.shared
def test_articles_are_put_together_again_as_the_harness_does(articles: list[str]) -> None:
    pytest.importorskip("lm_eval")
    from lm_eval.tasks.wikitext.preprocess_wikitext import wikitext_detokenizer

    for article in [*articles, " ' a ' \" b \" ( c ) [ d ] { e } N 's 5 \u00b0 C , 1 @,@ 000 @.@ 5 = = x = = \n \n"]:
        assert detokenised(article) == wikitext_detokenizer({"page": article})


@pytest.mark.parametrize(("length", "longest"), [(1, 4), (4, 4), (5, 4), (8, 4), (9, 4), (30, 7)])
def test_every_token_is_predicted_once_with_as_much_context_as_fits(length: int, longest: int) -> None:
    ids = list(range(100, 100 + length))
    seen: list[int] = []
    for number, window in enumerate(windows_of(ids, 1, longest)):
        (text,) = window.choices
        assert len(window.context) + len(text) - 1 <= longest
        before = [1, *ids][: 1 + ids.index(text[0])]
        assert list(window.context) == before[-len(window.context) :]
        if number:
            assert len(window.context) + len(text) - 1 == longest
        seen += text
    assert seen == ids


def test_the_sum_is_that_of_a_plain_forward_pass() -> None:
    import torch

    loaded = loaded_toy()
    text = "the tide comes in twice a day"
    ids = [prefix_id_of(loaded.tokenizer), *encode(loaded.tokenizer, text)]
    with torch.no_grad():
        table = loaded.model(torch.tensor([ids])).logits[0].log_softmax(-1)
    wanted = sum(float(table[at, token]) for at, token in enumerate(ids[1:]))
    ((total, tokens),) = text_logprob(loaded, [text])
    assert tokens == len(ids) - 1 and total == pytest.approx(wanted, abs=1e-3)


def test_nothing_to_measure_and_a_tokenizer_without_a_beginning_are_refused() -> None:
    loaded = loaded_toy()
    with pytest.raises(DataError, match="no article"):
        article_perplexity(loaded, [])
    bare: Any = loaded.tokenizer
    bare.bos_token = bare.eos_token = None
    with pytest.raises(DataError, match="neither a BOS nor an end token"):
        prefix_id_of(bare)
