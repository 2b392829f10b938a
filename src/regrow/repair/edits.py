"""Changes to a pruned model that can be taken back, so that several repairs can be tried on one copy of it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn

from regrow.models.bridges import Bridge, attach_bridge, take_bridge
from regrow.models.families import anatomy_of, text_config_of
from regrow.records.checkpoint import BridgeFacts
from regrow.repair.projections import writing_projection
from regrow.surgery import cut_config, renumber


class Edit(Protocol):
    """One change. ``facts`` describes a bridge (None for other changes); counts are what it adds to the model."""

    @property
    def facts(self) -> BridgeFacts | None: ...

    @property
    def added_parameters(self) -> int: ...

    @property
    def flops_per_token(self) -> int: ...

    def apply(self, model: Any) -> None: ...

    def undo(self, model: Any) -> None: ...


@dataclass(frozen=True)
class AttachBridge:
    """A bridge after block ``after_block`` of the pruned model, standing for the removed ``blocks``."""

    after_block: int
    bridge: Bridge
    method: str
    blocks: tuple[int, ...]

    @property
    def facts(self) -> BridgeFacts:
        described = self.bridge.description()
        return BridgeFacts(
            after_block=self.after_block,
            method=self.method,
            spans=self.blocks,
            rank=described.get("rank"),
            bias=bool(described.get("bias", False)),
            parameters=self.bridge.parameter_count,
        )

    @property
    def added_parameters(self) -> int:
        return self.bridge.parameter_count

    @property
    def flops_per_token(self) -> int:
        return self.bridge.flops_per_token

    def apply(self, model: Any) -> None:
        attach_bridge(model, self.after_block, self.bridge)

    def undo(self, model: Any) -> None:
        take_bridge(model, self.after_block)


@dataclass
class WriteProjection:
    """New weights for the projection that writes the MLP of block ``block`` of the pruned model into the stream.

    ``matrix`` is (inputs, width) in row convention; ``bias`` only where the layer has one. Nothing is added, so the
    checkpoint stays a plain one.
    """

    block: int
    matrix: torch.Tensor
    bias: torch.Tensor | None = None
    facts: None = None
    added_parameters: int = 0
    flops_per_token: int = 0
    _before: tuple[torch.Tensor, torch.Tensor | None] | None = field(default=None, repr=False)

    def apply(self, model: Any) -> None:
        projection = writing_projection(model, self.block)
        old_bias = projection.bias
        self._before = (
            projection.matrix.detach().clone(),
            None if old_bias is None else old_bias.detach().clone(),
        )
        projection.write(self.matrix, self.bias)

    def undo(self, model: Any) -> None:
        assert self._before is not None
        writing_projection(model, self.block).write(*self._before)
        self._before = None


@dataclass
class InsertBlocks:
    """Blocks put back into the pruned model: ``blocks`` maps 0-based places of the UNPRUNED model to blocks.

    The config becomes that of the unpruned model without what is still gone, so the checkpoint stays a plain one.
    """

    blocks: dict[int, nn.Module]
    removed: tuple[int, ...]
    unpruned_config: Any
    facts: None = None
    _before: tuple[nn.ModuleList, dict[str, Any]] | None = field(default=None, repr=False)

    @property
    def added_parameters(self) -> int:
        return sum(weight.numel() for block in self.blocks.values() for weight in block.parameters())

    @property
    def flops_per_token(self) -> int:
        """Two per weight of the linear layers; what attention adds grows with the context and is left out."""
        weights = (weight for block in self.blocks.values() for weight in block.parameters())
        return sum(2 * weight.numel() for weight in weights if weight.dim() > 1)

    @property
    def still_removed(self) -> tuple[int, ...]:
        """Blocks of the unpruned model that have nothing in their place."""
        return tuple(block for block in self.removed if block not in self.blocks)

    def apply(self, model: Any) -> None:
        anatomy = anatomy_of(model)
        config = text_config_of(model)
        count = len(anatomy.blocks) + len(self.removed)
        kept = iter(anatomy.blocks)
        present = [index for index in range(count) if index not in self.still_removed]
        chosen = [self.blocks[index] if index in self.blocks else next(kept) for index in present]
        self._before = (anatomy.blocks, dict(vars(config)))
        _replace_blocks(anatomy.backbone, anatomy.attribute, chosen)
        fresh = copy.deepcopy(self.unpruned_config)
        if len(present) < count:
            cut_config(fresh, present, count)
        vars(config).update({key: value for key, value in vars(fresh).items() if not key.startswith("_")})

    def undo(self, model: Any) -> None:
        assert self._before is not None
        blocks, fields = self._before
        anatomy = anatomy_of(model)
        config = text_config_of(model)
        vars(config).clear()
        vars(config).update(fields)
        _replace_blocks(anatomy.backbone, anatomy.attribute, list(blocks))
        self._before = None


def _replace_blocks(backbone: nn.Module, attribute: str, blocks: Sequence[nn.Module]) -> None:
    setattr(backbone, attribute, nn.ModuleList(blocks))
    for depth, block in enumerate(blocks):
        old = depth_of(block)
        if old is not None and old != depth:
            renumber(block, old, depth)


def depth_of(block: nn.Module) -> int | None:
    """Return the depth that the modules of a block carry for their caches; None when they carry none."""
    for module in block.modules():
        for attribute in ("layer_idx", "layer_id", "layer_index"):
            found = vars(module).get(attribute)
            if isinstance(found, int):
                return found
    return None
