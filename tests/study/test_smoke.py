"""The shipped smoke study on the real SmolLM2-135M: from nothing, killed, to a report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from regrow.records.study_runs import read_study

pytestmark = pytest.mark.slow


def start(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "regrow", "study", "run", "smoke", "-o", str(folder), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )


def events(folder: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    except FileNotFoundError:
        return []


def test_the_smoke_study_survives_a_kill_and_ends_in_a_report(smollm2: Any, tmp_path: Path) -> None:
    folder = tmp_path / "smoke"
    first = start(folder)
    while first.poll() is None and sum(event["event"] == "done" for event in events(folder)) < 3:
        time.sleep(0.5)
    time.sleep(2)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    second = start(folder)
    out, err = second.communicate()
    assert second.returncode == 0, err[-3000:]
    printed = json.loads(out)
    assert printed["done"] == printed["steps"] == 16 and printed["found"] >= 3 and not printed["failed"]
    study = read_study(folder)
    rules = Counter(run.coordinates.rule for run in study.runs if run.coordinates.rule)
    assert rules == {"uniform": 1, "damage-proportional": 1, "rah": 1, "token-matched": 1}
    matched = next(run for run in study.runs if run.coordinates.rule == "token-matched")
    pilots = [run for run in study.runs if run.coordinates.pilot]
    assert matched.coordinates.budget == 1_000 + sum(run.coordinates.budget for run in pilots)
    planned = next(run for run in study.runs if run.coordinates.rule == "rah")
    allocation = json.loads((folder / "allocations" / f"{planned.run_id}.json").read_text())
    assert sum(allocation["tokens"].values()) == pytest.approx(1_000) and allocation["curves"]
    page = Path(printed["report"]).read_text("utf-8")
    assert "rah" in page and 'src="http' not in page
