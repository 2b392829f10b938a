"""The calibration-against-search study: a grid of calibration texts and search algorithms, and what each explains."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, product
from typing import Any

import numpy as np

from regrow.criteria.ablation import LARGEST_LOSS
from regrow.criteria.objective import Objective, ScoredBatch, text_batches
from regrow.criteria.search import SEARCHES, search
from regrow.data.calibration import CalibrationSet, load_calibration
from regrow.errors import ConfigError
from regrow.models.families import blocks_of
from regrow.protocols import Watcher
from regrow.records.results import provenance
from regrow.records.search_study import CalibrationConfig, SearchRun, SearchStudy, Share
from regrow.seeding import derive_seed, stream
from regrow.stats.variance import variance_shares

Measure = Callable[[tuple[int, ...]], float]
Loader = Callable[[CalibrationConfig, int], CalibrationSet]


def search_study(
    model: Any,
    tokenizer: Any,
    calibrations: Sequence[CalibrationConfig],
    searches: Sequence[str],
    *,
    remove: int,
    seeds: Sequence[int] = (0, 1, 2),
    protect: Sequence[int] = (0,),
    budget: float = math.inf,
    common: Sequence[ScoredBatch] = (),
    measures: Mapping[str, Measure] | None = None,
    load: Loader | None = None,
    done: Sequence[SearchRun] = (),
    on_run: Callable[[SearchRun], None] | None = None,
    watch: Watcher | None = None,
) -> SearchStudy:
    """Return the whole study on one model, with its variance shares and the finding in a sentence.

    For every calibration text and seed (the seed draws the text's samples and drives the search), every algorithm
    searches the cut of ``remove`` blocks of least NLL within ``budget`` block forwards. Cuts are then compared by
    ``common``, a text that no search saw (outcome "perplexity"), and by ``measures``: name to a function from removed
    blocks to a number, for example the accuracy of the cut model on a suite. ``done`` runs are taken over, and
    ``on_run`` is told every new one, so that a broken study can go on.
    """
    check_grid(calibrations, searches, seeds, budget)
    outside = Objective(model, common) if common else None
    if outside is None and not measures:
        raise ConfigError("the study has nothing to compare cuts by", hint="give a common text or measures")
    known = {(run.calibration, run.search, run.seed): run for run in done}
    loader = load or (lambda config, seed: _load(config, tokenizer, seed))
    runs: list[SearchRun] = []
    total = len(calibrations) * len(seeds) * len(searches)
    for config, seed in product(calibrations, seeds):
        missing = [name for name in searches if (config.name, name, seed) not in known]
        batches = text_batches(loader(config, seed)) if missing else []
        for name in searches:
            run = known.get((config.name, name, seed))
            if run is None:
                if watch is not None:
                    limit = budget if math.isfinite(budget) else None
                    task = f"[{len(runs) + 1}/{total}] {name} on '{config.name}', seed {seed}"
                    watch.begin(task, limit, "block passes")
                # A fresh oracle for each search: none may profit from what another one has already asked.
                objective = Objective(model, batches, on_work=watch.advance if watch is not None else None)
                run = _one_run(objective, config, name, seed, remove, protect, budget)
                if watch is not None:
                    watch.end("removes " + ", ".join(map(str, run.removed)))
                run = run.model_copy(update={"outcomes": _outcomes(run.removed, outside, measures or {})})
                if on_run is not None:
                    on_run(run)
            runs.append(run)
    shares = shares_of(runs)
    return SearchStudy(
        blocks=len(blocks_of(model)),
        remove=remove,
        runs=tuple(runs),
        overlap=overlap_of(runs),
        shares=tuple(shares),
        finding=finding_of(shares),
        unpruned={"perplexity": math.exp(outside.whole)} if outside else {},
        provenance=provenance({"budget_block_forwards": budget if math.isfinite(budget) else None}),
    )


def check_grid(
    calibrations: Sequence[CalibrationConfig], searches: Sequence[str], seeds: Sequence[int], budget: float
) -> None:
    """Raise ConfigError for a grid that compares nothing, names something twice or holds a search without an end."""
    names = [config.name for config in calibrations]
    for kind, given in (("calibration text", names), ("search", list(searches)), ("seed", list(map(str, seeds)))):
        twice = next((name for name in given if given.count(name) > 1), None)
        if twice is not None:
            raise ConfigError(f"the {kind} '{twice}' is named twice", hint="name each once")
    for name in searches:
        facts = dict(SEARCHES.entry(name).facts)
        if facts.get("ends") == "no" and not math.isfinite(budget):
            raise ConfigError(f"the search '{name}' only ends with its budget", hint="give a budget in block forwards")
    if len(names) < 2 and len(searches) < 2:
        raise ConfigError("a study needs at least two calibration texts or two searches", hint="add one of either")
    if not seeds:
        raise ConfigError("a study needs at least one seed", hint="give several, for example 0,1,2")


def _load(config: CalibrationConfig, tokenizer: Any, seed: int) -> CalibrationSet:
    return load_calibration(
        config.text,
        tokenizer,
        tokens=config.samples * config.chunk_tokens,
        chunk_tokens=config.chunk_tokens,
        seed=derive_seed(seed, "search-study"),
    )


def _one_run(
    objective: Objective,
    config: CalibrationConfig,
    name: str,
    seed: int,
    remove: int,
    protect: Sequence[int],
    budget: float,
) -> SearchRun:
    began = time.perf_counter()
    found = search(
        objective,
        name,
        remove=remove,
        protect=protect,
        budget=budget,
        generator=stream(seed, "search-study", config.name, name),
    )
    seconds = time.perf_counter() - began
    return SearchRun(
        calibration=config.name,
        search=name,
        seed=seed,
        removed=found.removed,
        loss=found.loss,
        outcomes={},
        evaluations=found.evaluations,
        block_forwards=found.block_forwards,
        wall_seconds=seconds,
    )


def _outcomes(removed: tuple[int, ...], outside: Objective | None, measures: Mapping[str, Measure]) -> dict[str, float]:
    found: dict[str, float] = {}
    if outside is not None:
        found["perplexity"] = math.exp(min(outside(removed), LARGEST_LOSS))
    return found | {name: float(measure(removed)) for name, measure in measures.items()}


def shares_of(runs: Sequence[SearchRun]) -> list[Share]:
    """Return the variance shares of every outcome that all runs have; perplexity enters as its logarithm."""
    found = []
    outcomes = [name for name in runs[0].outcomes if all(name in run.outcomes for run in runs)] if runs else []
    for outcome in outcomes:
        cells: dict[tuple[str, str], list[float]] = {}
        for run in runs:
            value = run.outcomes[outcome]
            cells.setdefault((run.calibration, run.search), []).append(
                math.log(value) if outcome == "perplexity" else value
            )
        for part in variance_shares(cells, generator=stream(0, "variance-shares", outcome)):
            found.append(
                Share(
                    outcome=outcome,
                    factor=part.factor,
                    share=part.share.value,
                    low=part.share.low,
                    high=part.share.high,
                    chance=part.chance,
                    reason=part.share.reason,
                )
            )
    return found


def overlap_of(runs: Sequence[SearchRun]) -> dict[str, float]:
    """Return the mean Jaccard overlap of two cuts, by what the two runs share; NaN where there is no such pair."""
    kinds: dict[str, list[float]] = {"same both": [], "same calibration": [], "same search": [], "neither": []}
    for one, other in combinations(runs, 2):
        calibration, algorithm = one.calibration == other.calibration, one.search == other.search
        kind = (
            "same both"
            if calibration and algorithm
            else "same calibration"
            if calibration
            else "same search"
            if algorithm
            else "neither"
        )
        cuts = set(one.removed), set(other.removed)
        kinds[kind].append(len(cuts[0] & cuts[1]) / len(cuts[0] | cuts[1]))
    return {kind: float(np.mean(values)) if values else math.nan for kind, values in kinds.items()}


def finding_of(shares: Sequence[Share]) -> str:
    """Return in a sentence per outcome which factor explains more, and whether the intervals tell them apart."""
    sentences = []
    for outcome in dict.fromkeys(share.outcome for share in shares):
        by_factor = {share.factor: share for share in shares if share.outcome == outcome}
        calibration, algorithm = by_factor["calibration"], by_factor["search"]
        if not math.isfinite(calibration.share):
            sentences.append(f"All runs have the same {outcome}, so nothing can be said of what matters.")
            continue
        words = {"calibration": "the calibration text", "search": "the search algorithm"}
        first, second = sorted((calibration, algorithm), key=lambda share: -share.share)
        alone = next((share for share in (first, second) if share.chance == 0), None)
        if alone is not None:
            other = second if alone is first else first
            sentences.append(
                f"For {outcome}, {words[other.factor]} explains {_percent(other)} of the variance; "
                f"{words[alone.factor]} was not varied"
                + ("" if math.isfinite(other.low) else ", and one seed gives no intervals, so this says little")
                + "."
            )
            continue
        # What one seed a cell leaves open, or intervals that overlap, is not settled.
        apart = first.low > second.high
        verdict = "" if apart else f"; {_why_open(first)}, so this grid does not settle which matters more"
        sentences.append(
            f"For {outcome}, {words[first.factor]} explains {_percent(first)} of the variance and "
            f"{words[second.factor]} {_percent(second)}{verdict}."
        )
        seed = by_factor.get("seed")
        if seed is not None and math.isfinite(first.low) and seed.share > first.share:
            sentences.append(f"More than either, the draw of samples (the seed) explains {_percent(seed)}.")
    return " ".join(sentences)


def _why_open(share: Share) -> str:
    return "their intervals overlap" if math.isfinite(share.low) else "one seed gives no intervals"


def _percent(share: Share) -> str:
    if not math.isfinite(share.low):
        return f"{share.share:.0%}"
    return f"{share.share:.0%} ({share.low:.0%} to {share.high:.0%})"
