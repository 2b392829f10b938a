"""The reference of methods is the code's. In a file of its own: the examples of test_docs.py add methods."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "method_pages.py"


def test_the_method_reference_is_made_from_the_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = importlib.util.spec_from_file_location("method_pages", SCRIPT)
    assert found is not None and found.loader is not None
    script = importlib.util.module_from_spec(found)
    found.loader.exec_module(script)
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--check"])
    assert script.main() == 0, capsys.readouterr().out
