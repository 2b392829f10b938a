"""The same work on several things at once, in forked processes: families are planned independently of each other."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")


def in_processes(work: Callable[[T], R], things: Sequence[T], processes: int) -> list[R]:
    """Return ``work(thing)`` for each thing, in order; an error is raised as ``work`` raised it.

    Every ``processes``-th thing is done in one forked child, the first share in this process. Where the system does not
    fork, or ``processes`` is 1, nothing is forked. The results must survive pickling, ``work`` need not.
    """
    shares = [list(range(start, len(things), processes)) for start in range(min(processes, len(things)))]
    if len(shares) < 2 or not sys.platform.startswith("linux"):
        return [work(thing) for thing in things]
    children = [_begin(work, [things[at] for at in share]) for share in shares[1:]]
    found: dict[int, R] = {}
    try:
        for at in shares[0]:
            found[at] = work(things[at])
    finally:
        answers: list[Any] = [_answer(*child) for child in children]
    for share, answer in zip(shares[1:], answers, strict=True):
        if isinstance(answer, BaseException):
            raise answer
        found.update(zip(share, answer, strict=True))
    return [found[at] for at in range(len(things))]


def _begin(work: Callable[[T], R], share: Sequence[T]) -> tuple[int, int]:
    """Return the process id of a child that does its share, and the pipe on which its answer comes."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    os.close(reading)
    try:
        answer: list[R] | BaseException
        try:
            answer = [work(thing) for thing in share]
        except BaseException as error:
            answer = error
        with os.fdopen(writing, "wb") as stream:
            pickle.dump(answer, stream)
    finally:
        os._exit(0)


def _answer(child: int, reading: int) -> list[R] | BaseException:
    with os.fdopen(reading, "rb") as stream:
        sent = stream.read()
    os.waitpid(child, 0)
    answer: list[R] | BaseException = pickle.loads(sent) if sent else RuntimeError("a planning process ended early")
    return answer
