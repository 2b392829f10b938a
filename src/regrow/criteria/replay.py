"""One batch of text, ready to be sent through any subset of a model's blocks without copying the model.

A single ordinary pass records with which arguments the backbone calls each block (masks and rotary embeddings, which
differ between block types). Afterwards the blocks themselves are called with their own arguments, those of a removed
block simply never. This is exact for every decoder whose backbone does nothing to the stream between two blocks, and
that is checked on the recorded pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from regrow.criteria.finite import check_state
from regrow.errors import ModelError
from regrow.models.capture import stream_of_input, stream_of_output
from regrow.models.families import backbone_of, blocks_of, final_norm_of


@dataclass(frozen=True)
class BlockCall:
    """How the backbone calls a block, apart from the stream: positional arguments after it, and keyword arguments."""

    rest: tuple[Any, ...]
    options: dict[str, Any]

    def for_copies(self, copies: int, rows: int) -> BlockCall:
        """Return the call for ``copies`` stacked batches of ``rows`` sequences each."""
        if copies == 1 or rows == 1:
            return self
        return BlockCall(
            tuple(_repeat(value, copies, rows) for value in self.rest),
            {name: _repeat(value, copies, rows) for name, value in self.options.items()},
        )


OnState = Callable[[int, torch.Tensor], None]


class Replay:
    """The blocks of a model and the recorded calls for one batch.

    ``entry`` is h_0 (rows, tokens, width). ``on_state(l, h_l)`` is told every stream of the recorded pass, h_N last.
    Everything runs without gradients.
    """

    def __init__(self, model: Any, input_ids: torch.Tensor, on_state: OnState | None = None) -> None:
        self.model = model
        self.blocks = list(blocks_of(model))
        self.norm = final_norm_of(model)
        self.rows, self.tokens = input_ids.shape
        self.entry, self.calls = _record(
            model, self.blocks, self.norm, input_ids, on_state or (lambda place, state: None)
        )

    def run(self, block: int, state: torch.Tensor) -> torch.Tensor:
        """Return the stream that leaves ``block``; ``state`` may hold several batches stacked on the first axis."""
        call = self.calls[block].for_copies(state.shape[0] // self.rows, self.rows)
        return stream_of_output(self.blocks[block](state, *call.rest, **call.options))

    @property
    def can_stack(self) -> bool:
        """Whether batches may be stacked: an argument of the batch's shape must be told from one of the tokens'."""
        return self.rows == 1 or self.rows != self.tokens

    def through(self, blocks: Sequence[int], state: torch.Tensor) -> torch.Tensor:
        """Return the stream after the given blocks, in order."""
        for block in blocks:
            state = self.run(block, state)
        return state


def _record(
    model: Any, blocks: list[nn.Module], norm: nn.Module, input_ids: torch.Tensor, on_state: OnState
) -> tuple[torch.Tensor, list[BlockCall]]:
    calls: list[BlockCall] = []
    entry: list[torch.Tensor] = []
    before: list[torch.Tensor] = []

    def entering(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        state = stream_of_input(args, kwargs)
        if before and not (state is before[0] or torch.equal(state, before[0])):
            raise ModelError(
                f"{type(model).__name__} changes the stream between blocks {len(calls) - 1} and {len(calls)}",
                hint="use a criterion that runs the whole model (block-influence, taylor) with this architecture",
            )
        if not entry:
            entry.append(state)
        on_state(len(calls), state)
        options = {name: value for name, value in kwargs.items() if name != "hidden_states"}
        calls.append(BlockCall(tuple(args[1:]), options))

    def leaving(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        before[:] = [stream_of_output(output)]
        check_state(len(calls), before[0])

    with torch.inference_mode(), ExitStack() as hooks:
        for block in blocks:
            hooks.callback(block.register_forward_pre_hook(entering, with_kwargs=True).remove)
            hooks.callback(block.register_forward_hook(leaving).remove)
        output = backbone_of(model)(input_ids=input_ids, use_cache=False)
        final = norm(before[0])
    if len(calls) != len(blocks) or not torch.equal(final, output.last_hidden_state):
        raise ModelError(
            f"{type(model).__name__} does more after its blocks than one final norm",
            hint="use a criterion that runs the whole model (block-influence, taylor) with this architecture",
        )
    on_state(len(calls), before[0])
    return entry[0], calls


def _repeat(value: Any, copies: int, rows: int) -> Any:
    if isinstance(value, torch.Tensor):
        if value.dim() >= 2 and value.shape[0] == rows:
            return value.repeat(copies, *[1] * (value.dim() - 1))
        return value
    if isinstance(value, (tuple, list)):
        return type(value)(_repeat(one, copies, rows) for one in value)
    return value
