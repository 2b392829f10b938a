"""The repair study: every cut repaired by every method from one pass, measured, healed, measured again; resumable.

The folder holds one subfolder per outcome, named by the hash of what it is made of, so that a stopped study goes on
where it was and a study with more repairs or cuts does only what is new.
"""

from __future__ import annotations

import copy
import json
import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from regrow.capabilities.evaluate import evaluate as measure
from regrow.criteria.merging import Merge, merge_blocks, merges_of
from regrow.criteria.order import candidates, removal_count
from regrow.criteria.ranking import needs_text, reads_similarity, score_blocks
from regrow.criteria.registry import CRITERIA
from regrow.criteria.similarity import kept_similarity
from regrow.data.calibration import CalibrationSet
from regrow.data.chat import chat_format_of
from regrow.data.pools import Pool
from regrow.errors import RegrowError, StudyError
from regrow.heal.loop import heal
from regrow.heal.registry import LOSSES, SCOPES
from regrow.models.bridges import bridges_of
from regrow.models.cache import cache_folder
from regrow.models.families import blocks_of
from regrow.models.load import LoadedModel, load_model, locate_file
from regrow.protocols import Watcher
from regrow.records.atomic import write_json, write_text
from regrow.records.checkpoint import CheckpointFacts
from regrow.records.fingerprint import fingerprint
from regrow.records.repairs import RepairRow
from regrow.records.results import ItemScore, LayerScores, RunRecord, Stage, provenance
from regrow.records.specs import EvalSpec, HealSpec, RepairSpec, Spec
from regrow.records.store import RunFolder, read_evaluation
from regrow.repair.fit import RepairResult, fit_possible
from regrow.repair.latency import measure_latency
from regrow.repair.method import refuse_options
from regrow.repair.registry import REPAIRS
from regrow.study.repair_results import NONE, Outcome, RepairStudy, gain_of, markdown, score_cells
from regrow.study.repair_spec import CutSpec, RepairStudySpec, TextSpec, healing_label
from regrow.study.stages.calibration import calibration_of
from regrow.study.stages.evaluate import card_facts, chosen_capabilities
from regrow.study.stages.pools import pools_of
from regrow.surgery import check_blocks, remove_blocks

RESULTS = "results.json"
PAGE = "results.md"
CELLS = "cells"
FIT = "fit.json"
CUTS = "cuts"
TRAINING = "training"
Key = dict[str, Any]


def run_repair_study(
    spec: RepairStudySpec,
    output: Path,
    *,
    watch: Watcher,
    pools_folder: Path | None = None,
    dtype: str = "auto",
    device: str = "auto",
) -> RepairStudy:
    """Return the study's outcomes, measured now or found in ``output``, and write them there as JSON and Markdown.

    A repair that a cut does not allow is an outcome with its reason, not an error. Raises StudyError when another
    process works in ``output`` or it holds something else, and what loading and evaluating raise.
    """
    _refuse_unknown(spec)
    asked = {"model": spec.model, "dtype": dtype}
    folder = RunFolder(output)
    folder.finished("repair study", asked)
    locate_file(spec.model)
    with folder.claimed("repair study", asked):
        watch.begin(f"loading {spec.model}")
        unpruned = load_model(spec.model, dtype=dtype, device=device)
        watch.end(f"{len(blocks_of(unpruned.model))} blocks")
        _refuse_impossible_cuts(spec, len(blocks_of(unpruned.model)))
        work = _Work(spec, output, unpruned, watch, pools_folder)
        whole, outcomes = work.run()
        study = RepairStudy(
            title=spec.title,
            question=spec.question,
            model=spec.model,
            unpruned=whole,
            outcomes=tuple(outcomes),
            provenance=provenance(
                {
                    "dtype": str(unpruned.dtype).removeprefix("torch."),
                    "spec": spec.model_dump(mode="json", exclude={"full"}),
                }
            ),
        )
        write_text(output / RESULTS, study.model_dump_json(indent=2) + "\n")
        write_text(output / PAGE, markdown(study))
    return study


def _refuse_impossible_cuts(spec: RepairStudySpec, blocks: int) -> None:
    """Raise ConfigError on a cut that the model does not allow, before the first one costs anything."""
    for cut in spec.cuts:
        if cut.blocks is not None:
            check_blocks(cut.blocks, blocks)
        elif cut.remove is not None:
            candidates(cut.criterion, blocks, remove=removal_count(cut.remove, blocks), protect=cut.protect)


def _refuse_unknown(spec: RepairStudySpec) -> None:
    """Raise ConfigError on a name that is not known, before anything is loaded."""
    for cut in spec.cuts:
        CRITERIA.entry(cut.criterion)
    for repair in spec.repairs:
        REPAIRS.entry(repair.method)
        refuse_options(repair.method, repair, REPAIRS.get(repair.method).heeds)
    for run in spec.healing:
        SCOPES.entry(run.scope)
        LOSSES.entry(run.loss)
    if spec.evaluation is not None:
        chosen_capabilities(spec.evaluation)


Scored = tuple[RunRecord, list[ItemScore]]
Model = Callable[[], LoadedModel]


@dataclass
class _Work:
    """One run of a study. What is expensive is made at its first use: a finished study loads its results alone."""

    spec: RepairStudySpec
    output: Path
    unpruned: LoadedModel
    watch: Watcher
    pools_folder: Path | None
    _pools: dict[str, Pool] | None = None
    _texts: dict[str, CalibrationSet] = field(default_factory=dict)
    _bare_items: dict[tuple[str, str], list[ItemScore]] = field(default_factory=dict)

    def run(self) -> tuple[Outcome, list[Outcome]]:
        whole = Outcome(cut="", removed_blocks=(), calibration="", repair=NONE)
        whole = _with_scores(
            whole, self._scored(self._cell({"cut": []}), lambda: self.unpruned, "unpruned", "unpruned")
        )
        found: list[Outcome] = []
        for number, cut in enumerate(self.spec.cuts, start=1):
            self.watch.note(f"[{number}/{len(self.spec.cuts)}] {cut.label}")
            found += self._cut(cut)
        return whole, found

    def _cut(self, cut: CutSpec) -> list[Outcome]:
        removed, merges = self._choose(cut)
        facts = CheckpointFacts(
            source=self.spec.model,
            source_weights_sha256=self.unpruned.weights_sha256,
            unpruned_blocks=len(blocks_of(self.unpruned.model)),
            removed_blocks=removed,
        )
        made: list[LoadedModel] = []

        def pruned() -> LoadedModel:
            if not made:
                model = copy.deepcopy(self.unpruned.model)
                merge_blocks(model, merges)
                remove_blocks(model, removed)
                made.append(LoadedModel(model, self.unpruned.tokenizer, f"{self.spec.model} ({cut.label})", "", facts))
            return made[0]

        key: Key = {"cut": list(removed), "merges": [str(merge) for merge in merges]}
        bare = Outcome(cut=cut.label, removed_blocks=removed, calibration="", repair=NONE)
        without = self._measured(bare, key, pruned)
        found: list[Outcome] = []
        for text in self.spec.calibrations:
            rows = self._repaired(bare.model_copy(update={"calibration": text.label}), text, key, pruned)
            row = next((entry.row for entry in rows if entry.row is not None), None)
            found += [_before(entry, text, row) for entry in without]
            found += rows
        return found

    def _repaired(self, bare: Outcome, text: TextSpec, key: Key, pruned: Model) -> list[Outcome]:
        """Return the outcomes of every repair of one cut by one calibration text."""
        asked = list(self.spec.fits(text))
        keys: dict[str, Key] = {label: {**key, "repair": _options(spec)} for label, spec in asked}
        missing = {label: spec for label, spec in asked if not self._complete(keys[label])}
        fits: dict[str, RepairResult | RegrowError] = {}
        if missing:
            done, _ = fit_possible(
                self.unpruned,
                pruned(),
                self._text(text),
                list(missing.values()),
                labels=list(missing),
                removed=bare.removed_blocks,
                watch=self.watch,
                # Fitted again only to be measured or healed: its errors are known.
                measure=not all(_read(self._cell(keys[label]) / FIT) for label in missing),
            )
            fits = dict(zip(missing, done, strict=True))
        found: list[Outcome] = []
        for label, _ in asked:
            base = bare.model_copy(update={"repair": label})
            fit, file = fits.get(label), self._cell(keys[label]) / FIT
            if isinstance(fit, RepairResult):
                with _in_place(pruned(), fit) as repaired:
                    facts = _read(file) or {"row": fit.row.model_dump(mode="json")}
                    if self.spec.latency and "bridge_share" not in facts:
                        facts["bridge_share"] = measure_latency(repaired.model).share
                    write_json(file, facts)
                    found += self._measured(self._fitted(base, facts), keys[label], pruned)
                continue
            if isinstance(fit, RegrowError):
                write_json(file, {"refused": str(fit)})
            facts = _read(file)
            if "refused" in facts:
                found.append(base.model_copy(update={"refused": facts["refused"]}))
            else:
                found += self._measured(self._fitted(base, facts), keys[label], pruned)
        return found

    def _fitted(self, base: Outcome, facts: dict[str, Any]) -> Outcome:
        row = RepairRow.model_validate(facts["row"])
        weights = sum(weight.numel() for weight in blocks_of(self.unpruned.model)[0].parameters())
        return base.model_copy(
            update={
                "row": row,
                "final_error": row.final_error,
                "fit_perplexity": row.perplexity,
                "parameter_share": row.added_parameters / weights,
                "flops_share": row.flops_per_token / (2 * weights),
                "bridge_share": facts.get("bridge_share", math.nan),
            }
        )

    def _measured(self, base: Outcome, key: Key, model: Model) -> list[Outcome]:
        """Return the outcome before healing and one per healing run; ``model`` is called only for what is missing."""
        stage: Stage = "pruned" if base.repair == NONE else "repaired"
        scored = self._scored(self._cell(key), model, f"{base.cut}, {base.repair}", stage)
        return [self._against(base, scored), *(self._healed(base, key, run, model) for run in self.spec.healing)]

    def _healed(self, base: Outcome, key: Key, run: HealSpec, model: Model) -> Outcome:
        base = base.model_copy(update={"healing": healing_label(run)})
        cell = self._cell(self._healing_key(key, run))
        facts = _read(cell / FIT)
        if not facts:
            facts = self._train(base, cell, run, model())
            write_json(cell / FIT, facts)
            shutil.rmtree(cell / TRAINING, ignore_errors=True)
        if "refused" in facts:
            return base.model_copy(update={"refused": facts["refused"]})
        base = base.model_copy(update={"healing_tokens": facts["tokens"]})
        return self._against(base, self._scored(cell, model, "", "healed"))

    def _train(self, base: Outcome, cell: Path, run: HealSpec, start: LoadedModel) -> dict[str, Any]:
        """Return what healing a copy of ``start`` came to, after measuring the copy into the cell."""
        healed = LoadedModel(copy.deepcopy(start.model), start.tokenizer, start.source, "", start.facts)
        self.watch.note(f"healing {base.cut}, {base.repair}: {base.healing}")
        if run.scope == "bridges" and not bridges_of(healed.model):
            return {"refused": "there is no bridge to train"}
        result = heal(healed, self._healing_pools(), run, cell / TRAINING, watch=self.watch)
        assert healed.facts is not None
        healed.facts = healed.facts.model_copy(update={"healing_tokens": result.tokens})
        self._scored(cell, lambda: healed, f"{base.cut}, {base.repair}, {base.healing}", "healed")
        return {"tokens": result.tokens, "loss": result.loss}

    def _against(self, outcome: Outcome, scored: Scored | None) -> Outcome:
        """Return the outcome with its scores and its gain over the same cut and healing run without repair."""
        row = outcome.row
        worse = row is not None and not outcome.healing and row.perplexity > row.perplexity_before
        if scored is None:
            return outcome.model_copy(update={"harm": worse})
        outcome = _with_scores(outcome, scored)
        place = (outcome.cut, outcome.healing)
        if outcome.repair == NONE:
            self._bare_items[place] = scored[1]
            return outcome
        without = self._bare_items.get(place)
        gain, low, high = gain_of(scored[1], without) if without is not None else (math.nan,) * 3
        return outcome.model_copy(update={"gain": gain, "gain_low": low, "gain_high": high, "harm": worse or high < 0})

    def _scored(self, cell: Path, model: Model, label: str, stage: Stage) -> Scored | None:
        """Return the evaluation of a model, made now or found in the cell; None when the study measures nothing."""
        spec = self.spec.evaluation
        if spec is None:
            return None
        folder = RunFolder(cell / _scored_name(spec))
        if folder.claim("evaluation", _asked(spec)):
            return read_evaluation(folder.path)
        loaded = model()
        self.watch.note(f"measuring {label}")
        result = measure(
            loaded,
            chosen_capabilities(spec),
            spec,
            watch=self.watch,
            resume_from=folder.read_partial(),
            on_finished=folder.write_partial,
        )
        record = RunRecord(
            label=label,
            stage=stage,
            suite=spec.suite,
            split=spec.split,  # type: ignore[arg-type]
            seed=spec.seed,
            model=card_facts(loaded),
            measurements=result.measurements,
            cost=result.cost,
            spec_fingerprint=fingerprint(spec.model_dump(mode="json")),
            provenance=provenance({"chat_format": chat_format_of(loaded.tokenizer)}, seed=spec.seed),
        )
        folder.write_evaluation(record, result.items)
        return record, result.items

    def _complete(self, key: Key) -> bool:
        """Return whether nothing of this repair is left to fit, measure or heal."""
        cell = self._cell(key)
        facts = _read(cell / FIT)
        if "refused" in facts:
            return True
        if not facts or (self.spec.latency and "bridge_share" not in facts):
            return False
        spec = self.spec.evaluation
        cells = [cell, *(self._cell(self._healing_key(key, run)) for run in self.spec.healing)]
        if not all((entry / FIT).exists() for entry in cells):
            return False
        scored = [entry for entry in cells if "refused" not in _read(entry / FIT)]
        return spec is None or all(
            RunFolder(entry / _scored_name(spec)).finished("evaluation", _asked(spec)) for entry in scored
        )

    def _choose(self, cut: CutSpec) -> tuple[tuple[int, ...], Sequence[Merge]]:
        count = len(blocks_of(self.unpruned.model))
        if cut.blocks is not None:
            return tuple(sorted(check_blocks(cut.blocks, count))), ()
        reads = needs_text(cut.criterion)
        asked = cut.model_dump(mode="json", exclude={"name"})
        asked |= {"ranking": self.spec.ranking.model_dump(mode="json")} if reads else {}
        file = self.output / CUTS / f"{fingerprint([self.unpruned.weights_sha256, asked])[:24]}.json"
        if file.exists():
            scores = LayerScores.model_validate_json(file.read_bytes())
            return scores.removed, merges_of(scores)
        assert cut.remove is not None
        text = self._text(self.spec.ranking) if reads else None
        record = None
        if text is not None and reads_similarity(cut.criterion):
            self.watch.begin(f"reading {text.tokens:,} tokens of '{text.name}'", text.tokens, "tokens")
            folder = cache_folder("similarity")
            record = kept_similarity(self.unpruned.model, text, folder, on_progress=self.watch.advance)
            self.watch.end()
        self.watch.begin(f"{cut.criterion} ranks the blocks")
        scores = score_blocks(
            cut.criterion,
            self.unpruned.model,
            text,
            remove=removal_count(cut.remove, count),
            protect=cut.protect,
            contiguous=cut.contiguous,
            seed=cut.seed,
            record=record,
            options=cut.options,
        )
        self.watch.end("removes " + ", ".join(map(str, scores.removed)))
        write_text(file, scores.model_dump_json(indent=2) + "\n")
        return scores.removed, merges_of(scores)

    def _text(self, text: TextSpec) -> CalibrationSet:
        if text.label not in self._texts:
            asked = RepairSpec(**text.model_dump())
            self._texts[text.label] = calibration_of(
                asked, self.unpruned, watch=self.watch, pools_folder=self.pools_folder
            )
        return self._texts[text.label]

    def _healing_pools(self) -> dict[str, Pool]:
        if self._pools is None:
            self._pools = pools_of(
                self.spec.evaluation.suite if self.spec.evaluation else "mini",
                lambda: self.unpruned,
                source=self.unpruned.source,
                weights_sha256=self.unpruned.weights_sha256,
                examples=self.spec.pool_examples,
                watch=self.watch,
                folder=self.pools_folder,
            )
        return self._pools

    def _healing_key(self, key: Key, run: HealSpec) -> Key:
        return {**key, "healing": _options(run), "pool_examples": self.spec.pool_examples}

    def _cell(self, key: Key) -> Path:
        made_of = {"weights": self.unpruned.weights_sha256, "regrow": version("regrow"), **key}
        return self.output / CELLS / fingerprint(made_of)[:24]


@contextmanager
def _in_place(pruned: LoadedModel, fit: RepairResult) -> Iterator[LoadedModel]:
    """Repair ``pruned`` while the block runs; afterwards it is what it was."""
    before = pruned.facts
    assert before is not None
    fit.apply(pruned)
    pruned.facts = before.model_copy(update={"bridges": fit.bridges, "removed_blocks": fit.removed_blocks})
    try:
        yield pruned
    finally:
        fit.undo(pruned)
        pruned.facts = before


def _before(entry: Outcome, text: TextSpec, row: RepairRow | None) -> Outcome:
    """Return the outcome without repair as a row of one calibration text's table."""
    update: dict[str, Any] = {"calibration": text.label}
    if row is not None and not entry.healing:
        update |= {"row": row, "final_error": row.final_error_before, "fit_perplexity": row.perplexity_before}
    return entry.model_copy(update=update)


def _with_scores(outcome: Outcome, scored: Scored | None) -> Outcome:
    if scored is None:
        return outcome
    record, items = scored
    numbers = {entry.name: entry.value for entry in record.measurements}
    cells = score_cells(items)
    return outcome.model_copy(
        update={
            "scores": cells,
            "mean_score": sum(cell.score for cell in cells.values()) / len(cells) if cells else math.nan,
            **{name: numbers.get(name, math.nan) for name in ("perplexity", "perplexity_low", "perplexity_high")},
        }
    )


def _options(spec: Spec) -> dict[str, Any]:
    """Return what sets a spec apart, so that an option that is added later does not make old results strange."""
    return spec.model_dump(mode="json", exclude_defaults=True)


def _scored_name(spec: EvalSpec) -> str:
    return f"evaluation-{fingerprint(_options(spec))[:8]}"


def _asked(spec: EvalSpec) -> dict[str, Any]:
    return {"spec": _options(spec)}


def _read(file: Path) -> dict[str, Any]:
    if not file.exists():
        return {}
    try:
        return dict(json.loads(file.read_text("utf-8")))
    except (ValueError, OSError) as error:
        raise StudyError(f"'{file}' cannot be read: {error}", hint="delete that file and run again") from error
