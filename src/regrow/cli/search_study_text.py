"""A search study on a terminal: the cuts, how they overlap, what each factor explains, and the finding."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from regrow.records.search_study import SearchRun, SearchStudy

OUTCOMES = {"perplexity": "perplexity on the common text", "accuracy": "accuracy (mean over capabilities)"}


def print_search_study(console: Console, study: SearchStudy) -> None:
    """Print the study. Block indices are 0-based, of REMOVED blocks."""
    searches = list(dict.fromkeys(run.search for run in study.runs))
    texts = list(dict.fromkeys(run.calibration for run in study.runs))
    console.print(
        Text.assemble(
            ("calibration against search", "bold"),
            f": {study.remove} of {study.blocks} blocks of {study.model}, {len(study.runs)} runs",
        ),
        soft_wrap=True,
    )
    _print(console, "the cuts (removed blocks, 0-based)", _cuts(study))
    for outcome in study.unpruned or OUTCOMES:
        if all(outcome in run.outcomes for run in study.runs):
            title = f"{OUTCOMES.get(outcome, outcome)}: mean over seeds, ± their standard deviation"
            whole = study.unpruned.get(outcome, math.nan)
            if math.isfinite(whole):
                title += f"; all blocks: {_value(outcome, whole)}"
            _print(console, title, _cells(study.runs, outcome, texts, searches))
    overlap = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    overlap.add_column("two runs that share")
    overlap.add_column("overlap", justify="right")
    for kind, value in study.overlap.items():
        overlap.add_row(kind.replace("same both", "both (another seed)"), f"{value:.2f}" if value == value else "-")
    _print(console, "subset overlap (mean Jaccard of the removed blocks)", overlap)
    _print(console, "share of the variance that each factor explains (95 % interval over seeds)", _shares(study))
    for warning in study.warnings:
        console.print(Text(f"note: {warning}"))
    console.print(Text(study.finding, style="bold"))


def _cuts(study: SearchStudy) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    outcomes = list(study.runs[0].outcomes)
    for name in ("calibration", "search"):
        table.add_column(name, no_wrap=True)
    table.add_column("seed", justify="right")
    table.add_column("removed")
    for name in (*outcomes, "passes"):
        table.add_column(name, justify="right", no_wrap=True)
    for run in study.runs:
        cells = [_value(name, run.outcomes.get(name, math.nan)) for name in outcomes]
        blocks = ", ".join(map(str, run.removed))
        passes = f"{run.block_forwards / study.blocks:.1f}"
        table.add_row(Text(run.calibration), run.search, str(run.seed), blocks, *cells, passes)
    return table


def _cells(runs: Sequence[SearchRun], outcome: str, texts: Sequence[str], searches: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("calibration", no_wrap=True)
    for search in searches:
        table.add_column(search, justify="right", no_wrap=True)
    for text in texts:
        row = []
        for search in searches:
            values = [run.outcomes[outcome] for run in runs if run.calibration == text and run.search == search]
            mean = math.fsum(values) / len(values)
            shown = _value(outcome, mean)
            if len(values) > 1:
                spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
                shown += f" ± {_value(outcome, spread)}"
            row.append(shown)
        table.add_row(Text(text), *row)
    return table


def _shares(study: SearchStudy) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("of")
    table.add_column("factor", no_wrap=True)
    for name in ("share", "interval", "by chance"):
        table.add_column(name, justify="right", no_wrap=True)
    for share in study.shares:
        value = f"{share.share:.0%}" if math.isfinite(share.share) else f"- ({share.reason})"
        limits = f"{share.low:.0%}-{share.high:.0%}" if math.isfinite(share.low) else "-"
        of = "log perplexity" if share.outcome == "perplexity" else share.outcome
        table.add_row(of, share.factor, value, limits, f"{share.chance:.0%}")
    return table


def _value(outcome: str, value: float) -> str:
    if not math.isfinite(value):
        return "-"
    if outcome == "accuracy":
        return f"{value:.1%}"
    return f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


def _print(console: Console, title: str, table: Table) -> None:
    console.print()
    console.print(Text(title, style="bold"))
    if console.is_terminal:
        console.print(table)
        return
    # Into a file or a pipe: as wide as its numbers need, none of them cut short.
    before = console.width
    console.width = max(before, Measurement.get(console, console.options.update(max_width=10_000), table).maximum)
    console.print(table)
    console.width = before
