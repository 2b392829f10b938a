"""Remove the least important blocks of a model and save what is left."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from regrow.criteria.merging import merge_blocks, merges_of
from regrow.criteria.order import protected_blocks, removal_count
from regrow.criteria.ranking import ALONE, check_request, guided_by, needs_text, reads_similarity, score_blocks
from regrow.criteria.registry import CRITERIA
from regrow.criteria.similarity import kept_similarity
from regrow.data.calibration import CalibrationSet
from regrow.errors import ConfigError, ModelError
from regrow.models.families import blocks_of
from regrow.models.identity import model_identity
from regrow.models.load import LoadedModel, block_count, load_model
from regrow.models.save import CardWriter, save_checkpoint
from regrow.protocols import Watcher
from regrow.records.checkpoint import CheckpointFacts
from regrow.records.results import Cost, LayerScores
from regrow.records.specs import PruneSpec
from regrow.study.stages.calibration import calibration_content, calibration_of
from regrow.study.stages.chain import done_before, facts_before, saved_or_found, step
from regrow.study.stages.guided import GUIDING_ITEMS, guiding_capability, least_hurting, right_answers
from regrow.study.stages.work_meter import WorkMeter
from regrow.surgery import check_blocks, remove_blocks


def prune(
    source: str,
    spec: PruneSpec,
    output: Path,
    *,
    watch: Watcher,
    pools_folder: Path | None = None,
    dtype: str = "auto",
    device: str = "auto",
    card: CardWriter | None = None,
    only_pools: Sequence[str] | None = None,
    guiding_items: int = GUIDING_ITEMS,
    records_folder: Path | None = None,
) -> CheckpointFacts:
    """Return the facts of the pruned checkpoint written to ``output``.

    Pruning a checkpoint of regrow again counts block indices in that checkpoint; ``removed_blocks`` of the result
    always refers to the unpruned model. The criterion "for:CAPABILITY" searches the cut that hurts a capability least,
    by right answers to ``guiding_items`` of its dev items. ``records_folder`` keeps the similarity of the streams, so
    that several cuts of one model on one text share a pass. Raises ModelError for a model with bridges: the cut must
    come first.
    """
    if (spec.blocks is None) == (spec.remove is None):
        raise ConfigError("say either how many blocks to remove or which", hint="--remove 2, or --blocks 13,14")
    reads_text = spec.blocks is None and needs_text(spec.criterion)
    options = {
        "source": source,
        "input_sha256": model_identity(source).sha256,
        "calibration_sha256": calibration_content(spec, pools_folder=pools_folder, only_pools=only_pools)
        if reads_text
        else "",
        "dtype": dtype,
        **spec.model_dump(mode="json"),
    }
    if spec.blocks is None and guided_by(spec.criterion) is not None:
        options["guiding_items"] = guiding_items
    found = done_before(output, "prune", options)
    if found is not None:
        watch.note(f"'{output}' is already this very checkpoint")
        return found
    refuse_early(spec, block_count(source))
    watch.begin(f"loading {source}")
    loaded = load_model(source, dtype=dtype, device=device)
    count = len(blocks_of(loaded.model))
    watch.end(f"{count} blocks, {loaded.dtype}".replace("torch.", ""))
    before = facts_before(loaded)
    if before.bridges:
        raise ModelError(
            f"'{source}' carries bridges fitted to its cut; cutting it again would leave them wrong",
            hint="prune the unrepaired checkpoint, then repair the result",
        )
    scores: LayerScores | None = None
    cost = Cost(flops=0.0)  # blocks that are named are found without work
    if spec.blocks is not None:
        removed = tuple(sorted(check_blocks(spec.blocks, count)))
        if not removed:
            raise ConfigError("--blocks names no block", hint="write for example --blocks 13,14")
    else:
        assert spec.remove is not None
        remove = removal_count(spec.remove, count)
        guide = guided_by(spec.criterion)
        with WorkMeter(loaded.model) as meter:
            if guide is not None:
                capability = guiding_capability(guide)
                answers = right_answers(loaded, capability, guiding_items, spec.seed, watch)
                scores = least_hurting(loaded, capability, answers.examples, spec, remove, watch)
                cost = meter.cost(prompt_tokens=answers.prompt_tokens, generated_tokens=answers.generated_tokens)
            else:
                calibration = None
                if reads_text:
                    calibration = calibration_of(
                        spec, loaded, watch=watch, pools_folder=pools_folder, only_pools=only_pools
                    )
                scores, read = _choose(loaded, spec, remove, calibration, records_folder, watch)
                cost = meter.cost(prompt_tokens=read)
        if reads_text:  # pools that were not there before are now
            options["calibration_sha256"] = calibration_content(spec, pools_folder=pools_folder, only_pools=only_pools)
        removed = scores.removed
    if scores is not None:
        # Only laco merges: it folds what it removes into an earlier block.
        merge_blocks(loaded.model, merges_of(scores))
    remove_blocks(loaded.model, removed)
    watch.begin(f"saving to {output} and comparing the reloaded checkpoint")
    facts = before.model_copy(
        update={
            "removed_blocks": _in_unpruned_terms(before, removed),
            "scores": scores,
            "steps": (
                *before.steps,
                step("prune", options, {"removed_blocks": list(removed)}, seed=spec.seed, cost=cost),
            ),
        }
    )
    return saved_or_found(lambda: save_checkpoint(loaded, output, facts, card=card), output, "prune", options, watch)


def refuse_early(spec: PruneSpec, blocks: int) -> None:
    """Raise ConfigError for a cut that no model of so many blocks allows, before anything is loaded."""
    refuse_unknown_criterion(spec.criterion)
    protected_blocks(spec.protect, blocks)
    if spec.blocks is not None:
        check_blocks(spec.blocks, blocks)
    elif spec.remove is not None:
        remove = removal_count(spec.remove, blocks)
        check_request(spec.criterion, blocks, remove=remove, protect=spec.protect, contiguous=spec.contiguous)


def refuse_unknown_criterion(criterion: str) -> None:
    """Raise ConfigError for a criterion that is neither registered nor guided by a capability."""
    guide = guided_by(criterion)
    if guide is not None:
        guiding_capability(guide)
    else:
        CRITERIA.entry(criterion)


def _choose(
    loaded: LoadedModel,
    spec: PruneSpec,
    remove: int,
    calibration: CalibrationSet | None,
    records_folder: Path | None,
    watch: Watcher,
) -> tuple[LayerScores, int]:
    """Return the answer of the criterion, and how many tokens of text it read: none where its pass was made before."""
    record, read = None, calibration.tokens if calibration is not None else 0
    if calibration is not None and records_folder is not None and reads_similarity(spec.criterion):
        passed: list[int] = []

        def advance(tokens: int) -> None:
            passed.append(tokens)
            watch.advance(tokens)

        watch.begin(f"{spec.criterion} reads {read:,} tokens of '{calibration.name}'", read, "tokens")
        alone = spec.criterion == ALONE
        record = kept_similarity(loaded.model, calibration, records_folder, neighbours_only=alone, on_progress=advance)
        read = read if passed else 0
    elif calibration is not None:
        watch.begin(f"{spec.criterion} reads {calibration.tokens:,} tokens of '{calibration.name}'")
    else:
        watch.begin(f"{spec.criterion} ranks the blocks")
    scores = score_blocks(
        spec.criterion,
        loaded.model,
        calibration,
        remove=remove,
        protect=spec.protect,
        contiguous=spec.contiguous,
        seed=spec.seed,
        record=record,
    )
    watch.end("removes " + ", ".join(map(str, scores.removed)))
    return scores, read


def _in_unpruned_terms(before: CheckpointFacts, removed: tuple[int, ...]) -> tuple[int, ...]:
    kept = [index for index in range(before.unpruned_blocks) if index not in before.removed_blocks]
    return tuple(sorted({*before.removed_blocks, *(kept[index] for index in removed)}))
