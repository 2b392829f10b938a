"""Calibration against search: which of the two decides what a cut costs."""

from __future__ import annotations

from itertools import product
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from regrow.records.results import Frozen, Number, Provenance
from regrow.records.specs import Blocks, Names, Spec, Tokens


def _typed_counts(value: Any) -> Any:
    """Accept 16, [4, 16] and "4,16"."""
    if isinstance(value, str):
        parts = [part.strip() for part in value.split(",") if part.strip()]
        if not parts or not all(part.isdecimal() for part in parts):
            raise ValueError("whole numbers separated by commas are wanted")
        return tuple(int(part) for part in parts)
    if isinstance(value, bool):
        raise ValueError("a number is wanted here, not a yes or no")
    return (value,) if isinstance(value, int) else value


Counts = Annotated[tuple[int, ...], BeforeValidator(_typed_counts), Field(min_length=1)]
"""Whole numbers: [4, 16], or "4,16"."""


class CalibrationConfig(Frozen):
    """One calibration text: a reference (see :mod:`regrow.data.text`), how many chunks of it, how long each."""

    text: str = "bundled"
    samples: int = 16
    chunk_tokens: int = 256

    @property
    def name(self) -> str:
        return f"{self.text} {self.samples}x{self.chunk_tokens}"


class SearchStudySpec(Spec):
    """The grid of a study. Calibration configurations are all combinations of ``texts``, ``samples`` (chunks) and
    ``chunk_tokens``; each is searched by every algorithm of ``searches`` under every seed.

    ``budget`` is what one search may spend, in forward passes of the whole model over its calibration text (None: as
    many as the model has blocks, about twice a leave-one-out round). Cuts are compared by their perplexity on
    ``common_tokens`` of the text ``common``, which no search sees, and by the mean score on ``items`` dev items of each
    capability (0: not measured).
    """

    remove: int | float | str = 4
    protect: Blocks = (0,)
    texts: Names = Field(default=("bundled",), min_length=1)
    samples: Counts = (4, 16)
    chunk_tokens: Counts = (128,)
    searches: Names = Field(default=("one-shot", "greedy", "random"), min_length=1)
    seeds: Counts = (0, 1, 2)
    budget: float | None = Field(default=None, gt=0)
    common: str = "bundled-evaluation"
    common_tokens: Tokens = Field(default=4_096, ge=2)
    suite: str = "mini"
    capabilities: Names | None = Field(default=None, min_length=1)
    items: int = Field(default=8, ge=0)

    def configurations(self) -> tuple[CalibrationConfig, ...]:
        """Return the calibration configurations of the grid, texts first."""
        return tuple(
            CalibrationConfig(text=text, samples=samples, chunk_tokens=tokens)
            for text, samples, tokens in product(self.texts, self.samples, self.chunk_tokens)
        )


class SearchRun(Frozen):
    """One cell and seed of the grid. ``loss`` is what the search minimised on its own text; ``outcomes`` are the
    measures of the same cut that are comparable between cells (perplexity on a common text, capability scores)."""

    calibration: str
    search: str
    seed: int
    removed: tuple[int, ...]
    loss: Number
    outcomes: dict[str, Number]
    evaluations: int
    block_forwards: Number
    wall_seconds: Number


class Share(Frozen):
    """The share of the variance of ``outcome`` that ``factor`` explains, with limits and the share due to chance."""

    outcome: str
    factor: str
    share: Number
    low: Number
    high: Number
    chance: Number
    reason: str = ""


class SearchStudy(Frozen):
    """The grid {calibration} x {search} x seeds on one model, and what follows from it.

    ``overlap`` is the mean Jaccard overlap of the cuts of two runs, by what the runs share: "same calibration",
    "same search", "same both" (other seed), "neither". ``unpruned`` holds the outcomes of the whole model.
    """

    schema_version: int = 1
    model: str = ""
    blocks: int
    remove: int
    runs: tuple[SearchRun, ...]
    overlap: dict[str, Number]
    shares: tuple[Share, ...]
    finding: str
    unpruned: dict[str, Number] = Field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    provenance: Provenance | None = None
