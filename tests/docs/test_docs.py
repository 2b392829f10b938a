"""The documentation is true: its examples run, its links lead somewhere, its reference is the code's."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from regrow.registry import Registry
from tests.capabilities.scorers import check_early_decisions

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
    from regrow.capabilities.registry import CAPABILITIES
    from regrow.capabilities.suites import SUITES
    from regrow.criteria.registry import CRITERIA
    from regrow.planning.registry import RULES
    from regrow.repair.registry import REPAIRS

    made: dict[str, Registry[Any]] = {
        "mean-weight": CRITERIA,
        "half-to-one": RULES,
        "mean-shift": REPAIRS,
        "comparing": CAPABILITIES,
    }
    for name, registry in made.items():
        registry._entries.pop(name)
    SUITES._entries.pop("comparing")


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


def test_the_example_repair_bridges_a_cut(plugin: Any, tmp_path: Path) -> None:
    import torch

    from regrow.models.bridges import AffineBridge, attach_bridge
    from regrow.models.families import blocks_of
    from regrow.models.load import load_model
    from regrow.models.save import save_checkpoint
    from regrow.records.checkpoint import CheckpointFacts
    from regrow.records.specs import RepairSpec
    from regrow.repair.fit import fit_repair
    from regrow.repair.registry import REPAIRS
    from tests.repair.helpers import WIDTH, calibration_set, pair

    assert "mean-shift" in REPAIRS
    unpruned, pruned = pair([2, 4])
    for number, block in enumerate((2, 4)):
        # These two blocks add the same vector to every token, so the repair has nothing left to miss.
        adds = AffineBridge(WIDTH, rank=1)
        with torch.no_grad():
            for name, weight in blocks_of(unpruned.model)[block].named_parameters():
                if "norm" not in name:
                    weight.zero_()
            adds.bias.copy_(torch.linspace(-1, 1, WIDTH).roll(number))
        attach_bridge(unpruned.model, block, adds)
    text = calibration_set(rows=10)
    ids = text.input_ids[:2]
    wanted, unrepaired = unpruned.model(ids).logits, pruned.model(ids).logits
    result = fit_repair(unpruned, pruned, text, RepairSpec(method="mean-shift"), removed=[2, 4])
    torch.testing.assert_close(pruned.model(ids).logits, wanted, rtol=1e-4, atol=1e-4)
    assert (unrepaired - wanted).abs().max() > 0.1
    assert [facts.method for facts in result.bridges] == ["mean-shift"] * 2
    assert [cut.held_out < 1e-5 < cut.held_out_before for cut in result.row.cuts] == [True, True]
    facts = CheckpointFacts(source="tiny", unpruned_blocks=6, removed_blocks=(2, 4), bridges=result.bridges)
    save_checkpoint(pruned, tmp_path / "repaired", facts)
    again = load_model(str(tmp_path / "repaired"), dtype="float32")
    assert torch.equal(again.model(ids).logits, pruned.model(ids).logits)


def test_the_example_repair_is_the_difference_of_the_means(plugin: Any) -> None:
    import torch

    from regrow.errors import ConfigError
    from regrow.models.bridges import bridges_of
    from regrow.models.capture import observe_streams
    from regrow.records.specs import RepairSpec
    from regrow.repair.fit import fit_repair
    from tests.repair.helpers import calibration_set, pair

    unpruned, pruned = pair([2, 3])
    text = calibration_set(rows=16)
    fitted = [row for row in range(16) if row % 8 != 7]  # every eighth sequence is held out
    found: dict[int, torch.Tensor] = {}
    with torch.inference_mode(), observe_streams(unpruned.model, lambda at, h: found.__setitem__(at, h.double())):
        unpruned.model(text.input_ids[fitted])
    fit_repair(unpruned, pruned, text, RepairSpec(method="mean-shift", skip_first=1), removed=[2, 3])
    (attached,) = bridges_of(pruned.model)
    bias = attached.bridge.get_parameter("bias").detach().double()
    torch.testing.assert_close(bias, (found[4] - found[2])[:, 1:].mean(dim=(0, 1)), rtol=1e-4, atol=1e-5)
    with pytest.raises(ConfigError, match="has no use for ridge"):
        fit_repair(*pair([2, 3]), text, RepairSpec(method="mean-shift", ridge=0.1), removed=[2, 3])


def test_the_example_capability_grades_its_items(plugin: Any) -> None:
    from regrow.capabilities.registry import CAPABILITIES
    from regrow.capabilities.suites import suite
    from regrow.protocols import Capability

    (capability,) = suite("comparing")
    assert isinstance(capability, Capability) and "comparing" in CAPABILITIES
    asked: dict[str, set[str]] = {"dev": set(), "test": set(), "heal": set()}
    for split, questions in asked.items():
        for item in capability.items(split):
            small, large = sorted(int(word) for word in re.findall(r"\d+", item.messages[-1]["content"]))
            assert [capability.grade(item, f"{number}.").score for number in (large, small)] == [1.0, 0.0]
            assert capability.grade(item, "I cannot say.").parsed is False
            assert check_early_decisions(capability.scorer, item, f"It is {large}, for {small} is smaller.")
            questions.add(item.messages[-1]["content"])
    assert all(asked.values()) and not asked["dev"] & asked["test"] | asked["test"] & asked["heal"]
    assert not asked["dev"] & asked["heal"]


@pytest.mark.slow
def test_the_example_capability_is_measured_like_any_other(plugin: Any, smollm2: Any) -> None:
    from regrow.capabilities.evaluate import evaluate
    from regrow.capabilities.suites import suite
    from regrow.records.specs import EvalSpec

    found = evaluate(smollm2, suite("comparing"), EvalSpec(suite="comparing", items=8, perplexity=False))
    for item in found.items:
        wanted = max(int(word) for word in re.findall(r"\d+", item.details["question"]))
        assert item.score == float(item.response.strip().startswith(str(wanted)))
    # The model guesses: both grades were met, so the check above was of both.
    assert len(found.items) == 8 and {item.score for item in found.items} == {0.0, 1.0}


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
