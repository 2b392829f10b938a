"""A tiny model, and a study of it that was run to its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from regrow.protocols import SilentWatcher
from regrow.study.runner import run
from tests.study.tiny_study import begin, tiny_spec, write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "model")


@pytest.fixture(scope="module")
def finished(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study run to its end in this process, once for all tests that only read it."""
    folder = tmp_path_factory.mktemp("studies") / "whole"
    begin(folder, tiny_spec(model))
    summary = run(folder, watch=SilentWatcher())
    assert summary.complete, summary
    return folder
