"""When a run has left the ground and must stop before it spoils its checkpoints."""

from __future__ import annotations

import math
from collections.abc import Sequence

from regrow.data.pools import Example
from regrow.errors import StudyError

PATIENCE = 3


class DivergenceGuard:
    """Stops a run whose loss or gradient is not finite, or whose loss stays above all reason.

    Above all reason: more than twice the loss of a uniform guess over the vocabulary and three times that of the first
    update, three updates in a row. A gradient of exactly 0 three times in a row stops it too: a model whose weights are
    so large that it answers the same to everything learns nothing any more.
    """

    def __init__(self, vocabulary: int) -> None:
        self._uniform = math.log(vocabulary)
        self._first: float | None = None
        self._above = 0
        self._still = 0

    def check(
        self, update: int, loss: float, gradient_norm: float, examples: Sequence[Example], *, kept: str = ""
    ) -> None:
        """Raise StudyError naming the update (1-based), its examples and the last good checkpoint (``kept``; "" when
        none was written yet) when the run must stop."""
        for what, value in (("loss", loss), ("gradient norm", gradient_norm)):
            if not math.isfinite(value):
                raise self._error(f"the {what} is {value}", update, examples, kept)
        self._still = self._still + 1 if gradient_norm == 0 else 0
        if self._still == PATIENCE:
            raise self._error(
                f"the gradient is exactly 0 for {PATIENCE} updates (loss {loss:.2f}): nothing is learned any more",
                update,
                examples,
                kept,
            )
        self._first = loss if self._first is None else self._first
        limit = max(2 * self._uniform, 3 * self._first)
        self._above = self._above + 1 if loss > limit else 0
        if self._above == PATIENCE:
            raise self._error(
                f"the loss is above {limit:.2f} for {PATIENCE} updates ({loss:.2f} now)", update, examples, kept
            )

    def _error(self, what: str, update: int, examples: Sequence[Example], kept: str) -> StudyError:
        last = f"the last good checkpoint, {kept}, was kept" if kept else "no checkpoint had been written yet"
        names = ", ".join(f"{entry.pool}/{entry.example_id}" for entry in examples)
        return StudyError(
            f"healing stopped at update {update + 1}: {what} (examples: {names})",
            hint=f"lower the learning rate and heal into another folder, or look at these examples; {last}",
        )
