"""A repair table in lines of text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from rich.markup import escape

from regrow.records.repairs import RepairRow, RepairTable

HEAD = ("repair", "cut error", "end error", "perplexity", "parameters", "FLOPs/token", "plain")


def repair_lines(table: RepairTable, refused: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of a table, in rich's markup: what the columns mean, the cut as pruned, every repair, and why
    others were refused."""
    gone = ", ".join(map(str, table.removed_blocks))
    rows = table.rows
    if rows:
        first = rows[0]
        yield (
            f"[bold]blocks {gone} of {table.unpruned_blocks} removed[/]; fitted on {first.tokens:,} tokens of "
            f"'{escape(table.calibration)}', measured on {first.held_out_tokens:,} held out"
        )
        if not math.isnan(first.perplexity_unpruned):
            yield f"unpruned perplexity {_perplexity(first.perplexity_unpruned)}"
        yield ""
        cells = [HEAD, _bare(first), *(_cells(row) for row in rows)]
        widths = [max(len(line[column]) for line in cells) for column in range(len(HEAD))]
        for number, line in enumerate(cells):
            padded = [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:]))]
            text = escape("  ".join(padded))
            yield f"[bold]{text}[/]" if not number else text
        yield ""
        yield (
            "[dim]errors: norm of the difference over norm of the original stream, at each cut and behind the last "
            "block, first tokens left out[/]"
        )
    for label, reason in refused.items():
        yield f"{escape(label)}: left out, {escape(reason)}"
    for row in rows:
        for warning in row.warnings:
            yield f"note: {escape(row.label or row.method)}: {escape(warning)}"


def _bare(row: RepairRow) -> tuple[str, ...]:
    errors = " / ".join(_error(cut.in_model_before) for cut in row.cuts)
    return ("none", errors, _error(row.final_error_before), _perplexity(row.perplexity_before), "0", "0", "yes")


def _cells(row: RepairRow) -> tuple[str, ...]:
    return (
        row.label or row.method,
        " / ".join(_error(cut.in_model) for cut in row.cuts),
        _error(row.final_error),
        _perplexity(row.perplexity),
        f"{row.added_parameters:,}",
        f"{row.flops_per_token:,}",
        "yes" if row.portable else "no",
    )


def _error(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"


def _perplexity(value: float) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:.2f}" if value < 10_000 else f"{value:.2e}"
