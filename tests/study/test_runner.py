"""The runner on a tiny real study: to its end, again, killed at random, two at once, on a full disk, with failures."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
import yaml

from regrow.cli.study import report
from regrow.errors import StudyError
from regrow.protocols import SilentWatcher
from regrow.records.store import read_evaluation
from regrow.records.study_runs import read_study
from regrow.study.engines.engine import Outcome
from regrow.study.execute import execute
from regrow.study.folder import Done, StudyFolder
from regrow.study.lease import LeaseTakenError
from regrow.study.progress import progress_of
from regrow.study.runner import run
from regrow.study.tidy import tidy
from tests.study.commands import command
from tests.study.tiny_study import begin, tiny_spec, write_model


class Notes(SilentWatcher):
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


def scores(folder: Path) -> dict[str, list[tuple[str, float, str]]]:
    found = {}
    for place in sorted((folder / "runs").iterdir()):
        _, items = read_evaluation(place)
        found[place.name] = [(item.item_id, item.score, item.response) for item in items]
    return found


def test_a_study_ends_in_runs_that_its_report_reads(finished: Path) -> None:
    study = read_study(finished)
    assert not study.unfinished
    stages = Counter(run.coordinates.stage for run in study.runs)
    assert stages == {"unpruned": 2, "pruned": 2, "healed": 1}
    healed = next(run for run in study.runs if run.coordinates.stage == "healed")
    assert healed.coordinates.rule == "uniform" and sum(healed.coordinates.mixture.values()) == 200
    assert healed.record.cost.training_tokens >= 200 and healed.record.cost.flops > 0
    assert not list((finished / "checkpoints").glob(f"{healed.run_id}*"))


def test_watching_the_report_of_a_finished_study_draws_it_once(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(finished, folder)
    report(folder, watch=True, quiet=True)
    assert 'http-equiv="refresh"' not in (folder / "report" / "report.html").read_text()


def test_running_again_does_nothing_and_shared_steps_ran_once(finished: Path) -> None:
    before = {
        path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.is_file() and "events" not in path.name
    }
    watch = Notes()
    summary = run(finished, watch=watch)
    assert summary.complete and summary.found == summary.total and "finished before" in watch.said[0]
    assert before == {path: path.stat().st_mtime_ns for path in before}
    events = [json.loads(line) for line in (finished / "events.jsonl").read_text().splitlines()]
    starts = Counter(event["step"] for event in events if event["event"] == "start")
    assert set(starts.values()) == {1}


def test_another_spec_is_refused_unless_updated_and_keeps_what_still_belongs(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    begin(folder, tiny_spec(model))
    assert run(folder, watch=Notes()).complete
    changed = tiny_spec(model, seeds=[0, 1])
    with pytest.raises(StudyError, match=r"seeds: \[0\] there, \[0, 1\] now"):
        begin(folder, changed)
    begin(folder, changed, update=True)
    summary = run(folder, watch=Notes())
    assert summary.complete and summary.found == summary.total - 1


def test_a_step_that_always_fails_is_tried_twice_and_the_rest_goes_on(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    steps = begin(folder, tiny_spec(model, pool_examples=1), pools=False)
    pools = next(step for step in steps if step.kind == "pools")
    (folder / "pools").mkdir()
    (folder / "pools" / pools.id).write_text("a file where a folder must be")
    summary = run(folder, watch=Notes())
    assert set(summary.failed) == {pools.id} and summary.failed[pools.id].attempts == 2
    heal = next(step.id for step in steps if step.kind == "heal")
    assert summary.blocked == [heal] and summary.done == summary.total - 2
    found = progress_of(folder)
    assert found.counts == {"done": summary.done, "failed": 1, "blocked": 1} and found.over
    (folder / "pools" / pools.id).unlink()
    begin(folder, tiny_spec(model, pool_examples=1))
    assert run(folder, watch=Notes()).complete


def test_a_model_that_changed_is_noticed(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    folder = tmp_path / "study"
    steps = begin(folder, tiny_spec(model))
    write_model(model, seed=1)
    with pytest.raises(StudyError, match="has changed since the study began"):
        execute(folder, steps[0].id, watch=SilentWatcher())
    with pytest.raises(StudyError, match="model changed"):
        begin(folder, tiny_spec(model))


class Scripted:
    """An engine whose steps end as told, without work: for what the runner makes of it."""

    slots = 2

    def __init__(self, folder: StudyFolder, ends: dict[str, list[str]]) -> None:
        self.folder, self.ends, self.queue, self.stopped = folder, ends, [], False  # type: ignore[var-annotated]

    def start(self, step_id: str) -> None:
        how = self.ends.get(step_id, []).pop(0) if self.ends.get(step_id) else "done"
        if how == "done":
            from regrow.records.results import Cost

            self.folder.write_done(step_id, Done(finished="now", cost=Cost(wall_seconds=1.0)))
        self.queue.append(Outcome(step_id, how, "said"))  # type: ignore[arg-type]

    def ended(self, wait_seconds: float) -> list[Outcome]:
        found, self.queue = self.queue, []
        return found

    def stop(self) -> None:
        self.stopped = True


@pytest.mark.parametrize("how", ["error", "killed", "out of memory", "GPU failed", "preempted", "timeout"])
def test_a_step_that_fails_once_is_tried_again(how: str, model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    steps = begin(folder, tiny_spec(model))
    engine = Scripted(StudyFolder(folder), {steps[0].id: [how], steps[3].id: [how, how]})
    summary = run(folder, watch=Notes(), engine=engine)
    assert engine.stopped and set(summary.failed) == {steps[3].id}
    assert summary.failed[steps[3].id].reason == how
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert [event["reason"] for event in events if event["event"] == "failed"] == [how] * 3


def test_damaged_records_are_done_again_not_believed(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    steps = begin(folder, tiny_spec(model))
    assert run(folder, watch=Notes()).complete
    reference = scores(folder)
    heal = next(step.id for step in steps if step.kind == "heal")
    (folder / "steps" / steps[0].id / "done.json").write_text('{"finish')
    (folder / "steps" / heal / "done.json").unlink()
    (folder / "runs" / heal / "items.jsonl").write_text("{")
    with (folder / "events.jsonl").open("a") as stream:
        stream.write('{"event": "sta')
    summary = run(folder, watch=Notes())
    assert summary.complete and summary.found == summary.total - 2
    assert scores(folder) == reference


def test_clean_removes_leftovers_and_no_result(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    steps = begin(folder, tiny_spec(model, keep_checkpoints=True))
    assert run(folder, watch=Notes()).complete
    cut = next(step.id for step in steps if step.kind == "prune")
    heal = next(step.id for step in steps if step.kind == "heal")
    (folder / "checkpoints" / f"{heal}.healing").mkdir()
    (folder / "checkpoints" / "0123456789abcdef").mkdir()
    removed, _ = tidy(folder)
    assert {path.name for path in removed} == {f"{heal}.healing", "0123456789abcdef"}
    removed, freed = tidy(folder, checkpoints=True)
    assert [path.name for path in removed] == [cut] and freed > 0
    assert run(folder, watch=Notes()).complete


def write_spec(file: Path, model: Path) -> Path:
    spec = tiny_spec(model, engine={"name": "subprocess", "workers": 2, "threads": 1})
    file.write_text(yaml.safe_dump(spec.model_dump(mode="json")))
    return file


@pytest.mark.slow
def test_killed_at_any_moment_it_ends_with_the_same_results(model: Path, finished: Path, tmp_path: Path) -> None:
    file = write_spec(tmp_path / "tiny.yaml", model)
    folder = tmp_path / "study"
    begin(folder, tiny_spec(model, engine={"name": "subprocess", "workers": 2, "threads": 1}))
    chance = random.Random(7)
    for _ in range(4):
        started = command("run", file, "-o", folder)
        time.sleep(chance.uniform(4, 14))
        started.send_signal(signal.SIGKILL)
        started.communicate()
        for lease_file in (folder / "steps").glob("*/lease.json"):
            if chance.random() < 0.5:
                try:
                    os.kill(json.loads(lease_file.read_text())["process"], signal.SIGKILL)
                except (OSError, ValueError, KeyError):
                    continue
    last = command("run", file, "-o", folder, "--json")
    out, err = last.communicate()
    assert last.returncode == 0, err[-2000:]
    printed = json.loads(out)
    assert printed["done"] == printed["steps"] and Path(printed["report"]).is_file()
    assert scores(folder) == scores(finished)


@pytest.mark.slow
def test_two_runners_never_run_the_same_step_twice(model: Path, finished: Path, tmp_path: Path) -> None:
    file = write_spec(tmp_path / "tiny.yaml", model)
    folder = tmp_path / "study"
    begin(folder, tiny_spec(model))
    both = [command("run", file, "-o", folder, "--json") for _ in range(2)]
    for one in both:
        out, err = one.communicate()
        assert one.returncode == 0, err[-2000:]
        assert json.loads(out)["done"] == json.loads(out)["steps"]
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    done = Counter(event["step"] for event in events if event["event"] == "done")
    assert set(done.values()) == {1}
    assert scores(folder) == scores(finished)


@pytest.mark.slow
def test_a_heal_in_two_processes_is_the_same_step(model: Path, finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    begin(folder, tiny_spec(model, engine={"name": "serial", "processes_per_heal": 2}))
    watch = Notes()
    assert run(folder, watch=watch).complete, watch.said
    assert {place.name for place in (folder / "runs").iterdir()} == {
        place.name for place in (finished / "runs").iterdir()
    }
    healed = next(run for run in read_study(folder).runs if run.coordinates.stage == "healed")
    alone = next(run for run in read_study(finished).runs if run.coordinates.stage == "healed")
    assert healed.record.cost.training_tokens == alone.record.cost.training_tokens
    for one, other in zip(healed.items, alone.items, strict=True):
        assert one.item_id == other.item_id and one.score == other.score
    assert list((folder / "steps").glob("*/torchrun.txt"))


@pytest.mark.slow
def test_ctrl_c_ends_in_order_and_the_same_command_continues(model: Path, tmp_path: Path) -> None:
    file = write_spec(tmp_path / "tiny.yaml", model)
    folder = tmp_path / "study"
    begin(folder, tiny_spec(model))
    started = command("run", file, "-o", folder)
    time.sleep(8)
    started.send_signal(signal.SIGINT)
    _, err = started.communicate()
    assert started.returncode == 130 and "the same command continues" in err, err[-2000:]
    assert not list((folder / "steps").glob("*/lease.json"))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="needs a limit on file sizes")
def test_a_full_disk_is_said_and_leaves_nothing_wrong(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    file = write_spec(tmp_path / "tiny.yaml", model)
    begin(folder, tiny_spec(model))

    def small() -> None:
        # Every write beyond 20 kB fails, as on a full disk: checkpoints do, leases and records do not.
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    started = command("run", file, "-o", folder, "--json", preexec_fn=small)
    out, err = started.communicate()
    assert started.returncode in (1, 2), err[-2000:]
    assert "Traceback" not in err and ("File too large" in out or "File too large" in err)
    again = command("run", file, "-o", folder, "--json")
    out, err = again.communicate()
    assert again.returncode == 0, err[-2000:]


def test_a_step_that_another_process_works_on_is_left_alone(model: Path, tmp_path: Path) -> None:
    from regrow.study.lease import lease

    folder = tmp_path / "study"
    steps = begin(folder, tiny_spec(model))
    with lease(StudyFolder(folder).lease_file(steps[0].id)):
        assert next(row for row in progress_of(folder).steps if row.step_id == steps[0].id).state == "running"
        with pytest.raises(LeaseTakenError):
            execute(folder, steps[0].id, watch=SilentWatcher())
        with pytest.raises(StudyError, match="is being worked on"):
            tidy(folder)
