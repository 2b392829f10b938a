"""Criteria that go wrong, as a package that is installed beside regrow: for what a worker may do to its runner."""

import os
import signal
import time
from pathlib import Path

import torch

from regrow.criteria.order import candidates, select
from regrow.criteria.registry import CRITERIA


def _answer(name, model, remove, protect, contiguous):
    from regrow.models.families import blocks_of

    count = len(blocks_of(model))
    allowed = candidates(name, count, remove=remove, protect=protect)
    return select(name, [float(index) for index in range(count)], remove=remove, allowed=allowed, contiguous=contiguous)


@CRITERIA.register("fault-killed", summary="ends as the out-of-memory killer of the system ends it", needs="weights")
def killed(model, calibration, *, remove, protect, contiguous, generator):
    os.kill(os.getpid(), signal.SIGKILL)


@CRITERIA.register("fault-hungry", summary="asks for more memory than any machine has", needs="weights")
def hungry(model, calibration, *, remove, protect, contiguous, generator):
    torch.empty(2**56, dtype=torch.uint8)


@CRITERIA.register("fault-gpu", summary="fails as CUDA does, with its advice", needs="weights")
def gpu(model, calibration, *, remove, protect, contiguous, generator):
    raise RuntimeError(
        "CUDA error: unspecified launch failure\n"
        "CUDA kernel errors might be asynchronously reported at some other API call.\n"
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
    )


@CRITERIA.register("fault-wrong", summary="always fails", needs="weights")
def wrong(model, calibration, *, remove, protect, contiguous, generator):
    raise ValueError("it never works")


@CRITERIA.register("fault-once", summary="fails the first time", needs="weights")
def once(model, calibration, *, remove, protect, contiguous, generator):
    mark = Path(os.environ["REGROW_FAULT_MARK"])
    if not mark.exists():
        mark.touch()
        raise ValueError("not yet")
    return _answer("fault-once", model, remove, protect, contiguous)


@CRITERIA.register("fault-slow", summary="never ends by itself", needs="weights")
def slow(model, calibration, *, remove, protect, contiguous, generator):
    Path(os.environ["REGROW_FAULT_MARK"]).touch()
    while True:
        time.sleep(0.1)
