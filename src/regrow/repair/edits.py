"""Changes to a pruned model that can be taken back, so that several repairs can be tried on one copy of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from regrow.models.bridges import Bridge, attach_bridge, take_bridge
from regrow.records.checkpoint import BridgeFacts


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
