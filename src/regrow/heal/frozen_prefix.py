"""Blocks below everything that trains, run once per distinct sequence: training goes on from the states they left.

When nothing below block j trains, the residual stream that enters block j is the same in every cycle, pilot and seed.
It is taken from the model's own forward, which is stopped at block j, and handed back to it there later, with the
blocks below passing their input through. No forward is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from regrow.data.pools import Example
from regrow.heal.microbatch import MicroBatch
from regrow.heal.packed_attention import packed_rows
from regrow.heal.per_sequence import PerSequence, Tensors
from regrow.heal.response_logits import response_logits
from regrow.heal.tensor_cache import TensorCache
from regrow.models.capture import stream_of_input
from regrow.models.families import blocks_of, final_norm_of, head_of, text_config_of

STATES = "states"
TOLERANCE_NATS = {torch.float32: 1e-3}
COARSE_TOLERANCE_NATS = 0.1


def first_trained_block(model: nn.Module, trained: Iterable[nn.Parameter]) -> int:
    """Return the lowest block that depends on a trained weight: the number of blocks when only the final norm or the
    head trains, 0 when anything outside them and the blocks does (embeddings, and so a head that is tied to them)."""
    blocks = list(blocks_of(model))
    place: dict[int, int] = {}
    after = {id(weight) for part in (final_norm_of(model), head_of(model)) for weight in part.parameters()}
    for index in range(len(blocks) - 1, -1, -1):
        place.update({id(weight): index for weight in blocks[index].parameters()})
    of_head = {id(weight) for weight in head_of(model).parameters()}
    elsewhere = {
        id(weight)
        for module in model.modules()
        if module is not head_of(model)
        for weight in module.parameters(recurse=False)
    }
    tied = of_head & elsewhere
    lowest = len(blocks)
    for weight in trained:
        known = id(weight)
        if known in place:
            lowest = min(lowest, place[known])
        elif known not in after or known in tied:
            return 0
    return lowest


@contextmanager
def above(model: nn.Module, block: int, states: torch.Tensor) -> Iterator[None]:
    """Let a call of ``model`` inside the context start at ``block``, on ``states`` (batch, tokens, width)."""
    blocks = list(blocks_of(model))

    def replace(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if args:
            return (states, *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": states}

    with ExitStack() as stack:
        for skipped in blocks[:block]:
            skipped.forward = _pass_through
            stack.callback(delattr, skipped, "forward")
        stack.callback(blocks[block].register_forward_pre_hook(replace, with_kwargs=True, prepend=True).remove)
        yield


class _Reached(Exception):
    """Ends a forward at the block whose input was wanted."""


def states_entering(model: Any, block: int, batch: MicroBatch) -> torch.Tensor:
    """Return the stream (batch, tokens, width) that enters ``block``; nothing from there on is computed."""
    found: list[torch.Tensor] = []

    def stop(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        found.append(stream_of_input(args, kwargs))
        raise _Reached

    handle = blocks_of(model)[block].register_forward_pre_hook(stop, with_kwargs=True)
    try:
        response_logits(model, batch)
    except _Reached:
        pass
    finally:
        handle.remove()
    return found[0]


class FrozenPrefix:
    """The states entering ``block`` for the sequences of a plan.

    ``identity`` names the weights; ``cut`` makes micro-batches, ``run`` wraps a forward in the run's number format.
    """

    def __init__(
        self,
        model: Any,
        block: int,
        examples: Sequence[Example],
        cache: TensorCache,
        *,
        identity: object,
        dtype: torch.dtype,
        cut: Callable[[Sequence[Example]], list[MicroBatch]],
    ) -> None:
        self.block = block
        self._model, self._dtype = model, dtype
        self._device = next(model.parameters()).device
        width = text_config_of(model).hidden_size
        size = next(model.parameters()).element_size() if dtype == torch.float32 else 4
        self._store = PerSequence(
            examples,
            cut,
            self._compute,
            cache,
            identity=[STATES, identity, block, str(dtype)],
            bytes_of=lambda entry: entry.tokens * width * size + 512,
        )

    @property
    def sequences(self) -> tuple[int, int]:
        """How many distinct sequences are reused, and how many there are."""
        return self._store.held_sequences, self._store.sequences

    def split(self, examples: Sequence[Example]) -> tuple[list[Example], list[Example]]:
        """Return the sequences whose states are kept, and the others."""
        kept = [entry for entry in examples if self._store.holds(entry)]
        return kept, [entry for entry in examples if not self._store.holds(entry)]

    def entering(self, batch: MicroBatch) -> torch.Tensor:
        """Return the states (batch, tokens, width) of a micro-batch whose sequences are all kept."""
        each = [self._store.of(entry)[STATES] for entry in batch.examples]
        return rows_of(batch, each).to(self._device)

    def _compute(self, batch: MicroBatch) -> list[Tensors]:
        moved = batch.to(self._device)
        with torch.no_grad(), attending(self._model, moved), autocast(self._device, self._dtype):
            states = states_entering(self._model, self.block, moved)
        return [{STATES: part} for part in sequences_of(batch, states.cpu())]


def rows_of(batch: MicroBatch, each: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return (batch, tokens, width): what belongs to each sequence (tokens, width), laid out as the batch is."""
    if batch.layout is None:
        rows = each[0].new_zeros((*batch.input_ids.shape, each[0].shape[-1]))
        for row, state in zip(rows, each, strict=True):
            row[: len(state)] = state
        return rows
    parts: list[torch.Tensor] = []
    at = 0
    for group in batch.layout.groups:
        count = group.branches.shape[0]
        parts.append(each[at][: group.prefix])
        parts += [state[group.prefix :] for state in each[at : at + count]]
        at += count
    return torch.cat(parts)[None]


def sequences_of(batch: MicroBatch, rows: torch.Tensor) -> list[torch.Tensor]:
    """Return (tokens, width) for each sequence of a batch, from what the batch gave (batch, tokens, width)."""
    if batch.layout is None:
        return [row[: entry.tokens].clone() for row, entry in zip(rows, batch.examples, strict=True)]
    found: list[torch.Tensor] = []
    flat = rows[0]
    for group in batch.layout.groups:
        prefix = flat[group.start : group.start + group.prefix]
        at = group.start + group.prefix
        for _ in range(group.branches.shape[0]):
            own = batch.examples[len(found)].tokens - group.prefix
            found.append(torch.cat([prefix, flat[at : at + own]]))
            at += own
    return found


def attending(model: Any, batch: MicroBatch) -> AbstractContextManager[None]:
    """Return the context in which ``model`` may be called with ``batch``."""
    return nullcontext() if batch.layout is None else packed_rows(model, batch.layout)


def autocast(device: torch.device, dtype: torch.dtype) -> AbstractContextManager[Any]:
    """Return the context that multiplies matrices in ``dtype``."""
    reduced = dtype != torch.float32
    return torch.autocast(device.type, dtype=dtype if reduced else None, enabled=reduced)


@torch.no_grad()
def why_not_reused(model: Any, block: int, batches: Sequence[MicroBatch]) -> str:
    """Return the empty string when ``model`` computes the same from the states entering ``block`` as from the tokens,
    else the reason why not.

    Blocks that read anything but the stream of the one below (keys of an earlier block, inputs of their own for each
    block) do not.
    """
    device = next(model.parameters()).device
    try:
        for given in batches:
            batch = given.to(device)
            with attending(model, batch):
                whole = _scores(model, batch)
                states = states_entering(model, block, batch)
                with above(model, block, states):
                    again = _scores(model, batch)
            gap = (whole - again).abs()
            known = next(model.parameters()).dtype in TOLERANCE_NATS
            worst = float(gap.max() if known else gap.mean())
            if not worst <= TOLERANCE_NATS.get(next(model.parameters()).dtype, COARSE_TOLERANCE_NATS):
                return f"{type(model).__name__} gives other log-probabilities from kept states (by {worst:.2g} nats)"
    except Exception as error:
        # Any code of any architecture may run here, and the whole forward is always there.
        return f"{type(model).__name__} does not start at block {block} ({type(error).__name__}: {str(error)[:120]})"
    return ""


def _scores(model: Any, batch: MicroBatch) -> torch.Tensor:
    logits = response_logits(model, batch)
    return logits.float().log_softmax(-1).gather(-1, batch.labels[:, None])[:, 0]


def _pass_through(hidden_states: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return hidden_states
