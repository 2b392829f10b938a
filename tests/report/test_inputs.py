import math

import numpy as np
import pytest

from regrow.errors import ConfigError, DataError
from regrow.records.store import RunFolder
from regrow.report.collect import evaluation_folders, healing_log_in
from regrow.report.inputs import pair, read_evaluations
from tests.report.sample_runs import all_stages, evaluation, with_changed, write_runs


def test_stages_come_in_order_and_items_are_aligned():
    runs = all_stages()
    shuffled = [(record, list(reversed(items))) for record, items in runs]
    paired = pair(shuffled)
    assert paired.labels == ("unpruned", "pruned", "repaired", "healed")
    assert (paired.base, paired.cut) == (0, 1)
    assert paired.capabilities == (
        "structured_output",
        "function_calling",
        "instruction_following",
        "math",
        "safety",
        "knowledge",
    )
    for capability, rows in paired.items.items():
        assert len({tuple(item.item_id for item in row) for row in rows}) == 1
        np.testing.assert_array_equal(paired.scores[capability], [[item.score for item in row] for row in rows])
    assert set(paired.kinds) == {"safety"} and set(paired.kinds["safety"]) == {"unsafe", "benign"}


def test_unequal_items_are_refused_by_name():
    one, (record, items) = evaluation("unpruned"), evaluation("pruned")
    with pytest.raises(DataError, match=r"math items only in 'unpruned': math-00\d.* and 15 more") as caught:
        pair([one, (record, [i for i in items if i.capability != "math" or i.item_id >= "math-020"])])
    assert "--items" in caught.value.hint


def test_items_that_only_the_later_run_has_are_refused_too():
    (record, items), other = evaluation("unpruned"), evaluation("pruned")
    with pytest.raises(DataError, match="knowledge items only in 'pruned': knowledge-007"):
        pair([(record, [i for i in items if i.item_id != "knowledge-007"]), other])


def test_unequal_prompts_are_refused_by_name():
    other = with_changed(evaluation("pruned"), "math-003", prompt_sha256="f" * 64)
    with pytest.raises(DataError, match="the prompts of math differ: math-003"):
        pair([evaluation("unpruned"), other])


def test_windows_of_perplexity_are_no_capability_but_are_paired():
    paired = pair(all_stages(per_capability=6))
    assert "perplexity" not in paired.capabilities
    assert paired.windows.nll.shape == (4, 24) and paired.windows.tokens.sum() == 23 * 511 + 140
    other = with_changed(evaluation("pruned"), "window-0003", prompt_sha256="f" * 64)
    with pytest.raises(DataError, match="the prompts of perplexity differ: window-0003"):
        pair([evaluation("unpruned"), other])


def test_fewer_capabilities_can_be_compared_on_purpose():
    (record, items), whole = evaluation("pruned"), evaluation("unpruned")
    part = (record, [item for item in items if item.capability == "math"])
    assert pair([whole, part], capabilities=["math"]).capabilities == ("math",)
    with pytest.raises(ConfigError, match="'maths'") as caught:
        pair([whole], capabilities=["maths"])
    assert "did you mean 'math'" in caught.value.hint


def test_an_item_scored_twice_is_refused():
    record, items = evaluation("pruned")
    with pytest.raises(DataError, match="scores an item twice: structured_output-000"):
        pair([(record, [*items, items[0]])])


def test_items_without_a_score_are_left_out_of_all_and_said():
    paired = pair([evaluation("unpruned"), with_changed(evaluation("pruned"), "math-005", score=math.nan)])
    assert paired.scores["math"].shape == (2, 59)
    assert paired.notes == ("1 math items have no score in some run and are left out: math-005",)


def test_other_suites_and_two_bases_are_refused():
    record, items = evaluation("pruned")
    with pytest.raises(DataError, match="different suites: mini, full"):
        pair([evaluation("unpruned"), (record.model_copy(update={"suite": "full"}), items)])
    with pytest.raises(ConfigError, match="2 unpruned evaluations"):
        pair([evaluation("unpruned", label="a"), evaluation("unpruned", label="b")])
    with pytest.raises(DataError, match="no evaluation"):
        pair([])


def test_labels_are_made_unique():
    runs = [evaluation("unpruned"), evaluation("healed"), evaluation("healed")]
    assert pair(runs).labels == ("unpruned", "healed (1)", "healed (2)")
    record, items = runs[1]
    seeds = [runs[0], runs[1], (record.model_copy(update={"seed": 1}), items)]
    assert pair(seeds).labels == ("unpruned", "healed (seed 0)", "healed (seed 1)")


def test_folders_are_found_in_any_form(tmp_path):
    paths = write_runs(tmp_path / "work" / "evaluations", all_stages(per_capability=6))
    other = RunFolder(tmp_path / "work" / "healing")
    other.claim("healing", {})
    (other.path / "result.json").write_text("{}")
    from_parent = read_evaluations(evaluation_folders([tmp_path / "work"]))
    by_name = read_evaluations(
        evaluation_folders([*paths, paths[0], tmp_path / "work" / "healing" / ".." / "evaluations"])
    )
    assert len(from_parent) == len(by_name) == 4
    assert pair(from_parent).labels == pair(by_name).labels == ("unpruned", "pruned", "repaired", "healed")


def test_a_folder_without_an_evaluation_is_refused(tmp_path):
    with pytest.raises(DataError, match="no finished evaluation"):
        evaluation_folders([tmp_path])
    with pytest.raises(DataError, match="there is no folder"):
        evaluation_folders([tmp_path / "absent"])
    with pytest.raises(DataError, match="no finished evaluation"):
        read_evaluations([tmp_path])


def test_the_healing_log_is_found_when_there_is_one(tmp_path):
    assert healing_log_in([tmp_path]) is None
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "healing_log.jsonl").write_text("")
    assert healing_log_in([tmp_path]) is None
    assert healing_log_in([tmp_path / "a"]) == tmp_path / "a" / "healing_log.jsonl"
