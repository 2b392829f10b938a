"""Several computations at once, in forked processes: families are planned independently of each other."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Sequence
from typing import Any


def at_once(jobs: Sequence[Callable[[], Any]], *, processes: int) -> list[Any]:
    """Return what each of ``jobs`` returns, in order; an error is raised as the job raised it.

    Every ``processes``-th job is done in this process, the others in forked children: their results must survive
    pickling. With ``processes`` 1, or not on Linux, nothing is forked. For programs without threads of their own,
    which a fork does not copy.
    """
    shares = [list(range(start, len(jobs), processes)) for start in range(min(processes, len(jobs)))]
    if len(shares) < 2 or not sys.platform.startswith("linux"):
        return [job() for job in jobs]
    children = [_begin([jobs[at] for at in share]) for share in shares[1:]]
    found: dict[int, Any] = {}
    try:
        for at in shares[0]:
            found[at] = jobs[at]()
    finally:
        answers = [_answer(*child) for child in children]
    for share, answer in zip(shares[1:], answers, strict=True):
        if isinstance(answer, BaseException):
            raise answer
        found.update(zip(share, answer, strict=True))
    return [found[at] for at in range(len(jobs))]


def _begin(share: Sequence[Callable[[], Any]]) -> tuple[int, int]:
    """Return the process id of a child that does its share, and the pipe on which its answer comes."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    os.close(reading)
    try:
        answer: list[Any] | BaseException
        try:
            answer = [job() for job in share]
        except BaseException as error:
            answer = error
        with os.fdopen(writing, "wb") as stream:
            pickle.dump(answer, stream, pickle.HIGHEST_PROTOCOL)
    finally:
        os._exit(0)


def _answer(child: int, reading: int) -> Any:
    with os.fdopen(reading, "rb") as stream:
        sent = stream.read()
    os.waitpid(child, 0)
    return pickle.loads(sent) if sent else RuntimeError("the process that works beside this one ended early")
