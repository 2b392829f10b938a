"""How one checkpoint follows from another: which model it came from, what was done, whether it was done already."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from regrow.data.chat import chat_format_of
from regrow.errors import DataError, ModelError, StudyError
from regrow.models.families import blocks_of
from regrow.models.load import LoadedModel, load_model
from regrow.protocols import Watcher
from regrow.records.atomic import refuse_used
from regrow.records.checkpoint import CheckpointFacts, Step, read_facts
from regrow.records.fingerprint import file_sha256
from regrow.records.results import Cost, ItemScore, RunRecord, provenance
from regrow.records.store import RunFolder, differences, read_evaluation


def facts_before(loaded: LoadedModel) -> CheckpointFacts:
    """Return the history of a loaded model: its ``regrow.json``, or a fresh one that names it as the unpruned model."""
    if loaded.facts is not None:
        return loaded.facts
    return CheckpointFacts(
        source=loaded.source,
        source_weights_sha256=loaded.weights_sha256,
        architecture=type(loaded.model).__name__,
        unpruned_blocks=len(blocks_of(loaded.model)),
    )


def note_chat_format(loaded: LoadedModel, watch: Watcher) -> None:
    """Say so when a model is asked in regrow's fallback chat format because its tokenizer has no template."""
    if chat_format_of(loaded.tokenizer) == "fallback":
        watch.note("note: the tokenizer has no chat template; prompts use '### User:' and '### Assistant:' headings")


def step(
    kind: Any, options: dict[str, Any], outcome: dict[str, Any], *, seed: int | None = None, cost: Cost | None = None
) -> Step:
    """Return the record of a command's work on a checkpoint."""
    return Step(kind=kind, options=options, outcome=outcome, cost=cost, provenance=provenance(options, seed=seed))


def done_before(output: Path, kind: str, options: dict[str, Any]) -> CheckpointFacts | None:
    """Return the facts of ``output`` when exactly this step already made it; None when the folder is free.

    ``options`` name the input by the hash of its files (``input_sha256``), so a checkpoint made from another state of
    the same folder is not taken for this one. Raises StudyError when the folder holds anything else, or a checkpoint
    whose files have changed. Asked before any work, so that a refusal costs nothing.
    """
    source = Path(str(options.get("pruned", options.get("source", ""))))
    if source.is_dir() and source.resolve() in output.resolve().parents:
        raise StudyError(
            f"the output '{output}' lies inside the input folder '{source}'", hint="name a folder beside it"
        )
    facts = read_facts(output) if output.is_dir() else None
    if facts is None or not facts.steps:
        refuse_used(output)
        return None
    last = facts.steps[-1]
    asked = json.loads(json.dumps(options))
    if last.kind != kind or {**last.options, **_names(asked)} != asked:
        said = differences(last.kind, {**last.options, **_names(asked)}, kind, asked)
        raise StudyError(
            f"the output folder '{output}' already holds another checkpoint ({said})",
            hint="name another folder with --output, or delete this one",
        )
    changed = changed_file(output, facts)
    if changed is not None:
        raise StudyError(
            f"'{changed}' is not the file that was saved there (its sha256 differs)",
            hint=f"delete '{output}' and run the same command again",
        )
    return facts


def changed_file(checkpoint: Path, facts: CheckpointFacts) -> Path | None:
    """Return a file of a checkpoint that is gone or not the one that was saved; None when all are there."""
    for name, sha256 in {**facts.weights_sha256, **facts.files_sha256}.items():
        file = checkpoint / name
        if not file.is_file() or file_sha256(file) != sha256:
            return file
    return None


def found_evaluation(
    folder: RunFolder, asked: dict[str, Any], watch: Watcher
) -> tuple[RunRecord, list[ItemScore]] | None:
    """Return the finished evaluation in ``folder`` when it is the one asked for; None when it is to be measured, also
    because what is there is damaged. Raises StudyError when the folder holds something else."""
    if not folder.finished("evaluation", asked):
        return None
    try:
        found = read_evaluation(folder.path)
    except DataError as error:
        watch.note(f"note: {error}; it is measured again")
        return None
    watch.note(f"'{folder.path}' already holds this evaluation")
    return found


def saved_or_found(
    save: Callable[[], CheckpointFacts], output: Path, kind: str, options: dict[str, Any], watch: Watcher
) -> CheckpointFacts:
    """Return what ``save`` returns, or the facts of the very same checkpoint that another process has put there
    meanwhile."""
    try:
        facts = save()
    except StudyError:
        found = done_before(output, kind, options) if output.is_dir() else None
        if found is None:
            raise
        watch.note(f"another process has made this very checkpoint in '{output}' meanwhile")
        return found
    watch.end("same logits, same cached generation")
    return facts


def _names(asked: dict[str, Any]) -> dict[str, Any]:
    """Return the options that may differ without changing the result: those that only say where something lies, and
    hashes of files that are not there any more (what they held is part of the result)."""
    places: dict[str, Any] = {key: asked[key] for key in ("source", "pruned", "unpruned") if key in asked}
    unknown: dict[str, Any] = {key: "" for key in ("pools_sha256", "calibration_sha256") if asked.get(key) == ""}
    return {**places, **unknown}


def checkpoint_facts(folder: str | Path, *, what: str) -> CheckpointFacts:
    """Return the facts of a pruned checkpoint folder. Raises ModelError when it is not one of regrow's."""
    path = Path(folder)
    facts = read_facts(path) if path.is_dir() else None
    if facts is None:
        raise ModelError(
            f"'{folder}' is not a checkpoint of regrow (no regrow.json), so {what} does not know what was removed",
            hint="make one with `regrow prune MODEL --remove 2 --output DIR` and pass that folder",
        )
    return facts


def unpruned_model(facts: CheckpointFacts, source: str | None, *, dtype: str, device: str) -> LoadedModel:
    """Return the unpruned model behind a checkpoint, or the one given in its place; another model's weights are
    refused because everything fitted on it would be wrong."""
    try:
        loaded = load_model(source or facts.source, dtype=dtype, device=device)
    except ModelError as error:
        if source:
            raise
        raise ModelError(
            f"the unpruned model of this checkpoint is no longer at '{facts.source}' ({error})",
            hint="say where it is now with --unpruned MODEL",
        ) from error
    if facts.source_weights_sha256 and loaded.weights_sha256 and loaded.weights_sha256 != facts.source_weights_sha256:
        raise ModelError(
            f"'{loaded.source}' has other weights (sha256 {loaded.weights_sha256[:12]}) than the model this checkpoint "
            f"was cut from ({facts.source_weights_sha256[:12]})",
            hint="pass the original with --unpruned",
        )
    return loaded
