"""What several criteria would remove from one model, side by side, from one calibration pass."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from regrow.capabilities.suites import suite
from regrow.capabilities.teacher import build_pool
from regrow.criteria.guided import guided_choice
from regrow.criteria.order import removal_count
from regrow.criteria.ranking import needs_text, rank, reads_similarity
from regrow.criteria.similarity import kept_similarity
from regrow.errors import DataError
from regrow.models.cache import cache_folder
from regrow.models.families import blocks_of
from regrow.models.load import LoadedModel, load_model
from regrow.protocols import Watcher
from regrow.records.ranking import Ranking
from regrow.records.results import LayerScores
from regrow.records.similarity import SimilarityRecord
from regrow.records.specs import PruneSpec
from regrow.seeding import stream
from regrow.study.stages.calibration import calibration_of

ALONE = "block-influence"


def rank_blocks(
    source: str,
    criteria: Sequence[str],
    spec: PruneSpec,
    *,
    watch: Watcher,
    guided_by: Sequence[str] = (),
    suite_name: str = "mini",
    pools_folder: Path | None = None,
    records_folder: Path | None = None,
    dtype: str = "auto",
    device: str = "auto",
) -> tuple[Ranking, SimilarityRecord | None]:
    """Return what each criterion removes, and the similarity record that was read (None when none was).

    The record is kept in ``records_folder`` (default: the cache) under the hash of model, text and settings, so asking
    again costs no pass. ``guided_by`` adds, for each capability named, the cut that raises the loss on right answers
    to its dev items least; the answers are the model's own. ``spec.criterion`` is not read.
    """
    reading = [name for name in criteria if needs_text(name)]
    watch.begin(f"loading {source}")
    loaded = load_model(source, dtype=dtype, device=device)
    count = len(blocks_of(loaded.model))
    watch.end(f"{count} blocks")
    remove = removal_count(spec.remove if spec.remove is not None else 2, count)
    calibration = calibration_of(spec, loaded, watch=watch, pools_folder=pools_folder) if reading else None
    readers = [name for name in criteria if reads_similarity(name)]
    record = None
    if readers and calibration is not None:
        watch.begin(f"reading {calibration.tokens:,} tokens of '{calibration.name}'", calibration.tokens, "tokens")
        record = kept_similarity(
            loaded.model,
            calibration,
            records_folder or cache_folder("similarity"),
            neighbours_only=set(readers) == {ALONE},
            on_progress=watch.advance,
        )
        watch.end()
    answers: list[LayerScores] = []
    ranking = None
    for name in criteria:
        watch.begin(f"{name} ranks the blocks")
        ranking, _ = rank(
            loaded.model,
            calibration,
            [name],
            remove=remove,
            protect=spec.protect,
            contiguous=spec.contiguous,
            seed=spec.seed,
            record=record,
        )
        answers += ranking.answers
        watch.end("removes " + ", ".join(map(str, answers[-1].removed)))
    for name in guided_by:
        answers.append(_guided(loaded, name, spec, remove, suite_name, watch))
    assert answers
    found = Ranking(
        model=source,
        blocks=count,
        remove=remove,
        calibration=calibration.name if calibration is not None else "",
        answers=tuple(answers),
        warnings=ranking.warnings if ranking is not None else (),
        provenance=ranking.provenance if ranking is not None else None,
    )
    return found, record


def _guided(
    loaded: LoadedModel, name: str, spec: PruneSpec, remove: int, suite_name: str, watch: Watcher
) -> LayerScores:
    capability = suite(suite_name, [name])[0]
    watch.begin(f"answering dev items of {name.replace('_', ' ')}")
    examples: list[tuple[Sequence[int], Sequence[int]]]
    if capability.kind == "likelihood":
        raise DataError(f"'{name}' is not answered by text", hint="name a generative capability with --for")
    pool = build_pool(loaded, capability, list(capability.items("dev")), watch=watch)
    examples = [(entry.prompt_ids, entry.response_ids) for entry in pool.examples]
    watch.end(f"{len(examples)} right answers")
    if not examples:
        raise DataError(f"the model answers no dev item of '{name}' right", hint="choose another capability with --for")
    watch.begin(f"searching the cut that hurts {name.replace('_', ' ')} least")
    scores, _ = guided_choice(
        loaded.model,
        examples,
        remove=remove,
        protect=spec.protect,
        contiguous=spec.contiguous,
        generator=stream(spec.seed, "guided", name),
        name=f"for {name}",
    )
    watch.end("removes " + ", ".join(map(str, scores.removed)))
    return scores
