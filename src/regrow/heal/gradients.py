"""The gradient of one update: its sequences in micro-batches, one loss over all its response tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from regrow.data.pools import Example
from regrow.heal.frozen_linear import cast_frozen_linears
from regrow.heal.fused_lora import FusedLora, fused_lora
from regrow.heal.losses import Loss
from regrow.heal.microbatch import MicroBatch, packed_microbatches, padded_microbatches
from regrow.heal.packed_attention import packed_rows
from regrow.heal.response_logits import response_logits
from regrow.models.families import blocks_of
from regrow.records.specs import HealSpec
from regrow.seeding import derive_seed


@dataclass(frozen=True)
class UpdateLoss:
    """Mean loss of an update over its response tokens, and the positions that were computed for it."""

    loss: float
    computed_tokens: int


class GradientMaker:
    """Adds the gradient of one update at a time to the trained weights.

    ``packed``: rows without padding (see packed_attention); otherwise padded batches through the model's own attention.
    Use inside :meth:`ready`, which puts the faster layers in place.
    """

    def __init__(self, model: Any, loss: Loss, spec: HealSpec, dtype: torch.dtype, *, packed: bool) -> None:
        self._model, self._loss, self._spec, self._dtype, self._packed = model, loss, spec, dtype, packed
        self._device = next(model.parameters()).device
        self._seed = derive_seed(spec.seed, "dropout")
        self._fused: FusedLora | None = None

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Put the model into the state of training; it is as before when the context ends.

        Modules stay in evaluation mode (a base model's own dropout is no part of the recipe); only the dropout of LoRA
        layers that are not fused is switched on.
        """
        with ExitStack() as stack:
            fused = fused_lora(self._model, self._dtype, dropout=self._spec.dropout, seed=self._seed)
            self._fused = stack.enter_context(fused)
            stack.enter_context(cast_frozen_linears(self._model, self._dtype))
            stack.enter_context(_native_dropout(self._model, self._fused))
            if self._spec.gradient_checkpointing:
                stack.enter_context(_recomputing(self._model))
            yield
        self._fused = None

    def add(
        self, update: int, examples: Sequence[Example], *, between: Callable[[], None] = lambda: None
    ) -> UpdateLoss:
        """Add the gradient of the mean loss over the update's response tokens; ``between`` runs after each micro-batch
        and may raise to abandon the update."""
        response_tokens = sum(len(entry.response_ids) for entry in examples)
        total = 0.0
        computed = 0
        for number, batch in enumerate(self._microbatches(examples)):
            loss = self._run(update, number, batch.to(self._device), response_tokens)
            total += float(loss)
            computed += batch.computed_tokens
            between()
        return UpdateLoss(total, computed)

    def _microbatches(self, examples: Sequence[Example]) -> list[MicroBatch]:
        limit = self._spec.microbatch_tokens
        if self._packed:
            return packed_microbatches(examples, limit, share_prefix=self._spec.share_prefix)
        return padded_microbatches(examples, limit)

    def _run(self, update: int, number: int, batch: MicroBatch, response_tokens: int) -> torch.Tensor:
        assert self._fused is not None
        self._fused.key.update, self._fused.key.microbatch = update, number
        reduced = self._dtype != torch.float32
        rows: AbstractContextManager[None] = nullcontext()
        if batch.layout is not None:
            rows = packed_rows(self._model, batch.layout)
        devices = [self._device] if self._device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), rows:
            torch.manual_seed(derive_seed(self._seed, update, number))
            with torch.autocast(self._device.type, dtype=self._dtype if reduced else None, enabled=reduced):
                logits = response_logits(self._model, batch)
            loss = self._loss(logits, batch) / response_tokens
            loss.backward()
        return loss.detach()


@contextmanager
def _native_dropout(model: Any, fused: FusedLora) -> Iterator[None]:
    replaced = {id(layer) for layer in fused.layers}
    others = [
        module.lora_dropout
        for module in model.modules()
        if hasattr(module, "lora_dropout") and id(module) not in replaced
    ]
    for dropout in others:
        dropout.train()
    try:
        yield
    finally:
        for dropout in others:
            dropout.eval()


@contextmanager
def _recomputing(model: Any) -> Iterator[None]:
    """Recompute each block's activations in the backward pass. transformers does so only for blocks in training mode,
    so that flag is set on the block itself and not on what is in it."""
    # transformers renamed the pair in 5.24.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    disable = getattr(model, "activation_checkpointing_disable", None) or model.gradient_checkpointing_disable
    enable({"use_reentrant": False})
    blocks = list(blocks_of(model))
    for block in blocks:
        block.training = True
    try:
        yield
    finally:
        disable()
        for block in blocks:
            block.training = False
