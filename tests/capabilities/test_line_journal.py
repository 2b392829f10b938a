"""Rows that are kept while work goes on: cut, spoiled and refused ones."""

from __future__ import annotations

import json
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from regrow.capabilities.line_journal import LineJournal
from regrow.errors import StudyError


def kept(path: Path) -> list[dict[str, object]]:
    with LineJournal(path) as journal:
        return journal.rows


def test_rows_come_back_whatever_stands_between(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "rows"
    with LineJournal(path) as journal:
        journal.append({"key": "a", "text": "\u2028 \n \ud800"})
        journal.append({"key": "b", "value": float("inf")})
    whole = path.read_bytes()
    path.write_bytes(b"[" * 100_000 + b"\n3\n" + whole + b'{"key": "c')
    assert kept(path) == [{"key": "a", "text": "\u2028 \n \ud800"}, {"key": "b", "value": float("inf")}]
    assert path.read_bytes().endswith(whole)


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file of this process may grow beyond 300 bytes."""
    before, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, ignored)


def test_a_row_that_is_refused_is_said_and_leaves_the_file_whole(tmp_path: Path, small_files: None) -> None:
    path = tmp_path / "rows"
    written = refused = 0
    with LineJournal(path) as journal:
        for number in range(20):
            try:
                journal.append({"key": number, "text": "x" * 40})
                written += 1
            except StudyError:
                refused += 1
    assert written >= 3 and refused >= 3
    lines = path.read_text("ascii").splitlines()
    assert [json.loads(line)["key"] for line in lines] == list(range(written))
