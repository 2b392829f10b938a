"""Runs of a study with their coordinates: what is read back, and what is refused."""

import json

import pytest

from regrow.errors import DataError
from regrow.records.store import RESULT
from regrow.records.study_runs import COORDINATES, Coordinates, is_study, read_study, write_coordinates
from regrow.report.paper.paper import paper_of
from tests.report.sample_study import coordinates, write_run

SIZES = {"math": 6, "safety": 8}
COUNTS = {"math": 3, "safety": 5}


@pytest.fixture
def study(tmp_path):
    write_run(tmp_path, "base", coordinates("llama", "unpruned"), COUNTS, SIZES)
    at = coordinates(
        "llama", "healed", rule="rah", scope="last-k", budget=1000, seed=2, mixture={"math": 600.0, "safety": 400.0}
    )
    write_run(tmp_path, "healed", at, COUNTS, SIZES)
    return tmp_path


def test_what_was_written_is_read(study):
    assert is_study(study) and not is_study(study / "runs" / "base")
    found = read_study(study)
    assert [run.run_id for run in found.runs] == ["base", "healed"] and found.unfinished == ()
    healed = found.runs[1]
    assert healed.coordinates.mixture == {"math": 600.0, "safety": 400.0} and healed.coordinates.seed == 2
    assert healed.place == "runs/healed" and len(healed.items) == 14
    assert healed.record.stage == "healed"


def test_a_run_that_has_not_finished_is_named_not_read(study):
    (study / "runs" / "healed" / RESULT).unlink()
    found = read_study(study)
    assert [run.run_id for run in found.runs] == ["base"] and found.unfinished == ("healed",)
    (study / "runs" / "base" / RESULT).unlink()
    with pytest.raises(DataError, match="none of the 2 runs"):
        read_study(study)


def test_what_the_design_asks_for_and_nobody_ran_is_named(study):
    def step(run, family="llama", **place):
        return {"id": run, "family": family, "place": {"family": family, "stage": "healed", **place}}

    rah = {"rule": "rah", "scope": "last-k", "budget": 1000}
    capped = {"rule": "rah-capped", "scope": "all-lora", "budget": 1000}
    steps = [
        {"id": "base", "family": "llama", "place": {"family": "llama", "stage": "unpruned"}},
        {"id": "cut", "family": "llama", "place": None},
        {"id": "light", "family": "llama", "place": {"family": "llama", "stage": "pruned", "cut": "light"}},
        step("pilot", pilot="math", scope="all-lora", budget=10),
        step("healed", **rah, seed=2),
        step("other", **rah, seed=3),
        step("c0", **capped, seed=0),
        step("c1", **capped, seed=1),
    ]
    (study / "study.json").write_text(json.dumps({"steps": steps}))
    (study / "steps" / "c1").mkdir(parents=True)
    (study / "steps" / "c1" / "failed.json").write_text("{}")
    expected = (
        "pruned model, light cut: 1 evaluation pending",
        "pilots: 1 heal pending",
        "rah under last-k: 1 heal pending of 2",
        "rah-capped: 2 heals pending, 1 of them failed",
    )
    found = read_study(study)
    assert found.pending == expected
    notes = [note for note in paper_of(found).notes if "this report lacks" in note]
    assert notes == [f"what the study asks for and this report lacks: {'; '.join(expected)}"]
    steps.append({**step("c2", "qwen", **capped), "also": ["olmo"]})
    (study / "study.json").write_text(json.dumps({"steps": steps}))
    assert read_study(study).pending[-1].endswith("3 heals pending, 1 of them failed (llama, olmo, qwen)")
    (study / "study.json").unlink()
    assert read_study(study).pending == ()


def test_folders_that_are_no_study(tmp_path):
    (tmp_path / "file.yaml").write_text("x")
    with pytest.raises(DataError, match="is a file, the folder of a study is wanted"):
        read_study(tmp_path / "file.yaml")
    with pytest.raises(DataError, match="no folder"):
        read_study(tmp_path / "absent")
    with pytest.raises(DataError, match="holds no run of a study"):
        read_study(tmp_path)


@pytest.mark.parametrize(
    ("content", "said", "hint"),
    [
        ({"family": "llama", "stage": "healed"}, "'budget' above 0", None),
        ({"family": "llama", "stage": "healed", "budget": 5}, "'rule' that split its budget", None),
        ({"family": "llama", "stage": "healed", "budget": 5, "rule": "rah"}, "names the 'scope'", None),
        ({"family": "llama", "stage": "unpruned", "rule": "rah"}, "belong to healed models", None),
        ({"family": "llama", "stage": "unpruned", "famly": "x"}, "famly", "did you mean 'family'"),
        ({"family": "", "stage": "unpruned"}, "family", None),
        ({"family": "llama", "stage": "pruned"}, "the record is of a unpruned model", None),
        ({"family": "llama", "stage": "healed", "budget": -1}, "budget", None),
        (
            {"family": "llama", "stage": "healed", "budget": 9, "rule": "r", "scope": "s", "mixture": {"math": -2}},
            "-2 tokens",
            None,
        ),
    ],
)
def test_coordinates_that_do_not_place_a_run(study, content, said, hint):
    file = study / "runs" / "base" / COORDINATES
    file.write_text(json.dumps(content))
    with pytest.raises(DataError, match="does not place its run") as refused:
        read_study(study)
    assert said in str(refused.value)
    assert "runs/base" in str(refused.value).replace("\\", "/")
    if hint:
        assert hint in refused.value.hint


def test_coordinates_that_are_not_json(study):
    (study / "runs" / "base" / COORDINATES).write_text('{"family": "lla')
    with pytest.raises(DataError, match="does not place its run"):
        read_study(study)


def test_only_what_differs_from_the_default_is_written(tmp_path):
    (tmp_path / "run").mkdir()
    write_coordinates(tmp_path / "run", Coordinates(family="qwen", stage="pruned", cut="light"))
    assert json.loads((tmp_path / "run" / COORDINATES).read_text()) == {
        "family": "qwen",
        "stage": "pruned",
        "cut": "light",
    }
