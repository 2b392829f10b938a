"""Leases, whatever the order of things: one holder, judged by the steady clock of who looks and by nothing else."""

from __future__ import annotations

import json
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import regrow.study.lease as module
from regrow.study.lease import LeaseTakenError, LeaseWatch, clear_dead, holder_of, lease


@cache
def dead_process() -> int:
    """Return the id of a process that has ended."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


class Leases(RuleBasedStateMachine):
    """Takers come, leave, die and leave half a file behind; a model of what must be true is kept beside."""

    def __init__(self) -> None:
        super().__init__()
        self.place = Path(tempfile.mkdtemp())
        self.file = self.place / "lease.json"
        self.holder: AbstractContextManager[None] | None = None
        self.left = ""
        """What lies there without a holder: "" nothing, "dead" of this machine, "unknown" that only time can tell."""

    @rule()
    def take(self) -> None:
        taker = lease(self.file, LeaseWatch(), beat_seconds=1e6)
        try:
            taker.__enter__()
        except LeaseTakenError:
            assert self.holder is not None or self.left == "unknown"
        else:
            assert self.holder is None and self.left != "unknown"
            self.holder, self.left = taker, ""

    @precondition(lambda self: self.holder is not None)
    @rule()
    def leave(self) -> None:
        assert self.holder is not None
        self.holder.__exit__(None, None, None)
        self.holder = None
        assert not self.file.exists()

    @precondition(lambda self: self.holder is None)
    @rule(
        content=st.one_of(
            st.just(""),
            st.integers(1, 60).map(
                lambda cut: json.dumps({"token": "t", "host": platform.node(), "process": 1})[:-cut]
            ),
            st.binary(max_size=20).map(lambda raw: raw.decode("latin-1")),
            st.integers(0, 9).map(lambda n: json.dumps({"token": "t", "host": "elsewhere", "process": 1, "count": n})),
        )
    )
    def find_something_unknown(self, content: str) -> None:
        self.file.write_text(content, "utf-8")
        self.left = "unknown"

    @precondition(lambda self: self.holder is None)
    @rule()
    def find_a_dead_one(self) -> None:
        text = {"token": "t", "host": platform.node(), "process": dead_process(), "count": 3}
        self.file.write_text(json.dumps(text))
        self.left = "dead"

    @rule(stamp=st.integers(0, 2**32))
    def jump_of_the_file_clock(self, stamp: int) -> None:
        if self.file.exists():
            os.utime(self.file, (stamp, stamp))

    @rule()
    def watch_until_it_is_stale(self) -> None:
        """Somebody has watched an unchanging lease for long: what nobody holds goes, and only that."""
        watch = LeaseWatch(stale_seconds=0.0)
        watch.live(self.file)
        if self.holder is None:
            clear_dead(self.file, watch)
            assert not self.file.exists()
            self.left = ""

    @invariant()
    def the_file_is_there_while_it_is_held(self) -> None:
        assert self.file.exists() == (self.holder is not None or self.left != "")
        if self.holder is not None:
            found = holder_of(self.file)
            assert found is not None and found.process == os.getpid() and LeaseWatch().live(self.file)

    def teardown(self) -> None:
        if self.holder is not None:
            self.holder.__exit__(None, None, None)
        shutil.rmtree(self.place)


TestLeases = Leases.TestCase
TestLeases.settings = settings(max_examples=40, stateful_step_count=15, deadline=None)


@settings(max_examples=100, deadline=None)
@given(
    looks=st.lists(st.tuples(st.floats(0.0, 100.0), st.booleans()), min_size=1, max_size=25),
    jumps=st.randoms(use_true_random=False),
)
def test_a_lease_lives_as_long_as_it_moves_whatever_the_clocks_say(
    looks: list[tuple[float, bool]], jumps: random.Random
) -> None:
    """Each look comes some seconds after the one before and finds the count moved or not."""
    now = 0.0
    steady = SimpleNamespace(monotonic=lambda: now, time=lambda: jumps.uniform(-1e10, 1e10))
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "time", steady)
        file = Path(place) / "lease.json"
        watch, count, moved_at = LeaseWatch(stale_seconds=60.0), 0, 0.0
        for number, (seconds, moved) in enumerate(looks):
            now += seconds
            if moved or number == 0:
                count += 1
                moved_at = now
                file.write_text(json.dumps({"token": "t", "host": "elsewhere", "process": 1, "count": count}))
            stamp = jumps.randrange(0, 2**32)
            os.utime(file, (stamp, stamp))
            assert watch.live(file) == (now - moved_at < 60.0)
