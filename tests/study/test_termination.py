"""SIGTERM, as schedulers send it before they take a machine away: work saved, leases given up, nothing left running."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from regrow.protocols import SilentWatcher
from regrow.records.study_spec import EngineSpec
from regrow.study.folder import StudyFolder
from regrow.study.progress import progress_of
from regrow.study.runner import run
from regrow.study.runners import RUNNERS
from regrow.study.termination import TerminatedError, terminable
from tests.study.commands import command, wait_for, write_spec
from tests.study.tiny_study import begin, tiny_spec

LONG = {"budgets": [3_000], "heal": {"sequences_per_update": 2, "learning_rate": 1e-3, "max_cycles": 1e9}}
"""A heal that lasts long enough to be met on its way."""


def holders(folder: Path) -> dict[str, int]:
    """Return the process that works on each step, by step id."""
    found = {}
    for file in (folder / "steps").glob("*/lease.json"):
        try:
            found[file.parent.name] = json.loads(file.read_text())["process"]
        except (OSError, ValueError):
            continue
    return found


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = (folder / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def heal_of(folder: Path) -> str:
    return next(step.id for step in StudyFolder(folder).steps() if step.kind == "heal")


def trained(states: Path) -> bool:
    """Return whether a heal has done an update."""
    log = states / "log.jsonl"
    return log.exists() and log.stat().st_size > 0


def ignore_ctrl_c() -> None:
    """What a shell does to a command that it starts in the background."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@pytest.fixture
def begun(finished: Path, model: Path, tmp_path: Path) -> Path:
    """A study of which all but a long heal is done."""
    folder = tmp_path / "study"
    shutil.copytree(finished, folder)
    begin(folder, tiny_spec(model, **LONG), update=True)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["subprocess", "serial"])
def test_a_runner_that_is_told_to_stop_keeps_its_work_and_leaves_nothing(
    engine: str, begun: Path, model: Path, tmp_path: Path
) -> None:
    file = write_spec(tmp_path / "tiny.yaml", model, engine={"name": engine, "threads": 1}, **LONG)
    heal = heal_of(begun)
    states = begun / "checkpoints" / f"{heal}.healing"
    started = command("run", file, "-o", begun, preexec_fn=ignore_ctrl_c)
    wait_for(lambda: trained(states) and heal in holders(begun), started)
    workers = holders(begun)
    started.send_signal(signal.SIGTERM)
    _, err = started.communicate()
    assert started.returncode == 143 and "the same command continues" in err and "Traceback" not in err, err
    assert not holders(begun) and not list((begun / RUNNERS).glob("*.json"))
    assert list(workers) == [heal] and not alive(workers[heal])
    row = next(row for row in progress_of(begun).steps if row.step_id == heal)
    assert row.state == "failed" and row.message.startswith("preempted: ")
    assert [event["steps"] for event in events(begun, "preempted")] == [[heal]]
    assert list((states / "checkpoints").iterdir()), "what was trained is there"
    summary = run(begun, watch=SilentWatcher())
    assert summary.complete and summary.found == summary.total - 1
    assert not (begun / "steps" / heal / "failed.json").exists()


@pytest.mark.slow
def test_a_worker_that_is_told_to_stop_is_preempted_and_its_step_tried_again(begun: Path) -> None:
    heal = heal_of(begun)
    states = begun / "checkpoints" / f"{heal}.healing"

    def preempt() -> None:
        while not (trained(states) and heal in holders(begun)):
            time.sleep(0.02)
        os.kill(holders(begun)[heal], signal.SIGTERM)

    scheduler = threading.Thread(target=preempt, daemon=True)
    scheduler.start()
    summary = run(begun, watch=SilentWatcher(), engine_spec=EngineSpec(threads=1))
    scheduler.join()
    assert summary.complete, summary
    failures = events(begun, "failed")
    assert [(event["step"], event["reason"]) for event in failures] == [(heal, "preempted")]
    assert "SIGTERM" in failures[0]["message"]
    assert "continued after update" in (begun / "steps" / heal / "log.txt").read_text()


def test_sigterm_counts_once_and_is_a_kind_of_interrupt() -> None:
    before = signal.getsignal(signal.SIGTERM)
    reached = False
    with pytest.raises(TerminatedError) as caught, terminable():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            threading.Event().wait(10)
        except KeyboardInterrupt:
            os.kill(os.getpid(), signal.SIGTERM)  # the runner passes on what the scheduler has sent already
            threading.Event().wait(0.2)
            reached = True
            raise
    assert reached and isinstance(caught.value, KeyboardInterrupt)
    assert signal.getsignal(signal.SIGTERM) == before


def test_ctrl_c_stays_ctrl_c() -> None:
    with pytest.raises(KeyboardInterrupt) as caught, terminable():
        signal.raise_signal(signal.SIGINT)
        threading.Event().wait(10)
    assert not isinstance(caught.value, TerminatedError)


def test_another_thread_may_ask_for_it() -> None:
    said: list[str] = []

    def work() -> None:
        with terminable():
            said.append("done")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert said == ["done"]
