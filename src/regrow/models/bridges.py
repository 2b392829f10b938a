"""Small operators on the residual stream at a cut, carried by the kept block beside it.

A bridge is a registered submodule of a block plus a module-level hook that calls it. So it is in the state dict, moves
with ``.to()``, trains, survives ``deepcopy``, gradient checkpointing and PEFT wrapping, and no forward is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regrow.errors import ModelError
from regrow.models.capture import stream_of_input, stream_of_output
from regrow.models.families import blocks_of, text_config_of

EXIT = "exit_bridge"
ENTRY = "entry_bridge"
_HANDLE = "_bridge_hook"


class Bridge(nn.Module):
    """Base of all operators on the residual stream: (..., width) in, (..., width) out, the input's dtype kept.

    ``description()`` returns the JSON values from which :func:`bridge_from` builds an empty twin; ``flops_per_token``
    counts two per multiplied weight, additions of a bias or of the stream itself left out.
    """

    kind: str = ""
    width: int

    def description(self) -> dict[str, Any]:
        raise NotImplementedError

    @property
    def flops_per_token(self) -> int:
        raise NotImplementedError

    @property
    def parameter_count(self) -> int:
        """Number of stored values, bias included."""
        return sum(weight.numel() for weight in self.parameters())


class AffineBridge(Bridge):
    """h' = h + h W + b for rows h; without ``residual`` h' = h W + b.

    ``rank`` None: W is one (width, width) matrix ``weight``. Otherwise W = ``down`` (width, rank) @ ``up``
    (rank, width). A new bridge is the identity (zero weights; with ``residual`` off, the unit matrix at full rank).
    Raises ModelError when ``rank`` is not between 1 and ``width``.
    """

    kind = "affine"

    def __init__(self, width: int, *, rank: int | None = None, bias: bool = True, residual: bool = True) -> None:
        super().__init__()
        check_rank(width, rank)
        self.width, self.rank, self.residual = width, rank, residual
        if rank is None:
            start = torch.zeros(width, width) if residual else torch.eye(width)
            self.weight = nn.Parameter(start)
        else:
            self.down = nn.Parameter(torch.zeros(width, rank))
            self.up = nn.Parameter(torch.zeros(rank, width))
        if bias:
            self.bias = nn.Parameter(torch.zeros(width))
        else:
            self.register_parameter("bias", None)

    def forward(self, stream: torch.Tensor) -> torch.Tensor:
        first = self.weight if self.rank is None else self.down
        change = stream.to(first.dtype) @ first
        if self.rank is not None:
            change = change @ self.up
        if self.bias is not None:
            change = change + self.bias
        change = change.to(stream.dtype)
        return stream + change if self.residual else change

    def description(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "width": self.width,
            "rank": self.rank,
            "bias": self.bias is not None,
            "residual": self.residual,
        }

    @property
    def flops_per_token(self) -> int:
        return 2 * self.width * (self.width if self.rank is None else 2 * self.rank)

    def extra_repr(self) -> str:
        return f"width={self.width}, rank={self.rank}, bias={self.bias is not None}, residual={self.residual}"


class ScalingBridge(Bridge):
    """h' = h * s, one factor per coordinate; a new bridge is the identity."""

    kind = "scaling"

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, stream: torch.Tensor) -> torch.Tensor:
        return (stream.to(self.scale.dtype) * self.scale).to(stream.dtype)

    def description(self) -> dict[str, Any]:
        return {"kind": self.kind, "width": self.width}

    @property
    def flops_per_token(self) -> int:
        return self.width

    def extra_repr(self) -> str:
        return f"width={self.width}"


KINDS: dict[str, Callable[..., Bridge]] = {AffineBridge.kind: AffineBridge, ScalingBridge.kind: ScalingBridge}


@dataclass(frozen=True)
class Attached:
    """A bridge and its place: the stream that leaves block ``after_block`` of this model (-1: the embeddings)."""

    after_block: int
    bridge: Bridge


def check_rank(width: int, rank: int | None) -> None:
    """Raise ModelError unless ``rank`` is None or between 1 and ``width``."""
    if rank is not None and not 1 <= rank <= width:
        raise ModelError(
            f"a bridge on a stream of width {width} cannot have rank {rank}",
            hint=f"allowed: 1 to {width}, or no rank for the full matrix",
        )


def bridge_from(description: Mapping[str, Any]) -> Bridge:
    """Return an empty bridge of the described kind and shape. Raises ModelError on a kind this version lacks."""
    options = {key: value for key, value in description.items() if key not in ("kind", "after_block")}
    kind = description.get("kind")
    if kind not in KINDS:
        raise ModelError(
            f"this version of regrow has no bridge of kind {kind!r}", hint="update regrow: pip install --upgrade regrow"
        )
    try:
        return KINDS[str(kind)](**options)
    except TypeError as error:
        raise ModelError(
            f"a bridge of the checkpoint is not described as regrow writes it: {error}", hint="repair again"
        ) from error


def attach_bridge(model: nn.Module, after_block: int, bridge: Bridge) -> None:
    """Make ``bridge`` act on the stream that leaves block ``after_block`` of ``model`` (-1: what enters block 0).

    The bridge takes the device and dtype of that block's weights. From then on ``model.save_pretrained`` writes the
    form that only regrow loads (models/bridged_config.py). Raises ModelError when there is no such block, the width
    differs, or the place is taken.
    """
    blocks = blocks_of(model)
    if not -1 <= after_block < len(blocks):
        raise ModelError(
            f"no bridge can follow block {after_block}: the model has {len(blocks)} blocks",
            hint=f"allowed: -1 (the embeddings) to {len(blocks) - 1}",
        )
    width = text_config_of(model).hidden_size
    if bridge.width != width:
        raise ModelError(
            f"a bridge of width {bridge.width} does not fit a stream of width {width}", hint="fit it on this model"
        )
    name = ENTRY if after_block == -1 else EXIT
    block = blocks[max(after_block, 0)]
    if hasattr(block, name):
        raise ModelError(
            f"there is a bridge after block {after_block} already", hint="call detach_bridges(model) first"
        )
    _put(block, name, bridge)
    model.__class__ = bridged_class(type(model))


def bridges_of(model: nn.Module) -> list[Attached]:
    """Return the bridges of ``model`` from the input side on; empty when there are none."""
    found: list[Attached] = []
    for index, block in enumerate(blocks_of(model)):
        for name, after in ((ENTRY, -1), (EXIT, index)):
            bridge = _inner(getattr(block, name, None))
            if bridge is not None:
                found.append(Attached(after, bridge))
    return found


def take_bridge(model: nn.Module, after_block: int) -> Bridge:
    """Return the bridge after block ``after_block`` (-1: before block 0) and take it off. Raises ModelError when there
    is none. A model without bridges is a plain one again."""
    found = {entry.after_block: entry.bridge for entry in bridges_of(model)}
    if after_block not in found:
        raise ModelError(f"there is no bridge after block {after_block}", hint=f"there are: {sorted(found) or 'none'}")
    name = ENTRY if after_block == -1 else EXIT
    block = blocks_of(model)[max(after_block, 0)]
    getattr(block, _HANDLE + name).remove()
    delattr(block, name)
    delattr(block, _HANDLE + name)
    if len(found) == 1:
        model.__class__ = plain_class(type(model))
    return found[after_block]


def detach_bridges(model: nn.Module) -> list[Attached]:
    """Return the bridges of ``model`` after taking them off it; the model is then a plain one again."""
    found = bridges_of(model)
    for entry in found:
        take_bridge(model, entry.after_block)
    return found


def describe_bridges(model: nn.Module) -> list[dict[str, Any]]:
    """Return place, kind and shape of every bridge as JSON values, as they are written to the config."""
    return [{"after_block": entry.after_block, **entry.bridge.description()} for entry in bridges_of(model)]


_BRIDGED: dict[type, type] = {}


def bridged_class(base: type) -> type:
    """Return the one subclass of ``base`` (same name) whose ``save_pretrained`` tells of the bridges."""
    if issubclass(base, SavesBridges):
        return base
    if base not in _BRIDGED:
        facts = {"__module__": base.__module__, "__doc__": base.__doc__}
        _BRIDGED[base] = type(base.__name__, (SavesBridges, base), facts)
    return _BRIDGED[base]


def plain_class(kind: type) -> type:
    """Return the class that :func:`bridged_class` was called with."""
    return next(parent for parent in kind.__mro__ if not issubclass(parent, SavesBridges))


class SavesBridges:
    """Mixed into the class of a bridged model, because a config that looks plain would let other programs load the
    checkpoint and drop the bridges without a word."""

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        from regrow.models.bridged_config import write_bridged_config

        if kwargs.get("push_to_hub"):
            raise ModelError(
                "a model with bridges is not pushed while it is saved, because its config is completed afterwards",
                hint="save it to a folder, then upload that folder: hf upload NAME FOLDER",
            )
        super().save_pretrained(save_directory, *args, **kwargs)  # type: ignore[misc]
        if kwargs.get("is_main_process", True):
            write_bridged_config(Path(save_directory), self)


def _put(block: nn.Module, name: str, bridge: Bridge) -> None:
    like = next(block.parameters())
    # float32 bridges on a half-precision model would be cast at every token.
    kind = like.dtype if like.is_floating_point() else None
    block.add_module(name, bridge if like.device.type == "meta" else bridge.to(like.device, kind))
    # Outermost among hooks registered so far or later: observers must see the stream that the next block gets.
    if name == ENTRY:
        handle = block.register_forward_pre_hook(_enter, with_kwargs=True, prepend=True)
    else:
        handle = block.register_forward_hook(_leave, prepend=True)
    setattr(block, _HANDLE + name, handle)


def _enter(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    # Reads the bridge from the block it is called with: a closure would keep pointing at the original after a deepcopy.
    changed = getattr(block, ENTRY)(stream_of_input(args, kwargs))
    if args:
        return (changed, *args[1:]), kwargs
    return args, {**kwargs, "hidden_states": changed}


def _leave(block: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
    changed = getattr(block, EXIT)(stream_of_output(output))
    return (changed, *output[1:]) if isinstance(output, tuple) else changed


def _inner(module: Any) -> Bridge | None:
    """Return the bridge itself where PEFT has wrapped it (modules_to_save)."""
    if module is None or isinstance(module, Bridge):
        return module
    wrapped = getattr(module, "modules_to_save", None)
    active = getattr(module, "active_adapter", None)
    if wrapped is not None and active is not None:
        key = active if isinstance(active, str) else active[0]
        return wrapped[key] if key in wrapped else module.original_module  # noqa: SIM401  (a ModuleDict has no get)
    return None
