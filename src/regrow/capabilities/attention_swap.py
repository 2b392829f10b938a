"""Another attention function in place of a model's own, for as long as a block runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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
