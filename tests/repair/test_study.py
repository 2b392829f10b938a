"""The repair study: a small one from end to end, stopped and continued, and what its file may say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regrow.capabilities.suites import healing_suite
from regrow.cli.main import main
from regrow.cli.output import SilentWatcher
from regrow.data.pools import save_pool
from regrow.errors import ConfigError, StudyError
from regrow.records.results import ItemScore
from regrow.repair.latency import measure_latency
from regrow.studies import REPAIR, shipped
from regrow.study.repair_results import NONE, RepairStudy, gain_of, markdown
from regrow.study.repair_spec import healing_label, load_repair_study, repair_label
from regrow.study.repair_study import run_repair_study
from tests.heal.samples import sample_pools
from tests.repair.helpers import WIDTH, calibration_set, pair

SHIPPED = sorted(shipped(REPAIR).values())

SMALL = """
title: Small
model: {model}
cuts:
  - {{blocks: "2-3"}}
  - {{criterion: random, remove: 1, seed: 1, name: drawn}}
  - {{blocks: "0"}}
calibrations: [{{calibration_tokens: 2k, chunk_tokens: 64}}]
repairs: [lra, {{method: lra, rank: [4, 8]}}, fold, streamline-block]
evaluation: {{suite: mini, split: dev, items: 2, capabilities: math, perplexity: false}}
latency: true
"""
HEALED = """
title: Healed
model: {model}
cuts: [{{blocks: "2-3"}}]
calibrations: [{{calibration_tokens: 2k, chunk_tokens: 64}}]
repairs: [lra, fold]
healing:
  - {{tokens: 900, sequences_per_update: 2, rank: 2}}
  - {{tokens: 900, sequences_per_update: 2, scope: bridges}}
evaluation: {{suite: mini, split: dev, items: 2, capabilities: math, perplexity: false}}
"""


class Noting(SilentWatcher):
    """Keeps what it is told, and can pull the plug."""

    def __init__(self, stop_at: str = "") -> None:
        self.said: list[str] = []
        self.stop_at = stop_at

    def begin(self, task: str, total: float | None = None, unit: str = "") -> None:
        self.note(task)

    def note(self, text: str) -> None:
        self.said.append(text)
        if self.stop_at and self.stop_at in text:
            raise KeyboardInterrupt


def run(file: Path, output: Path, watch: Any = None, **options: Any) -> RepairStudy:
    return run_repair_study(
        load_repair_study(file), output, watch=watch or SilentWatcher(), dtype="float32", device="cpu", **options
    )


@pytest.fixture
def study_file(tiny_folder: Callable[..., Path], tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        file = tmp_path / "study.yaml"
        file.write_text(text.format(model=tiny_folder()))
        return file

    return write


def test_a_study_is_stopped_and_continued(study_file: Callable[[str], Path], tmp_path: Path) -> None:
    file = study_file(SMALL)
    with pytest.raises(KeyboardInterrupt):
        run(file, tmp_path / "out", Noting("measuring drawn, lra rank 8"))
    second = Noting()
    study = run(file, tmp_path / "out", second)
    # What was measured before the stop is not measured again.
    assert not any("measuring blocks 2,3" in said for said in second.said)
    assert any("measuring drawn, lra rank 8" in said for said in second.said)
    third = Noting()
    again = run(file, tmp_path / "out", third)
    assert [row.model_dump_json() for row in again.outcomes] == [row.model_dump_json() for row in study.outcomes]
    assert not any("reading" in said or "measuring" in said for said in third.said)

    names = [NONE, "lra", "lra rank 4", "lra rank 8", "fold", "streamline-block"]
    assert [row.repair for row in study.outcomes] == names * 3
    by_cut = {cut: [row for row in study.outcomes if row.cut == cut] for cut in ("blocks 2,3", "drawn", "blocks 0")}
    assert all(not row.refused for row in by_cut["blocks 2,3"])
    assert "single block" in by_cut["drawn"][-1].refused and "block 0" in by_cut["blocks 0"][-2].refused
    bare, lra, low, _, fold, _ = by_cut["blocks 2,3"]
    assert bare.row is not None and bare.final_error == lra.row.final_error_before
    assert lra.parameter_share > low.parameter_share > fold.parameter_share == 0
    assert lra.bridge_share > 0 and fold.bridge_share == 0
    assert all(row.scores["math"].items == 2 for row in study.outcomes if not row.refused)
    page = (tmp_path / "out" / "results.md").read_text()
    assert page == markdown(study) and "## drawn: blocks" in page
    written = (tmp_path / "out" / "results.json").read_text()
    assert RepairStudy.model_validate_json(written).model_dump_json(indent=2) + "\n" == written


def test_more_repairs_in_the_same_folder_do_only_what_is_new(study_file: Callable[[str], Path], tmp_path: Path) -> None:
    text = SMALL.replace('  - {{criterion: random, remove: 1, seed: 1, name: drawn}}\n  - {{blocks: "0"}}\n', "")
    run(study_file(text.replace("fold, streamline-block", "ghost")), tmp_path / "out")
    watch = Noting()
    study = run(study_file(text), tmp_path / "out", watch)
    assert [said for said in watch.said if said.startswith("fitting")] == ["fitting fold", "fitting streamline-block"]
    assert [row.repair for row in study.outcomes][-2:] == ["fold", "streamline-block"]


def test_healing_starts_from_each_repair(study_file: Callable[[str], Path], tmp_path: Path) -> None:
    pools = tmp_path / "pools"
    names = tuple(capability.name for capability in healing_suite("mini"))
    for pool in sample_pools(6, names=names).values():
        save_pool(pool, pools / pool.name)
    study = run(study_file(HEALED), tmp_path / "out", pools_folder=pools)
    found = {(row.repair, row.healing.split()[0] if row.healing else ""): row for row in study.outcomes}
    assert list(found) == [(name, run) for name in (NONE, "lra", "fold") for run in ("", "all-lora", "bridges")]
    for name in (NONE, "lra", "fold"):
        assert found[name, "all-lora"].healing_tokens >= 900
    assert found["lra", "bridges"].healing_tokens >= 900
    assert "no bridge" in found["fold", "bridges"].refused and "no bridge" in found[NONE, "bridges"].refused
    assert not list((tmp_path / "out").rglob("training"))


def item(number: int, score: float, kind: str = "") -> ItemScore:
    details: dict[str, Any] = {"kind": kind} if kind else {}
    return ItemScore(
        capability="safety" if kind else "math",
        item_id=f"{number:03}",
        split="dev",
        prompt_sha256="",
        response="",
        score=score,
        details=details,
    )


def test_a_gain_is_the_paired_difference_of_mean_scores() -> None:
    without = [item(number, float(number % 2)) for number in range(40)]
    better = [item(number, 1.0 if number < 30 else float(number % 2)) for number in range(40)]
    gain, low, high = gain_of(better, without)
    assert gain == pytest.approx(15 / 40) and 0 < low < gain < high
    assert gain_of(without, without) == (0.0, 0.0, 0.0)
    # Refusing everything: the kinds count equally, whatever their number.
    kinds = ["unsafe"] * 30 + ["benign"] * 10
    answers = [item(number, float(kind == "unsafe"), kind) for number, kind in enumerate(kinds)]
    nothing = [item(number, 0.0, kind) for number, kind in enumerate(kinds)]
    assert gain_of(answers, nothing)[0] == pytest.approx(0.5)


def test_latency_counts_bridges_apart_from_blocks() -> None:
    from regrow.records.specs import RepairSpec
    from regrow.repair.fit import fit_repair

    unpruned, pruned = pair([0, 3])
    assert measure_latency(unpruned.model, tokens=16, repeats=2).bridge_seconds == 0
    fit_repair(unpruned, pruned, calibration_set(), RepairSpec(), removed=[0, 3], measure=False)
    found = measure_latency(pruned.model, tokens=16, repeats=2)
    assert (
        found.bridge_seconds > 0
        and found.block_seconds > 0
        and found.share == pytest.approx(found.bridge_seconds / found.block_seconds)
    )
    assert WIDTH == 32


@pytest.mark.parametrize("file", SHIPPED, ids=[file.stem for file in SHIPPED])
@pytest.mark.parametrize("full", [False, True])
def test_shipped_studies_are_valid(file: Path, full: bool) -> None:
    spec = load_repair_study(file, full=full)
    assert spec.title and spec.question
    assert all(repair_label(repair) for repair in spec.repairs) and all(healing_label(run) for run in spec.healing)


def test_the_shipped_questions_are_those_of_the_papers() -> None:
    names = {file.stem for file in SHIPPED}
    assert names >= {"methods", "criteria", "ranks", "calibration", "sequential", "cost"}
    assert names >= {"before-healing", "frozen-or-trained"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("title: x\ncuts: [{remove: 2}]\nrepairs: [lra]\nreparis: []\n", "unknown key 'reparis'"),
        ("title: x\ncuts: []\nrepairs: [lra]\n", "cuts"),
        ("title: x\ncuts: [{remove: 2, blocks: 3}]\nrepairs: [lra]\n", "needs 'remove' or 'blocks'"),
        ("title: x\ncuts: [{remove: 2}, {remove: 2}]\nrepairs: [lra]\n", "names the cut 'block-influence 2' twice"),
        ("title: x\ncuts: [{remove: 2}]\nrepairs: [lra, lra]\n", "names the repair 'lra' twice"),
        ("title: x\ncuts: [{remove: 2}]\nrepairs: [{method: lra, calibration: c4}]\n", "belongs under calibrations"),
        ("title: x\ncuts: [{remove: 2}]\nrepairs: [{method: lra, ridge: .inf}]\n", "finite"),
        ("title: x\ncuts: [{remove: 2}]\nrepairs: [lra]\nhealing: [{tokens: 0}]\n", "greater than 0"),
    ],
)
def test_a_wrong_file_is_refused_with_the_fault(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=said):
        load_repair_study(file)


def test_unknown_names_are_refused_before_anything_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "study.yaml"
    for text, said in (
        ("cuts: [{remove: 2, criterion: block-influense}]\nrepairs: [lra]\n", "did you mean 'block-influence'"),
        ("cuts: [{remove: 2}]\nrepairs: [lar]\n", "did you mean 'lra'"),
        ("cuts: [{remove: 2}]\nrepairs: [lra]\nhealing: [{tokens: 9, scope: all}]\n", "unknown scope 'all'"),
        ("cuts: [{remove: 2}]\nrepairs: [lra]\nevaluation: {suite: maxi}\n", "unknown suite 'maxi'"),
    ):
        file.write_text("title: x\nmodel: ./absent\n" + text)
        with pytest.raises(SystemExit) as ended:
            main(["repair-study", str(file), "-o", str(tmp_path / "out"), "--quiet"])
        err = capsys.readouterr().err
        assert ended.value.code == 2 and said in err and "Traceback" not in err
    assert not (tmp_path / "out").exists()


def test_a_folder_that_holds_something_else_is_refused(study_file: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "letter.txt").write_text("dear")
    with pytest.raises(StudyError, match="already holds"):
        run(study_file(SMALL), tmp_path / "out")
    assert json.dumps(sorted(entry.name for entry in (tmp_path / "out").iterdir())) == '["letter.txt"]'
