"""Records: whole or absent, typed, and refused with a sentence when they are not what they should be."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from regrow.errors import ConfigError, DataError, StudyError
from regrow.records.atomic import new_folder, sweep, write_json, write_text
from regrow.records.fingerprint import fingerprint
from regrow.records.results import Cost, ItemScore, ModelCardFacts, RunRecord, provenance
from regrow.records.specs import EvalSpec, HealSpec, PruneSpec, RepairSpec, build, read_yaml
from regrow.records.store import RunFolder, read_evaluation

ITEM = ItemScore(
    capability="math", item_id="m-1", split="test", prompt_sha256="0", response="<b>4</b>", score=1.0, seconds=math.nan
)


def record() -> RunRecord:
    model = ModelCardFacts(source="s", architecture="A", blocks=2, parameters=3, dtype="float32")
    return RunRecord(
        label="unpruned",
        stage="unpruned",
        suite="mini",
        split="test",
        model=model,
        cost=Cost(),
        provenance=provenance({}),
    )


def test_an_evaluation_comes_back_as_it_was(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    assert folder.claim("evaluation", {"a": 1}) is False
    folder.write_evaluation(record(), [ITEM])
    assert folder.claim("evaluation", {"a": 1}) is True
    again, items = read_evaluation(tmp_path / "run")
    assert again.label == "unpruned" and math.isnan(again.cost.wall_seconds)
    assert items[0].response == ITEM.response and math.isnan(items[0].seconds)


def test_another_request_is_refused_and_named(tmp_path: Path) -> None:
    RunFolder(tmp_path / "run").claim("evaluation", {"seed": 1})
    with pytest.raises(StudyError, match="seed: 1 there, 2 now"):
        RunFolder(tmp_path / "run").claim("evaluation", {"seed": 2})
    with pytest.raises(StudyError, match="one of evaluation, not of healing"):
        RunFolder(tmp_path / "run").claim("healing", {"seed": 1})


def test_foreign_files_and_broken_claims_are_refused(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"")
    with pytest.raises(StudyError, match="not a run"):
        RunFolder(tmp_path).claim("evaluation", {})
    with pytest.raises(StudyError, match="is a file"):
        RunFolder(tmp_path / "holiday.jpg").claim("evaluation", {})
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "run.json").write_text("{")
    with pytest.raises(StudyError, match="cannot be read"):
        RunFolder(broken).claim("evaluation", {})


def test_partial_items_survive_and_broken_ones_are_dropped(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.claim("evaluation", {})
    folder.write_partial([ITEM])
    (tmp_path / "run" / "parts" / "safety.jsonl").write_text("{half")
    assert [item.item_id for item in folder.read_partial()] == ["m-1"]
    folder.write_evaluation(record(), [ITEM])
    assert not (tmp_path / "run" / "parts").exists()


@pytest.mark.skipif(os.name != "posix", reason="needs advisory locks")
def test_two_processes_never_work_in_one_folder(tmp_path: Path) -> None:
    script = textwrap.dedent(
        f"""
        from pathlib import Path
        from regrow.records.store import RunFolder
        with RunFolder(Path({str(tmp_path / "run")!r})).held():
            pass
        """
    )
    with RunFolder(tmp_path / "run").held():
        other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "another process is working" in other.stderr
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_an_unfinished_or_damaged_evaluation_is_said_to_be_one(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no finished evaluation"):
        read_evaluation(tmp_path)
    folder = RunFolder(tmp_path / "run")
    folder.claim("evaluation", {})
    folder.write_evaluation(record(), [ITEM])
    items = tmp_path / "run" / "items.jsonl"
    items.write_text(items.read_text()[:-20])
    with pytest.raises(DataError, match="damaged evaluation"):
        read_evaluation(tmp_path / "run")


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), new_folder(tmp_path / "out") as scratch:
        (scratch / "half").write_text("x")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with new_folder(tmp_path / "out") as scratch:
        (scratch / "whole").write_text("x")
    assert (tmp_path / "out" / "whole").read_text() == "x"
    with pytest.raises(StudyError, match="already holds"), new_folder(tmp_path / "out"):
        pass


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_a_killed_writer_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    write_json(target, {"version": 0})
    script = textwrap.dedent(
        f"""
        import itertools, os, signal, threading
        from pathlib import Path
        from regrow.records.atomic import write_json
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
        for version in itertools.count(1):
            write_json(Path({str(target)!r}), {{"version": version, "filler": "x" * 200_000}})
        """
    )
    done = subprocess.run([sys.executable, "-c", script], check=False)
    assert done.returncode == -9
    assert json.loads(target.read_text())["version"] >= 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_refusing_disk_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StudyError, match="cannot write"):
        write_text(tmp_path / "file" / "below", "x")


def test_nan_never_enters_a_fingerprint_or_a_json_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        fingerprint({"x": math.nan})
    with pytest.raises(ValueError):
        write_json(tmp_path / "x.json", {"x": math.nan})
    assert not list(tmp_path.iterdir())
    assert fingerprint({"a": 1, "b": [1, 2]}) == fingerprint({"b": [1, 2], "a": 1})


def test_a_misspelt_key_names_the_right_one(tmp_path: Path) -> None:
    file = tmp_path / "heal.yaml"
    file.write_text("tokens: 1000\nlearning_rte: 0.1\n")
    with pytest.raises(ConfigError, match="learning_rte") as caught:
        build(HealSpec, read_yaml(file), where=str(file))
    assert "did you mean 'learning_rate'" in (caught.value.hint or "")


@pytest.mark.parametrize("content", ["- a\n- b\n", "a: [", "\x00"])
def test_files_that_are_not_a_mapping(tmp_path: Path, content: str) -> None:
    (tmp_path / "x.yaml").write_text(content)
    with pytest.raises(ConfigError):
        read_yaml(tmp_path / "x.yaml")
    with pytest.raises(ConfigError, match="no file"):
        read_yaml(tmp_path / "absent.yaml")


def test_values_out_of_range_are_named() -> None:
    with pytest.raises(ConfigError, match="tokens"):
        build(HealSpec, {"tokens": 0})
    with pytest.raises(ConfigError, match="calibration_tokens"):
        build(PruneSpec, {"calibration_tokens": "many"})


def test_a_refusal_leaves_no_claim_and_kept_work_keeps_it(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(ConfigError), folder.claimed("healing", {"tokens": 1}):
        raise ConfigError("too few")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError), folder.claimed("healing", {"tokens": 2}):
        write_text(folder.path / "log.jsonl", "{}")
        raise ConfigError("diverged")
    with pytest.raises(StudyError, match="tokens: 2 there, 3 now"), folder.claimed("healing", {"tokens": 3}):
        pass


def test_items_of_another_writing_are_noticed(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.claim("evaluation", {})
    separators = ITEM.model_copy(update={"response": "a\u2028b\u0085c"})
    folder.write_partial([separators])
    assert [item.response for item in folder.read_partial()] == [separators.response]
    folder.write_evaluation(record(), [separators, ITEM.model_copy(update={"item_id": "m-2"})])
    assert len(read_evaluation(tmp_path / "run")[1]) == 2
    items = tmp_path / "run" / "items.jsonl"
    items.write_text(items.read_text("utf-8").split("\n")[0] + "\n", "utf-8")
    with pytest.raises(DataError, match="not the file that was written"):
        read_evaluation(tmp_path / "run")


def test_leftovers_of_a_killed_process_are_swept_and_those_of_a_live_one_stay(tmp_path: Path) -> None:
    script = (
        "import os, signal\nfrom pathlib import Path\nfrom regrow.records.atomic import new_folder\n"
        f"with new_folder(Path({str(tmp_path / 'out')!r})) as scratch:\n"
        "    (scratch / 'half').write_text('x')\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=False)
    assert [entry.name.startswith(".out.partial-") for entry in tmp_path.iterdir()] == [True]
    with new_folder(tmp_path / "out") as scratch:
        (scratch / "whole").write_text("x")
        sweep(tmp_path / "out")
        assert scratch.exists()
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1: 2", "unknown key '1'"),
        ("yes: 2", "unknown key 'True'"),
        ("remove: true", "not a yes or no"),
        ("calibration_tokens: .inf", "calibration_tokens"),
        ("blocks: 0-999999999", "no model has"),
        ("remove: 2\nremove: 3", "'remove' is given twice"),
        ("a: " + "[" * 5000 + "]" * 5000, "nested more than 50"),
        ("#" * 300_000, "300,000 characters"),
    ],
)
def test_odd_yaml_is_refused_with_a_sentence(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "prune.yaml").write_text(text)
    with pytest.raises(ConfigError, match=said):
        build(PruneSpec, read_yaml(tmp_path / "prune.yaml"))


def test_yaml_takes_what_the_command_line_takes() -> None:
    assert build(HealSpec, {"tokens": "6k"}).tokens == 6000
    assert build(PruneSpec, {"blocks": "3-4"}).blocks == (3, 4)
    assert build(PruneSpec, {"remove": "25%"}).remove == "25%"
    assert build(PruneSpec, {"remove": 2}) == build(PruneSpec, {"remove": "2"})
    assert build(PruneSpec, {"remove": 0.25}).remove == "0.25"
    assert build(EvalSpec, {"capabilities": "math"}).capabilities == ("math",)
    with pytest.raises(ConfigError, match="capabilities"):
        build(EvalSpec, {"capabilities": ","})
    with pytest.raises(ConfigError, match="finite"):
        build(HealSpec, {"tokens": 1, "learning_rate": math.inf})
    with pytest.raises(ConfigError, match="finite"):
        build(RepairSpec, {"ridge": math.inf})
