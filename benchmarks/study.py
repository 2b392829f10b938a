"""The study runner: what scheduling a step costs, how fast a status is, what a second worker brings.

    python benchmarks/study.py [--steps 12] [--runs 1000]

Steps are real evaluations of small random models with one thread each, so that two of them can use two cores. What two
cores of this machine can bring is measured beside it: two processes that know nothing of each other, each with a half
of the same steps, against one of them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.study.tiny_study import begin, tiny_spec, write_model

from regrow.protocols import SilentWatcher
from regrow.records.atomic import write_json
from regrow.records.results import Cost
from regrow.records.study_spec import EngineSpec
from regrow.study.design import Step
from regrow.study.folder import Done, StudyFolder
from regrow.study.progress import progress_of
from regrow.study.runner import run


def study_of(folder: Path, models: list[Path], *, perplexity: bool) -> int:
    """Write down a study of one family per model, evaluations and a cut each; return its number of steps."""
    families = [{"name": f"m{number}", "model": str(model), "blocks": [2]} for number, model in enumerate(models)]
    spec = tiny_spec(models[0], families=families, perplexity=perplexity)
    return len(begin(folder, spec))


def timed_run(folder: Path, workers: int) -> float:
    """Return the wall seconds of a run with so many workers, one thread each."""
    began = time.perf_counter()
    summary = run(folder, watch=SilentWatcher(), engine_spec=EngineSpec(workers=workers, threads=1))
    assert summary.complete, summary
    return time.perf_counter() - began


def overhead(place: Path, models: list[Path]) -> float:
    """Return the seconds a step takes beyond its own work, one after another."""
    count = study_of(place / "overhead", models, perplexity=False)
    wall = timed_run(place / "overhead", 1)
    folder = StudyFolder(place / "overhead")
    own = sum(done.cost.wall_seconds for step in folder.steps() if (done := folder.done(step.id)))
    return (wall - own) / count


def apart(place: Path, halves: list[list[Path]]) -> float:
    """Return how much faster two processes do a half of the steps each than one process does both, without a runner
    over them: what the machine allows."""
    script = (
        "import sys, torch; torch.set_num_threads(1); from pathlib import Path; from regrow.study.runner import run; "
        "from regrow.protocols import SilentWatcher; from regrow.records.study_spec import EngineSpec; "
        "assert run(Path(sys.argv[1]), watch=SilentWatcher(), engine_spec=EngineSpec(name='serial')).complete"
    )
    seconds = []
    for name, at_once in (("alone", 1), ("beside", 2)):
        folders = [place / f"{name}{number}" for number in range(len(halves))]
        for folder, models in zip(folders, halves, strict=True):
            study_of(folder, models, perplexity=True)
        began = time.perf_counter()
        for first in range(0, len(folders), at_once):
            started = [
                subprocess.Popen([sys.executable, "-c", script, str(each)], env={**os.environ, "OMP_NUM_THREADS": "1"})
                for each in folders[first : first + at_once]
            ]
            assert all(process.wait() == 0 for process in started)
        seconds.append(time.perf_counter() - began)
    return seconds[0] / seconds[1]


def status_seconds(place: Path, runs: int) -> float:
    """Return the seconds of reading the state of a study of so many runs, half of them done."""
    folder = StudyFolder(place / "many")
    steps = [Step("evaluate", "m", f"run {number}", {"number": number}) for number in range(runs)]
    spec = tiny_spec(place / "model0")
    plain = [
        {
            "kind": step.kind,
            "family": step.family,
            "title": step.title,
            "request": dict(step.request),
            "parents": {},
            "place": None,
        }
        for step in steps
    ]
    write_json(folder.path / "study.json", {"spec": spec.model_dump(mode="json"), "identities": {}, "steps": plain})
    for step in steps[::2]:
        folder.write_done(step.id, Done(finished="", cost=Cost(wall_seconds=1.0)))
    began = time.perf_counter()
    found = progress_of(folder.path)
    assert found.counts == {"done": (runs + 1) // 2, "pending": runs // 2}
    return time.perf_counter() - began


def main() -> None:
    """Measure and print one JSON document."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--models", type=int, default=8, help="families of the study (7 steps each)")
    options.add_argument("--runs", type=int, default=1000, help="runs of the study whose status is read")
    asked = options.parse_args()
    place = Path(tempfile.mkdtemp())
    try:
        models = [write_model(place / f"model{number}", seed=number) for number in range(asked.models)]
        found = {"seconds_beyond_its_work_per_step": overhead(place, models)}
        found["status_seconds"] = status_seconds(place, asked.runs)
        study_of(place / "one", models, perplexity=True)
        study_of(place / "two", models, perplexity=True)
        one, two = timed_run(place / "one", 1), timed_run(place / "two", 2)
        found |= {"one_worker_seconds": one, "two_workers_seconds": two, "two_over_one": one / two}
        half = len(models) // 2
        found["two_processes_over_one_without_a_runner"] = apart(place, [models[:half], models[half:]])
        print(json.dumps({name: round(value, 3) for name, value in found.items()}, indent=2))
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
