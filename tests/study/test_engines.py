"""One contract for every engine: a step that works, one that fails, one that another process holds."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from regrow.records.study_spec import EngineSpec
from regrow.study.engines.engine import Engine, Outcome, engine_for
from regrow.study.folder import StudyFolder
from regrow.study.lease import lease
from regrow.study.step import Step
from tests.study.tiny_study import begin, tiny_spec, write_model

ENGINES = {
    "serial": EngineSpec(name="serial"),
    "subprocess": EngineSpec(name="subprocess", workers=2, threads=1),
    "ray": EngineSpec(name="ray", workers=2),
    "slurm-local": EngineSpec(name="slurm", cluster="local", workers=2),
}


def outcome_of(engine: Engine, step_id: str) -> Outcome:
    engine.start(step_id)
    for _ in range(300):
        for outcome in engine.ended(1.0):
            assert outcome.step_id == step_id
            return outcome
    raise AssertionError("the step never ended")


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Engine]:
    spec = ENGINES[request.param]
    package = {"ray": "ray", "slurm": "submitit"}.get(spec.name)
    if package and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    return lambda: engine_for(spec, tmp_path / "study")


@pytest.mark.slow
def test_every_engine_keeps_the_contract(engine: Callable[[], Engine], tmp_path: Path) -> None:
    steps = begin(tmp_path / "study", tiny_spec(write_model(tmp_path / "model")))
    folder = StudyFolder(tmp_path / "study")

    def find(title: str) -> Step:
        return next(step for step in steps if step.title.startswith(title))

    made = engine()
    assert made.slots >= 1
    try:
        good = find("unpruned, dev")
        assert outcome_of(made, good.id).how == "done"
        done = folder.done(good.id)
        assert done is not None and done.cost.wall_seconds > 0 and done.cost.peak_memory_bytes > 0
        bad = outcome_of(made, find("uniform at").id)
        assert bad.how == "error" and "not finished" in bad.message
        held = find("unpruned, test")
        with lease(folder.lease_file(held.id)):
            assert outcome_of(made, held.id).how == "busy"
        assert folder.done(held.id) is None
        assert made.ended(0.0) == []
    finally:
        made.stop()


def test_an_engine_that_is_not_installed_names_its_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import sys

    from regrow.errors import ConfigError

    for name, package in (("ray", "ray"), ("slurm", "submitit")):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(ConfigError, match=package) as caught:
            engine_for(EngineSpec(name=name), tmp_path)  # type: ignore[arg-type]
        assert f"regrow[{name}]" in (caught.value.hint or "")


@pytest.mark.skipif(os.environ.get("PATH") is None, reason="needs a search path")
def test_a_cluster_that_is_not_there_is_said_to_be_dead(tmp_path: Path) -> None:
    from regrow.errors import StudyError

    pytest.importorskip("submitit")
    import shutil

    if shutil.which("sbatch"):
        pytest.skip("there is a slurm here")
    with pytest.raises(StudyError, match="slurm cannot be used here"):
        made = engine_for(EngineSpec(name="slurm"), tmp_path)
        made.start("step")
