"""The command line as its user runs it, in this process: a new one for every mistake would cost seconds each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGROW_CACHE", str(tmp_path / ".cache"))
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def refused(regrow: Callable[..., tuple[int, str, str]]) -> Callable[..., None]:
    """Return a function that checks for exit code 2, a sentence with a remedy, and nothing else."""

    def check(said: str, *words: object) -> None:
        code, out, err = regrow(*words)
        assert code == 2, err
        assert said in " ".join(err.split()), err
        assert "try:" in err and "Traceback" not in err
        assert out == ""

    return check
