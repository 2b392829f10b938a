"""A heal that another step of the study has trained already: its result is taken, not made again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regrow.data.pools import Example, Pool
from regrow.heal.mixture import draw_mixture
from regrow.protocols import SilentWatcher
from regrow.records.store import read_evaluation
from regrow.records.study_runs import read_study
from regrow.study.folder import StudyFolder
from regrow.study.progress import progress_of
from regrow.study.runner import run
from regrow.study.same_training import training_of, whole_checkpoint
from regrow.study.step import Step
from regrow.study.tidy import tidy
from tests.study.tiny_study import begin, tiny_spec


def shared(folder: Path) -> list[dict[str, Any]]:
    events = map(json.loads, (folder / "events.jsonl").read_text().splitlines())
    return [event for event in events if event["event"] == "shared"]


def heals(folder: Path) -> list[str]:
    return [step.id for step in StudyFolder(folder).steps() if step.kind == "heal"]


def test_two_rules_that_come_to_one_split_are_trained_once(model: Path, tmp_path: Path) -> None:
    # One pool: whatever the rule, all tokens go there.
    begin(tmp_path, tiny_spec(model, rules=["uniform", "damage-proportional"]))
    assert run(tmp_path, watch=SilentWatcher()).complete
    first, second = heals(tmp_path)
    assert [(event["step"], event["of"]) for event in shared(tmp_path)] == [(second, first)]
    (own, items), (taken, same) = (read_evaluation(tmp_path / "runs" / one) for one in (first, second))
    assert same == items and taken.measurements == own.measurements
    # What the rule costs is what it would cost alone; what the step used is next to nothing.
    assert taken.cost == own.cost and own.cost.training_tokens > 0
    done = StudyFolder(tmp_path).done(second)
    assert done is not None and done.cost.training_tokens == 0
    rules = [one.coordinates.rule for one in read_study(tmp_path).runs if one.coordinates.rule]
    assert sorted(rules) == ["damage-proportional", "uniform"]


def test_a_heal_from_before_such_notes_were_made_is_known_by_its_mixture(model: Path, tmp_path: Path) -> None:
    begin(tmp_path, tiny_spec(model))
    assert run(tmp_path, watch=SilentWatcher()).complete
    (first,) = heals(tmp_path)
    (tmp_path / "steps" / first / "training.json").unlink()
    begin(tmp_path, tiny_spec(model, rules=["uniform", "damage-proportional"]), update=True)
    assert run(tmp_path, watch=SilentWatcher()).complete
    assert [event["of"] for event in shared(tmp_path)] == [first]


def test_another_seed_or_another_split_is_another_training(model: Path, tmp_path: Path) -> None:
    begin(tmp_path, tiny_spec(model, seeds=[0, 1], budgets=[200, 300]))
    assert run(tmp_path, watch=SilentWatcher()).complete
    assert len(heals(tmp_path)) == 4 and not shared(tmp_path)


@pytest.mark.parametrize("keep", [True, False])
def test_other_items_are_asked_of_a_checkpoint_that_was_kept(keep: bool, model: Path, tmp_path: Path) -> None:
    begin(tmp_path, tiny_spec(model, keep_checkpoints=keep))
    assert run(tmp_path, watch=SilentWatcher()).complete
    (before,) = heals(tmp_path)
    begin(tmp_path, tiny_spec(model, keep_checkpoints=keep, test_items=3), update=True)
    assert run(tmp_path, watch=SilentWatcher()).complete
    (after,) = heals(tmp_path)
    assert after != before and [event["of"] for event in shared(tmp_path)] == [before] * keep
    (old, _), (new, items) = (read_evaluation(tmp_path / "runs" / one) for one in (before, after))
    assert len(items) == 3 and new.cost.training_tokens == old.cost.training_tokens
    assert new.cost.flops > old.cost.flops  # the same training, and one item more
    done = StudyFolder(tmp_path).done(after)
    assert done is not None and done.cost.flops > 0 and (done.cost.training_tokens == 0) == keep


def test_a_damaged_result_is_not_taken(model: Path, tmp_path: Path) -> None:
    begin(tmp_path, tiny_spec(model))
    assert run(tmp_path, watch=SilentWatcher()).complete
    (first,) = heals(tmp_path)
    (tmp_path / "runs" / first / "items.jsonl").write_text("{}\n")
    (tmp_path / "steps" / first / "training.json").write_text('{"training": ')
    begin(tmp_path, tiny_spec(model, rules=["uniform", "damage-proportional"]), update=True)
    assert run(tmp_path, watch=SilentWatcher()).complete
    results = [read_evaluation(tmp_path / "runs" / one)[1] for one in heals(tmp_path)]
    assert results[0] == results[1]


def shared_or_trained(folder: Path, model: Path, **changes: Any) -> tuple[str, str]:
    """Finish a study that keeps its checkpoints, and return its heal and that of the study as it is changed."""
    begin(folder, tiny_spec(model, keep_checkpoints=True))
    assert run(folder, watch=SilentWatcher()).complete
    (before,) = heals(folder)
    begin(folder, tiny_spec(model, keep_checkpoints=True, **changes), update=True)
    return before, next(one for one in heals(folder) if one != before)


@pytest.mark.parametrize("file", ["model.safetensors", "regrow.json", "config.json"])
@pytest.mark.parametrize("changes", [{"test_items": 3}, {"rules": ["damage-proportional"]}])
def test_a_damaged_checkpoint_is_not_taken(file: str, changes: dict[str, Any], model: Path, tmp_path: Path) -> None:
    before, after = shared_or_trained(tmp_path, model, **changes)
    damaged = tmp_path / "checkpoints" / before / file
    damaged.write_bytes(damaged.read_bytes()[:-200])
    summary = run(tmp_path, watch=SilentWatcher())
    assert summary.complete and not shared(tmp_path)
    record, _ = read_evaluation(tmp_path / "runs" / after)
    assert record.model.weights_sha256 == read_evaluation(tmp_path / "runs" / before)[0].model.weights_sha256


@pytest.mark.parametrize("changes", [{"test_items": 3}, {"rules": ["damage-proportional"]}])
def test_what_is_taken_is_kept_as_what_is_trained(changes: dict[str, Any], model: Path, tmp_path: Path) -> None:
    before, after = shared_or_trained(tmp_path, model, **changes)
    assert run(tmp_path, watch=SilentWatcher()).complete and len(shared(tmp_path)) == 1
    tidy(tmp_path)
    assert not (tmp_path / "checkpoints" / before).exists()  # no longer in the study
    assert whole_checkpoint(tmp_path / "checkpoints" / after) is not None


def test_a_taking_that_was_killed_is_no_foreign_folder(model: Path, tmp_path: Path) -> None:
    begin(tmp_path, tiny_spec(model, rules=["uniform", "damage-proportional"]))
    assert run(tmp_path, watch=SilentWatcher()).complete
    first, second = heals(tmp_path)
    (tmp_path / "steps" / second / "done.json").unlink()  # as after a kill between taking and being done
    shutil.rmtree(tmp_path / "runs" / first)
    begin(tmp_path, tiny_spec(model, rules=["damage-proportional"]), update=True)
    summary = run(tmp_path, watch=SilentWatcher())
    assert summary.complete and heals(tmp_path) == [second]
    assert read_evaluation(tmp_path / "runs" / second)[0].cost.training_tokens > 0


def test_a_taking_that_was_killed_before_its_items_were_asked_goes_on(model: Path, tmp_path: Path) -> None:
    _, after = shared_or_trained(tmp_path, model, test_items=3)
    assert run(tmp_path, watch=SilentWatcher()).complete
    once = read_evaluation(tmp_path / "runs" / after)[1]
    (tmp_path / "steps" / after / "done.json").unlink()
    shutil.rmtree(tmp_path / "runs" / after)
    assert run(tmp_path, watch=SilentWatcher()).complete
    assert len(shared(tmp_path)) == 2
    assert [item.response for item in read_evaluation(tmp_path / "runs" / after)[1]] == [item.response for item in once]


def test_quotas_between_the_same_half_tokens_draw_the_same(tmp_path: Path) -> None:
    step = Step(
        "heal",
        "f",
        "",
        {
            **dict.fromkeys(("model_sha256", "dtype", "suite", "evaluation"), ""),
            "pools": ["a", "b", "c"],
            "heal": {"tokens": 100, "scope": "last-k", "seed": 0},
        },
        {"checkpoint": "c", "pools": "p"},
    )
    rows = tuple(
        Example("a", str(at), "x", "y", response_ids=(0,) * tokens) for at, tokens in enumerate((7, 3, 10, 20))
    )
    pools = {name: Pool(name, rows) for name in "abc"}
    generator = np.random.default_rng(0)
    same = 0
    for _ in range(2_000):
        quotas = generator.dirichlet([0.2, 1, 1]) * 100
        quotas = np.where(generator.random(3) < 0.3, np.round(2 * quotas) / 2, quotas)
        moved = np.maximum(quotas + generator.choice([0, 0, 1e-12, 0.05, -0.05, 0.3], 3), 0)
        both = [dict(zip("abc", each / each.sum() * 100, strict=True)) for each in (quotas, moved)]
        if training_of(step, both[0], "s") != training_of(step, both[1], "s"):
            continue
        same += both[0] != both[1]
        first, second = (draw_mixture(pools, each, seed=1).sequences for each in both)
        assert first == second, both
    assert same > 100


def test_the_time_left_does_not_count_on_results_that_were_taken(model: Path, tmp_path: Path) -> None:
    begin(tmp_path, tiny_spec(model, rules=["uniform", "damage-proportional"]))
    assert run(tmp_path, watch=SilentWatcher()).complete
    first, second = heals(tmp_path)
    paces = []
    for one in (first, second):
        done = (tmp_path / "steps" / one / "done.json").read_bytes()
        (tmp_path / "steps" / one / "done.json").unlink()
        paces.append(progress_of(tmp_path).left_seconds)
        (tmp_path / "steps" / one / "done.json").write_bytes(done)
    assert paces[1] >= 0 and paces[0] != paces[0]  # NaN: the only training left on record is the one taken
