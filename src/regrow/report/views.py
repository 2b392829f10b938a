"""The page's values in the form in which its template shows them: texts, bar lengths, chips, table cells."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Sequence
from typing import Any, NamedTuple

from regrow.records.checkpoint import CheckpointFacts
from regrow.records.results import RunRecord
from regrow.records.specs import EvalSpec
from regrow.report.celltext import cell_text, kept_text
from regrow.report.findings import Findings, Verdict
from regrow.report.inputs import Paired
from regrow.report.results import Cell, MainTable, Row, Unit
from regrow.report.samples import LONGEST, RIGHT_AT, item_fates, question_of
from regrow.report.theme import THEMES, Theme, column_colours
from regrow.report.wording import (
    DASH,
    blocks_phrase,
    capability_name,
    count,
    duration,
    memory,
    p_text,
    percent,
    percent_span,
    points,
)

FULL = 1.3
"""Retention at the right end of a table's bars."""

CHIPS = {
    Verdict.BROKE: "bad",
    Verdict.NOT_BACK: "bad",
    Verdict.PARTLY: "part",
    Verdict.CAME_BACK: "good",
    Verdict.ROSE: "new",
    Verdict.UNCLEAR: "open",
    Verdict.HELD: "calm",
}


class KeptView(NamedTuple):
    """What was kept: text, limits, and the bar's geometry in percent of its width (None: no bar)."""

    text: str
    limits: str
    reason: str
    bar: float | None = None
    low: float = 0.0
    high: float = 0.0


class CellView(NamedTuple):
    """One cell of the main table; ``kept`` is None in the unpruned column."""

    text: str
    limits: str
    reason: str
    kept: KeptView | None
    corrected: KeptView | None


class RowView(NamedTuple):
    """One row of the main table; ``chip`` is the tone of its ``verdict``, ``evidence`` the tests behind it."""

    name: str
    part: bool
    items: int
    chance: str
    cells: tuple[CellView, ...]
    verdict: str
    chip: str
    evidence: str


class Tile(NamedTuple):
    """One of the key numbers: its last value large, its path through the stages small."""

    name: str
    value: str
    limits: str
    path: str


def row_views(table: MainTable, found: Findings) -> list[RowView]:
    """Return the rows of the main table, the summaries of retention excepted."""
    last = len(table.columns) - 1
    verdicts = {told.row: told.verdict for told in (found.of(last) or _NOTHING).verdicts}
    views = []
    for row in table.rows:
        verdict = verdicts.get(row.key)
        cells = tuple(_cell_view(table, row, index) for index in range(last + 1))
        views.append(
            RowView(
                row.name,
                bool(row.part_of),
                row.items,
                percent(row.chance) if row.chance else "",
                cells,
                verdict.value if verdict else "",
                CHIPS[verdict] if verdict else "",
                _evidence(table, row, last),
            )
        )
    return views


def summary_views(table: MainTable) -> list[RowView]:
    """Return capped mean and worst case as rows of which only what was kept is filled."""
    return [
        RowView(
            summary.name,
            False,
            0,
            "",
            tuple(
                CellView(
                    "",
                    "",
                    "",
                    _kept_view(cell, "share"),
                    _kept_view(corrected, "share"),
                )
                for cell, corrected in zip(summary.cells, summary.corrected, strict=True)
            ),
            "",
            "",
            "",
        )
        for summary in table.summaries
    ]


class TestView(NamedTuple):
    """One paired test as a line of text cells; ``sure``: significant after correction."""

    row: str
    comparison: str
    difference: str
    limits: str
    lost: int
    gained: int
    p: str
    adjusted: str
    detectable: str
    sure: bool


def test_views(table: MainTable) -> list[TestView]:
    """Return every paired test, one comparison after the other."""
    return [
        TestView(
            table.row(change.row).name,
            f"{table.columns[change.later].label} against {table.columns[change.earlier].label}",
            percent(change.difference, sign=True),
            percent_span(change.low, change.high),
            change.lost,
            change.gained,
            p_text(change.p_value).removeprefix("p ").removeprefix("= "),
            p_text(change.adjusted).removeprefix("p ").removeprefix("= "),
            points(change.detectable),
            change.significant,
        )
        for change in table.changes
    ]


def fate_views(table: MainTable) -> list[tuple[str, str, tuple[int, ...]]]:
    """Return (capability, model, counts of kept, came back, new, broke, never right)."""
    return [
        (
            capability_name(c.capability),
            table.columns[c.later].label,
            (c.kept, c.came_back, c.new, c.broke, c.never),
        )
        for c in table.fates
    ]


def tiles(table: MainTable) -> list[Tile]:
    """Return the key numbers: the summaries of retention, perplexity and parameters."""
    found = [
        _tile(f"{summary.name} of retention", "share", summary.cells, skip=table.base) for summary in table.summaries
    ]
    for row in table.rows:
        if row.unit != "share":
            found.append(_tile(row.name, row.unit, row.cells, skip=None))
    return found


def block_strip(table: MainTable) -> list[bool]:
    """Return one flag a block of the unpruned model, True where it was removed; empty when nothing was."""
    column = max(table.columns, key=lambda column: len(column.removed_blocks))
    if not column.removed_blocks:
        return []
    return [block in column.removed_blocks for block in range(column.unpruned_blocks)]


def subtitle(table: MainTable) -> str:
    """Return what was done to the model and how it was measured, in one line."""
    cut = max(table.columns, key=lambda column: len(column.removed_blocks))
    healed = [column for column in table.columns if column.healing_tokens]
    repairs = dict.fromkeys(column.repair for column in table.columns if column.repair)
    parts = []
    if cut.removed_blocks:
        parts.append(f"{len(cut.removed_blocks)} of {cut.unpruned_blocks} blocks removed")
    parts += [f"repaired ({repair})" for repair in repairs]
    parts += [f"healed on {count(column.healing_tokens)} tokens" for column in healed[:1]]
    items = sum(row.items for row in table.rows if row.unit == "share" and not row.part_of)
    parts.append(f"{table.suite} suite, {table.split} split, {items:,} items")
    return " · ".join(parts)


def removed_phrase(table: MainTable) -> str:
    """Return which blocks were removed, in words."""
    column = max(table.columns, key=lambda column: len(column.removed_blocks))
    if not column.removed_blocks:
        return ""
    word = "Block" if len(column.removed_blocks) == 1 else "Blocks"
    return f"{word} {blocks_phrase(column.removed_blocks)} of 0{DASH}{column.unpruned_blocks - 1} removed"


def theme_css(table: MainTable, theme: Theme) -> str:
    """Return the custom properties of a theme: its colours, and one colour a column."""
    stages = " ".join(f"--stage-{index}: {colour};" for index, colour in enumerate(_stage_colours(table, theme)))
    return f"{stages} {base_css(theme)}"


def base_css(theme: Theme) -> str:
    """Return the custom properties that every page has: the theme's colours."""
    plain = {name: getattr(theme, name) for name in ("paper", "surface", "sunken", "ink", "muted", "line", "accent")}
    plain |= {f"fate-{fate.name.lower().replace('_', '-')}": colour for fate, colour in theme.fates.items()}
    plain |= {"bad": theme.stages["pruned"], "good": theme.stages["healed"], "new": theme.stages["repaired"]}
    plain["part"] = theme.extra[1]
    return " ".join(f"--{name}: {colour};" for name, colour in plain.items()) + f" color-scheme: {theme.name};"


def themes_css(table: MainTable) -> dict[str, str]:
    """Return :func:`theme_css` by theme name."""
    return {name: theme_css(table, theme) for name, theme in THEMES.items()}


def item_data(paired: Paired) -> dict[str, Any]:
    """Return all items with all answers, as plain values for the item table."""
    rows = []
    for capability in paired.capabilities:
        ways = item_fates(paired, capability)
        for index, way in enumerate(ways):
            answers = [items[index] for items in paired.items[capability]]
            rows.append(
                {
                    "c": capability_name(capability),
                    "i": answers[0].item_id,
                    "k": str(answers[0].details.get("kind") or ""),
                    "f": way.value if len(answers) > 1 else "",
                    "q": question_of(answers[0])[:LONGEST],
                    "s": [round(answer.score, 4) for answer in answers],
                    "r": [answer.response[:LONGEST] for answer in answers],
                    "l": [len(answer.response) for answer in answers],
                }
            )
    return {"columns": list(paired.labels), "rightAt": RIGHT_AT, "rows": rows}


def provenance_rows(paired: Paired) -> list[tuple[str, list[str], str]]:
    """Return (name, one text a column, how to show it: "", "code", "hash" or "long") of where the numbers come from."""
    records = paired.records

    def line(name: str, texts: Sequence[str], how: str = "") -> tuple[str, list[str], str]:
        return name, [text or DASH for text in texts], how

    return [
        line("Model", [r.model.source for r in records], "code"),
        line("Stage", [r.stage for r in records]),
        line("Architecture", [r.model.architecture for r in records]),
        line("Blocks", [f"{r.model.blocks} of {r.model.unpruned_blocks or r.model.blocks}" for r in records]),
        line("Removed blocks", [blocks_phrase(r.model.removed_blocks) for r in records]),
        line("Repair", [_repair(r) for r in records]),
        line("Healing tokens", [f"{r.model.healing_tokens:,}" if r.model.healing_tokens else "" for r in records]),
        line("Precision", [r.model.dtype for r in records]),
        line("Weights sha256", [r.model.weights_sha256 for r in records], "hash"),
        line("Seed", [str(r.seed) for r in records]),
        line("Measured", [r.provenance.created for r in records]),
        line("regrow", [r.provenance.regrow for r in records]),
        line("Python", [f"{r.provenance.python}, {r.provenance.platform}" for r in records]),
        line("Packages", [", ".join(f"{k} {v}" for k, v in r.provenance.versions.items()) for r in records]),
        line("Settings", [_settings(r.provenance.settings) for r in records], "long"),
        line("Request sha256", [r.spec_fingerprint for r in records], "hash"),
    ]


def cost_rows(paired: Paired) -> list[tuple[str, list[str]]]:
    """Return (name, one text a column) of what measuring each model used."""
    costs = [record.cost for record in paired.records]
    return [
        ("Time", [duration(cost.wall_seconds) for cost in costs]),
        ("Processor time", [duration(cost.cpu_seconds) for cost in costs]),
        ("Prompt tokens", [f"{cost.prompt_tokens:,}" if cost.prompt_tokens else DASH for cost in costs]),
        ("Generated tokens", [f"{cost.generated_tokens:,}" if cost.generated_tokens else DASH for cost in costs]),
        ("Computation (estimate)", [_flops(cost.flops) for cost in costs]),
        ("Peak memory", [memory(cost.peak_memory_bytes) for cost in costs]),
    ]


def step_views(facts: CheckpointFacts | None) -> list[tuple[str, str, str, str]]:
    """Return (kind, when, options, outcome) of each step in a checkpoint's history."""
    if facts is None:
        return []
    return [
        (step.kind, step.provenance.created, _settings(step.options), _settings(step.outcome)) for step in facts.steps
    ]


def commands(paired: Paired, given: Sequence[str]) -> list[str]:
    """Return the commands that make these results again: those given, or those that the records hold."""
    recorded = [_eval_command(record) for record in paired.records]
    return list(given) or [command for command in dict.fromkeys(recorded) if command]


def _eval_command(record: RunRecord) -> str:
    """The `regrow eval` line that a record's settings amount to; "" when they do not hold the model's name."""
    settings = record.provenance.settings
    source, spec = settings.get("source"), settings.get("spec")
    if not isinstance(source, str) or not isinstance(spec, dict):
        return ""
    usual = EvalSpec().model_dump(mode="json")
    parts = ["regrow", "eval", shlex.quote(source)]
    for name, value in spec.items():
        if name not in usual or value == usual[name]:
            continue
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            parts.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            shown = ",".join(str(part) for part in value) if isinstance(value, list) else str(value)
            parts += [f"--{flag}", shlex.quote(shown)]
    return " ".join([*parts, "--output", shlex.quote(f"evaluations/{record.label}")])


class _Nothing(NamedTuple):
    verdicts: tuple[Any, ...] = ()


_NOTHING = _Nothing()


def _cell_view(table: MainTable, row: Row, index: int) -> CellView:
    text, limits = cell_text(row.cells[index], row.unit)
    reason = row.cells[index].reason
    if table.base is None or index == table.base:
        return CellView(text, limits, reason, None, None)
    kept = _kept_view(row.kept[index], row.unit)
    corrected = _kept_view(row.corrected[index], row.unit) if row.corrected else kept
    return CellView(text, limits, reason, kept, corrected)


def _kept_view(cell: Cell, unit: Unit) -> KeptView:
    text, limits = kept_text(cell, unit)
    if unit != "share" or not math.isfinite(cell.value):
        return KeptView(text, limits, cell.reason)
    low, high = (cell.low, cell.high) if math.isfinite(cell.low + cell.high) else (cell.value, cell.value)
    return KeptView(text, limits, cell.reason, *(round(_along(value), 2) for value in (cell.value, low, high)))


def _along(value: float) -> float:
    return 100 * min(max(value, 0.0), FULL) / FULL


def _evidence(table: MainTable, row: Row, last: int) -> str:
    """The tests behind a verdict, for a tooltip."""
    parts = []
    for against in ("unpruned", "pruned"):
        change = table.change(row.key, against, last)
        if change is not None:
            parts.append(
                f"against {against}: {percent(change.difference, sign=True)} "
                f"({change.lost} lost, {change.gained} gained, {p_text(change.adjusted)} after Holm)"
            )
    return "; ".join(parts)


def _tile(name: str, unit: Unit, cells: Sequence[Cell], *, skip: int | None) -> Tile:
    texts = [cell_text(cell, unit) for cell in cells]
    path = [text for index, (text, _) in enumerate(texts) if index != skip]
    path = [text for index, text in enumerate(path) if index == 0 or text != path[index - 1]]
    return Tile(name, *texts[-1], " → ".join(path) if len(path) > 1 else "")


def _stage_colours(table: MainTable, theme: Theme) -> list[str]:
    return column_colours([column.stage for column in table.columns], theme)


def _repair(record: RunRecord) -> str:
    extra = f" (+{record.model.repair_parameters:,} parameters)" if record.model.repair_parameters else ""
    return f"{record.model.repair}{extra}" if record.model.repair else ""


def _settings(values: dict[str, Any]) -> str:
    return json.dumps(values, ensure_ascii=False, indent=1, default=str) if values else ""


def _flops(value: float) -> str:
    for scale, letter in ((1e18, "E"), (1e15, "P"), (1e12, "T")):
        if value >= scale:
            return f"{value / scale:,.1f} {letter}FLOP"
    return f"{value:.1e} FLOP" if math.isfinite(value) else DASH
