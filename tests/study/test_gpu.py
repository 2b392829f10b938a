"""A GPU that disappears: one word for it from every engine, a remedy, and no silent way on on the CPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from regrow.protocols import SilentWatcher
from regrow.records.study_spec import EngineSpec
from regrow.study import execute, gpu
from regrow.study.engines.engine import cause_in, how_it_failed
from regrow.study.engines.processes import ProcessEngine, _Job
from regrow.study.folder import GPU_FAILED, StudyFolder
from regrow.study.runner import run
from tests.study.tiny_study import begin, tiny_spec

WORDS = [
    "No CUDA GPUs are available",
    "CUDA error: invalid device ordinal",
    "CUDA error: uncorrectable ECC error encountered",
    "CUDA error: unspecified launch failure",
    "CUDA error: an illegal memory access was encountered",
    "CUDA error: device-side assert triggered",
    "CUDA error: all CUDA-capable devices are busy or unavailable",
    "CUDA error: the launch timed out and was terminated",
    "CUDA error: no CUDA-capable device is detected",
    "Found no NVIDIA driver on your system.",
    "CUDA driver error: unknown error",
    "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
    "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`",
    "NCCL error in: ProcessGroupNCCL.cpp:123, unhandled cuda error",
    "HIP error: invalid device function",
    "GPU is lost. Reboot the system to recover this GPU",
    "there is no cuda device on this machine",
    "there is no cuda:1",
    "there is no GPU any more, and device: auto would go on on the CPU (step x lost one on y: z)",
    "device lost",
]
ADVICE = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)
RegrowCommand = Callable[..., tuple[int, str, str]]


def by_its_log(folder: Path, said: str) -> tuple[str, str]:
    """Return how the default engine judges a worker that ended with ``said`` in its log."""
    engine = ProcessEngine(folder, EngineSpec(workers=1, threads=1))
    (folder / "steps" / "x").mkdir(parents=True, exist_ok=True)
    (folder / "steps" / "x" / "log.txt").write_text(f"Traceback (most recent call last):\n  File a\n{said}")
    engine._jobs["x"] = _Job(code=1)
    outcome = engine._close("x")
    return outcome.how, outcome.message


@pytest.mark.parametrize("words", WORDS)
def test_a_lost_gpu_has_one_name(words: str, tmp_path: Path) -> None:
    assert how_it_failed(RuntimeError(words + ADVICE)) == "GPU failed"
    for before in ("torch.AcceleratorError: ", "[rank0]: RuntimeError: ", "error: ", "  what():  "):
        how, message = by_its_log(tmp_path, before + words + ADVICE)
        assert how == "GPU failed" and words in message, (how, message)


@pytest.mark.parametrize("words", WORDS)
def test_slurm_reads_it_in_a_jobs_report(words: str, tmp_path: Path) -> None:
    from regrow.study.engines.slurm import SlurmEngine

    class Job:
        state = "FAILED"

        def exception(self) -> Exception:
            return Exception(
                "Job (task=0) failed during processing with trace:\n----------------------\n"
                f"Traceback (most recent call last):\n  File a\ntorch.AcceleratorError: {words}{ADVICE}\n"
                "----------------------\nYou can check full logs with 'job.stderr(0)' and 'job.stdout(0)'"
            )

    engine = SlurmEngine.__new__(SlurmEngine)
    engine._under_way = {"x": Job()}
    outcome = engine._outcome("x")
    assert outcome.how == "GPU failed" and words in outcome.message


@pytest.mark.parametrize(
    ("words", "how"),
    [
        ("CUDA out of memory. Tried to allocate 2.00 GiB", "out of memory"),
        ("CUDA error: out of memory", "out of memory"),
        ("unknown device 'cud'", "error"),
        ("the file was lost on the way to another device", "error"),
        ("step 12 decided to fail; the deciding ecclesiastic error", "error"),
    ],
)
def test_what_is_no_lost_gpu(words: str, how: str, tmp_path: Path) -> None:
    assert how_it_failed(RuntimeError(words + (ADVICE if "CUDA" in words else ""))) == how
    assert by_its_log(tmp_path, f"RuntimeError: {words}")[0] == how


def test_the_reason_is_found_in_what_torchrun_says() -> None:
    report = (
        "[rank0]: Traceback (most recent call last):\n[rank0]:   File x\n"
        "[rank0]: torch.AcceleratorError: CUDA error: unspecified launch failure\n[rank0]: Compile with advice\n"
        "Traceback (most recent call last):\n  File y\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n=====\nmain FAILED\n=====\n"
    )
    assert cause_in(report) == "torch.AcceleratorError: CUDA error: unspecified launch failure"
    assert cause_in("a\nb\n") == "b" and cause_in("") == ""


def on(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "choose_device", lambda asked: torch.device(device if asked == "auto" else asked))


def test_a_retry_does_not_go_on_on_the_cpu(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, regrow: RegrowCommand
) -> None:
    folder = tmp_path / "study"
    steps = begin(folder, tiny_spec(model, device="auto"))
    cut = next(step for step in steps if step.kind == "prune")

    def lost(work: Any) -> None:
        on("cpu", monkeypatch)
        raise RuntimeError("CUDA error: unspecified launch failure" + ADVICE)

    on("cuda", monkeypatch)
    with monkeypatch.context() as patched:
        patched.setattr(execute._Work, "prune", lost)
        patched.setattr(execute._Work, "check_model", lambda work: setattr(work, "weights_sha256", ""))
        patched.setattr(execute._Work, "evaluate", lost)
        patched.setattr(execute._Work, "pools", lost)
        summary = run(folder, watch=SilentWatcher())
    assert summary.done == 0 and {failure.reason for failure in summary.failed.values()} == {"GPU failed"}
    assert "no GPU any more" in summary.failed[cut.id].message and "CPU" in summary.failed[cut.id].message
    told = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert {event["reason"] for event in told if event["event"] == "failed"} == {"GPU failed"}
    _, out, _ = regrow("study", "status", folder)
    assert "GPU failed: " in " ".join(out.split()) and out.count("device: cpu") == 1
    # Running again does not forget it; to say so is enough.
    assert not run(folder, watch=SilentWatcher()).done and (folder / GPU_FAILED).exists()
    begin(folder, tiny_spec(model, device="cpu"), update=True)
    assert run(folder, watch=SilentWatcher()).complete


def test_a_machine_that_had_a_gpu_is_not_taken_for_one_without(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "study"
    begin(folder, tiny_spec(model, device="auto"))
    on("cpu", monkeypatch)
    assert run(folder, watch=SilentWatcher()).complete, "a study of the CPU stays there"
    study = StudyFolder(folder)
    step_id = study.steps()[0].id
    done = study.done(step_id)
    assert done is not None and done.device == "cpu"
    study.write_done(step_id, done.model_copy(update={"device": "cuda"}))
    with pytest.raises(Exception, match=f"step {step_id} ran on one of this machine") as caught:
        gpu.device_for(study, "x", "auto")
    assert how_it_failed(caught.value) == "GPU failed" and "device: cpu" in str(getattr(caught.value, "hint", ""))
    assert gpu.device_for(study, "x", "cpu") == "cpu"
    study.write_done(step_id, done.model_copy(update={"device": "cuda", "machine": "another"}))
    assert gpu.device_for(study, "x", "auto") == "cpu"
