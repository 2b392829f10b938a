"""Repair the cut of a pruned checkpoint from the streams of the unpruned model: one method or several from one pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regrow.criteria.merging import merges_of
from regrow.data.calibration import CalibrationSet
from regrow.errors import DataError, ModelError, RegrowError, StudyError
from regrow.models.identity import model_identity
from regrow.models.load import LoadedModel, load_model
from regrow.models.save import CardWriter, save_checkpoint
from regrow.protocols import Watcher
from regrow.records.checkpoint import CheckpointFacts, read_facts
from regrow.records.repairs import RepairRow, RepairTable
from regrow.records.results import Cost
from regrow.records.specs import RepairSpec
from regrow.repair.asked import Asked
from regrow.repair.fit import RepairResult, fit_possible
from regrow.repair.registry import REPAIRS
from regrow.study.stages.calibration import calibration_content, calibration_of
from regrow.study.stages.chain import checkpoint_facts, done_before, facts_before, step, unpruned_model
from regrow.study.stages.text_checks import fitting_chunks
from regrow.study.stages.work_meter import WorkMeter


@dataclass(frozen=True)
class Repaired:
    """The table of all repairs that were fitted, why others were not, and where the checkpoints lie, by label."""

    table: RepairTable
    refused: dict[str, str]
    saved: dict[str, Path]
    facts: dict[str, CheckpointFacts]


def repair(
    pruned: str,
    spec: RepairSpec,
    output: Path,
    *,
    watch: Watcher,
    unpruned: str | None = None,
    pools_folder: Path | None = None,
    only_pools: Sequence[str] | None = None,
    dtype: str = "auto",
    device: str = "auto",
    card: CardWriter | None = None,
) -> CheckpointFacts:
    """Return the facts of the repaired checkpoint written to ``output``.

    ``unpruned`` names the original when it is no longer where ``regrow.json`` says. Raises ModelError when ``pruned``
    is not a pruned checkpoint of regrow, is repaired already, or was healed (the streams it lost are no longer what
    the kept blocks were trained to expect).
    """
    REPAIRS.get(spec.method)
    asked = Asked((spec,), (spec.method,))
    done = repair_all(
        pruned,
        asked,
        output,
        watch=watch,
        unpruned=unpruned,
        pools_folder=pools_folder,
        only_pools=only_pools,
        dtype=dtype,
        device=device,
        card=card,
    )
    return done.facts[spec.method]


def repair_all(
    pruned: str,
    asked: Asked,
    output: Path | None,
    *,
    watch: Watcher,
    unpruned: str | None = None,
    pools_folder: Path | None = None,
    only_pools: Sequence[str] | None = None,
    dtype: str = "auto",
    device: str = "auto",
    card: CardWriter | None = None,
) -> Repaired:
    """Return what every repair asked for comes to, fitted from one pass; ``pruned`` stays as it is.

    With ``output`` each result is saved: a single one there, several in a subfolder by label. Those that are there
    already are not fitted again. Raises ModelError as :func:`repair` does.
    """
    facts = _repairable(pruned, watch)
    shared = {
        "pruned": str(pruned),
        "unpruned": unpruned,
        "input_sha256": model_identity(pruned).sha256,
        "calibration_sha256": calibration_content(asked.specs[0], pools_folder=pools_folder, only_pools=only_pools),
        "dtype": dtype,
    }
    options = {label: {**shared, **spec.model_dump(mode="json")} for label, spec in zip(asked.labels, asked.specs)}
    places = _places(asked, output)
    saved: dict[str, CheckpointFacts] = {}
    for label, place in places.items():
        found = done_before(place, "repair", options[label])
        if found is not None:
            watch.note(f"'{place}' is already this very checkpoint")
            saved[label] = found
    rows = {label: _row_of(found) for label, found in saved.items()}
    missing = {label: spec for label, spec in zip(asked.labels, asked.specs) if label not in saved}
    refused: dict[str, str] = {}
    table: RepairTable | None = None
    if missing:
        watch.begin(f"loading {pruned} and {unpruned or facts.source}")
        original = unpruned_model(facts, unpruned, dtype=dtype, device=device)
        loaded = load_model(pruned, dtype=dtype, device=device)
        watch.end()
        fitting = fitting_chunks(asked.specs[0], original.model, note=watch.note)
        calibration = calibration_of(fitting, original, watch=watch, pools_folder=pools_folder, only_pools=only_pools)
        # Pools may be there only now.
        content = calibration_content(asked.specs[0], pools_folder=pools_folder, only_pools=only_pools)
        _refuse_nothing_held_out(calibration)
        with WorkMeter(original.model, loaded.model) as meter:
            results, table = fit_possible(
                original,
                loaded,
                calibration,
                list(missing.values()),
                labels=list(missing),
                watch=watch,
                strict=not asked.lenient,
            )
            cost = meter.cost(prompt_tokens=calibration.tokens)  # of all together: they share their passes
        for label, result in zip(missing, results, strict=True):
            if isinstance(result, RegrowError):
                refused[label] = str(result)
                continue
            rows[label] = result.row
            if label in places:
                done = {**options[label], "calibration_sha256": content}
                saved[label] = _save(loaded, result, places[label], done, cost, watch=watch, card=card)
    ordered = tuple(rows[label] for label in asked.labels if label in rows)
    if table is None:
        table = RepairTable(
            removed_blocks=facts.removed_blocks,
            unpruned_blocks=facts.unpruned_blocks,
            calibration=asked.specs[0].calibration,
            calibration_fingerprint="",
            calibration_tokens=asked.specs[0].calibration_tokens,
        )
    return Repaired(
        table=table.model_copy(update={"rows": ordered}),
        refused=refused,
        saved={label: places[label] for label in asked.labels if label in saved},
        facts=saved,
    )


def _repairable(pruned: str, watch: Watcher) -> CheckpointFacts:
    """Return the facts of a checkpoint that can be repaired."""
    facts = checkpoint_facts(pruned, what="repair")
    if facts.scores is not None and merges_of(facts.scores):
        watch.note(
            "note: this cut also merged blocks (laco); repairs are fitted as if they had only been removed, and may "
            "make the model worse"
        )
    if not facts.removed_blocks:
        raise ModelError(f"'{pruned}' has all its blocks, so there is no cut to repair", hint="prune it first")
    # A repair that was folded into the weights left no bridge behind.
    before = [str(done.options.get("method", "")) for done in facts.steps if done.kind == "repair"]
    if before or facts.bridges:
        name = before[0] if before else facts.bridges[0].method
        raise ModelError(f"'{pruned}' is repaired already ({name})", hint="repair the pruned checkpoint")
    if facts.healing_tokens:
        raise ModelError(
            f"'{pruned}' was healed on {facts.healing_tokens:,} tokens; a repair must come before healing",
            hint="repair the pruned checkpoint, then heal the result",
        )
    return facts


def _refuse_nothing_held_out(calibration: CalibrationSet) -> None:
    """Raise DataError where a repair could be fitted but not judged."""
    sequences, length = calibration.input_ids.shape
    if sequences < 2:
        raise DataError(
            f"the calibration text gives {sequences} sequence of {length} tokens; an eighth is held out to judge the "
            "repair, which takes two sequences at least",
            hint=f"give more text and --calibration-tokens {2 * length} or more, or --chunk-tokens 64",
        )


def _places(asked: Asked, output: Path | None) -> dict[str, Path]:
    if output is None:
        return {}
    if len(asked.labels) == 1 and not asked.lenient:
        return {asked.labels[0]: output}
    theirs = sorted(place.name for place in output.iterdir()) if output.is_dir() else []
    other = [name for name in theirs if name not in asked.labels and not _is_repair(output / name)]
    if other or output.is_file():
        raise StudyError(
            f"the output folder '{output}' already holds something else"
            + (f" ('{other[0]}')" if other else " (it is a file)"),
            hint="name a new folder: each repair gets a subfolder of it",
        )
    return {label: output / label for label in asked.labels}


def _is_repair(place: Path) -> bool:
    """Return whether ``place`` is a checkpoint that a repair wrote, or what a stopped one left."""
    facts = read_facts(place) if place.is_dir() else None
    return place.name.startswith(".") or (facts is not None and any(done.kind == "repair" for done in facts.steps))


def _save(
    loaded: LoadedModel,
    result: RepairResult,
    place: Path,
    options: Mapping[str, Any],
    cost: Cost,
    *,
    watch: Watcher,
    card: CardWriter | None,
) -> CheckpointFacts:
    watch.begin(f"saving to {place} and comparing the reloaded checkpoint")
    before = facts_before(loaded)
    done = step("repair", dict(options), result.outcome, seed=options["seed"], cost=cost)
    facts = before.model_copy(
        update={
            "bridges": result.bridges,
            "removed_blocks": result.removed_blocks,
            "steps": (*before.steps, done),
        }
    )
    result.apply(loaded)
    try:
        facts = save_checkpoint(loaded, place, facts, card=card)
    finally:
        result.undo(loaded)
        loaded.facts = before
    watch.end("same logits, same cached generation")
    return facts


def _row_of(facts: CheckpointFacts) -> RepairRow:
    return RepairRow.model_validate({**facts.steps[-1].outcome, "bridges": facts.bridges})
