"""Several criteria asked at once: one calibration pass serves all that read the similarity of the streams."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from regrow.criteria.order import candidates, windows
from regrow.criteria.registry import CRITERIA
from regrow.data.calibration import CalibrationSet
from regrow.errors import ConfigError, DataError, did_you_mean
from regrow.models.families import blocks_of
from regrow.records.ranking import Ranking
from regrow.records.results import LayerScores, provenance
from regrow.records.similarity import SimilarityRecord
from regrow.seeding import stream

COMMON = ("remove", "protect", "contiguous", "generator", "record")
ALONE = "block-influence"
"""The criterion that compares neighbouring streams only; with it alone, a pass compares no others."""

GUIDED = "for:"
"""Before a capability's name: the cut that hurts it least, chosen by answers instead of a text."""


def guided_by(criterion: str) -> str | None:
    """Return the capability that a criterion such as "for:math" is guided by; None for one of the registry."""
    return criterion.removeprefix(GUIDED).strip() if criterion.startswith(GUIDED) else None


def _facts(criterion: str) -> dict[str, str]:
    return {"needs": "answers"} if guided_by(criterion) is not None else dict(CRITERIA.entry(criterion).facts)


def needs_text(criterion: str) -> bool:
    """Return whether a criterion runs the model on a calibration text."""
    return "text" in _facts(criterion).get("needs", "text")


def reads_similarity(criterion: str) -> bool:
    """Return whether a criterion reads the shared similarity record."""
    return _facts(criterion).get("reads") == "similarity"


def kept_by(criterion: str) -> tuple[int, ...]:
    """Return the blocks that a criterion itself never removes (negative indices count from the end)."""
    keeps = _facts(criterion).get("keeps", "")
    return tuple(int(index) for index in keeps.split(",") if index)


def check_request(
    criterion: str, blocks: int, *, remove: int, protect: Sequence[int], contiguous: bool = False
) -> None:
    """Raise ConfigError when a criterion cannot remove what is asked of ``blocks``: known before any pass is run."""
    allowed = candidates(criterion, blocks, remove=remove, protect=protect, own=kept_by(criterion))
    if contiguous or _facts(criterion).get("takes") == "one span":
        windows(criterion, remove=remove, allowed=allowed)


def score_blocks(
    criterion: str,
    model: Any,
    calibration: CalibrationSet | None,
    *,
    remove: int,
    protect: Sequence[int] = (0,),
    contiguous: bool = False,
    seed: int = 0,
    record: SimilarityRecord | None = None,
    options: Mapping[str, Any] | None = None,
) -> LayerScores:
    """Return the answer of one criterion.

    ``record`` is a similarity record of this model, read by the criteria that can; ``options`` are the criterion's own
    (for example ``{"keep_last": True}``). Raises ConfigError on an unknown name or option, DataError when a criterion
    that needs text gets none.
    """
    method = CRITERIA.get(criterion)
    chosen = dict(options or {})
    known = [name for name in inspect.signature(method).parameters if name not in (*COMMON, "model", "calibration")]
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise ConfigError(f"{criterion} has no option '{unknown[0]}'", hint=did_you_mean(unknown[0], known))
    if needs_text(criterion) and calibration is None and record is None:
        raise DataError(f"the criterion '{criterion}' needs a calibration text", hint="add --calibration bundled")
    if record is not None and reads_similarity(criterion):
        chosen["record"] = record
    generator = stream(seed, "criterion", criterion)
    answer: LayerScores = method(
        model, calibration, remove=remove, protect=protect, contiguous=contiguous, generator=generator, **chosen
    )
    return answer


def rank(
    model: Any,
    calibration: CalibrationSet | None,
    criteria: Sequence[str],
    *,
    remove: int,
    protect: Sequence[int] = (0,),
    contiguous: bool = False,
    seed: int = 0,
    record: SimilarityRecord | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> tuple[Ranking, SimilarityRecord | None]:
    """Return what each of the ``criteria`` would remove, and the similarity record that was read (None when none was).

    The record is computed once if any criterion reads it and ``record`` is not given. ``options`` maps a criterion to
    its own options.
    """
    if not criteria:
        raise ConfigError("no criterion was named", hint=f"choose from: {', '.join(CRITERIA.names())}")
    for name in criteria:
        check_request(name, len(blocks_of(model)), remove=remove, protect=protect, contiguous=contiguous)
    readers = [name for name in criteria if reads_similarity(name)]
    if readers and record is None:
        if calibration is None:
            raise DataError(f"the criterion '{readers[0]}' needs a calibration text", hint="add --calibration bundled")
        from regrow.criteria.similarity import similarity

        record = similarity(model, calibration, neighbours_only=set(readers) == {ALONE})
    answers = tuple(
        score_blocks(
            name,
            model,
            calibration,
            remove=remove,
            protect=protect,
            contiguous=contiguous,
            seed=seed,
            record=record,
            options=(options or {}).get(name),
        )
        for name in criteria
    )
    ranking = Ranking(
        blocks=len(blocks_of(model)),
        remove=remove,
        calibration=calibration.name if calibration is not None else "",
        calibration_fingerprint=calibration.fingerprint if calibration is not None else "",
        answers=answers,
        provenance=provenance({"protect": list(protect), "contiguous": contiguous}, seed=seed),
    )
    return ranking, record
