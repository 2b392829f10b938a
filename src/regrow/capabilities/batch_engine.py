"""Rows of prompts run through a model together: opened with their prompt, continued one token at a time, dropped.

Three ways to do it, the fastest that gives the model's own logits is taken:

``shared``    the common prefix is kept once and attended to by all rows in one product (shared_prefix.py)
``copied``    each row holds a copy of the prefix, the model's own attention runs (sliding windows, soft caps, sinks)
``none``      the model keeps other states than keys and values (recurrent ones): no reuse, see plain_generation.py
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, Literal

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from regrow.capabilities.kv_rows import NO_PREFIX, KeyValueRows, Prefix
from regrow.capabilities.model_call import ModelCall
from regrow.capabilities.shared_prefix import NotShareable, SharedAttention
from regrow.models.quiet import quiet_transformers

Way = Literal["shared", "copied", "none"]

PROMPT_TOKENS_AT_ONCE = 4096
"""Prompt tokens per model call while rows are opened; bounds the memory of activations."""

_ENOUGH_TOKENS, _SIMILAR = 512, 0.75
"""Beyond so many tokens a call gains nothing by more rows, so rows that would be padding for a quarter are left out."""

_SAMPLE = 16


class BatchEngine:
    """Live rows of prompts. Use as a context manager: leaving it frees the storage.

    ``most`` rows at a time, each of at most ``longest`` tokens, prompt and answer. ``slack`` columns more are kept
    free, so that as many steps pass before anything has to be moved.
    """

    def __init__(self, call: ModelCall, way: Way, *, most: int, longest: int, slack: int = 64) -> None:
        layers = len(_layers(call.model) or ())
        self.call = call
        self.rows = KeyValueRows(layers, most, longest + slack, shared=way == "shared", device=call.device)
        self._attention = SharedAttention(call.model, self.rows) if way == "shared" else None

    def __enter__(self) -> BatchEngine:
        if self._attention is not None:
            self._attention.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._attention is not None:
            self._attention.__exit__()
        self.rows.release()

    def run_prefix(self, ids: Sequence[int]) -> Prefix:
        """Return the keys and values of a prefix, run once as a batch of one; of no tokens: no prefix."""
        if not ids:
            return NO_PREFIX
        cache = DynamicCache()
        with self._attention.suspended() if self._attention is not None else nullcontext():
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
            # With a copied prefix a shorter prompt has its last prefix tokens run again: a row must have no gaps.
            own = [prompt[prefix.tokens :] if self.rows.shared else prompt[-width:] for prompt in part]
            logits.append(self._run([[0] * (width - len(tokens)) + list(tokens) for tokens in own]))
            begin += len(part)
        return torch.cat(logits)

    def step(self, tokens: Sequence[int]) -> torch.Tensor:
        """Give each live row its next token and return the logits after it, rows x vocabulary."""
        self.rows.next_column()
        return self._run([[token] for token in tokens])

    def continue_rows(self, sources: Sequence[int], texts: Sequence[Sequence[int]]) -> None:
        """Run ``texts[i]`` as what follows live row ``sources[i]``, all in one call; the live rows stay as they are.

        Shorter texts are padded on the right. What the call computed is read from the model (token_scores.py).
        """
        rows = self.rows.branch(sources, max(map(len, texts)))
        try:
            with SharedAttention(self.call.model, rows) if rows.shared else nullcontext():
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


def choose_way(call: ModelCall, sample: Sequence[int], longest: int) -> Way:
    """Return the fastest way that reproduces the model's own logits, for texts of up to ``longest`` tokens.

    What a model's code does between its cache and its attention cannot be seen from outside, so each way is tried on
    a few tokens of ``sample``, with a prefix, padding and a step, against a forward pass without a cache.
    """
    layers = _layers(call.model)
    if layers is None:
        return "none"
    with quiet_transformers():
        return _first_that_reproduces(call, layers, sample, longest)


def _first_that_reproduces(call: ModelCall, layers: list[Any], sample: Sequence[int], longest: int) -> Way:
    windows = _windows(layers)
    ids = (list(sample) * _SAMPLE)[:_SAMPLE]
    truth = call.last_logits(torch.tensor([ids], device=call.device), cache=None, keep=0)[0]
    shareable = call.model.config._attn_implementation == "sdpa" and all(window >= longest for window in windows)
    if shareable and _reproduces(call, "shared", ids, truth):
        return "shared"
    return "copied" if _reproduces(call, "copied", ids, truth) else "none"


def attention_windows(model: Any) -> list[int] | None:
    """Return the windows of the layers that look back only so far; None when a layer keeps other states than keys and
    values."""
    layers = _layers(model)
    return None if layers is None else _windows(layers)


def _windows(layers: list[Any]) -> list[int]:
    return [layer.sliding_window for layer in layers if isinstance(layer, DynamicSlidingWindowLayer)]


def _layers(model: Any) -> list[Any] | None:
    """Return transformers' description of the cache's layers, None when one of them is not plain keys and values."""
    layers = DynamicCache(config=model.config).layers
    plain = all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers)
    return layers if layers and plain else None


def _reproduces(call: ModelCall, way: Way, ids: list[int], truth_TV: torch.Tensor) -> bool:
    half = _SAMPLE // 2
    lengths = (_SAMPLE - 1, half + 2)
    try:
        with BatchEngine(call, way, most=2, longest=_SAMPLE) as engine:
            prefix = engine.run_prefix(ids[:half])
            opened = engine.open(prefix, [ids[:length] for length in lengths])
            stepped = engine.step([ids[length] for length in lengths])
            if way == "shared" and engine.rows.attended != engine.rows.updates:
                return False
    except (NotShareable, TypeError, ValueError, RuntimeError, AttributeError, IndexError, KeyError):
        return False
    got = torch.cat([opened, stepped])
    expected = torch.stack([truth_TV[length - 1 + step] for step in (0, 1) for length in lengths])
    return same_logits(got, expected)


def same_logits(got: torch.Tensor, expected: torch.Tensor) -> bool:
    """Return whether logits are the same up to the rounding of their precision."""
    error = (got - expected).float().norm() / (expected - expected.mean(-1, keepdim=True)).float().norm()
    return bool(error <= (1e-3 if got.dtype == torch.float32 else 0.1))
