"""The prompts of a healing pool together with what is known of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from regrow.capabilities.scoring import Benchmark, Scorer
from regrow.protocols import Item
from regrow.records.results import Split


@dataclass(frozen=True)
class Prompts:
    """The prompts of one pool. ``dropped`` counts by reason what was left out of the sources before."""

    items: tuple[Item, ...]
    source: str
    licence: str
    dropped: dict[str, int] = field(default_factory=dict)


class PoolPrompts(Benchmark):
    """The prompts of a pool with the rule that keeps answers; ``prompts()`` tells where they come from."""

    def __init__(self, scorer: Scorer, prompts: Callable[[], Prompts], *, max_new_tokens: int) -> None:
        super().__init__(scorer, self._heal, max_new_tokens=max_new_tokens)
        self._prompts = prompts
        self._held: Prompts | None = None

    def prompts(self) -> Prompts:
        """Return the prompts, read at the first call. Raises DataError when a source cannot be had."""
        if self._held is None:
            self._held = self._prompts()
        return self._held

    def _heal(self, split: Split) -> Sequence[Item]:
        return self.prompts().items if split == "heal" else ()
