"""Table 1: what every model kept of every capability, and whether families agree on what breaks most."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import polars

from regrow.report.paper.families import Family, Method
from regrow.report.paper.frames import frame_of
from regrow.report.paper.names import stage_name
from regrow.report.results import Cell, Row
from regrow.report.scored import Drawing, ScoredRow, filled
from regrow.report.wording import CHANCE, capability_name
from regrow.stats.ranks import kendalls_w
from regrow.stats.resampling import strata_of


class Retention(NamedTuple):
    """One capability of one model. ``score`` is the mean over seeds; ``kept`` the retention and ``corrected`` the
    chance-corrected one (equal where nothing can be guessed), each with limits from resampled items. ``kind`` is empty
    for a whole capability and names one of its two rates otherwise; ``right`` counts items right, mean over seeds."""

    family: str
    stage: str
    model: str
    cut: str
    rule: str
    scope: str
    budget: int
    seeds: int
    capability: str
    kind: str
    items: int
    right: float
    unpruned: float
    score: float
    score_low: float
    score_high: float
    kept: float
    kept_low: float
    kept_high: float
    corrected: float
    corrected_low: float
    corrected_high: float
    reason: str
    runs: str


class Concordance(NamedTuple):
    """The mean rank of a capability among the pruned models (1 = lost most) and Kendall's W over families,
    tie-corrected, with its permutation p. ``reason`` says why it is NaN."""

    measure: str
    capability: str
    mean_rank: float
    w: float
    p_value: float
    families: int
    reason: str
    runs: str


def retention_frame(families: Sequence[Family], drawing: Drawing) -> polars.DataFrame:
    """Return one row a model, capability and rate: unpruned, pruned, repaired and healed models, seeds averaged."""
    return frame_of(Retention, [row for family in families for row in _family_rows(family, drawing)])


def concordance_frame(families: Sequence[Family], *, permutations: int = 20_000) -> polars.DataFrame:
    """Return the mean ranks of capabilities over families at the main cut, by raw and by corrected retention."""
    cut = [(family, family.cuts[0]) for family in families if family.cuts]
    rows: list[Concordance] = []
    for measure, corrected in (("raw", False), ("corrected", True)):
        names = _common([family.above_chance if corrected else family.defined for family, _ in cut])
        places = "; ".join(f"{family.base.places}; {method.places}" for family, method in cut)
        if len(cut) < 2 or len(names) < 2:
            reason = "fewer than two capabilities" if len(cut) > 1 else "W compares rankings of two families or more"
            nan = math.nan
            rows += [Concordance(measure, name, nan, nan, nan, len(cut), reason, places) for name in names]
            continue
        table = []
        for family, method in cut:
            kept = dict(
                zip(
                    family.above_chance if corrected else family.defined,
                    family.mean_kept(method, corrected=corrected),
                    strict=True,
                )
            )
            table.append([kept[name] for name in names])
        # Equal counts of equal bases must tie in spite of rounding.
        found = kendalls_w(np.round(table, 12), permutations=permutations)
        reason = "" if math.isfinite(found.w) else "every family ties all capabilities"
        rows += [
            Concordance(measure, name, rank, found.w, found.p_value, len(cut), reason, places)
            for name, rank in zip(names, found.mean_ranks, strict=True)
        ]
    return frame_of(Concordance, rows)


def _common(lists: Sequence[Sequence[str]]) -> list[str]:
    return [name for name in lists[0] if all(name in other for other in lists[1:])] if lists else []


def _family_rows(family: Family, drawing: Drawing) -> list[Retention]:
    rows = []
    for method in family.methods:
        for capability in family.paired.capabilities:
            kinds = family.paired.kinds.get(capability)
            base, own = family.items(family.base, capability)[0], family.items(method, capability).mean(axis=0)
            if not own.size:
                continue
            scores = np.stack([base, own])
            rows.append(_row(family, method, capability, "", scores, kinds, drawing))
            if kinds is not None:
                for kind, members in zip(dict.fromkeys(kinds), strata_of(len(kinds), kinds), strict=True):
                    rows.append(_row(family, method, capability, kind, scores[:, members], None, drawing))
    return rows


def _row(
    family: Family,
    method: Method,
    capability: str,
    kind: str,
    scores: np.ndarray,
    kinds: tuple[str, ...] | None,
    drawing: Drawing,
) -> Retention:
    chance = 0.0 if kind else CHANCE.get(capability, 0.0)
    key = ".".join([family.name, capability, kind])
    blank = Row(key=key, name=capability_name(capability), unit="share", chance=chance, cells=(), kept=())
    scored: ScoredRow = filled(blank, 0, scores, kinds, drawing)
    score, kept = scored.row.cells[1], scored.row.kept[1]
    corrected = scored.row.corrected[1] if chance else kept
    if method.stage == "unpruned":
        kept, corrected = (_exactly_one(cell) for cell in (kept, corrected))
    return Retention(
        family.name,
        method.stage,
        stage_name(method),
        method.cut,
        method.rule,
        method.scope,
        method.budget,
        method.seeds,
        capability,
        kind,
        scores.shape[1],
        float(scores[1].sum()),
        scored.row.cells[0].value,
        score.value,
        score.low,
        score.high,
        kept.value,
        kept.low,
        kept.high,
        corrected.value,
        corrected.low,
        corrected.high,
        kept.reason or corrected.reason,
        method.places if method.stage == "unpruned" else f"{family.base.places}; {method.places}",
    )


def _exactly_one(cell: Cell) -> Cell:
    """The unpruned model against itself: 1 without limits."""
    return cell.model_copy(update={"low": math.nan, "high": math.nan})
