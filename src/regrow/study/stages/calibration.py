"""The calibration set a stage asks for: a text by reference, or examples of the healing pools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from regrow.data.calibration import CalibrationSet, automatic_bos, from_stream, load_calibration
from regrow.errors import DataError
from regrow.models.load import LoadedModel
from regrow.protocols import Watcher
from regrow.records.fingerprint import file_sha256
from regrow.records.specs import PruneSpec, RepairSpec
from regrow.study.stages.pools import pools_content, pools_of
from regrow.study.stages.text_checks import evaluation_texts, fitting_chunks, overlap_warnings

HEALING_POOLS = "healing-pools"
NO_TEXT = "none"
EXAMPLES_PER_POOL = 21
"""What the study takes: 126 examples of six pools."""


def calibration_content(
    spec: PruneSpec | RepairSpec,
    *,
    suite: str = "mini",
    pools_folder: Path | None = None,
    only_pools: Sequence[str] | None = None,
) -> str:
    """Return the hash of what ``spec.calibration`` names where its name does not fix its content: a file, or pools in
    a user's folder. "" in every other case."""
    if spec.calibration == HEALING_POOLS:
        return pools_content(suite, pools_folder, only_pools) or ""
    try:
        file = Path(spec.calibration.partition("#")[0]).expanduser()  # FILE.jsonl#field
        return file_sha256(file) if file.is_file() else ""
    except OSError:
        return ""


def calibration_of(
    spec: PruneSpec | RepairSpec,
    unpruned: LoadedModel,
    *,
    watch: Watcher,
    suite: str = "mini",
    pools_folder: Path | None = None,
    only_pools: Sequence[str] | None = None,
    warn: bool = True,
) -> CalibrationSet:
    """Return the calibration set that ``spec.calibration`` names, in the unpruned model's tokens.

    "healing-pools" means teacher-written healing examples, pool names sorted, joined to one stream of tokens and cut;
    pools that are not in ``pools_folder`` (or the cache) are answered by ``unpruned`` first. Anything else is a text
    (see :mod:`regrow.data.text`). ``watch`` is told when chunks are shortened to the model's context and, with
    ``warn``, when the text also stands in what ``regrow eval`` measures on.
    """
    if spec.calibration == NO_TEXT:
        asking = spec.criterion if isinstance(spec, PruneSpec) else spec.method
        raise DataError(f"'{asking}' needs a calibration text", hint="leave out --calibration, or name a text")
    spec = fitting_chunks(spec, unpruned.model, note=watch.note)
    found = _drawn(spec, unpruned, watch, suite, pools_folder, only_pools)
    for warning in shared_with_evaluation(found, unpruned) if warn else ():
        watch.note(f"note: {warning}")
    return found


def shared_with_evaluation(calibration: CalibrationSet, loaded: LoadedModel) -> list[str]:
    """Return a warning for each text of ``regrow eval`` that also stands in a calibration set. Healing prompts are made
    from the templates of the suite's questions, and disjoint from them by construction: only other texts are compared
    with the questions."""
    texts = evaluation_texts(questions=calibration.name != HEALING_POOLS)
    return overlap_warnings(calibration, loaded.tokenizer, texts)


def _drawn(
    spec: PruneSpec | RepairSpec,
    unpruned: LoadedModel,
    watch: Watcher,
    suite: str,
    pools_folder: Path | None,
    only_pools: Sequence[str] | None,
) -> CalibrationSet:
    if spec.calibration != HEALING_POOLS:
        return load_calibration(
            spec.calibration,
            unpruned.tokenizer,
            tokens=spec.calibration_tokens,
            chunk_tokens=spec.chunk_tokens,
            seed=spec.seed,
        )
    answer: Callable[[], LoadedModel] = lambda: unpruned  # noqa: E731
    pools = pools_of(
        suite,
        answer,
        source=unpruned.source,
        weights_sha256=unpruned.weights_sha256,
        examples=EXAMPLES_PER_POOL,
        watch=watch,
        folder=pools_folder,
        only=only_pools,
        counted=False,
    )
    if not any(pool.examples for pool in pools.values()):
        raise DataError(
            f"the healing pools hold no example: none of the answers of '{unpruned.source}' showed the skill asked for",
            hint="this suite is too hard for the model; calibrate on text instead (calibration: bundled)",
        )
    encode = unpruned.tokenizer
    # Round by round over the pools, so that a small token budget still holds some of each. A study's own pools hold
    # more examples: the first of them are those that a cut reads.
    rounds = (
        pools[name].examples[number]
        for number in range(min(EXAMPLES_PER_POOL, max(len(pool.examples) for pool in pools.values())))
        for name in sorted(pools)
        if number < len(pools[name].examples)
    )
    pieces = (encode(example.prompt + example.response, add_special_tokens=False).input_ids for example in rounds)
    return from_stream(
        HEALING_POOLS,
        pieces,
        tokens=spec.calibration_tokens,
        chunk_tokens=spec.chunk_tokens,
        bos=automatic_bos(unpruned.tokenizer),
    )
