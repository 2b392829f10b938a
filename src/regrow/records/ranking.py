"""The answers of several criteria to one question, side by side."""

from __future__ import annotations

from regrow.records.results import Cost, Frozen, LayerScores, Provenance


class Ranking(Frozen):
    """What each criterion would remove from one model. ``answers`` share blocks, count and protection; ``cost`` is that
    of finding all of them (None in records of before)."""

    schema_version: int = 1
    model: str = ""
    blocks: int
    remove: int
    calibration: str = ""
    calibration_fingerprint: str = ""
    answers: tuple[LayerScores, ...]
    warnings: tuple[str, ...] = ()
    cost: Cost | None = None
    provenance: Provenance | None = None

    def jaccard(self) -> list[list[float]]:
        """Return, for every pair of criteria, the removed blocks they share over all that either removes."""
        cuts = [set(answer.removed) for answer in self.answers]
        return [[len(one & other) / len(one | other) for other in cuts] for one in cuts]
