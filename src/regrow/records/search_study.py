"""Calibration against search: which of the two decides what a cut costs."""

from __future__ import annotations

from regrow.records.results import Frozen, Number, Provenance


class CalibrationConfig(Frozen):
    """One calibration text: a reference (see :mod:`regrow.data.text`), how many chunks of it, how long each."""

    text: str = "bundled"
    samples: int = 16
    chunk_tokens: int = 256

    @property
    def name(self) -> str:
        return f"{self.text} {self.samples}x{self.chunk_tokens}"


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
    "same search", "same both" (other seed), "neither".
    """

    schema_version: int = 1
    model: str = ""
    blocks: int
    remove: int
    runs: tuple[SearchRun, ...]
    overlap: dict[str, Number]
    shares: tuple[Share, ...]
    finding: str
    provenance: Provenance | None = None
