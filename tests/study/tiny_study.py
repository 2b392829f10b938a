"""A whole study on a tiny real model: seconds in one process, with pools written by hand."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from regrow.capabilities.suites import healing_suite, suite
from regrow.data.pools import Example, Pool, save_pool
from regrow.models.identity import model_identity
from regrow.records.study_spec import StudySpec
from regrow.study.design import capabilities_of, planning_design, steps_of
from regrow.study.folder import StudyFolder
from regrow.study.step import Step
from tests.conftest import tiny_model, tiny_tokenizer


def write_model(folder: Path, seed: int = 0) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    tiny_model("llama", seed=seed).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def tiny_spec(model: Path, **changes: Any) -> StudySpec:
    values: dict[str, Any] = {
        "name": "tiny",
        "families": [{"name": "tiny", "model": str(model), "blocks": [2]}],
        "capabilities": ["knowledge"],
        "test_items": 2,
        "dev_items": 2,
        "perplexity": False,
        "pool_examples": 6,
        "rules": ["uniform"],
        "budgets": [200],
        "seeds": [0],
        "pilots": None,
        "token_matched": False,
        "dtype": "float32",
        "device": "cpu",
        "heal": {"sequences_per_update": 2, "learning_rate": 1e-3, "checkpoint_every_seconds": 0.001},
        "engine": {"name": "serial"},
        **changes,
    }
    return StudySpec.model_validate(values)


def steps_for(spec: StudySpec, identities: dict[str, str] | None = None) -> list[Step]:
    known = identities or {family.name: model_identity(family.model).sha256 for family in spec.families}
    design = planning_design(
        spec,
        capabilities_of(spec, [one.name for one in suite("mini")]),
        [one.name for one in healing_suite("mini")],
    )
    return steps_of(spec, design, known)


def begin(folder: Path, spec: StudySpec, *, update: bool = False, pools: bool = True) -> list[Step]:
    """Write the study down; with ``pools`` put readable pools where its pools step would write them."""
    steps = steps_for(spec)
    identities = {family.name: model_identity(family.model).sha256 for family in spec.families}
    StudyFolder(folder).begin(spec, identities, steps, update=update)
    for step in steps:
        if pools and step.kind == "pools":
            for name in step.request["pools"]:
                rows = tuple(
                    Example(name, f"{number}", f"[user] {number} + 1<eos>[assistant] ", f"it is {number + 1}")
                    for number in range(6)
                )
                if not (folder / "pools" / step.id / name).exists():
                    save_pool(Pool(name, rows), folder / "pools" / step.id / name)
    return steps
