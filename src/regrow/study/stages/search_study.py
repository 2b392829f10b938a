"""The calibration-against-search study in a folder: every run kept as it ends, the same request goes on."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from regrow.capabilities.model_call import context_limit
from regrow.capabilities.suites import suite
from regrow.criteria.objective import text_batches
from regrow.criteria.order import candidates, removal_count
from regrow.criteria.search_study import check_grid, search_study
from regrow.data.calibration import CalibrationSet, load_calibration, make_set
from regrow.data.text import open_text
from regrow.errors import ConfigError, StudyError
from regrow.models.families import blocks_of
from regrow.models.load import LoadedModel, load_model
from regrow.protocols import Watcher
from regrow.records.atomic import write_text
from regrow.records.checkpoint import CheckpointFacts
from regrow.records.fingerprint import fingerprint
from regrow.records.results import ItemScore
from regrow.records.search_study import CalibrationConfig, SearchRun, SearchStudy, SearchStudySpec
from regrow.records.specs import EvalSpec, PruneSpec
from regrow.records.store import RESULT, RunFolder
from regrow.seeding import derive_seed, stream
from regrow.study.stages.calibration import HEALING_POOLS, calibration_content, calibration_of
from regrow.study.stages.evaluate import chosen_capabilities, evaluate
from regrow.study.stages.text_checks import overlap_warnings
from regrow.surgery import remove_blocks

KIND = "search-study"
RUNS = "runs"
CUTS = "cuts"
COMMON_CHUNK = 256
EVERYTHING = 10_000_000
"""More tokens than any healing pool holds."""


def study_search(
    source: str,
    spec: SearchStudySpec,
    output: Path,
    *,
    watch: Watcher,
    pools_folder: Path | None = None,
    dtype: str = "auto",
    device: str = "auto",
) -> SearchStudy:
    """Return the study in ``output``: its runs, overlap, variance shares and finding.

    Every search and every evaluation of a cut is kept as soon as it is done, so a stopped study continues. Equal cuts
    are evaluated once. The text "healing-pools" means chunks drawn from teacher-written healing examples, those in
    ``pools_folder`` or the cache. Raises ConfigError for a grid that cannot be run, before any of it is.
    """
    configurations = spec.configurations()
    # With a finite stand-in: the real default depends on the model, and is finite too.
    check_grid(configurations, spec.searches, spec.seeds, spec.budget or 1.0)
    for reference in (*spec.texts, spec.common):
        if reference != HEALING_POOLS or reference == spec.common:
            open_text(reference)
    evaluation = EvalSpec(
        suite=spec.suite, capabilities=spec.capabilities, split="dev", items=spec.items or None, perplexity=False
    )
    if spec.items:
        chosen_capabilities(evaluation)
    watch.begin(f"loading {source}")
    loaded = load_model(source, dtype=dtype, device=device)
    count = len(blocks_of(loaded.model))
    watch.end(f"{count} blocks")
    remove = removal_count(spec.remove, count)
    candidates("a search", count, remove=remove, protect=spec.protect)
    _refuse_long_chunks(spec, loaded)
    common = load_calibration(
        spec.common,
        loaded.tokenizer,
        tokens=spec.common_tokens,
        chunk_tokens=min(COMMON_CHUNK, context_limit(loaded.model) or COMMON_CHUNK),
        shuffle=False,
    )
    texts = _Texts(loaded, common, pools_folder, watch)
    # Every text is drawn once before any search, so that one that cannot be read is refused at once.
    for config in configurations:
        texts(config, spec.seeds[0])
    folder = RunFolder(output)
    asked = {
        "source": source,
        "weights_sha256": loaded.weights_sha256,
        "texts_sha256": {text: _content(text, pools_folder) for text in (*spec.texts, spec.common)},
        "dtype": dtype,
        **spec.model_dump(mode="json"),
    }
    if folder.finished(KIND, asked):
        watch.note(f"'{output}' already holds this study")
        return read_search_study(output)
    with folder.claimed(KIND, asked):
        accuracy = _Accuracy(source, loaded, evaluation, output / CUTS, watch, dtype) if spec.items else None
        done = _runs_in(output)
        if done:
            watch.note(f"{len(done)} runs were already done; the rest follows")
        study = search_study(
            loaded.model,
            loaded.tokenizer,
            configurations,
            spec.searches,
            remove=remove,
            seeds=spec.seeds,
            protect=spec.protect,
            budget=(spec.budget or count) * count,
            common=text_batches(common),
            measures={"accuracy": accuracy} if accuracy is not None else {},
            load=texts,
            done=done,
            on_run=lambda run: _keep(output, run),
            watch=watch,
        )
        study = study.model_copy(
            update={
                "model": source,
                "unpruned": {**study.unpruned, **({"accuracy": accuracy(())} if accuracy is not None else {})},
                "warnings": tuple(texts.warnings),
            }
        )
        write_text(output / RESULT, study.model_dump_json(indent=1) + "\n")
    return study


def read_search_study(folder: Path) -> SearchStudy:
    """Return a finished study. Raises StudyError when the folder does not hold one."""
    try:
        return SearchStudy.model_validate_json((folder / RESULT).read_bytes())
    except (OSError, ValidationError) as error:
        raise StudyError(
            f"'{folder}' holds no readable search study: {error}", hint="run `regrow search-study` into a new folder"
        ) from error


def _content(reference: str, pools_folder: Path | None) -> str:
    """Return the hash of a text whose name does not fix its content, "" for any other."""
    bare = reference.partition("#")[0]
    return calibration_content(PruneSpec(calibration=bare), pools_folder=pools_folder)


def _refuse_long_chunks(spec: SearchStudySpec, loaded: LoadedModel) -> None:
    limit = context_limit(loaded.model)
    longest = max(spec.chunk_tokens)
    if limit is not None and longest > limit:
        raise ConfigError(
            f"chunks of {longest} tokens do not fit the model's context of {limit}", hint=f"--chunk-tokens {limit}"
        )
    if min(spec.chunk_tokens) < 2 or min(spec.samples) < 1:
        raise ConfigError(
            "a calibration text needs at least one chunk of two tokens", hint="--samples 4,16 --chunk-tokens 128"
        )


def _keep(output: Path, run: SearchRun) -> None:
    name = fingerprint([run.calibration, run.search, run.seed])[:16]
    write_text(output / RUNS / f"{name}.json", run.model_dump_json(indent=1) + "\n")


def _runs_in(output: Path) -> list[SearchRun]:
    """Return the runs that a stopped study left; one that cannot be read is made again."""
    found = []
    for file in sorted((output / RUNS).glob("*.json")):
        try:
            found.append(SearchRun.model_validate_json(file.read_bytes()))
        except (OSError, ValidationError):
            file.unlink(missing_ok=True)
    return found


class _Texts:
    """Draws the calibration sets of the grid; warns once about each that is short or shares text with ``common``."""

    def __init__(self, loaded: LoadedModel, common: CalibrationSet, pools_folder: Path | None, watch: Watcher) -> None:
        self._loaded = loaded
        self._watch = watch
        self._pools_folder = pools_folder
        rows = [loaded.tokenizer.decode(ids[mask.bool()]) for ids, mask in zip(common.input_ids, common.attention_mask)]
        self._evaluated = {f"the comparison text '{common.name}'": rows}
        self._told: set[str] = set()
        self.warnings: list[str] = []

    def __call__(self, config: CalibrationConfig, seed: int) -> CalibrationSet:
        if config.text == HEALING_POOLS:
            found = self._from_pools(config, seed)
        else:
            found = load_calibration(
                config.text,
                self._loaded.tokenizer,
                tokens=config.samples * config.chunk_tokens,
                chunk_tokens=config.chunk_tokens,
                seed=derive_seed(seed, KIND),
            )
        if len(found) < config.samples:
            self._warn(f"'{config.text}' holds only {len(found)} chunks of {config.chunk_tokens} tokens", config.name)
        for warning in overlap_warnings(found, self._loaded.tokenizer, self._evaluated):
            self._warn(warning, config.text)
        return found

    def _from_pools(self, config: CalibrationConfig, seed: int) -> CalibrationSet:
        """Return chunks drawn from all healing examples: pools have a fixed order, so the seed picks among chunks."""
        wanted = PruneSpec(
            calibration=HEALING_POOLS, calibration_tokens=EVERYTHING, chunk_tokens=config.chunk_tokens, seed=seed
        )
        whole = calibration_of(wanted, self._loaded, watch=self._watch, pools_folder=self._pools_folder, warn=False)
        rows = stream(seed, KIND, "pools").permutation(len(whole))[: config.samples].tolist()
        return make_set(HEALING_POOLS, whole.input_ids[rows], whole.attention_mask[rows])

    def _warn(self, warning: str, about: str) -> None:
        if about not in self._told:
            self._told.add(about)
            self.warnings.append(warning)
            self._watch.note(f"note: {warning}")


class _Accuracy:
    """The mean score of a cut model over the capabilities, from an evaluation kept in a folder of its own."""

    def __init__(
        self, source: str, loaded: LoadedModel, spec: EvalSpec, folder: Path, watch: Watcher, dtype: str
    ) -> None:
        self._source, self._loaded, self._spec = source, loaded, spec
        self._folder, self._watch, self._dtype = folder, watch, dtype
        self._capabilities = suite(spec.suite, spec.capabilities)

    def __call__(self, removed: tuple[int, ...]) -> float:
        name = "cut-" + "-".join(map(str, removed)) if removed else "unpruned"
        _, items = evaluate(
            self._source,
            self._spec,
            self._folder / name,
            watch=self._watch,
            label=name,
            dtype=self._dtype,
            loaded=self._cut(removed),
        )
        return mean_score(self._capabilities, items)

    def _cut(self, removed: tuple[int, ...]) -> LoadedModel:
        if not removed:
            return self._loaded
        facts = CheckpointFacts(
            source=self._source, unpruned_blocks=len(blocks_of(self._loaded.model)), removed_blocks=removed
        )
        model = remove_blocks(copy.deepcopy(self._loaded.model), removed)
        return dataclasses.replace(self._loaded, model=model, facts=facts)


def mean_score(capabilities: Sequence[Any], items: Sequence[ItemScore]) -> float:
    """Return the unweighted mean of the capabilities' headline scores, 0 to 1."""
    by_name = {each.name: [item for item in items if item.capability == each.name] for each in capabilities}
    scores = [each.summarise(by_name[each.name])["score"] for each in capabilities if by_name[each.name]]
    return float(np.mean(scores))
