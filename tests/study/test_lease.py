"""Leases: one holder, known by life and not by clocks; whatever a crash leaves is taken over once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from regrow.errors import RegrowError
from regrow.study.lease import LeaseTakenError, LeaseWatch, lease

TraceFunction = Callable[[FrameType, str, Any], Any]


def hold_and_die(file: Path) -> None:
    script = f"""
    import os, signal
    from pathlib import Path
    from regrow.study.lease import lease
    with lease(Path({str(file)!r})):
        os.kill(os.getpid(), signal.SIGKILL)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False)


def test_a_held_lease_is_refused_and_a_released_one_is_free(tmp_path: Path) -> None:
    file = tmp_path / "steps" / "lease.json"
    with lease(file):
        assert LeaseWatch().live(file)
        with pytest.raises(LeaseTakenError), lease(file):
            pass
        assert file.exists()
    assert not file.exists() and not LeaseWatch().live(file)


def test_the_lease_of_a_dead_process_is_taken_at_once(tmp_path: Path) -> None:
    file = tmp_path / "lease.json"
    hold_and_die(file)
    assert file.exists() and not LeaseWatch().live(file)
    with lease(file):
        assert json.loads(file.read_text())["process"] == os.getpid()
    assert [entry.name for entry in tmp_path.iterdir()] == [".lease.json.lock"]


def test_another_machines_lease_is_judged_by_whether_it_moves(tmp_path: Path) -> None:
    file = tmp_path / "lease.json"
    text = {"token": "t", "host": "another-machine", "process": 1, "count": 0}
    file.write_text(json.dumps(text))
    for stamp in (0, 4_000_000_000):  # clocks and file times of other machines may say anything
        os.utime(file, (stamp, stamp))
        assert LeaseWatch().live(file)
    watch = LeaseWatch(stale_seconds=0.2)
    assert watch.live(file)
    for count in range(1, 4):
        time.sleep(0.15)
        file.write_text(json.dumps({**text, "count": count}))
        assert watch.live(file)
    time.sleep(0.3)
    assert not watch.live(file)
    with lease(file, watch):
        pass


def test_a_half_written_lease_counts_as_held_until_it_does_not_move(tmp_path: Path) -> None:
    file = tmp_path / "lease.json"
    file.write_text('{"tok')
    watch = LeaseWatch(stale_seconds=0.1)
    assert watch.live(file)
    time.sleep(0.2)
    assert not watch.live(file)


def test_the_holder_keeps_its_lease_moving(tmp_path: Path) -> None:
    file = tmp_path / "lease.json"
    watch = LeaseWatch(stale_seconds=0.5)
    with lease(file, beat_seconds=0.1):
        for _ in range(10):
            time.sleep(0.1)
            assert watch.live(file)


def test_of_many_takers_one_wins(tmp_path: Path) -> None:
    file = tmp_path / "lease.json"
    hold_and_die(file)
    inside: list[int] = []
    most: list[int] = []
    gate = threading.Barrier(8)

    def take() -> None:
        gate.wait()
        try:
            with lease(file):
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.3)
                inside.pop()
        except LeaseTakenError:
            pass

    assert LeaseWatch(0.0).live(file) is False
    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1


def test_what_is_no_place_for_a_lease_is_said_and_a_dangling_link_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RegrowError), lease(tmp_path / "file" / "lease.json"):
        pass
    link = tmp_path / "lease.json"
    link.symlink_to(tmp_path / "nowhere")
    with lease(link):
        assert not link.is_symlink() and LeaseWatch().live(link)


def test_an_interruption_at_any_line_leaves_no_lease(tmp_path: Path) -> None:
    # SIGTERM raises KeyboardInterrupt wherever the process is: here once at each line of the module in turn.
    file = tmp_path / "lease.json"
    source = lease.__wrapped__.__code__.co_filename  # type: ignore[attr-defined]
    interrupted = line = 0

    def trace(frame: FrameType, event: str, _: object) -> TraceFunction | None:
        nonlocal line
        if frame.f_code.co_filename != source:
            return None
        if event == "line":
            line -= 1
            if line == -1:
                raise KeyboardInterrupt
        return trace

    for first in range(1000):
        line = first
        sys.settrace(trace)
        try:
            with lease(file):
                pass
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            sys.settrace(None)
        assert not file.exists(), f"interrupted at line event {first}"
        if line >= 0:
            break
    assert 20 < interrupted < 1000
