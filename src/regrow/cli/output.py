"""What a command prints: results on standard output (a table or JSON), everything else on standard error."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from regrow.protocols import SilentWatcher


def print_json(value: Any) -> None:
    """Write one JSON document to standard output (NaN as null)."""
    sys.stdout.write(json.dumps(without_nan(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def without_nan(value: Any) -> Any:
    """Return a JSON-like value with every NaN and infinity replaced by None."""
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    if isinstance(value, dict):
        return {key: without_nan(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(entry) for entry in value]
    return value


class _Console(Console):
    """rich ends the process with code 1 when the reader of a pipe goes away; to regrow that is no fault."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def stdout_console() -> Console:
    """Return the console for results."""
    return _Console(emoji=False)


def stderr_console() -> Console:
    """Return the console for progress, notes and errors."""
    return Console(stderr=True, emoji=False)


class PlainWatcher:
    """Follows work in plain lines, at most one every ``every`` seconds: for logs, pipes and CI."""

    def __init__(self, every: float = 10.0) -> None:
        self._every = every
        self._task, self._total, self._unit = "", None, ""  # type: str, float | None, str
        self._began = self._last = 0.0

    def begin(self, task: str, total: float | None = None, unit: str = "") -> None:
        self._task, self._total, self._unit = task, total, unit
        self._began = self._last = time.monotonic()
        self.note(f"{task} ...")

    def advance(self, done: float, **facts: Any) -> None:
        now = time.monotonic()
        if now - self._last < self._every:
            return
        self._last = now
        of = f" of {self._total:,.0f}" if self._total else ""
        left = ""
        if self._total and 0 < done <= self._total:
            left = f", about {duration((now - self._began) * (self._total - done) / done)} left"
        self.note(f"{self._task}: {done:,.0f}{of} {self._unit}{_facts(facts)}{left}")

    def end(self, summary: str = "") -> None:
        took = duration(time.monotonic() - self._began)
        self.note(f"{self._task}: done in {took}{'; ' + summary if summary else ''}")

    def note(self, text: str) -> None:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


class BarWatcher:
    """Follows work with a live bar on a terminal."""

    def __init__(self) -> None:
        self._console = stderr_console()
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._name = ""
        self._began = 0.0

    def begin(self, task: str, total: float | None = None, unit: str = "") -> None:
        self.close()
        self._name, self._began = task, time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[count]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("[dim]{task.fields[facts]}"),
            console=self._console,
            transient=True,
        )
        self._bar.start()
        self._task = self._bar.add_task(escape(task), total=total, count="", facts="", unit=unit)

    def advance(self, done: float, **facts: Any) -> None:
        if self._bar is None or self._task is None:
            return
        entry = self._bar.tasks[0]
        of = f"/{entry.total:,.0f}" if entry.total else ""
        count = f"{done:,.0f}{of} {entry.fields['unit']}"
        self._bar.update(self._task, completed=done, count=count, facts=escape(_facts(facts).lstrip(", ")))

    def end(self, summary: str = "") -> None:
        took = duration(time.monotonic() - self._began)
        self.close()
        self._console.print(
            f"[green]✓[/] {escape(self._name)} [dim]({took})[/] {escape(summary)}", highlight=False, emoji=False
        )

    def note(self, text: str) -> None:
        self._console.print(escape(text), highlight=False)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = self._task = None


def watcher(quiet: bool) -> SilentWatcher | PlainWatcher | BarWatcher:
    """Return the watcher that suits the place: silent on request, a bar on a terminal, plain lines elsewhere."""
    if quiet:
        return SilentWatcher()
    return BarWatcher() if sys.stderr.isatty() else PlainWatcher()


def duration(seconds: float) -> str:
    """Return a length of time in the two largest units that matter ("2 h 05 min", "3 min 20 s", "4.2 s")."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def _facts(facts: dict[str, Any]) -> str:
    parts = []
    for name, value in facts.items():
        if isinstance(value, float):
            value = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
        parts.append(f"{name.replace('_', ' ')} {value}")
    return "".join(f", {part}" for part in parts)
