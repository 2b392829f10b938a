"""A study that is being run is not changed under its runner; one that nobody runs any more is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from regrow.errors import StudyError
from regrow.study.folder import StudyFolder
from regrow.study.lease import LeaseWatch, lease
from regrow.study.runners import RUNNERS, alone, enrolled
from regrow.study.tidy import tidy
from tests.study.commands import python, write_spec
from tests.study.tiny_study import begin, tiny_spec

RegrowCommand = Callable[..., tuple[int, str, str]]


@contextmanager
def runner_elsewhere(folder: Path, holds: str = "enrolled({folder})") -> Iterator[subprocess.Popen[str]]:
    """Yield another process that is a runner of the study."""
    held = holds.format(folder=f"Path({str(folder)!r})")
    process = python(
        f"""
        from pathlib import Path
        from regrow.study.lease import lease
        from regrow.study.runners import enrolled
        with {held}:
            print("ready", flush=True)
            input()
        """
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "ready"
    try:
        yield process
    finally:
        if process.poll() is None:
            process.communicate("\n")
        else:
            process.wait()


@pytest.fixture
def study(model: Path, tmp_path: Path) -> Path:
    begin(tmp_path / "study", tiny_spec(model))
    return tmp_path / "study"


@pytest.mark.parametrize("words", [["run", "FILE", "--update", "-o"], ["clean"]])
def test_a_study_under_way_is_not_changed(
    words: list[str], study: Path, model: Path, tmp_path: Path, regrow: RegrowCommand
) -> None:
    file = write_spec(tmp_path / "tiny.yaml", model, seeds=[0, 1])
    before = (study / "study.json").read_bytes()
    left = study / "checkpoints" / "0123456789abcdef"
    left.mkdir(parents=True)
    with runner_elsewhere(study) as runner:
        code, out, err = regrow("study", *[file if word == "FILE" else word for word in words], study)
        said = " ".join(err.split())
        assert code == 2 and "Traceback" not in err and not out, err
        assert f"process {runner.pid} on {os.uname().nodename}" in said and f"kill -INT {runner.pid}" in said
        assert f"regrow study status {study} --watch" in said
        assert (study / "study.json").read_bytes() == before and left.is_dir()
    removed, _ = tidy(study)
    assert removed == [left]


def test_the_step_of_a_worker_that_outlived_its_runner_keeps_the_study(study: Path) -> None:
    step = StudyFolder(study).steps()[0].id
    held = f"lease({{folder}} / 'steps/{step}/lease.json')"
    with (
        runner_elsewhere(study, held) as worker,
        pytest.raises(StudyError, match=rf"step {step} of the study .* by process {worker.pid} on"),
        alone(study, "it"),
    ):
        pass


def test_a_runner_that_was_killed_keeps_nobody(study: Path) -> None:
    with runner_elsewhere(study) as runner:
        assert len(list((study / RUNNERS).glob("*.json"))) == 1
        runner.send_signal(signal.SIGKILL)
        runner.wait()
        tidy(study)
        assert not list((study / RUNNERS).glob("*.json"))


def test_a_runner_that_ended_leaves_nothing_and_several_may_run(study: Path) -> None:
    with enrolled(study), enrolled(study):
        assert len(list((study / RUNNERS).glob("*.json"))) == 2
    assert not list((study / RUNNERS).glob("*.json"))


@pytest.mark.parametrize("text", ['{"token": "t", "host": "gone", "process": 7, "count": 3}', '{"tok', ""])
def test_the_lease_of_a_machine_that_died_is_only_waited_for(text: str, study: Path) -> None:
    file = study / RUNNERS / "gone-7-00000000.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    with alone(study, "it", stale_seconds=0.6):
        assert not file.exists()


def test_a_runner_cannot_come_during_a_change(study: Path) -> None:
    with alone(study, "it"):
        process = python(
            f"""
            from pathlib import Path
            from regrow.study.runners import enrolled
            print("ready", flush=True)
            with enrolled(Path({str(study)!r})):
                print(Path({str(study / "study.json")!r}).read_text(), flush=True)
            """
        )
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "ready"
        (study / "study.json").write_text(json.dumps("changed"))
    out, _ = process.communicate()
    assert out.strip() == '"changed"'


def test_update_is_free_where_nobody_runs(study: Path, model: Path) -> None:
    with alone(study, "--update"):
        begin(study, tiny_spec(model, seeds=[0, 1]), update=True)
    assert sum(step.kind == "heal" for step in StudyFolder(study).steps()) == 2


def test_a_folder_without_a_study_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with alone(tmp_path, "it"):
        pass
    with pytest.raises(StudyError, match="holds no study"):
        tidy(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["notes.txt"]


def test_the_lease_of_a_live_step_of_this_process_is_seen(study: Path) -> None:
    file = StudyFolder(study).lease_file("x")
    with lease(file, beat_seconds=0.1):
        assert LeaseWatch().live(file)
        with pytest.raises(StudyError, match=f"process {os.getpid()} on"), alone(study, "it"):
            pass
