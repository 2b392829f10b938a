"""One contract for every engine when a worker dies, hungers, fails or never ends: tried once more, reported, and the
rest of the study goes on. The faults are criteria of a package that the workers find as they find any other."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from regrow.protocols import SilentWatcher
from regrow.records.study_spec import EngineSpec
from regrow.study.engines.engine import Engine, Outcome, engine_for
from regrow.study.folder import StudyFolder
from regrow.study.runner import run
from regrow.study.step import Step
from tests.study.tiny_study import begin, tiny_spec

FAULTS = Path(__file__).parent / "faults"
ENGINES = {
    "serial": EngineSpec(name="serial"),
    "subprocess": EngineSpec(name="subprocess", workers=2, threads=1),
    "ray": EngineSpec(name="ray", workers=2),
    "slurm-local": EngineSpec(name="slurm", cluster="local", workers=2),
}
REASONS = {"killed": "killed", "hungry": "out of memory", "gpu": "GPU failed", "wrong": "error"}

pytestmark = [
    pytest.mark.slow,
    # Only Linux lets a process promise no more than there is; elsewhere the hungry one may get what it asks for.
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux"),
]


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The faulty criteria are installed, for this process and for those it starts; yields the file that they write."""
    monkeypatch.syspath_prepend(str(FAULTS))
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(FAULTS), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    )
    monkeypatch.setenv("REGROW_FAULT_MARK", str(tmp_path / "mark"))
    from regrow.criteria.registry import CRITERIA

    before = CRITERIA._scanned, dict(CRITERIA._entries), dict(CRITERIA._loaded)
    CRITERIA._scanned = False
    yield tmp_path / "mark"
    CRITERIA._scanned, CRITERIA._entries, CRITERIA._loaded = before


@pytest.fixture(params=ENGINES)
def engine_spec(request: pytest.FixtureRequest) -> EngineSpec:
    spec = ENGINES[request.param]
    package = {"ray": "ray", "slurm": "submitit"}.get(spec.name)
    if package and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    return spec


def faulty(model: Path, *faults: str) -> dict[str, Any]:
    families = [
        {"name": name, "model": str(model), "remove": 1, "criterion": f"fault-{name}", "calibration": "bundled"}
        for name in faults
    ]
    return {"families": families, "test_items": 1, "dev_items": 1}


def test_faults_are_tried_twice_and_reported_and_the_rest_goes_on(
    engine_spec: EngineSpec, mark: Path, model: Path, tmp_path: Path
) -> None:
    faults = ["killed", "hungry", "gpu", "wrong", "once"]
    if engine_spec.name == "serial":
        faults.remove("killed")  # its worker is the runner
    if engine_spec.name in ("ray", "slurm"):
        faults = ["killed", "wrong", "once"]  # what a worker says of itself is the same everywhere; each costs minutes
    folder = tmp_path / "study"
    steps = begin(folder, tiny_spec(model, **faulty(model, *faults)))
    cuts = {step.family: step.id for step in steps if step.kind == "prune"}
    assert set(cuts) == set(faults)
    summary = run(folder, watch=SilentWatcher(), engine_spec=engine_spec)
    found = {step_id: (failure.reason, failure.attempts) for step_id, failure in summary.failed.items()}
    assert found == {cuts[name]: (REASONS[name], 2) for name in faults if name != "once"}, summary.failed
    assert summary.failed[cuts["wrong"]].message.endswith("it never works")
    if "gpu" in faults:
        assert summary.failed[cuts["gpu"]].message.endswith("CUDA error: unspecified launch failure")
    expected = {step.id for step in steps if step.id not in found and cuts[step.family] not in found}
    shared = {step.id for step in steps if not step.parents and step.kind != "prune"}
    done = {step.id for step in steps if StudyFolder(folder).done(step.id) is not None}
    assert done == expected | shared, "everything that no failed step stands before"
    assert set(summary.blocked) == {step.id for step in steps} - done - set(found)
    assert not list((folder / "steps").glob("*/lease.json")), "whatever died, nothing holds a step"
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    tries = [event["step"] for event in events if event["event"] == "failed"]
    assert sorted(tries) == sorted([*(step for step in found for _ in range(2)), cuts["once"]])


def slow_cut(folder: Path, model: Path) -> Step:
    steps = begin(folder, tiny_spec(model, **faulty(model, "slow")))
    return next(step for step in steps if step.kind == "prune")


def ended(engine: Engine, seconds: float = 200.0) -> Outcome:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for outcome in engine.ended(1.0):
            return outcome
    raise AssertionError("the step never ended")


@pytest.mark.parametrize(("number", "how"), [(signal.SIGTERM, "preempted"), (signal.SIGKILL, "killed")])
def test_a_worker_that_a_scheduler_ends_is_told_by_its_signal(
    number: signal.Signals, how: str, engine_spec: EngineSpec, mark: Path, model: Path, tmp_path: Path
) -> None:
    if engine_spec.name == "serial":
        pytest.skip("its worker is the runner: see test_termination.py")
    folder = tmp_path / "study"
    cut = slow_cut(folder, model)
    engine = engine_for(engine_spec, folder)
    try:
        engine.start(cut.id)
        until = time.monotonic() + 200
        while not mark.exists():
            assert time.monotonic() < until and not engine.ended(0.1)
        lease = StudyFolder(folder).lease_file(cut.id)
        os.kill(json.loads(lease.read_text())["process"], number)
        outcome = ended(engine)
        assert (outcome.step_id, outcome.how) == (cut.id, how), outcome
        assert lease.exists() == (number == signal.SIGKILL)
    finally:
        engine.stop()


def test_stopping_an_engine_ends_its_workers_and_frees_their_steps(
    engine_spec: EngineSpec, mark: Path, model: Path, tmp_path: Path
) -> None:
    if engine_spec.name == "serial":
        pytest.skip("its worker is the runner: see test_termination.py")
    folder = tmp_path / "study"
    cut = slow_cut(folder, model)
    engine = engine_for(engine_spec, folder)
    engine.start(cut.id)
    until = time.monotonic() + 200
    while not mark.exists():
        assert time.monotonic() < until and not engine.ended(0.1)
    worker = json.loads(StudyFolder(folder).lease_file(cut.id).read_text())["process"]
    engine.stop()
    assert not StudyFolder(folder).lease_file(cut.id).exists()
    state = Path(f"/proc/{worker}/cmdline")
    assert engine_spec.name == "ray" or not state.exists() or not state.read_bytes(), "the worker is gone"


def test_a_step_that_is_out_of_time_is_ended(mark: Path, model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    cut = slow_cut(folder, model)
    engine = engine_for(EngineSpec(name="subprocess", threads=1, timeout_minutes=0.05), folder)
    try:
        engine.start(cut.id)
        assert ended(engine).how == "timeout"
        assert not StudyFolder(folder).lease_file(cut.id).exists()
    finally:
        engine.stop()
