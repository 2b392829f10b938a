"""Measure a model: six capabilities and perplexity, item by item, into a run folder."""

from __future__ import annotations

from pathlib import Path

from regrow.capabilities.evaluate import evaluate as measure
from regrow.capabilities.suites import suite
from regrow.data.chat import chat_format_of
from regrow.errors import ConfigError, DataError, did_you_mean
from regrow.models.families import blocks_of, parameter_count
from regrow.models.identity import model_identity
from regrow.models.load import LoadedModel, load_model
from regrow.protocols import Capability, Watcher
from regrow.records.fingerprint import fingerprint
from regrow.records.results import ItemScore, ModelCardFacts, RunRecord, Stage, provenance
from regrow.records.specs import EvalSpec
from regrow.records.store import RunFolder, read_evaluation
from regrow.study.stages.chain import note_chat_format


def evaluate(
    source: str,
    spec: EvalSpec,
    output: Path,
    *,
    watch: Watcher,
    label: str | None = None,
    dtype: str = "auto",
    device: str = "auto",
    loaded: LoadedModel | None = None,
) -> tuple[RunRecord, list[ItemScore]]:
    """Return the record and the items of the evaluation in ``output``, measured now or found there.

    A run that was stopped continues after its last finished capability. ``loaded`` saves loading a model that the
    caller has in memory.
    """
    chosen = chosen_capabilities(spec)
    identity = model_identity(source)
    asked = {"model_sha256": identity.sha256, "spec": spec.model_dump(mode="json"), "label": label, "dtype": dtype}
    folder = RunFolder(output)
    if folder.finished("evaluation", asked):
        try:
            found = read_evaluation(output)
        except DataError as error:
            watch.note(f"note: {error}; it is measured again")
        else:
            watch.note(f"'{output}' already holds this evaluation")
            return found
    if loaded is None:
        watch.begin(f"loading {source}")
        loaded = load_model(source, dtype=dtype, device=device)
        watch.end(f"{len(blocks_of(loaded.model))} blocks")
    note_chat_format(loaded, watch)
    with folder.claimed("evaluation", asked):
        before = folder.read_partial()
        if before:
            watch.note(f"{len(before)} items were already measured; the rest follows")
        result = measure(loaded, chosen, spec, watch=watch, resume_from=before, on_finished=folder.write_partial)
        record = RunRecord(
            label=label or stage_of(loaded),
            stage=stage_of(loaded),
            suite=spec.suite,
            split=spec.split,  # type: ignore[arg-type]
            seed=spec.seed,
            model=card_facts(loaded),
            measurements=result.measurements,
            cost=result.cost,
            spec_fingerprint=fingerprint(spec.model_dump(mode="json")),
            provenance=provenance(
                {**asked, "source": source, "chat_format": chat_format_of(loaded.tokenizer)}, seed=spec.seed
            ),
        )
        folder.write_evaluation(record, result.items)
    return record, result.items


def chosen_capabilities(spec: EvalSpec) -> list[Capability]:
    """Return the capabilities of a suite that a spec asks for, in the suite's order. Unknown names are refused."""
    if spec.split not in ("dev", "test"):
        raise ConfigError(f"unknown split '{spec.split}'", hint=did_you_mean(spec.split, ["dev", "test"]))
    there = suite(spec.suite)
    if spec.capabilities is None:
        return there
    names = [capability.name for capability in there]
    for name in spec.capabilities:
        if name not in names:
            raise ConfigError(f"unknown capability '{name}'", hint=did_you_mean(name, names))
    return [capability for capability in there if capability.name in spec.capabilities]


def stage_of(loaded: LoadedModel) -> Stage:
    """Return which stage of the job a model is at, from its history."""
    facts = loaded.facts
    if facts is None or not facts.removed_blocks:
        return "unpruned"
    if facts.healing_tokens:
        return "healed"
    return "repaired" if facts.bridges else "pruned"


def card_facts(loaded: LoadedModel) -> ModelCardFacts:
    """Return what a report needs to know of a model."""
    facts = loaded.facts
    blocks = len(blocks_of(loaded.model))
    return ModelCardFacts(
        source=facts.source if facts else loaded.source,
        architecture=type(loaded.model).__name__,
        blocks=blocks,
        parameters=parameter_count(loaded.model),
        dtype=str(loaded.dtype).removeprefix("torch."),
        weights_sha256=loaded.weights_sha256,
        removed_blocks=facts.removed_blocks if facts else (),
        unpruned_blocks=facts.unpruned_blocks if facts else blocks,
        repair=", ".join(dict.fromkeys(bridge.method for bridge in facts.bridges)) if facts else "",
        repair_parameters=sum(bridge.parameters for bridge in facts.bridges) if facts else 0,
        healing_tokens=facts.healing_tokens if facts else 0,
    )
