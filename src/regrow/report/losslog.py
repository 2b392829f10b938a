"""The loss of a healing run, read from its JSONL log."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from regrow.errors import DataError


class LossPoint(NamedTuple):
    """Mean loss of one update, in nats a response token, after ``tokens`` healing tokens."""

    tokens: int
    loss: float


def loss_points(lines: Iterable[Mapping[str, Any]]) -> list[LossPoint]:
    """Return the points of a log's lines in order of tokens; lines without tokens and a finite loss are passed over."""
    found = []
    for line in lines:
        tokens, loss = line.get("tokens"), line.get("loss")
        if isinstance(tokens, int | float) and isinstance(loss, int | float) and math.isfinite(loss):
            found.append(LossPoint(int(tokens), float(loss)))
    return sorted(found)


def read_loss_log(path: Path) -> list[LossPoint]:
    """Return the points of a JSONL log. Raises DataError when a line is not JSON; a torn last line is passed over."""
    lines = path.read_text("utf-8").splitlines()
    parsed = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            parsed.append(json.loads(line))
        except ValueError as error:
            if number == len(lines):
                break
            raise DataError(f"line {number} of '{path}' is not JSON", hint="heal again to write a new log") from error
    return loss_points(entry for entry in parsed if isinstance(entry, dict))
