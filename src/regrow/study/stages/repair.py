"""Bridge the cut of a pruned checkpoint without training, from the streams of the unpruned model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from regrow.errors import ModelError
from regrow.models.identity import model_identity
from regrow.models.load import load_model
from regrow.models.save import CardWriter, save_checkpoint
from regrow.protocols import Watcher
from regrow.records.checkpoint import CheckpointFacts
from regrow.records.specs import RepairSpec
from regrow.repair.fit import fit_repair
from regrow.repair.registry import REPAIRS
from regrow.study.stages.calibration import calibration_content, calibration_of
from regrow.study.stages.chain import checkpoint_facts, done_before, facts_before, step, unpruned_model


def repair(
    pruned: str,
    spec: RepairSpec,
    output: Path,
    *,
    watch: Watcher,
    unpruned: str | None = None,
    pools_folder: Path | None = None,
    dtype: str = "auto",
    device: str = "auto",
    card: CardWriter | None = None,
    only_pools: Sequence[str] | None = None,
) -> CheckpointFacts:
    """Return the facts of the repaired checkpoint written to ``output``.

    ``unpruned`` names the original when it is no longer where ``regrow.json`` says. Raises ModelError when ``pruned``
    is not a pruned checkpoint of regrow, is repaired already, or was healed (the streams it lost are no longer what
    the kept blocks were trained to expect).
    """
    REPAIRS.get(spec.method)
    facts = checkpoint_facts(pruned, what="repair")
    if not facts.removed_blocks:
        raise ModelError(f"'{pruned}' has all its blocks, so there is no cut to repair", hint="prune it first")
    if facts.bridges:
        raise ModelError(
            f"'{pruned}' is repaired already ({facts.bridges[0].method})", hint="repair the pruned checkpoint"
        )
    if facts.healing_tokens:
        raise ModelError(
            f"'{pruned}' was healed on {facts.healing_tokens:,} tokens; a repair must come before healing",
            hint="repair the pruned checkpoint, then heal the result",
        )
    options = {
        "pruned": str(pruned),
        "unpruned": unpruned,
        "input_sha256": model_identity(pruned).sha256,
        "calibration_sha256": calibration_content(spec, pools_folder=pools_folder, only_pools=only_pools),
        "dtype": dtype,
        **spec.model_dump(mode="json"),
    }
    found = done_before(output, "repair", options)
    if found is not None:
        watch.note(f"'{output}' is already this very checkpoint")
        return found
    watch.begin(f"loading {pruned} and {unpruned or facts.source}")
    original = unpruned_model(facts, unpruned, dtype=dtype, device=device)
    loaded = load_model(pruned, dtype=dtype, device=device)
    watch.end()
    calibration = calibration_of(spec, original, watch=watch, pools_folder=pools_folder, only_pools=only_pools)
    options["calibration_sha256"] = calibration_content(
        spec, pools_folder=pools_folder, only_pools=only_pools
    )  # pools may be there only now
    result = fit_repair(original, loaded, calibration, spec, watch=watch)
    for warning in result.warnings:
        watch.note(f"note: {warning}")
    watch.begin(f"saving to {output} and comparing the reloaded checkpoint")
    before = facts_before(loaded)
    facts = before.model_copy(
        update={
            "bridges": result.bridges,
            "steps": (*before.steps, step("repair", options, result.outcome, seed=spec.seed)),
        }
    )
    facts = save_checkpoint(loaded, output, facts, card=card)
    watch.end("same logits, same cached generation")
    return facts
