"""What several criteria would remove from one model, side by side, from one calibration pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from regrow.criteria.objective import Objective, text_batches
from regrow.criteria.order import removal_count
from regrow.criteria.ranking import ALONE, check_request, needs_text, rank, reads_similarity
from regrow.criteria.similarity import kept_similarity
from regrow.data.calibration import CalibrationSet
from regrow.errors import ConfigError
from regrow.models.cache import cache_folder
from regrow.models.families import blocks_of
from regrow.models.load import LoadedModel, load_model
from regrow.protocols import Watcher
from regrow.records.ranking import Ranking
from regrow.records.results import LayerScores, provenance
from regrow.records.similarity import SimilarityRecord
from regrow.records.specs import PruneSpec
from regrow.study.stages.calibration import calibration_of, shared_with_evaluation
from regrow.study.stages.guided import GUIDING_ITEMS, guiding_capability, least_hurting, most_passes, right_answers
from regrow.study.stages.work_meter import WorkMeter

SEARCHING = ("perplexity", "greedy-perplexity")
"""Criteria that ask the same oracle; what one has asked costs the other nothing."""


def rank_blocks(
    source: str,
    criteria: Sequence[str],
    spec: PruneSpec,
    *,
    watch: Watcher,
    guided_by: Sequence[str] = (),
    guiding_items: int = GUIDING_ITEMS,
    suite_name: str = "mini",
    pools_folder: Path | None = None,
    records_folder: Path | None = None,
    leave_out: bool = False,
    dtype: str = "auto",
    device: str = "auto",
) -> tuple[Ranking, SimilarityRecord | None]:
    """Return what each criterion removes, and the similarity record that was read (None when none was).

    The record is kept in ``records_folder`` (default: the cache) under the hash of model, text and settings, so asking
    again costs no pass. ``guided_by`` adds, for each capability named, the cut that raises the loss on right answers
    to ``guiding_items`` of its dev items least; the answers are the model's own. Criteria that cannot remove as many
    blocks are an error, or with ``leave_out`` only a warning as long as one can. ``spec.criterion`` is not read.
    """
    guiding = [guiding_capability(name, suite_name) for name in guided_by]
    watch.begin(f"loading {source}")
    loaded = load_model(source, dtype=dtype, device=device)
    count = len(blocks_of(loaded.model))
    watch.end(f"{count} blocks")
    remove = removal_count(spec.remove if spec.remove is not None else 2, count)
    criteria, warnings = _able(criteria, count, remove, spec, leave_out)
    with WorkMeter(loaded.model) as meter:
        guides = [
            (capability, right_answers(loaded, capability, guiding_items, spec.seed, watch)) for capability in guiding
        ]
        reading = [name for name in criteria if needs_text(name)]
        calibration = None
        if reading:
            asking = spec.model_copy(update={"criterion": reading[0]})
            calibration = calibration_of(asking, loaded, watch=watch, pools_folder=pools_folder, warn=False)
            warnings += shared_with_evaluation(calibration, loaded)
        record = None
        readers = [name for name in criteria if reads_similarity(name)]
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
        answers = _answers(loaded, criteria, calibration, record, spec, remove, watch)
        answers += [
            least_hurting(loaded, capability, right.examples, spec, remove, watch) for capability, right in guides
        ]
        cost = meter.cost(
            prompt_tokens=(calibration.tokens if calibration is not None else 0)
            + sum(right.prompt_tokens for _, right in guides),
            generated_tokens=sum(right.generated_tokens for _, right in guides),
        )
    found = Ranking(
        model=source,
        blocks=count,
        remove=remove,
        calibration=calibration.name if calibration is not None else "",
        calibration_fingerprint=calibration.fingerprint if calibration is not None else "",
        answers=tuple(answers),
        warnings=tuple(warnings),
        cost=cost,
        provenance=provenance(
            {
                "protect": list(spec.protect),
                "contiguous": spec.contiguous,
                "calibration_tokens": calibration.tokens if calibration is not None else 0,
                "dtype": str(loaded.dtype).removeprefix("torch."),
            },
            seed=spec.seed,
        ),
    )
    return found, record


def _able(
    criteria: Sequence[str], blocks: int, remove: int, spec: PruneSpec, leave_out: bool
) -> tuple[list[str], list[str]]:
    """Return the criteria that can remove as many blocks, and a warning for each that was left out."""
    able, refusals = [], []
    for name in criteria:
        try:
            check_request(name, blocks, remove=remove, protect=spec.protect, contiguous=spec.contiguous)
            able.append(name)
        except ConfigError as error:
            if not leave_out:
                raise
            refusals.append((name, error))
    if refusals and not able:
        raise refusals[0][1]
    return able, [f"{name} is left out: {error}" for name, error in refusals]


def _answers(
    loaded: LoadedModel,
    criteria: Sequence[str],
    calibration: CalibrationSet | None,
    record: SimilarityRecord | None,
    spec: PruneSpec,
    remove: int,
    watch: Watcher,
) -> list[LayerScores]:
    answers: list[LayerScores] = []
    oracle: Objective | None = None
    for name in criteria:
        options: dict[str, dict[str, Any]] = {}
        total, unit = None, ""
        if name in SEARCHING and calibration is not None:
            oracle = oracle or Objective(loaded.model, text_batches(calibration))
            oracle.on_work = _work_since(oracle.block_forwards, watch)
            options[name] = {"objective": oracle}
            total, unit = most_passes(oracle.blocks, 1 if name == "perplexity" else remove), "block passes at most"
        watch.begin(f"{name} ranks the blocks", total, unit)
        ranking, _ = rank(
            loaded.model,
            calibration,
            [name],
            remove=remove,
            protect=spec.protect,
            contiguous=spec.contiguous,
            seed=spec.seed,
            record=record,
            options=options,
        )
        answers += ranking.answers
        watch.end("removes " + ", ".join(map(str, answers[-1].removed)))
    return answers


def _work_since(start: float, watch: Watcher) -> Callable[[float], None]:
    return lambda done: watch.advance(done - start)
