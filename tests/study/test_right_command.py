"""What is given to the wrong command, or in the wrong place: a file for a folder, one kind of study for another, an
option that the command does not have, a suite whose data is not there."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regrow.cli.main import _COMMANDS, WITH_DATA
from regrow.studies import REPAIR, SEARCH, shipped
from regrow.study.folder import StudyFolder
from regrow.study.preflight import preflight
from tests.study.commands import write_spec
from tests.study.tiny_study import begin, steps_for, tiny_spec

RegrowCommand = Callable[..., tuple[int, str, str]]


def refused(regrow: RegrowCommand, *words: object) -> str:
    code, out, err = regrow(*words)
    assert code == 2 and not out and "Traceback" not in err and "try:" in err, err
    return " ".join(err.split())


@pytest.mark.parametrize("words", [["status"], ["status", "--watch"], ["report"], ["clean"]])
def test_a_file_in_place_of_a_studys_folder(words: list[str], tmp_path: Path, regrow: RegrowCommand) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("families: []\n")
    said = refused(regrow, "study", *words, file)
    assert f"'{file}' is a file, the folder of a study is wanted" in said
    assert f"regrow study run {file} -o DIR" in said and "delete" not in said
    assert file.exists()


def test_the_record_in_place_of_its_folder(model: Path, tmp_path: Path, regrow: RegrowCommand) -> None:
    begin(tmp_path / "out", tiny_spec(model))
    said = refused(regrow, "study", "status", tmp_path / "out" / "study.json")
    assert f"name its folder: {tmp_path / 'out'}" in said
    assert "out' is a folder" in refused(regrow, "study", "show", tmp_path / "out")


def test_a_record_that_a_disk_keeps_back_is_not_to_be_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def kept_back(*_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", kept_back)
    with pytest.raises(Exception, match="cannot be read: Permission denied") as caught:
        StudyFolder(tmp_path).steps()
    assert "delete" not in str(getattr(caught.value, "hint", "delete"))


@pytest.mark.parametrize("by", ["name", "path in the program", "file"])
@pytest.mark.parametrize(
    ("folder", "command"), [(REPAIR, "regrow repair-study {} -o DIR"), (SEARCH, "regrow search-study MODEL --spec {}")]
)
def test_a_study_of_another_kind_names_its_command(
    folder: str, command: str, by: str, tmp_path: Path, regrow: RegrowCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, file in shipped(folder).items():
        if by == "name" and name in shipped():
            continue
        given = {"name": name, "path in the program": f"{folder}/{name}.yaml", "file": str(file)}[by]
        for word in ("show", "check", "plan", "run"):
            said = refused(regrow, "study", word, given)
            assert f"'{given}' is a {folder} study, not a study" in said and command.format(given) in said


def test_a_study_given_to_the_commands_of_other_studies(tmp_path: Path, regrow: RegrowCommand) -> None:
    for given in ("smoke", str(shipped()["smoke"])):
        for words in (["repair-study", given], ["search-study", "m", "--spec", given]):
            said = refused(regrow, *words, "-o", tmp_path / "out")
            assert f"'{given}' is a study, not a" in said and f"regrow study run {given} -o DIR" in said


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"scopes": ["al-lora"]}, "did you mean 'all-lora'"),
        ({"pilots": None, "heal": {"loss": "foo"}}, "unknown loss 'foo'"),
        ({"dtype": "float31"}, "float31"),
        ({"repair": {"method": "lrb"}}, "did you mean 'lra'"),
    ],
)
def test_a_run_refuses_an_unknown_name_before_anything_is_written(
    values: dict[str, Any], said: str, model: Path, tmp_path: Path, regrow: RegrowCommand
) -> None:
    file = write_spec(tmp_path / "s.yaml", model, **values)
    code, out, err = regrow("study", "run", file, "-o", tmp_path / "out")
    words = " ".join((out + err).split())
    assert code == 2 and said in words and "try:" in words and not (tmp_path / "out").exists()


def test_a_repair_is_named_where_it_is_written(tmp_path: Path, regrow: RegrowCommand) -> None:
    file = tmp_path / "r.yaml"
    file.write_text("title: x\ncuts: [{remove: 2}]\nrepairs: [{method: lra, rank: [1, 2]}, lra, {methd: lra}]\n")
    said = refused(regrow, "repair-study", file, "-o", tmp_path / "out")
    assert f"unknown key 'repairs[2].methd' in '{file}' try: did you mean 'method'?" in said
    file.write_text("title: x\ncuts: [{remov: 2}]\nrepairs: [lra]\n")
    assert "unknown key 'cuts[0].remov'" in refused(regrow, "repair-study", file, "-o", tmp_path / "out")


def test_the_commands_with_a_data_folder_are_those_said_to_have_one(regrow: RegrowCommand) -> None:
    helps = {name: regrow(name, "--help")[1] for name in _COMMANDS}
    assert {name for name, said in helps.items() if re.search(r"--data\b", said)} == set(WITH_DATA)


def test_a_remedy_names_the_option_where_there_is_one_and_the_variable_elsewhere(
    model: Path, regrow: RegrowCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGROW_DATA", str(tmp_path / "absent"))
    said = refused(regrow, "eval", model, "--suite", "full", "-o", tmp_path / "out")
    assert "correct --data or REGROW_DATA" in said
    said = refused(regrow, "prune", "embedded:smollm2-135m", "--remove", "2", "--calibration", "c4", "-o", "out")
    assert "--data" not in said
    monkeypatch.setenv("REGROW_DATA", str(tmp_path))
    assert "then pass --data DIR" in refused(regrow, "eval", model, "--suite", "full", "-o", tmp_path / "out")
    file = tmp_path / "s.yaml"
    file.write_text("families: {a: {model: m, remove: 1}}\nsuite: full\nrepair: {calibration: c4}\n")
    _, out, err = regrow("study", "check", file)
    assert "--data" not in out + err and "REGROW_DATA=DIR" in out


SETS = ("jsonschemabench", "bfcl", "gsm8k", "xstest", "mmlu")


def lacking(spec_values: dict[str, object], model: Path, output: Path) -> dict[str, str]:
    """Return the data sets that a check says are missing, and of what."""
    spec = tiny_spec(model, suite="full", **spec_values)
    # The checkers of IFEval are a package with data of its own.
    bad = [one for one in preflight(spec, output) if not one.ok and one.what != "items of instruction_following"]
    assert all("--data" not in one.remedy for one in bad)
    named = {}
    for one in bad:
        found = re.search(r"the data set '(\w+)'|holds no '(\w+)' of", one.found)
        assert found and ("REGROW_DATA=DIR" in one.remedy or "hf download" in one.remedy), one
        named[found[1] or found[2]] = one.what
    return named


def test_a_check_names_every_data_set_that_is_missing(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("REGROW_DATA", str(tmp_path / "data"))
    named = lacking({"capabilities": None}, model, tmp_path / "out")
    assert set(named) == {*SETS, "glaive_toolcall", "alpaca", "pku_saferlhf_prompt"}
    assert named["alpaca"] == "healing prompts of instruction_following, healing prompts of general"
    only_safety = lacking({"capabilities": ["safety"]}, model, tmp_path / "out")
    assert set(only_safety) == {*SETS, "alpaca", "pku_saferlhf_prompt"}, "pools are kept apart from the whole suite"


@pytest.mark.shared
def test_a_check_reads_the_sources_of_the_pools(
    model: Path, tmp_path: Path, shared_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*SETS, "ifeval", "nltk_data"):
        shutil.copytree(shared_data / name, tmp_path / "data" / name)
    (tmp_path / "data" / "gsm8k" / "train.jsonl").unlink(missing_ok=True)
    monkeypatch.setenv("REGROW_DATA", str(tmp_path / "data"))
    named = lacking({"capabilities": ["math", "knowledge"]}, model, tmp_path / "out")
    assert set(named) == {"train", "alpaca"} and named["train"] == "healing prompts of math"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"families": [{"name": "a", "model": "MODEL", "blocks": [99]}]}, "there is no block 99"),
        ({"families": [{"name": "a", "model": "MODEL", "remove": 99}]}, "99"),
        ({"test_items": 100_000}, "test_items: 100000 of 'knowledge' were asked for, the suite has 120"),
        ({"seeds": [True]}, "a number is wanted, not true"),
        ({"budgets": [False]}, "a number is wanted, not false"),
        ({"scopes": ["last-k", "last-k"]}, "'scopes' names a value twice"),
        ({"capabilities": ["knowledge", "knowledge"]}, "'capabilities' names a value twice"),
    ],
)
def test_what_no_step_could_do_is_refused_before_the_first(
    changes: dict[str, Any], said: str, model: Path, tmp_path: Path, regrow: RegrowCommand
) -> None:
    whole = tiny_spec(model).model_dump(mode="json", exclude_defaults=True) | changes
    file = tmp_path / "mine.yaml"
    file.write_text(json.dumps(whole).replace("MODEL", str(model)))
    assert said in refused(regrow, "study", "run", file, "-o", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_order_of_capabilities_changes_no_step(model: Path) -> None:
    first, second = (
        steps_for(tiny_spec(model, capabilities=names)) for names in (["knowledge", "math"], ["math", "knowledge"])
    )
    assert [step.id for step in first] == [step.id for step in second]


def test_kept_checkpoints_count_for_the_disk(model: Path, tmp_path: Path) -> None:
    need = []
    for keep in (False, True):
        found = preflight(tiny_spec(model, keep_checkpoints=keep, seeds=list(range(2_000))), tmp_path / "out")
        need.append(next(each.found for each in found if each.what == "disk"))
    assert need[0].startswith("about 0.0 GB") and not need[1].startswith("about 0.0 GB"), need


def test_a_line_that_a_crash_cut_does_not_swallow_the_next(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path)
    folder.log("begin")
    folder.log("start", "a")
    whole = (tmp_path / "events.jsonl").read_bytes()
    (tmp_path / "events.jsonl").write_bytes(whole[:-20])
    folder.log("done", "b")
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert len(lines) == 3 and json.loads(lines[2])["step"] == "b" and json.loads(lines[0])["event"] == "begin"
