"""Calibration sets: token ids drawn from text, examples or chats, with a mask and a fingerprint.

Two layouts. A STREAM joins all documents to one sequence of tokens and cuts it into chunks of equal length; the
remainder is dropped and no token is padding. EXAMPLES keep each sequence whole, padded on the right and masked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from regrow.data.fingerprints import tensors_fingerprint
from regrow.data.text import TextSource, open_text
from regrow.errors import ConfigError, DataError
from regrow.seeding import stream

SHUFFLE_BUFFER = 10_000
SHUFFLE_BUFFER_STREAMED = 1_000


class Batch(NamedTuple):
    """``input_ids`` and ``attention_mask``, both (rows, tokens) int64 on the CPU."""

    input_ids: torch.Tensor
    attention_mask: torch.Tensor


@dataclass(frozen=True)
class CalibrationSet:
    """Sequences to run a model on. ``tokens`` counts the unmasked ones; ``fingerprint`` hashes ids and mask."""

    name: str
    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    fingerprint: str
    tokens: int

    def __len__(self) -> int:
        return int(self.input_ids.shape[0])

    @property
    def padded(self) -> bool:
        """Whether any token is padding."""
        return self.tokens < self.input_ids.numel()

    def batches(self, batch_size: int) -> Iterator[Batch]:
        """Yield batches of at most ``batch_size`` rows in order; columns that are padding in all rows are cut off."""
        if batch_size < 1:
            raise ConfigError(f"the batch size must be at least 1, got {batch_size}", hint="try --batch-size 8")
        for start in range(0, len(self), batch_size):
            ids = self.input_ids[start : start + batch_size]
            mask = self.attention_mask[start : start + batch_size]
            used = mask.any(dim=0).nonzero()
            first, last = int(used[0]), int(used[-1]) + 1
            yield Batch(ids[:, first:last], mask[:, first:last])

    def head(self, rows: int) -> CalibrationSet:
        """Return the set of the first ``rows`` sequences."""
        return make_set(self.name, self.input_ids[:rows], self.attention_mask[:rows])

    def renamed(self, name: str) -> CalibrationSet:
        """Return the same tokens under another name."""
        return replace(self, name=name)


def make_set(name: str, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> CalibrationSet:
    """Return a calibration set over given ids (rows, tokens); without a mask no token is padding.

    Raises DataError when there is no row, or a row without a token.
    """
    ids = input_ids.to(device="cpu", dtype=torch.int64)
    mask = torch.ones_like(ids) if attention_mask is None else attention_mask.to(device="cpu", dtype=torch.int64)
    if ids.ndim != 2 or ids.shape != mask.shape:
        raise DataError(
            f"calibration ids must be (rows, tokens) with a mask of the same shape, got {tuple(ids.shape)} and "
            f"{tuple(mask.shape)}",
            hint="build the set with load_calibration or from_examples",
        )
    if ids.shape[0] == 0 or not bool(mask.any(dim=1).all()):
        raise DataError("a calibration set needs at least one token in every row", hint="drop empty examples first")
    print_of = tensors_fingerprint({"ids": ids, "mask": mask})
    return CalibrationSet(name, ids, mask, print_of, int(mask.sum()))


def load_calibration(
    reference: str,
    tokenizer: Any,
    *,
    tokens: int,
    chunk_tokens: int,
    seed: int = 0,
    shuffle: bool = True,
    data_dir: str | Path | None = None,
) -> CalibrationSet:
    """Return about ``tokens`` tokens of a text (see :mod:`regrow.data.text`) as chunks of ``chunk_tokens``.

    Documents are drawn in a seeded random order (``shuffle=False``: as they stand), tokenized, joined to one stream
    and cut; the remainder is dropped. Every chunk begins with BOS when the tokenizer puts one before text by itself
    (Llama-3, Gemma, Mistral; not SmolLM2, Qwen). A text with fewer tokens than asked for is used whole; see
    ``CalibrationSet.tokens``. Raises DataError when it does not fill one chunk.
    """
    source = open_text(reference, data_dir=data_dir)
    return from_source(source, tokenizer, tokens=tokens, chunk_tokens=chunk_tokens, seed=seed, shuffle=shuffle)


def from_source(
    source: TextSource, tokenizer: Any, *, tokens: int, chunk_tokens: int, seed: int = 0, shuffle: bool = True
) -> CalibrationSet:
    """Return the calibration set drawn from a text source (see :func:`load_calibration`)."""
    documents = source.documents()
    if shuffle:
        buffer = SHUFFLE_BUFFER_STREAMED if source.streamed else SHUFFLE_BUFFER
        documents = shuffled(documents, stream(seed, "calibration", source.reference), buffer)
    pieces = _tokenized(documents, tokenizer, source.separator)
    return from_stream(source.reference, pieces, tokens=tokens, chunk_tokens=chunk_tokens, bos=automatic_bos(tokenizer))


def from_stream(
    name: str, pieces: Iterable[Sequence[int]], *, tokens: int, chunk_tokens: int, bos: int | None = None
) -> CalibrationSet:
    """Return ``tokens // chunk_tokens`` chunks cut from the joined ``pieces``, each led by ``bos`` when given.

    Reading stops as soon as there are enough tokens. Raises DataError when not even one chunk is filled.
    """
    if chunk_tokens < 2:
        raise ConfigError(f"a chunk needs at least 2 tokens, got {chunk_tokens}", hint="try --chunk-tokens 256")
    if tokens < chunk_tokens:
        raise ConfigError(
            f"{tokens} calibration tokens do not fill one chunk of {chunk_tokens}",
            hint="raise the number of calibration tokens or lower the chunk length",
        )
    lead = [] if bos is None else [bos]
    body = chunk_tokens - len(lead)
    wanted = tokens // chunk_tokens
    held: list[int] = []
    for piece in pieces:
        held.extend(piece)
        if len(held) >= wanted * body:
            break
    chunks = [lead + held[start : start + body] for start in range(0, len(held) - body + 1, body)][:wanted]
    if not chunks:
        raise DataError(
            f"the calibration text '{name}' has {len(held)} tokens, shorter than one chunk of {chunk_tokens}",
            hint="give a longer text, lower the chunk length, or use --calibration bundled",
        )
    return make_set(name, torch.tensor(chunks, dtype=torch.int64))


def from_examples(
    name: str,
    examples: Iterable[Sequence[int]],
    *,
    pad_id: int = 0,
    max_tokens: int = 512,
    tokens: int | None = None,
    seed: int | None = None,
) -> CalibrationSet:
    """Return token sequences kept whole: cut at ``max_tokens``, padded on the right with ``pad_id``, masked.

    ``seed`` draws them in random order; ``tokens`` stops at the first sequence that would pass that many (the first
    one is always taken). Empty sequences are refused by DataError.
    """
    rows = [list(example)[:max_tokens] for example in examples]
    if not rows:
        raise DataError(f"the calibration set '{name}' has no examples", hint="build the pool first, or use 'bundled'")
    empty = next((number for number, row in enumerate(rows) if not row), None)
    if empty is not None:
        raise DataError(f"example {empty} of '{name}' has no tokens", hint="drop empty examples first")
    if seed is not None:
        rows = [rows[i] for i in stream(seed, "calibration-examples", name).permutation(len(rows))]
    if tokens is not None:
        totals = np.cumsum([len(row) for row in rows])
        rows = rows[: max(1, int(np.searchsorted(totals, tokens, side="right")))]
    width = max(len(row) for row in rows)
    ids = torch.full((len(rows), width), pad_id, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = torch.tensor(row, dtype=torch.int64)
        mask[number, : len(row)] = 1
    return make_set(name, ids, mask)


def automatic_bos(tokenizer: Any) -> int | None:
    """Return the BOS id when the tokenizer puts it before plain text by itself, else None."""
    bos = getattr(tokenizer, "bos_token_id", None)
    if bos is None:
        return None
    ids = tokenizer("a", add_special_tokens=True).input_ids
    return int(bos) if ids and ids[0] == bos else None


def shuffled(documents: Iterable[str], generator: np.random.Generator, buffer: int) -> Iterator[str]:
    """Yield documents in random order through a buffer: a uniform permutation when the buffer holds them all."""
    held: list[str] = []
    for document in documents:
        held.append(document)
        if len(held) > buffer:
            yield _draw(held, generator)
    while held:
        yield _draw(held, generator)


def _draw(held: list[str], generator: np.random.Generator) -> str:
    place = int(generator.integers(len(held)))
    held[place], held[-1] = held[-1], held[place]
    return held.pop()


def _tokenized(documents: Iterable[str], tokenizer: Any, separator: str) -> Iterator[list[int]]:
    between = list(tokenizer(separator, add_special_tokens=False).input_ids) if separator else []
    first = True
    for document in documents:
        if not first and between:
            yield between
        first = False
        yield list(tokenizer(document, add_special_tokens=False, verbose=False).input_ids)
