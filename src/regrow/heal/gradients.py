"""The gradient of one update: its sequences in micro-batches, one loss over all its response tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from regrow.data.pools import Example
from regrow.heal.cut_streams import Cut, streams_at
from regrow.heal.frozen_linear import cast_frozen_linears
from regrow.heal.frozen_prefix import FrozenPrefix, above, attending, autocast
from regrow.heal.fused_lora import FusedLora, fused_lora
from regrow.heal.losses import STREAMS, LossInputs
from regrow.heal.microbatch import MicroBatch, packed_microbatches, padded_microbatches
from regrow.heal.objective import Objective
from regrow.heal.processes import ALONE, Processes
from regrow.heal.response_logits import response_logits
from regrow.heal.teacher import Signals, Teacher
from regrow.models.families import blocks_of
from regrow.records.specs import HealSpec
from regrow.seeding import derive_seed


@dataclass(frozen=True)
class UpdateLoss:
    """Mean loss of an update over its response tokens, that of each term unweighted, and the positions that were
    computed for it (those of a frozen prefix not among them)."""

    loss: float
    computed_tokens: int
    parts: dict[str, float] = field(default_factory=dict)


class GradientMaker:
    """Adds the gradient of one update at a time to the trained weights.

    ``packed``: rows without padding (see packed_attention); otherwise padded batches through the model's own attention.
    ``teacher`` is the unpruned model for losses that compare with it, ``cuts`` where; ``prefix`` holds the states of
    blocks that need not run again. With several ``processes`` each takes its share of the micro-batches, and the
    gradients are added up. Use inside :meth:`ready`, which puts the faster layers in place.
    """

    def __init__(
        self,
        model: Any,
        objective: Objective,
        spec: HealSpec,
        dtype: torch.dtype,
        *,
        packed: bool,
        teacher: Teacher | None = None,
        cuts: Sequence[Cut] = (),
        prefix: FrozenPrefix | None = None,
        gradient_checkpointing: bool = False,
        processes: Processes = ALONE,
    ) -> None:
        self._model, self._objective, self._spec, self._dtype, self._packed = model, objective, spec, dtype, packed
        self._teacher, self._prefix, self._processes = teacher, prefix, processes
        self._places = [cut.pruned for cut in cuts] if STREAMS in objective.reads else []
        self.gradient_checkpointing = gradient_checkpointing
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
            if self._teacher is not None:
                stack.enter_context(self._teacher.ready())
            if self.gradient_checkpointing:
                stack.enter_context(_recomputing(self._model))
            yield
        self._fused = None

    def add(
        self, update: int, examples: Sequence[Example], *, between: Callable[[], None] = lambda: None
    ) -> UpdateLoss:
        """Add the gradient of the mean loss over the update's response tokens; ``between`` runs after each micro-batch
        and may raise to abandon the update."""
        response_tokens = sum(len(entry.response_ids) for entry in examples)
        batches = self.microbatches(examples)
        totals = torch.zeros(2 + len(self._objective.terms), dtype=torch.float64)
        for number, weight in self._processes.share([batch.computed_tokens for batch, _ in batches]):
            batch, reused = batches[number]
            loss, parts = self._run(update, number, batch.to(self._device), response_tokens, reused, weight)
            totals += torch.tensor([float(loss), batch.computed_tokens * weight, *map(float, parts)]).double()
            between()
        totals = self._processes.total(totals)
        names = [term.name for term in self._objective.terms]
        by_name = dict(zip(names, totals[2:].tolist(), strict=True)) if len(names) > 1 else {}
        return UpdateLoss(float(totals[0]), round(float(totals[1])), by_name)

    def microbatches(self, examples: Sequence[Example]) -> list[tuple[MicroBatch, bool]]:
        """Return the micro-batches of an update, and whether each starts from kept states."""
        if self._prefix is None:
            return [(batch, False) for batch in self.cut(examples)]
        kept, others = self._prefix.split(examples)
        found = [(batch, True) for batch in (self.cut(kept) if kept else [])]
        return found + [(batch, False) for batch in (self.cut(others) if others else [])]

    def cut(self, examples: Sequence[Example]) -> list[MicroBatch]:
        """Return sequences as micro-batches in the run's way."""
        return cut_into_microbatches(examples, self._spec, packed=self._packed)

    def loss_of(
        self, update: int, number: int, batch: MicroBatch, response_tokens: int, reused: bool
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return a micro-batch's share of the update's loss (a scalar with its graph), and of each term unweighted."""
        assert self._fused is not None
        batch = batch.to(self._device)
        self._fused.key.update, self._fused.key.microbatch = update, number
        with self._computing(update, number, batch, reused):
            return self._loss(batch, response_tokens)

    def _run(
        self, update: int, number: int, batch: MicroBatch, response_tokens: int, reused: bool, weight: float
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        assert self._fused is not None
        self._fused.key.update, self._fused.key.microbatch = update, number
        # The backward pass recomputes under gradient checkpointing, so it belongs inside.
        with self._computing(update, number, batch, reused):
            loss, parts = self._loss(batch, response_tokens)
            scale = weight * self._processes.gradient_scale
            (loss if scale == 1.0 else loss * scale).backward()
        return loss.detach() * weight, [part.detach() * weight for part in parts]

    @contextmanager
    def _computing(self, update: int, number: int, batch: MicroBatch, reused: bool) -> Iterator[None]:
        devices = [self._device] if self._device.type == "cuda" else []
        start: AbstractContextManager[None] = nullcontext()
        if reused:
            assert self._prefix is not None
            start = above(self._model, self._prefix.block, self._prefix.entering(batch))
        with torch.random.fork_rng(devices=devices), attending(self._model, batch), start:
            torch.manual_seed(derive_seed(self._seed, update, number))
            yield

    def _loss(self, batch: MicroBatch, response_tokens: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
        signals = Signals() if self._teacher is None else self._teacher.signals(batch)
        with autocast(self._device, self._dtype), streams_at(self._model, self._places, batch.positions) as streams:
            logits = response_logits(self._model, batch)
        seen = LossInputs(
            logits,
            batch.labels,
            signals.logits,
            signals.top,
            tuple(streams),
            signals.streams,
            1.0 if self._teacher is None else self._teacher.temperature,
        )
        parts = self._objective.parts(seen)
        loss = self._objective.total(parts) / response_tokens
        return loss, [part / response_tokens for part in parts.values()]


def cut_into_microbatches(examples: Sequence[Example], spec: HealSpec, *, packed: bool) -> list[MicroBatch]:
    """Return sequences as packed rows or padded batches of the spec's size."""
    if packed:
        return packed_microbatches(examples, spec.microbatch_tokens, share_prefix=spec.share_prefix)
    return padded_microbatches(examples, spec.microbatch_tokens)


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
