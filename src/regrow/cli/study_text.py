"""What the study commands print on a terminal."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from regrow.cli.output import duration

if TYPE_CHECKING:
    from regrow.study.forecast import Forecast
    from regrow.study.preflight import Finding
    from regrow.study.progress import Progress
    from regrow.study.step import Step

_LOOK_SECONDS = 2.0
_STYLES = {
    "done": "green",
    "running": "bold cyan",
    "failed": "bold red",
    "stale": "yellow",
    "pending": "dim",
    "blocked": "red",
}


def counted(steps: list[Step]) -> str:
    """Return the steps of a study as a phrase: "51 steps: 42 heals, 6 evaluations ..."."""
    kinds = Counter(step.kind for step in steps)
    words = {"heal": "heals", "evaluate": "evaluations", "pools": "sets of pools", "prune": "cuts", "repair": "repairs"}
    return f"{len(steps)} steps: " + ", ".join(f"{count} {words[kind]}" for kind, count in kinds.most_common())


def print_checks(console: Console, findings: list[Finding]) -> None:
    """Print one line per thing looked at."""
    for finding in findings:
        mark = Text("ok   ", style="green") if finding.ok else Text("FAIL ", style="bold red")
        console.print(mark + Text(f"{finding.what}: {finding.found}"), soft_wrap=True)
        if finding.remedy:
            console.print(Text(f"     try: {finding.remedy}"), soft_wrap=True)


def print_forecast(console: Console, found: Forecast) -> None:
    """Print what a study will take."""
    left, total = sum(found.left.values()), sum(found.steps.values())
    console.print(f"steps               {left} left of {total} ({_kinds(found.left)})", highlight=False)
    console.print(f"training tokens     {found.training_tokens:,}", highlight=False)
    console.print(f"evaluations         {found.evaluations}", highlight=False)
    about = "about" if found.measured else "up to about"
    if found.generated_tokens == found.generated_tokens:
        console.print(f"generated tokens    {about} {found.generated_tokens:,.0f}", highlight=False)
    if found.flops == found.flops:
        console.print(f"FLOPs               {about} {found.flops:.2g}", highlight=False)
    if found.hours_here == found.hours_here:
        console.print(f"on this machine     about {_hours(found.hours_here)}, one step at a time", highlight=False)
        if found.workers > 1:
            console.print(
                f"                    {_hours(found.hours_here_with_workers)} if {found.workers} workers share nothing",
                highlight=False,
            )
    if found.gpu and found.hours_gpu == found.hours_gpu:
        console.print(f"on one {found.gpu:<12} {about} {_hours(found.hours_gpu)} (estimate)", highlight=False)
    for note in found.notes:
        console.print(f"note: {note}", highlight=False, soft_wrap=True)


def print_status(console: Console, found: Progress) -> None:
    """Print how far a study is."""
    console.print(_status(found, everything=True))


def watch_status(console: Console, study: Path) -> None:
    """Show how far a study is, again and again, until every step has ended."""
    from rich.live import Live

    from regrow.study.lease import LeaseWatch
    from regrow.study.progress import progress_of

    leases = LeaseWatch()
    found = progress_of(study, leases)
    with Live(_status(found, everything=False), console=console, auto_refresh=False) as live:
        while not found.over:
            time.sleep(_LOOK_SECONDS)
            found = progress_of(study, leases)
            live.update(_status(found, everything=False), refresh=True)


def _status(found: Progress, *, everything: bool) -> Any:
    shown = [row for row in found.steps if everything or row.state in ("running", "failed", "stale")]
    table = Table(box=None, pad_edge=False, show_header=True, header_style="dim")
    for name in ("step", "family", "what", "state", "took"):
        table.add_column(name, no_wrap=name != "what")
    for row in shown:
        took = duration(row.seconds) if row.seconds == row.seconds else ""
        state = Text(row.state, style=_STYLES[row.state])
        table.add_row(row.step_id, row.family, row.title + (f" ({row.message})" if row.message else ""), state, took)
    done, total = found.counts.get("done", 0), len(found.steps)
    line = f"{found.study}: {done} of {total} steps done"
    others = [
        f"{found.counts[state]} {state}"
        for state in ("running", "failed", "blocked", "stale", "pending")
        if found.counts.get(state)
    ]
    line += f" ({', '.join(others)})" if others else ""
    if found.left_seconds == found.left_seconds and found.left_seconds > 0:
        line += f"; about {duration(found.left_seconds)} of work left"
    remedies = [Text(f"try: {remedy}") for remedy in dict.fromkeys(row.remedy for row in found.steps if row.remedy)]
    return Group(*([table] if shown else []), Text(line), *remedies)


def _kinds(kinds: dict[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "nothing left"


def _hours(hours: float) -> str:
    return duration(hours * 3600)
