"""What a repair may read of a running model: streams, and what enters and leaves the projection that ends a block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from regrow.models.capture import observe_streams
from regrow.models.families import blocks_of
from regrow.repair.projections import writing_projection

Kind = Literal["stream", "corrected", "down_in", "down_out"]


class Signal(NamedTuple):
    """One tensor of width d per token. ``stream`` l: what enters block l of the unpruned model (l = N: what leaves the
    last). ``corrected`` l: the same of the pruned model with the bridges fitted so far. ``down_in``, ``down_out`` k:
    input and output of the projection that writes the MLP of block k into the stream."""

    kind: Kind
    at: int


Source = tuple[tuple[float, Signal], ...]
"""A signed sum of signals, for example Y - X."""


def stream(index: int) -> Source:
    """Return the stream that enters block ``index`` of the unpruned model."""
    return ((1.0, Signal("stream", index)),)


def corrected(index: int) -> Source:
    """Return the stream that enters block ``index`` of the pruned model with its bridges."""
    return ((1.0, Signal("corrected", index)),)


def down_in(block: int) -> Source:
    """Return what enters the down projection of ``block`` of the unpruned model."""
    return ((1.0, Signal("down_in", block)),)


def down_out(block: int) -> Source:
    """Return what the down projection of ``block`` of the unpruned model adds to the stream (its bias included)."""
    return ((1.0, Signal("down_out", block)),)


def plus(*parts: tuple[float, Source]) -> Source:
    """Return the weighted sum of sources."""
    return tuple((factor * inner, signal) for factor, source in parts for inner, signal in source)


def value_of(source: Source, signals: Mapping[Signal, torch.Tensor]) -> torch.Tensor:
    """Return the sum, in float64 where it is one of several signals, since differences of streams cancel."""
    if len(source) == 1 and source[0][0] == 1.0:
        return signals[source[0][1]]
    total: torch.Tensor | None = None
    for factor, signal in source:
        part = signals[signal]
        exact = part.double() if part.device.type != "mps" else part.float()
        total = factor * exact if total is None else total + factor * exact
    assert total is not None
    return total


class _Enough(Exception):
    """Ends a forward pass once everything wanted has been seen."""


@contextmanager
def tapped(model: nn.Module, wanted: Iterable[Signal], kept: dict[Signal, torch.Tensor], kind: Kind) -> Iterator[None]:
    """Fill ``kept`` during one call of ``model``; the call ends by :class:`_Enough` at the last wanted stream."""
    wanted = set(wanted)
    last = max(signal.at + (signal.kind in ("down_in", "down_out")) for signal in wanted)

    def on_state(index: int, state: torch.Tensor) -> None:
        if Signal(kind, index) in wanted:
            kept[Signal(kind, index)] = state
        if index == last:
            raise _Enough

    def keep_projection(block: int) -> Callable[[nn.Module, tuple[Any, ...], torch.Tensor], None]:
        def hook(_: nn.Module, args: tuple[Any, ...], output: torch.Tensor) -> None:
            kept[Signal("down_in", block)] = args[0]
            kept[Signal("down_out", block)] = output

        return hook

    with ExitStack() as hooks:
        hooks.enter_context(observe_streams(model, on_state))
        for block in sorted({signal.at for signal in wanted if signal.kind in ("down_in", "down_out")}):
            projection = writing_projection(model, block).module
            hooks.callback(projection.register_forward_hook(keep_projection(block)).remove)
        yield


def read_signals(
    model: nn.Module, backbone: nn.Module, batch: Mapping[str, torch.Tensor], wanted: Iterable[Signal], kind: Kind
) -> dict[Signal, torch.Tensor]:
    """Return the wanted signals of one batch; blocks above the last wanted one do not run."""
    kept: dict[Signal, torch.Tensor] = {}
    wanted = list(wanted)
    if not wanted:
        return kept
    try:
        with tapped(model, wanted, kept, kind):
            backbone(**batch, use_cache=False)
    except _Enough:
        pass
    return kept


def width_of(signal: Signal, model: nn.Module, width: int) -> int:
    """Return the last dimension of a signal; ``width`` is that of the stream."""
    if signal.kind == "down_in":
        return writing_projection(model, signal.at).inputs
    return width


def block_count(model: nn.Module) -> int:
    """Return the number of blocks of a model."""
    return len(blocks_of(model))
