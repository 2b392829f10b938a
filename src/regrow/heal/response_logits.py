"""Logits of a micro-batch where the loss is, and only there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from regrow.heal.microbatch import MicroBatch
from regrow.models.families import head_of


def response_logits(model: Any, batch: MicroBatch) -> torch.Tensor:
    """Return (n, vocabulary): the logits at ``batch.positions``.

    The model's own forward runs; its head is handed the selected positions alone, so whatever the model does to its
    logits afterwards (scaling, soft caps) is done to them too. A packed batch needs ``packed_rows`` around the call.
    """
    inputs: dict[str, Any] = {"input_ids": batch.input_ids, "use_cache": False}
    if batch.position_ids is not None:
        inputs["position_ids"] = batch.position_ids
    if batch.attention_mask is not None:
        inputs["attention_mask"] = batch.attention_mask
    with _head_reads(head_of(model), batch.positions):
        logits: torch.Tensor = model(**inputs).logits
    return logits[0]


def outputs_of(model: nn.Module) -> int:
    """Return how many tokens a model gives logits for."""
    head: Any = head_of(model)
    return int(head.weight.shape[0])


@contextmanager
def _head_reads(head: nn.Module, positions: torch.Tensor) -> Iterator[None]:
    def select(_: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        states = args[0]
        return (states.reshape(-1, states.shape[-1])[positions][None], *args[1:])

    handle = head.register_forward_pre_hook(select)
    try:
        yield
    finally:
        handle.remove()
