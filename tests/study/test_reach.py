"""A cluster that does not answer is said to be dead, soon and in words: neither `check` nor `run` hangs on it."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from regrow.errors import ConfigError, StudyError
from regrow.study.engines import reach
from regrow.study.engines.reach import ray_address, ray_nodes, slurm_partitions
from tests.study.commands import write_spec

RegrowCommand = Callable[..., tuple[int, str, str]]
ray_there = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
slurm_there = pytest.mark.skipif(importlib.util.find_spec("submitit") is None, reason="submitit is not installed")


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


@pytest.fixture
def deaf_port() -> Iterator[int]:
    """A port that accepts connections and never says a word."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


@ray_there
@pytest.mark.parametrize("words", [["check"], ["run", "-o", "out"]])
def test_a_dead_ray_cluster_is_said_to_be_dead(
    words: list[str],
    closed_port: int,
    model: Path,
    tmp_path: Path,
    regrow: RegrowCommand,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    address = f"127.0.0.1:{closed_port}"
    file = write_spec(tmp_path / "s.yaml", model, engine={"name": "ray", "address": address})
    code, out, err = regrow("study", words[0], file, *words[1:])
    said = " ".join((out + err).split())
    assert code == 2 and "Traceback" not in said
    assert f"no ray cluster answers at '{address}'" in said and "nothing listens there" in said
    assert "try:" in said and "engine.address" in said


@ray_there
def test_something_that_listens_and_is_no_cluster_is_given_up_in_time(
    deaf_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[subprocess.Popen[str]] = []

    class Asked(subprocess.Popen[str]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            asked.append(self)

    monkeypatch.setattr(reach.subprocess, "Popen", Asked)
    with pytest.raises(StudyError, match=rf"no ray cluster answers at 'ray://127.0.0.1:{deaf_port}'"):
        ray_nodes(f"ray://127.0.0.1:{deaf_port}", seconds=3)
    [process] = asked
    with pytest.raises(ProcessLookupError):  # nothing of it, nor of what it started, is left
        os.killpg(process.pid, 0)


def a_cluster_is_here() -> bool:
    names = (file.read_text() for file in Path("/proc").glob("[0-9]*/comm") if file.exists())
    return any(name.startswith("gcs_server") for name in names)


@ray_there
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at /proc for clusters of other tests")
def test_no_cluster_to_be_found_is_said() -> None:
    if a_cluster_is_here():
        pytest.skip("ray has a cluster on this machine")
    try:
        nodes = ray_nodes("auto")
    except StudyError as error:
        assert "no ray cluster answers at 'auto'" in str(error)
    else:
        assert nodes and a_cluster_is_here(), "one was started in the meantime"


def test_the_environment_names_the_cluster_where_the_study_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert ray_address(None) is None
    monkeypatch.setenv("RAY_ADDRESS", "there:6379")
    assert ray_address(None) == "there:6379" and ray_address("here:1") == "here:1"


def program(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@slurm_there
def test_a_machine_without_slurm_is_refused(
    model: Path, tmp_path: Path, regrow: RegrowCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    file = write_spec(tmp_path / "s.yaml", model, engine={"name": "slurm"})
    code, out, err = regrow("study", "check", file, "-o", tmp_path / "out")
    assert code == 2 and "FAIL engine: there is no `sbatch` here" in out and "engine.cluster: local" in out
    assert "Traceback" not in out + err
    local = write_spec(tmp_path / "l.yaml", model, engine={"name": "slurm", "cluster": "local"})
    _, out, _ = regrow("study", "check", local, "-o", tmp_path / "out")
    assert "ok   engine: slurm, 1 at once" in out


def test_slurm_is_asked_for_its_partitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    program(tmp_path, "sbatch", "exit 1")
    with pytest.raises(StudyError, match="slurm does not answer"):
        slurm_partitions(None)
    program(tmp_path, "sinfo", "echo 'slurm_load_partitions: Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(StudyError, match="Unable to contact slurm controller"):
        slurm_partitions(None)
    program(tmp_path, "sinfo", "exec sleep 60")
    with pytest.raises(StudyError, match=r"no answer within 0\.2 s"):
        slurm_partitions(None, seconds=0.2)
    program(tmp_path, "sinfo", "echo gpu; echo cpu; echo gpu")
    assert slurm_partitions("gpu") == "partitions gpu, cpu"
    with pytest.raises(ConfigError, match="no partition 'gpus'") as caught:
        slurm_partitions("gpus")
    assert "gpu, cpu" in (caught.value.hint or "")
