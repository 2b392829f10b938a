"""The calibration set a stage asks for: a text by reference, or examples of the healing pools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from regrow.data.calibration import CalibrationSet, automatic_bos, from_stream, load_calibration
from regrow.models.load import LoadedModel
from regrow.protocols import Watcher
from regrow.records.fingerprint import file_sha256
from regrow.records.specs import PruneSpec, RepairSpec
from regrow.study.stages.pools import pools_content, pools_of

HEALING_POOLS = "healing-pools"
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
        file = Path(spec.calibration).expanduser()
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
) -> CalibrationSet:
    """Return the calibration set that ``spec.calibration`` names, in the unpruned model's tokens.

    "healing-pools" means teacher-written healing examples, pool names sorted, joined to one stream of tokens and cut;
    pools that are not in ``pools_folder`` (or the cache) are answered by ``unpruned`` first. Anything else is a text
    (see :mod:`regrow.data.text`).
    """
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
    )
    encode = unpruned.tokenizer
    # Round by round over the pools, so that a small token budget still holds some of each.
    rounds = (
        pools[name].examples[number]
        for number in range(max(len(pool.examples) for pool in pools.values()))
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
