"""A synthetic study, written and computed once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from regrow.records.study_runs import read_study
from regrow.report.paper.paper import Paper, paper_of
from regrow.report.scored import Drawing
from tests.report.sample_study import write_study

GOLDEN = Path(__file__).parents[1] / "planning" / "published.json"


@pytest.fixture(scope="session")
def published_pilots_file() -> dict[str, Any]:
    """Return the published dev counts of the pilots."""
    content: dict[str, Any] = json.loads(GOLDEN.read_text("utf-8"))
    return content


@pytest.fixture(scope="session")
def study_folder(tmp_path_factory: pytest.TempPathFactory, published_pilots_file: dict[str, Any]) -> Path:
    """Return a synthetic study of two families, two seeds, with the published pilots."""
    folder = tmp_path_factory.mktemp("synthetic") / "study"
    write_study(folder, per_capability=24, seeds=2, published=published_pilots_file)
    return folder


@pytest.fixture(scope="session")
def paper(study_folder: Path) -> Paper:
    """Return its tables and figures, computed."""
    return paper_of(read_study(study_folder), drawing=Drawing(0, 300))
