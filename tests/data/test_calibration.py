"""Calibration sets: exact chunks, seeded draws, masks, fingerprints and refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from regrow.data.calibration import automatic_bos, from_examples, from_stream, load_calibration, make_set, shuffled
from regrow.data.fingerprints import model_fingerprint
from regrow.errors import ConfigError, DataError


def tokenizer(*, adds_bos: bool) -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={"<s>": 0, **{c: i + 1 for i, c in enumerate(alphabet)}}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    if adds_bos:
        core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>")


@pytest.fixture
def book(tmp_path):
    path = tmp_path / "book.jsonl"
    path.write_text("".join(f'{{"text": "document number {number:03d}"}}\n' for number in range(200)))
    return str(path)


def test_chunks_are_the_joined_stream_cut_without_remainder(book):
    plain = tokenizer(adds_bos=False)
    whole = "\n\n".join(f"document number {number:03d}" for number in range(200))
    ids = plain(whole).input_ids
    found = load_calibration(book, plain, tokens=10**6, chunk_tokens=64, shuffle=False)
    assert len(found) == len(ids) // 64
    assert found.input_ids.flatten().tolist() == ids[: len(found) * 64]
    assert found.tokens == found.input_ids.numel()
    assert not found.padded


def test_every_chunk_begins_with_bos_where_the_tokenizer_adds_it(book):
    adding = tokenizer(adds_bos=True)
    assert automatic_bos(adding) == 0
    assert automatic_bos(tokenizer(adds_bos=False)) is None
    found = load_calibration(book, adding, tokens=10**6, chunk_tokens=64, shuffle=False)
    plain = load_calibration(book, tokenizer(adds_bos=False), tokens=10**6, chunk_tokens=63, shuffle=False)
    assert (found.input_ids[:, 0] == 0).all()
    assert found.input_ids[:, 1:].equal(plain.input_ids)


def test_the_draw_depends_on_the_seed_alone(book):
    plain = tokenizer(adds_bos=False)
    draws = [load_calibration(book, plain, tokens=512, chunk_tokens=64, seed=seed) for seed in (0, 0, 1)]
    assert draws[0].fingerprint == draws[1].fingerprint != draws[2].fingerprint
    assert all(len(draw) == 8 for draw in draws)
    assert all("document number" in plain.decode(row) for draw in draws for row in draw.input_ids)


def test_shuffling_through_a_buffer_loses_nothing_and_is_uniform_when_all_fit():
    generator = np.random.default_rng(0)
    documents = [str(number) for number in range(50)]
    assert sorted(shuffled(documents, generator, 10)) == sorted(documents)
    firsts = [next(shuffled(["a", "b", "c"], generator, 10)) for _ in range(3000)]
    counts = [firsts.count(letter) for letter in "abc"]
    assert min(counts) > 900


def test_reading_stops_when_there_are_enough_tokens():
    taken = []

    def endless():
        while True:
            taken.append(1)
            yield [1, 2, 3]

    found = from_stream("endless", endless(), tokens=12, chunk_tokens=4)
    assert found.input_ids.tolist() == [[1, 2, 3, 1], [2, 3, 1, 2], [3, 1, 2, 3]]
    assert len(taken) == 4


@pytest.mark.parametrize(("tokens", "chunk"), [(10, 1), (10, 64)])
def test_impossible_sizes_are_refused(tokens, chunk):
    with pytest.raises(ConfigError):
        from_stream("x", [[1, 2]], tokens=tokens, chunk_tokens=chunk)


def test_a_text_shorter_than_one_chunk_is_refused_with_its_length():
    with pytest.raises(DataError, match="has 3 tokens, shorter than one chunk of 64") as caught:
        from_stream("x", [[1, 2, 3]], tokens=640, chunk_tokens=64)
    assert "longer text" in (caught.value.hint or "")


def test_examples_are_masked_cut_and_limited_by_tokens():
    examples = [[5, 6, 7], [8], [9, 9, 9, 9, 9]]
    found = from_examples("pool", examples, pad_id=3, max_tokens=4)
    assert found.input_ids.tolist() == [[5, 6, 7, 3], [8, 3, 3, 3], [9, 9, 9, 9]]
    assert found.attention_mask.sum(1).tolist() == [3, 1, 4]
    assert found.tokens == 8
    assert len(from_examples("pool", examples, tokens=4)) == 2
    assert len(from_examples("pool", examples, tokens=1)) == 1
    drawn = from_examples("pool", [[number] for number in range(30)], seed=1)
    assert sorted(drawn.input_ids.flatten().tolist()) == list(range(30))
    assert drawn.input_ids.flatten().tolist() != list(range(30))


def test_empty_examples_are_refused():
    with pytest.raises(DataError, match="example 1 of 'pool' has no tokens"):
        from_examples("pool", [[1], []])
    with pytest.raises(DataError, match="has no examples"):
        from_examples("pool", [])
    with pytest.raises(DataError, match="at least one token in every row"):
        make_set("x", torch.ones(2, 3), torch.tensor([[1, 1, 1], [0, 0, 0]]))
    with pytest.raises(DataError, match="mask of the same shape"):
        make_set("x", torch.ones(2, 3), torch.ones(2, 2))


def test_batches_keep_order_and_drop_columns_that_are_padding_throughout():
    found = from_examples("pool", [[1], [2, 2], [3, 3, 3, 3]])
    shapes = [batch.input_ids.shape for batch in found.batches(2)]
    assert shapes == [(2, 2), (1, 4)]
    joined = torch.cat([batch.input_ids[batch.attention_mask.bool()] for batch in found.batches(2)])
    assert joined.tolist() == [1, 2, 2, 3, 3, 3, 3]
    with pytest.raises(ConfigError, match="batch size"):
        next(found.batches(0))


def test_the_fingerprint_sees_ids_and_mask():
    ids = torch.arange(6).reshape(2, 3)
    base = make_set("a", ids)
    assert make_set("another name", ids).fingerprint == base.fingerprint
    assert make_set("a", ids + 1).fingerprint != base.fingerprint
    masked = torch.tensor([[1, 1, 1], [1, 1, 0]])
    assert make_set("a", ids, masked).fingerprint != base.fingerprint


def test_a_models_fingerprint_sees_every_tensor():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    before = model_fingerprint(model)
    assert model_fingerprint(model) == before
    with torch.no_grad():
        model[1].bias[2] += 1
    assert model_fingerprint(model) != before
    assert model_fingerprint(model.to(torch.bfloat16)) != before
