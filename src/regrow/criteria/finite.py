"""Activations that are not finite: which block made them, said once."""

from __future__ import annotations

import torch

from regrow.errors import ModelError


def non_finite(block: int) -> ModelError:
    """Return the error for a state that is not finite; block -1 means the embeddings."""
    where = "the embeddings give" if block < 0 else f"block {block} gives"
    return ModelError(
        f"{where} activations that are not finite (or all zero)",
        hint="load the model with --dtype float32, or check the weights of that block",
    )


def check_state(place: int, state: torch.Tensor) -> None:
    """Raise ModelError when the stream that enters block ``place`` is not finite; an observer for capture."""
    if not bool(state.isfinite().all()):
        raise non_finite(place - 1)
