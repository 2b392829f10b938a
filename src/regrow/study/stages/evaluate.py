"""Measure a model: six capabilities and perplexity, item by item, into a run folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from regrow.capabilities.engines.contract import Engine
from regrow.capabilities.evaluate import chosen_items
from regrow.capabilities.evaluate import evaluate as measure
from regrow.capabilities.suites import chosen_capabilities
from regrow.data.chat import chat_format_of
from regrow.data.missing import read_all
from regrow.data.text import read_text
from regrow.errors import ConfigError, did_you_mean
from regrow.models.families import blocks_of, parameter_count
from regrow.models.identity import model_identity
from regrow.models.load import LoadedModel, load_model
from regrow.protocols import Capability, Item, Watcher
from regrow.records.checkpoint import CheckpointFacts
from regrow.records.fingerprint import fingerprint, text_fingerprint
from regrow.records.results import ItemScore, ModelCardFacts, RunRecord, Stage, provenance
from regrow.records.specs import EvalSpec
from regrow.records.store import RunFolder
from regrow.study.stages.chain import found_evaluation, note_chat_format

ENGINES = ("transformers", "vllm", "openai")


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
    data: Path | None = None,
    text: str | None = None,
    engine: str = "transformers",
    endpoint: str | None = None,
) -> tuple[RunRecord, list[ItemScore]]:
    """Return the record and the items of the evaluation in ``output``, measured now or found there.

    A run that was stopped goes on with the items that have no grade yet. ``loaded`` saves loading a model that the
    caller has in memory. ``data``: local folder of the data sets (default: REGROW_DATA, else the hub); ``text``: what
    perplexity is measured on, by reference (default: the bundled sample). ``engine`` writes the answers: transformers,
    vllm, or openai with the ``endpoint``'s address and ``source`` the name of the model served there.
    """
    chosen = chosen_capabilities(spec, data)
    remote = engine == "openai"
    read = None if text is None or not spec.perplexity else read_text(text, data_dir=data)
    asked = {
        "model_sha256": fingerprint([endpoint, source]) if remote else model_identity(source).sha256,
        "spec": spec.model_dump(mode="json"),
        "label": label,
        "dtype": dtype,
        **_asked_beside(chosen, spec, engine),
        **({} if read is None else {"perplexity_text": text, "perplexity_text_sha256": text_fingerprint(read)}),
    }
    folder = RunFolder(output)
    there = found_evaluation(folder, asked, watch)
    if there is not None:
        return there
    writer = _engine(engine, endpoint, source, dtype)
    if loaded is None and writer is None:
        watch.begin(f"loading {source}")
        loaded = load_model(source, dtype=dtype, device=device)
        watch.end(f"{len(blocks_of(loaded.model))} blocks")
    if loaded is not None:
        note_chat_format(loaded, watch)
    with folder.claimed("evaluation", asked):
        there = found_evaluation(folder, asked, watch)  # by another process, while the model was loaded
        if there is not None:
            return there
        before = folder.read_partial()
        if before:
            watch.note(f"{len(before)} items were already measured; the rest follows")
        result = measure(
            loaded,
            chosen,
            spec,
            engine=writer,
            watch=watch,
            resume_from=before,
            on_finished=folder.write_partial,
            on_part=folder.write_partial,
            text=read,
        )
        stage: Stage = "unpruned" if loaded is None else stage_of(loaded)
        record = RunRecord(
            label=label or stage,
            stage=stage,
            suite=spec.suite,
            split=spec.split,  # type: ignore[arg-type]
            seed=spec.seed,
            model=served_facts(source, engine) if loaded is None else card_facts(loaded),
            measurements=result.measurements,
            cost=result.cost,
            spec_fingerprint=fingerprint(spec.model_dump(mode="json")),
            provenance=provenance(
                {
                    **asked,
                    "source": source,
                    **({"endpoint": endpoint} if endpoint else {}),
                    **({"chat_format": chat_format_of(loaded.tokenizer)} if loaded is not None else {}),
                },
                seed=spec.seed,
            ),
        )
        folder.write_evaluation(record, result.items)
    return record, result.items


def _asked_beside(chosen: list[Capability], spec: EvalSpec, engine: str) -> dict[str, Any]:
    """Return what else identifies a request. The embedded items are part of the program; others are told by content."""
    beside: dict[str, Any] = {}
    if spec.suite != "mini":
        found = read_all(
            (capability.name, partial(chosen_items, capability, spec.split, spec.items, spec.seed))  # type: ignore[arg-type]
            for capability in chosen
        )
        for name, items in found.items():
            if not items:
                raise ConfigError(
                    f"the suite '{spec.suite}' has no {spec.split} items of {name}",
                    hint="leave --split out, or choose test",
                )
        beside["items_sha256"] = items_content(found)
    if engine != "transformers":
        beside["engine"] = engine
    return beside


def items_content(found: Mapping[str, Sequence[Item]]) -> str:
    """Return the hash of items by capability: what is asked, and what is right."""
    return fingerprint(
        [
            [name, item.item_id, list(item.messages), item.gold, list(item.choices)]
            for name, items in found.items()
            for item in items
        ]
    )


def _engine(name: str, endpoint: str | None, source: str, dtype: str) -> Engine | None:
    """Return the engine called ``name``; None for transformers, which needs the loaded model."""
    if name not in ENGINES:
        raise ConfigError(f"unknown engine '{name}'", hint=did_you_mean(name, ENGINES))
    if (name == "openai") != (endpoint is not None):
        raise ConfigError(
            "the engine openai and the address of its endpoint belong together",
            hint="--engine openai --endpoint http://localhost:8000/v1",
        )
    if name == "openai":
        from regrow.capabilities.engines.endpoint import EndpointEngine

        return EndpointEngine(str(endpoint), source)
    if name == "vllm":
        from regrow.capabilities.engines.vllm import VllmEngine

        return VllmEngine(source, dtype=dtype)
    return None


def served_facts(source: str, engine: str) -> ModelCardFacts:
    """Return what is known of a model that another program runs: its name."""
    return ModelCardFacts(source=source, architecture=f"served ({engine})", blocks=0, parameters=0, dtype="unknown")


def stage_of(loaded: LoadedModel) -> Stage:
    """Return which stage of the job a model is at, from its history."""
    facts = loaded.facts
    if facts is None or not facts.removed_blocks:
        return "unpruned"
    if facts.healing_tokens:
        return "healed"
    return "repaired" if repair_of(facts) else "pruned"


def repair_of(facts: CheckpointFacts) -> str:
    """Return the repair of a checkpoint by name, "" when it has none. A portable repair leaves no bridge, only its
    step in the history."""
    by_bridge = dict.fromkeys(bridge.method for bridge in facts.bridges)
    by_step = dict.fromkeys(str(step.options.get("method", "")) for step in facts.steps if step.kind == "repair")
    return ", ".join(by_bridge or by_step)


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
        repair=repair_of(facts) if facts else "",
        repair_parameters=sum(bridge.parameters for bridge in facts.bridges) if facts else 0,
        healing_tokens=facts.healing_tokens if facts else 0,
    )
