"""The residual streams of a model while it runs, without keeping them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from regrow.errors import ModelError
from regrow.models.families import blocks_of

OnState = Callable[[int, torch.Tensor], None]


@contextmanager
def observe_streams(model: nn.Module, on_state: OnState) -> Iterator[None]:
    """Call ``on_state(l, h_BTD)`` for l = 0..N during every model call made inside the context.

    ``h_l`` (batch x tokens x width, the model's dtype, not a copy) is the residual stream that enters block l; ``h_N``
    leaves the last block, before the final norm. Hugging Face's ``hidden_states[-1]`` is after that norm, hence hooks
    on the blocks themselves. The observer must not change the tensors.
    """
    blocks = list(blocks_of(model))
    last = len(blocks)

    def entering(index: int) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            on_state(index, stream_of_input(args, kwargs))

        return hook

    def leaving(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        on_state(last, stream_of_output(output))

    with ExitStack() as hooks:
        for index, block in enumerate(blocks):
            hooks.callback(block.register_forward_pre_hook(entering(index), with_kwargs=True).remove)
        hooks.callback(blocks[-1].register_forward_hook(leaving).remove)
        yield


def stream_of_input(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """Return the residual stream among a block's call arguments (batch x tokens x width)."""
    state = args[0] if args else kwargs.get("hidden_states")
    if not isinstance(state, torch.Tensor) or state.dim() != 3:
        raise ModelError("a block was called without a hidden state of shape batch x tokens x width")
    return state


def stream_of_output(output: Any) -> torch.Tensor:
    """Return the residual stream that a block returned: a Tensor in transformers 5, the first entry of older tuples."""
    state = output[0] if isinstance(output, tuple) else output
    if not isinstance(state, torch.Tensor) or state.dim() != 3:
        raise ModelError("a block did not return a hidden state of shape batch x tokens x width")
    return state
