"""Heal a pruned or repaired checkpoint: pools answered by the unpruned model, training, the merged checkpoint."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from regrow.capabilities.suites import healing_suite
from regrow.data.pools import Pool
from regrow.errors import ModelError
from regrow.heal.loop import heal as train
from regrow.heal.mixture import read_mixture, token_quotas
from regrow.heal.registry import LOSSES, SCOPES
from regrow.models.identity import model_identity
from regrow.models.load import LoadedModel, load_model
from regrow.models.save import CardWriter, save_checkpoint
from regrow.protocols import Watcher
from regrow.records.checkpoint import CheckpointFacts
from regrow.records.specs import HealSpec
from regrow.records.store import RunFolder
from regrow.study.stages.chain import (
    checkpoint_facts,
    done_before,
    facts_before,
    note_chat_format,
    step,
    unpruned_model,
)
from regrow.study.stages.pools import content_of, pools_content, pools_of

ADAPTER = "adapter"
LOG = "healing_log.jsonl"


def heal(
    pruned: str,
    spec: HealSpec,
    output: Path,
    *,
    watch: Watcher,
    suite: str = "mini",
    unpruned: str | None = None,
    pool_examples: int = 200,
    pools_folder: Path | None = None,
    dtype: str = "auto",
    device: str = "auto",
    card: CardWriter | None = None,
    only_pools: Sequence[str] | None = None,
) -> CheckpointFacts:
    """Return the facts of the healed checkpoint written to ``output`` (merged; the adapter in ``output/adapter``).

    Training state is kept in ``output``.healing until the checkpoint is complete: the same command continues a stopped
    run, another one is refused. ``only_pools`` leaves out the other pools of the suite.
    """
    facts = checkpoint_facts(pruned, what="healing")
    if not facts.removed_blocks:
        raise ModelError(f"'{pruned}' has all its blocks, so there is nothing to heal", hint="prune it first")
    # What can be refused without a model is refused before pools are answered and the folder is claimed.
    SCOPES.entry(spec.scope)
    LOSSES.entry(spec.loss)
    names = [one.name for one in healing_suite(suite) if only_pools is None or one.name in only_pools]
    quotas = token_quotas(read_mixture(spec.mixture), {name: Pool(name, ()) for name in names}, spec.tokens)
    options = {
        "pruned": str(pruned),
        "input_sha256": model_identity(pruned).sha256,
        "dtype": dtype,
        "suite": suite,
        "pool_examples": pool_examples,
        "pools_sha256": pools_content(suite, pools_folder, only_pools) or "",
        "tokens_by_pool": quotas,
        **spec.model_dump(mode="json"),
    }
    found = done_before(output, "heal", options)
    if found is not None:
        watch.note(f"'{output}' is already this very checkpoint")
        return found
    state = output.with_name(output.name + ".healing")
    # The engine itself compares the sequences drawn from the pools.
    asked = {key: value for key, value in options.items() if key not in ("pruned", "pools_sha256")}
    RunFolder(state).finished("healing", asked)
    teacher: list[LoadedModel] = []

    def unpruned_once() -> LoadedModel:
        if not teacher:
            teacher.append(unpruned_model(facts, unpruned, dtype=dtype, device=device))
        return teacher[0]

    pools = pools_of(
        suite,
        unpruned_once,
        source=unpruned or facts.source,
        weights_sha256=facts.source_weights_sha256,
        examples=pool_examples,
        watch=watch,
        folder=pools_folder,
        only=only_pools,
    )
    teacher.clear()
    if pools_folder is not None:
        options["pools_sha256"] = content_of(pools)
    watch.begin(f"loading {pruned}")
    loaded = load_model(pruned, dtype=dtype, device=device)
    watch.end()
    note_chat_format(loaded, watch)
    with RunFolder(state).claimed("healing", asked):
        result = train(loaded, pools, spec, state, watch=watch)
    for remark in result.notes:
        watch.note(f"note: {remark}")
    watch.begin(f"saving to {output} and comparing the reloaded checkpoint")
    before = facts_before(loaded)
    facts = before.model_copy(
        update={
            "healing_tokens": before.healing_tokens + result.tokens,
            "steps": (*before.steps, step("heal", options, result.outcome, seed=spec.seed)),
        }
    )
    beside = {ADAPTER: result.adapter_folder, LOG: result.log_file}
    facts = save_checkpoint(
        loaded, output, facts, card=card, beside={name: path for name, path in beside.items() if path}
    )
    shutil.rmtree(state, ignore_errors=True)
    watch.end("same logits, same cached generation")
    return facts
