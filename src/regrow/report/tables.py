"""The main table: every score with its interval, what was kept of it, which changes are real, what became of items."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from regrow.records.results import RunRecord
from regrow.report.also import also_rows
from regrow.report.changes import changes_of, fates_of
from regrow.report.export import to_csv, to_json, to_markdown
from regrow.report.inputs import Paired, Run, pair
from regrow.report.results import Cell, Column, MainTable, Row
from regrow.report.scored import Drawing, capability_rows
from regrow.report.summaries import summaries_of
from regrow.report.wording import CHANCE
from regrow.seeding import stream
from regrow.stats.intervals import resampled_perplexities
from regrow.stats.retention import chance_corrected, undefined_reason

NOT_MEASURED = "not measured"

__all__ = ["main_table", "to_csv", "to_json", "to_markdown"]


def main_table(
    runs: Sequence[Run] | Paired,
    *,
    chance: Mapping[str, float] | None = None,
    seed: int = 0,
    resamples: int = 2000,
    level: float = 0.95,
) -> MainTable:
    """Return the main table of evaluations, given as (record, items) or already paired.

    ``chance`` gives the score of guessing by capability (None: a quarter for knowledge, a half for safety, else 0).
    Retention intervals resample the items of the unpruned model and of the stage together. The same ``seed`` gives the
    same table.
    """
    paired = runs if isinstance(runs, Paired) else pair(runs)
    floors = CHANCE if chance is None else chance
    drawing = Drawing(seed, resamples, level)
    scored = [
        row
        for capability in paired.capabilities
        for row in capability_rows(paired, capability, floors.get(capability, 0.0), drawing)
    ]
    whole = [entry for entry in scored if not entry.row.part_of]
    rows = [entry.row for entry in scored]
    perplexity = _perplexity_row(paired, drawing)
    rows += [perplexity] if perplexity else []
    first = paired.records[0]
    return MainTable(
        suite=first.suite,
        split=first.split,
        level=level,
        resamples=resamples,
        base=paired.base,
        cut=paired.cut,
        columns=tuple(_column(paired, index) for index in range(len(paired.records))),
        rows=(*rows, _parameters_row(paired)),
        also=also_rows(paired, shown=[row.key for row in rows]),
        summaries=summaries_of(whole, paired.base, level),
        changes=tuple(changes_of(paired, scored, drawing)),
        fates=tuple(fates_of(paired)),
        notes=(*paired.notes, *_undefined_notes([entry.row for entry in whole], paired.base)),
    )


def _undefined_notes(rows: Sequence[Row], base: int | None) -> list[str]:
    if base is None:
        return ["No unpruned model was evaluated: nothing can be said about what was kept."]
    return [
        f"{row.name} has no retention ({row.kept[base].reason}) and is in no summary."
        for row in rows
        if not math.isfinite(row.kept[base].value)
    ]


def _column(paired: Paired, index: int) -> Column:
    record = paired.records[index]
    return Column(
        label=paired.labels[index],
        stage=record.stage,
        source=record.model.source,
        blocks=record.model.blocks,
        unpruned_blocks=record.model.unpruned_blocks or record.model.blocks,
        removed_blocks=record.model.removed_blocks,
        parameters=record.model.parameters,
        repair=record.model.repair,
        healing_tokens=record.model.healing_tokens,
    )


def _perplexity_row(paired: Paired, drawing: Drawing) -> Row | None:
    """Perplexity by resampled windows where the records keep them, else with the limits that were measured."""
    cells = [_measured_perplexity(record) for record in paired.records]
    if all(cell.reason == NOT_MEASURED for cell in cells):
        return None
    kept = _plain_ratios(paired, cells)
    if paired.windows is not None:
        nll, tokens = paired.windows.nll, paired.windows.tokens
        drawn = resampled_perplexities(nll, tokens, drawing.resamples, stream(drawing.seed, "perplexity"))
        cells = [
            cell.model_copy(update=_limits(drawn[:, index], drawing.level)) if math.isfinite(cell.value) else cell
            for index, cell in enumerate(cells)
        ]
        if paired.base is not None:
            base = paired.base
            kept = tuple(
                cell.model_copy(update=_limits(drawn[:, index] / drawn[:, base], drawing.level))
                if math.isfinite(cell.value) and index != base
                else cell
                for index, cell in enumerate(kept)
            )
    return Row(key="perplexity", name="Perplexity", unit="perplexity", cells=tuple(cells), kept=kept)


def _measured_perplexity(record: RunRecord) -> Cell:
    found = {measured.name: measured for measured in record.measurements}
    if "perplexity" not in found:
        return Cell(value=math.nan, reason=NOT_MEASURED)
    low, high = (found[name].value if name in found else math.nan for name in ("perplexity_low", "perplexity_high"))
    return Cell(value=found["perplexity"].value, low=low, high=high, reason=found["perplexity"].reason)


def _limits(drawn: NDArray[np.float64], level: float) -> dict[str, float]:
    if not np.isfinite(drawn).all():
        return {}
    low, high = np.quantile(drawn, [0.5 - level / 2, 0.5 + level / 2])
    return {"low": float(low), "high": float(high)}


def _parameters_row(paired: Paired) -> Row:
    cells = [Cell(value=float(record.model.parameters), estimated=False) for record in paired.records]
    kept = _plain_ratios(paired, cells)
    return Row(key="parameters", name="Parameters", unit="parameters", cells=tuple(cells), kept=kept)


def _plain_ratios(paired: Paired, cells: Sequence[Cell]) -> tuple[Cell, ...]:
    if paired.base is None:
        return tuple(Cell(value=math.nan, reason="no unpruned evaluation to compare with") for _ in cells)
    base = cells[paired.base].value
    return tuple(
        Cell(value=chance_corrected(c.value, base, 0.0), reason=undefined_reason(c.value, base), estimated=False)
        for c in cells
    )
