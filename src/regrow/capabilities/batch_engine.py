"""Rows of prompts run through a model together by its own attention: opened with their prompt, continued one token at a
time, dropped. Each row holds a copy of the prefix that it shares with others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from regrow.capabilities.kv_rows import NO_PREFIX, KeyValueRows, Prefix
from regrow.capabilities.model_call import ModelCall

PROMPT_TOKENS_AT_ONCE = 4096
"""Prompt tokens per model call while rows are opened; bounds the memory of activations."""

_ENOUGH_TOKENS, _SIMILAR = 512, 0.75
"""Beyond so many tokens a call gains nothing by more rows, so rows that would be padding for a quarter are left out."""


class BatchEngine:
    """Live rows of prompts. Use as a context manager: leaving it frees the storage.

    ``most`` rows at a time, each of at most ``longest`` tokens, prompt and answer. ``slack`` columns more are kept
    free, so that as many steps pass before anything has to be moved.
    """

    drafts = False
    """Rows end at one column, so all of them take one token a step."""

    def __init__(self, call: ModelCall, layers: int, *, most: int, longest: int, slack: int = 64) -> None:
        self.call = call
        self.rows = KeyValueRows(layers, most, longest + slack, device=call.device)
        self.places: list[list[int]] = []

    def __enter__(self) -> BatchEngine:
        return self

    def __exit__(self, *exception: object) -> None:
        self.rows.release()

    def run_prefix(self, ids: Sequence[int]) -> Prefix:
        """Return the keys and values of a prefix, run once as a batch of one; of no tokens: no prefix."""
        if not ids:
            return NO_PREFIX
        cache = DynamicCache()
        self.call.last_logits(torch.tensor([list(ids)], device=self.call.device), cache=cache)
        return Prefix.of_cache(cache, len(ids))

    def open(self, prefix: Prefix, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
        """Add rows for ``prompts``, the longest first, all of which begin with ``prefix`` and go on after it; return
        the logits after each, rows x vocabulary."""
        logits: list[torch.Tensor] = []
        begin = 0
        while begin < len(prompts):
            width = len(prompts[begin]) - prefix.tokens
            part = prompts[begin : begin + _fitting([len(prompt) - prefix.tokens for prompt in prompts[begin:]])]
            self.rows.open(prefix, [len(prompt) for prompt in part], width)
            # A shorter prompt has its last prefix tokens run again: a row must have no gaps.
            logits.append(self._run([[0] * (width - len(prompt)) + list(prompt[-width:]) for prompt in part]))
            begin += len(part)
        return torch.cat(logits)

    def step(self, tokens: Sequence[Sequence[int]]) -> torch.Tensor:
        """Give each live row its next token and return the logits after it, rows x vocabulary; ``places[i]`` is then
        the place of row i's token there."""
        self.rows.next_column()
        self.places = [[row] for row in range(len(tokens))]
        return self._run([list(each) for each in tokens])

    def keep(self, tokens: Sequence[int]) -> None:
        """Do nothing: a row holds the one token it was given."""

    def drop(self, row: int) -> list[tuple[int, int]]:
        """Remove a live row and return the moves that close the gap, in order: (to, from)."""
        return self.rows.drop(row)

    def continue_rows(self, sources: Sequence[int], texts: Sequence[Sequence[int]]) -> None:
        """Run ``texts[i]`` as what follows live row ``sources[i]``, all in one call; the live rows stay as they are.

        Shorter texts are padded on the right. What the call computed is read from the model (token_scores.py).
        """
        rows = self.rows.branch(sources, max(map(len, texts)))
        try:
            self._call(rows, right_padded(texts, self.call.device))
        finally:
            rows.release()

    def _run(self, ids: list[list[int]]) -> torch.Tensor:
        return self._call(self.rows, torch.tensor(ids, device=self.call.device))

    def _call(self, rows: KeyValueRows, ids_BT: torch.Tensor) -> torch.Tensor:
        new = ids_BT.shape[1]
        logits = self.call.last_logits(
            ids_BT, cache=rows.cache, mask_BK=rows.mask(new), positions_BT=rows.positions(new)
        )
        rows.advance(new)
        return logits[:, -1]


def _fitting(widths: Sequence[int]) -> int:
    """Return how many rows, of ``widths`` own tokens (descending), are opened in one call."""
    most = max(1, PROMPT_TOKENS_AT_ONCE // widths[0])
    enough = -(-_ENOUGH_TOKENS // widths[0])
    similar = next((at for at, width in enumerate(widths) if width < _SIMILAR * widths[0]), len(widths))
    return min(most, max(enough, similar))


def right_padded(texts: Sequence[Sequence[int]], device: torch.device) -> torch.Tensor:
    """Return token ids as one tensor, filled up with 0 on the right, which a causal model never looks at."""
    width = max(map(len, texts))
    return torch.tensor([[*text, *[0] * (width - len(text))] for text in texts], device=device)


def attention_windows(model: Any) -> list[int] | None:
    """Return the windows of the layers that look back only so far; None when a layer keeps other states than keys and
    values."""
    layers = layers_of(model)
    return None if layers is None else windows_of(layers)


def windows_of(layers: list[Any]) -> list[int]:
    """Return the windows of the layers that look back only so far."""
    return [layer.sliding_window for layer in layers if isinstance(layer, DynamicSlidingWindowLayer)]


def layers_of(model: Any) -> list[Any] | None:
    """Return transformers' description of the cache's layers, None when one of them is not plain keys and values."""
    layers = DynamicCache(config=model.config).layers
    plain = all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers)
    return layers if layers and plain else None


def same_logits(got: torch.Tensor, expected: torch.Tensor) -> bool:
    """Return whether logits are the same up to the rounding of their precision."""
    error = (got - expected).float().norm() / (expected - expected.mean(-1, keepdim=True)).float().norm()
    return bool(error <= (1e-3 if got.dtype == torch.float32 else 0.1))
