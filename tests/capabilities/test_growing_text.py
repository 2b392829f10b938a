"""Text decoded token by token against text decoded at once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from regrow.capabilities.growing_text import GrowingText, decode


def byte_tokenizer() -> Any:
    """One token a byte, with a few merges across characters and a special token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    table = {"<eos>": 0, **{letter: index for index, letter in enumerate(alphabet, start=1)}}
    merges = [("Ã", "©"), ("a", "Ã"), ("Ġ", "a"), ("©", "Ġ")]
    for first, second in merges:
        table[first + second] = len(table)
    backend = Tokenizer(models.BPE(vocab=table, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>")


def space_tokenizer() -> Any:
    """Pieces that carry their space in front, dropped at the very beginning, as SentencePiece models do."""
    table = {"<unk>": 0, "<s>": 1, "▁": 2, "▁the": 3, "▁cat": 4, "s": 5, "▁s": 6, "at": 7, ".": 8, "▁▁": 9}
    backend = Tokenizer(models.BPE(vocab=table, merges=[], unk_token="<unk>"))
    backend.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", bos_token="<s>")


TOKENIZERS = {"bytes": byte_tokenizer(), "spaces": space_tokenizer()}


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(data=st.data())
def test_grows_into_the_whole_text(kind: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[kind]
    ids = data.draw(st.lists(st.integers(0, len(tokenizer) - 1), max_size=30))
    growing = GrowingText(tokenizer)
    whole = decode(tokenizer, ids)
    for token in ids:
        before = growing.text
        growing.add(token)
        assert growing.text.startswith(before)
    settled = whole.rstrip("\N{REPLACEMENT CHARACTER}")
    assert whole.startswith(growing.text) or "\N{REPLACEMENT CHARACTER}" in whole
    if whole == settled:
        assert growing.text == whole


@given(st.text(max_size=20))
def test_text_of_any_script_grows_without_broken_characters(text: str) -> None:
    tokenizer = TOKENIZERS["bytes"]
    growing = GrowingText(tokenizer)
    for token in tokenizer(text).input_ids:
        growing.add(token)
        assert text.startswith(growing.text)
    if "\N{REPLACEMENT CHARACTER}" not in text:
        assert growing.text == text
