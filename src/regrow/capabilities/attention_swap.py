"""Another attention function in place of a model's own, for as long as a block runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import DynamicCache

from regrow.capabilities.kv_rows import NO_PREFIX, Prefix
from regrow.capabilities.model_call import ModelCall

UNKNOWN_OPTIONS = ("softcap", "s_aux", "position_bias", "head_mask")
"""Options of transformers' attention functions that change the scores, and that none of ours knows."""


class NotShareable(Exception):
    """The model's attention is more than scaled dot products under a mask."""


class AttentionSwap:
    """Context in which ``model`` attends by the function that is registered with transformers as ``name``.

    Raises NotShareable when the model does not take its attention function from transformers' interface.
    """

    def __init__(self, model: Any, name: str) -> None:
        self.model, self.name = model, name

    def __enter__(self) -> AttentionSwap:
        self._before = self.model.config._attn_implementation
        self.model.set_attn_implementation(self.name)
        if self.model.config._attn_implementation != self.name:
            self.__exit__()
            raise NotShareable
        return self

    def __exit__(self, *exception: object) -> None:
        self.model.set_attn_implementation(self._before)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Let the model attend in its own way while the block runs."""
        self.model.set_attn_implementation(self._before)
        try:
            yield
        finally:
            self.model.set_attn_implementation(self.name)

    def run_prefix(self, call: ModelCall, ids: Sequence[int]) -> Prefix:
        """Return the keys and values of a prefix, run once by the model's own attention; of no tokens: no prefix."""
        if not ids:
            return NO_PREFIX
        cache = DynamicCache()
        with self.suspended():
            call.last_logits(torch.tensor([list(ids)], device=call.device), cache=cache)
        return Prefix.of_cache(cache, len(ids))
