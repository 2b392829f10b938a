"""The documentation is true: its examples run, its links lead somewhere, its reference is the code's."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "benchmarks" / "README.md"]


def examples(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text("utf-8"), re.DOTALL)


@pytest.fixture(scope="module")
def plugin() -> Any:
    """Run the developer page's examples as one module."""
    module = ModuleType("example_plugin")
    sys.modules[module.__name__] = module
    for text in examples("developing.md"):
        exec(compile(text, "docs/developing.md", "exec"), module.__dict__)
    yield module
    from regrow.criteria.registry import CRITERIA
    from regrow.planning.registry import RULES

    CRITERIA._entries.pop("mean-weight", None)
    RULES._entries.pop("half-to-one", None)


def test_the_example_criterion_ranks_like_any_other(plugin: Any, make_tiny: Callable[..., Any]) -> None:
    import torch

    from regrow.criteria.ranking import score_blocks

    model = make_tiny("llama")
    with torch.no_grad():
        for weight in model.model.layers[3].parameters():
            weight.mul_(0.01)
    found = score_blocks("mean-weight", model, None, remove=2)
    assert 3 in found.removed and len(found.removed) == 2 and 0 not in found.removed
    assert np.isnan(found.scores[0]) and found.order[0] == 3


def test_the_example_rule_splits_a_budget(plugin: Any) -> None:
    from regrow.planning.registry import rule_named

    tokens = rule_named("half-to-one")(["a", "b", "c"], 1000.0)
    assert tokens == {"a": 500.0, "b": 250.0, "c": 250.0}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text("utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_regrow_command_in_the_documentation_exists() -> None:
    from regrow.cli.main import _COMMANDS, _STUDY

    known = {*_COMMANDS, "models", "study"}
    for page in PAGES:
        for block in re.findall(r"```(?:sh|console)\n(.*?)```", page.read_text("utf-8"), re.DOTALL):
            for command, second in re.findall(r"^(?:\$ )?regrow (\S+)(?: +(\S+))?", block, re.MULTILINE):
                assert command in known, f"{page.name}: regrow {command}"
                if command == "study":
                    assert second in _STUDY, f"{page.name}: regrow study {second}"


def test_the_method_reference_is_made_from_the_code() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "method_pages.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
