"""What a repair study found: one outcome per cut, calibration text, repair and healing run, and its tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

import numpy as np
from pydantic import Field

from regrow.records.repairs import RepairRow
from regrow.records.results import Frozen, ItemScore, Number, Provenance
from regrow.seeding import stream
from regrow.stats.bootstrap import paired_bootstrap
from regrow.stats.intervals import Interval, balanced_rate, mean_interval, wilson
from regrow.stats.resampling import strata_of

NONE = "none"
"""The label of the cut as it was pruned, without repair."""


class ScoreCell(Frozen):
    """The score of a capability with its 95 % limits."""

    score: Number
    low: Number
    high: Number
    items: int


class Outcome(Frozen):
    """One row. ``gain`` is the mean score over the capabilities minus that of the same cut and healing run without
    repair, with 95 % limits from items resampled in pairs; NaN where nothing was scored. ``harm``: the upper limit of
    the gain is below zero, or perplexity rose. ``refused`` says why there is no result. ``bridge_share`` is the time
    of the bridges in blocks, ``parameter_share`` and ``flops_share`` what was added, in blocks."""

    cut: str
    removed_blocks: tuple[int, ...]
    calibration: str
    repair: str
    healing: str = ""
    healing_tokens: int = 0
    refused: str = ""
    row: RepairRow | None = None
    final_error: Number = math.nan
    fit_perplexity: Number = math.nan
    perplexity: Number = math.nan
    perplexity_low: Number = math.nan
    perplexity_high: Number = math.nan
    scores: dict[str, ScoreCell] = Field(default_factory=dict)
    mean_score: Number = math.nan
    gain: Number = math.nan
    gain_low: Number = math.nan
    gain_high: Number = math.nan
    harm: bool = False
    parameter_share: Number = math.nan
    flops_share: Number = math.nan
    bridge_share: Number = math.nan


class RepairStudy(Frozen):
    """All outcomes of a study in the order of its spec. ``unpruned`` is the whole model, ``text`` the part of the
    bundled text that perplexity is of."""

    schema_version: int = 1
    title: str
    question: str
    model: str
    unpruned: Outcome
    outcomes: tuple[Outcome, ...]
    provenance: Provenance


def score_cells(items: Iterable[ItemScore]) -> dict[str, ScoreCell]:
    """Return the score of every capability; kinds of items (unsafe, benign) count equally."""
    found = {}
    for name, (scores, kinds) in by_capability(items).items():
        interval = _interval(scores, kinds, stream(0, "repair-study", name))
        found[name] = ScoreCell(score=interval.value, low=interval.low, high=interval.high, items=len(scores))
    return found


def by_capability(items: Iterable[ItemScore]) -> dict[str, tuple[np.ndarray, tuple[str, ...] | None]]:
    """Return scores and kinds of the items of every capability, in the order of their ids; perplexity is left out."""
    found = {}
    graded = sorted((item for item in items if item.capability != "perplexity"), key=lambda item: item.capability)
    for name, group in groupby(graded, key=lambda item: item.capability):
        members = sorted(group, key=lambda item: item.item_id)
        kinds = tuple(str(item.details.get("kind") or "") for item in members)
        found[name] = (np.array([item.score for item in members]), kinds if any(kinds) else None)
    return found


def gain_of(items: Sequence[ItemScore], without: Sequence[ItemScore]) -> tuple[float, float, float]:
    """Return the mean over capabilities of ``items``' scores minus ``without``'s, with paired 95 % limits."""
    mine, theirs = by_capability(items), by_capability(without)
    if not mine or set(mine) != set(theirs):
        return math.nan, math.nan, math.nan
    found = paired_bootstrap(
        {name: scores for name, (scores, _) in mine.items()},
        {name: scores for name, (scores, _) in theirs.items()},
        # Retention of a score of one is the score itself.
        dict.fromkeys(mine, 1.0),
        metrics=("mean",),
        strata={name: kinds for name, (_, kinds) in mine.items() if kinds is not None},
        generator=stream(0, "repair-study", "gain"),
    )["mean"]
    return found.difference, found.low, found.high


def _interval(scores: np.ndarray, kinds: tuple[str, ...] | None, generator: np.random.Generator) -> Interval:
    if not np.isin(scores, (0.0, 1.0)).all():
        return mean_interval(scores, generator, strata=kinds)
    groups = [scores[members] for members in strata_of(scores.size, kinds)]
    if len(groups) == 1:
        return wilson(float(scores.sum()), scores.size)
    return balanced_rate([float(group.sum()) for group in groups], [group.size for group in groups])


def markdown(study: RepairStudy) -> str:
    """Return the study as a page of tables: one a cut and calibration text, the harm cases listed as they are."""
    lines = [f"# {study.title}", "", *([study.question, ""] if study.question else [])]
    whole = study.unpruned
    said = [f"Model: {study.model}."]
    if not math.isnan(whole.perplexity):
        said.append(f"Unpruned: perplexity {whole.perplexity:.2f}, mean score {_share(whole.mean_score)}.")
    items = next((cell.items for cell in whole.scores.values()), 0)
    if items:
        said.append(f"{items} items a capability; limits are 95 %, gains are paired by item.")
    lines += [" ".join(said), ""]
    for (cut, text), rows in _tables(study.outcomes).items():
        removed = ", ".join(map(str, rows[0].removed_blocks))
        lines += [f"## {cut}: blocks {removed} removed; calibration {text}", ""]
        names = list(whole.scores)
        head = ["repair", "healing", "error at the cut", "error at the end", "perplexity (held-out)"]
        head += ["perplexity"] * any(not math.isnan(row.perplexity) for row in rows)
        head += [name.replace("_", " ") for name in names]
        head += ["mean", "gain"] * bool(names)
        head += ["parameters", "FLOPs/token", "plain"]
        timed = any(not math.isnan(row.bridge_share) for row in rows)
        head += ["time (blocks)"] * timed
        lines += ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
        for row in rows:
            lines.append("| " + " | ".join(_cells(row, names, timed, "perplexity" in head)) + " |")
        refused = [f"* {row.repair}: {row.refused}" for row in rows if row.refused]
        lines += ["", *refused, ""] if refused else [""]
    harmed = [row for row in study.outcomes if row.harm]
    if harmed:
        lines += ["## Where repairing hurts", ""]
        for row in harmed:
            where = ", ".join(filter(None, (row.cut, row.calibration, row.repair, row.healing)))
            lines.append(f"* {where}: {_harm(row)}")
        lines.append("")
    return "\n".join(lines)


def _tables(outcomes: Sequence[Outcome]) -> Mapping[tuple[str, str], list[Outcome]]:
    found: dict[tuple[str, str], list[Outcome]] = {}
    for row in outcomes:
        found.setdefault((row.cut, row.calibration), []).append(row)
    return found


def _cells(row: Outcome, names: Sequence[str], timed: bool, measured: bool) -> Iterator[str]:
    yield row.repair
    yield row.healing or "-"
    if row.refused:
        yield from ["-"] * (3 + measured + len(names) + 2 * bool(names) + 3 + timed)
        return
    if row.row is None or row.healing:
        yield from ["-"] * 3
    else:
        bare = row.repair == NONE
        yield " / ".join(_number(cut.in_model_before if bare else cut.in_model) for cut in row.row.cuts)
        yield _number(row.final_error)
        yield _perplexity(row.fit_perplexity)
    if measured:
        yield _perplexity(row.perplexity)
    for name in names:
        cell = row.scores.get(name)
        yield "-" if cell is None else f"{_share(cell.score)} ({_share(cell.low)}-{_share(cell.high)})"
    if names:
        yield _share(row.mean_score)
        yield "-" if math.isnan(row.gain) else f"{row.gain:+.3f} ({row.gain_low:+.3f} to {row.gain_high:+.3f})"
    spent = row.row if row.repair != NONE else None
    yield f"{spent.added_parameters:,}" if spent else "0"
    yield f"{spent.flops_per_token:,}" if spent else "0"
    yield ("yes" if spent.portable else "no") if spent else "yes"
    if timed:
        yield "-" if math.isnan(row.bridge_share) else f"{row.bridge_share:.2f}"


def _harm(row: Outcome) -> str:
    said = []
    if row.gain_high < 0:
        said.append(f"mean score {row.gain:+.3f} ({row.gain_low:+.3f} to {row.gain_high:+.3f})")
    if row.row is not None and row.row.perplexity > row.row.perplexity_before:
        said.append(f"held-out perplexity {row.row.perplexity_before:.1f} -> {row.row.perplexity:.1f}")
    return "; ".join(said)


def _share(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"


def _perplexity(value: float) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:.2f}" if value < 1000 else f"{value:.2e}"
