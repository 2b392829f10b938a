"""Tables of a study against what follows from its items by other ways, and what is refused."""

import math
import re
import shutil

import numpy as np
import polars
import pytest

from regrow.errors import DataError
from regrow.records.store import RESULT, RunFolder, read_evaluation
from regrow.records.study_runs import read_study
from regrow.report.paper.comparisons import FIXED, ONE_SEED, TOKEN_MATCHED
from regrow.report.paper.families import families_of, main_budget
from regrow.report.paper.frames import csv_of
from regrow.report.paper.grids import grids_of, matched_grid, result_grid
from regrow.report.paper.latex import escaped, latex_of
from regrow.report.paper.main_results import computed
from regrow.report.paper.paper import paper_of
from regrow.report.paper_files import extra_frames, write_paper_files
from regrow.report.scored import Drawing
from regrow.report.study_findings import study_sentences
from regrow.stats import paired_bootstrap
from tests.report.sample_study import CAPABILITIES, coordinates, write_run, write_study

SMALL = Drawing(0, 200)


def score(folder, capability):
    """Return a capability's score straight from a run folder."""
    _, items = read_evaluation(folder)
    own = [item for item in items if item.capability == capability]
    if capability != "safety":
        return sum(item.score for item in own) / len(own)
    kinds = [[i.score for i in own if i.details["kind"] == kind] for kind in ("unsafe", "benign")]
    return sum(sum(kind) / len(kind) for kind in kinds) / 2


def kept(study, places, base):
    """Return retentions of scores averaged over run folders, by hand."""
    found = []
    for capability in CAPABILITIES:
        mean = sum(score(study / place, capability) for place in places) / len(places)
        found.append(mean / score(study / base, capability))
    return found


def test_every_rule_is_there_once_in_each_family(paper):
    rules = paper.results.filter(polars.col("family") == "qwen")["name"].to_list()
    assert rules == ["Uniform", "Damage-proportional", "RAH", "RAH-capped", "Slowest-first", "Uniform, token-matched"]
    assert paper.budget == 1_000_000 and main_budget(paper.families) == 1_000_000


def test_summaries_are_those_of_the_run_folders(paper, study_folder):
    for row in paper.results.iter_rows(named=True):
        base, *places = row["runs"].split("; ")
        assert len(places) == row["seeds"] == 2 and base == f"runs/{row['family']}-unpruned"
        values = kept(study_folder, places, base)
        assert row["capped_mean"] == pytest.approx(sum(min(v, 1) for v in values) / 6)
        assert row["worst_case"] == pytest.approx(min(values))
        seeds = [kept(study_folder, [place], base) for place in places]
        capped = [sum(min(v, 1) for v in one) / 6 for one in seeds]
        assert row["capped_mean_sd"] == pytest.approx(np.std(capped, ddof=1))


def test_planned_rules_pay_for_their_pilots_and_for_scoring_them(paper):
    rows = {row["rule"]: row for row in paper.results.iter_rows(named=True) if row["family"] == "llama"}
    assert rows["rah"]["pilots"] == 21 and rows["rah"]["pilot_tokens"] == 3_480_000
    assert rows["rah"]["paid_tokens"] == rows["token-matched"]["paid_tokens"] == 4_480_000
    assert rows["rah"]["evaluated_tokens"] == 23 * 15_000 and rows["rah"]["planning_seconds"] == 23 * 300
    assert rows["damage-proportional"]["evaluated_tokens"] == 2 * 15_000
    assert rows["uniform"]["paid_tokens"] == 1_000_000 and rows["uniform"]["evaluated_tokens"] == 0
    assert rows["slowest-first"]["pilots"] == 0
    assert rows["rah"]["healed_tokens"] == 1_000_112, "what was trained on stands beside what was asked"


def test_pilots_and_their_evaluations_are_charged_in_flops(paper, study_folder):
    rows = {row["rule"]: row for row in paper.results.iter_rows(named=True) if row["family"] == "llama"}
    size, evaluation = 920_000_000, 3e14  # what the sample's records say
    heal = evaluation + 6 * size * 1_000_112
    pilots = 21 * evaluation + 6 * size * (3_480_000 + 21 * 112)
    assert rows["uniform"]["heal_flops"] == rows["uniform"]["paid_flops"] == pytest.approx(heal)
    assert rows["uniform"]["planning_flops"] == 0
    assert rows["damage-proportional"]["planning_flops"] == pytest.approx(2 * evaluation)
    assert rows["rah"]["planning_flops"] == pytest.approx(pilots + 2 * evaluation)
    assert rows["rah"]["paid_flops"] == pytest.approx(heal + pilots + 2 * evaluation)
    pilot = next(run for run in read_study(study_folder).runs if run.coordinates.pilot)
    counted = pilot.record.cost.model_copy(update={"training_tokens": pilot.record.model.healing_tokens, "flops": 5e15})
    total = pilot.model_copy(update={"record": pilot.record.model_copy(update={"cost": counted})})
    assert computed(total) == 5e15, "a study's own runner has added the training to the record"


def test_the_matched_control_heals_longer_and_does_not_compete(paper):
    rows = paper.results.filter(polars.col("rule") == "token-matched")
    assert rows.height == 2 and not rows["fixed"].any() and not rows["best_capped_mean"].any()


def test_the_control_is_found_by_its_tokens_too(study_folder):
    runs = []
    for run in read_study(study_folder).runs:
        at = run.coordinates
        if at.rule == "token-matched":
            run = run.model_copy(update={"coordinates": at.model_copy(update={"rule": "uniform"})})
        runs.append(run)
    families, _ = families_of(runs)
    matched = families[0].matched(1_000_000)
    assert matched is not None and (matched.rule, matched.budget) == ("uniform", 4_480_000)


def test_tests_are_counted_and_corrected_in_their_families(paper):
    sizes = dict(paper.comparisons.group_by("tests").len().iter_rows())
    # 2 families x 2 planners x 2 metrics, against 2 baselines and against 1 control
    assert sizes == {FIXED: 16, TOKEN_MATCHED: 8}
    for row in paper.comparisons.iter_rows(named=True):
        assert row["holm_item"] >= row["p_item"] and row["holm_seed"] >= row["p_seed"]
        assert row["difference"] == pytest.approx(row["value_a"] - row["value_b"])
        assert row["low"] <= row["difference"] <= row["high"]


def test_a_comparison_is_the_paired_bootstrap_of_its_items(paper):
    family = paper.families[0]
    planned, uniform = family.find("rah", 1_000_000)[0], family.uniform(1_000_000)
    alone = paired_bootstrap(
        {name: family.items(planned, name) for name in CAPABILITIES},
        {name: family.items(uniform, name) for name in CAPABILITIES},
        family.base_scores,
        seeds=True,
        strata=family.paired.kinds,
        resamples=4000,
        generator=5,
    )["capped_mean"]
    row = next(r for r in paper.comparisons.iter_rows(named=True) if (r["a"], r["b"]) == ("RAH", "Uniform"))
    assert row["difference"] == pytest.approx(alone.difference)
    assert row["low"] == pytest.approx(alone.low, abs=0.03) and row["high"] == pytest.approx(alone.high, abs=0.03)


def test_matched_rows_are_the_two_tests_side_by_side(paper):
    tests = {(r["tests"], r["family"], r["a"], r["b"], r["metric"]): r for r in paper.comparisons.iter_rows(named=True)}
    assert paper.matched.height == 8
    for row in paper.matched.iter_rows(named=True):
        near = tests[FIXED, row["family"], row["planner"], "Uniform", row["metric"]]
        far = tests[TOKEN_MATCHED, row["family"], row["planner"], "Uniform, token-matched", row["metric"]]
        assert (row["gain"], row["left"]) == (near["difference"], far["difference"])
        assert (row["gain_p"], row["left_p"]) == (near["holm_seed"], far["holm_seed"])
        assert (row["tokens"], row["longer_tokens"]) == (1_000_000, 4_480_000)


def test_the_scope_experiment(paper):
    rows = {(row["family"], row["scope"]): row for row in paper.scopes.iter_rows(named=True)}
    assert {scope for _, scope in rows} == {"all-lora", "cut-lora", "last-k"} and len(rows) == 6
    home, last = rows["qwen", "all-lora"], rows["qwen", "last-k"]
    assert math.isnan(home["difference"]) and home["best"] and not last["best"]
    assert last["difference"] == pytest.approx(last["capped_mean"] - home["capped_mean"])


def test_recovery_reads_the_pilot_runs(paper):
    points = paper.recovery.points.filter(polars.col("family") == "llama")
    math_points = points.filter(polars.col("capability") == "math")
    assert math_points["tokens"].to_list() == [0, 30_000, 100_000, 300_000]
    assert math_points["right"].to_list() == [2, 5, 4, 17]
    assert math_points["runs"].to_list()[1] == "runs/llama-pilot-math-30000"
    assert not paper.recovery.notes


def test_curves_come_from_a_pilot_file_where_there_are_no_pilot_runs(tmp_path, published_pilots_file):
    import json

    write_run(tmp_path, "base", coordinates("llama", "unpruned"), {"math": 5}, {"math": 10})
    (tmp_path / "pilots.json").write_text(json.dumps(published_pilots_file))
    found = paper_of(read_study(tmp_path), drawing=SMALL)
    assert found.recovery.fits.filter(polars.col("family") == "llama")["a"][3] == pytest.approx(1.128571, abs=1e-5)
    assert set(found.recovery.points["runs"]) == {"pilots.json", ""} or "pilots.json" in set(
        found.recovery.points["runs"]
    )


def test_a_missing_pilot_leaves_points_and_says_what_is_missing(study_folder, tmp_path):
    shutil.copytree(study_folder, tmp_path / "study")
    (tmp_path / "study" / "runs" / "llama-pilot-math-100000" / RESULT).unlink()
    found = paper_of(read_study(tmp_path / "study"), drawing=SMALL)
    said = " ".join(found.notes)
    assert "pool math at 100k tokens" in said and "1 runs have not finished" in said
    llama = found.recovery.fits.filter(polars.col("family") == "llama")
    assert llama["a"].is_nan().all() and "missing" in llama["reason"][0]
    assert found.recovery.points.filter(polars.col("family") == "llama").height > 0


def test_a_study_folder_plans_as_the_published_file_does(study_folder, published_pilots_file, tmp_path):
    from regrow.planning.overview import plan_families
    from regrow.planning.pilot_files import read_pilots

    for plan in plan_families(read_pilots(study_folder), [1e6], ["rah"], explained=False):
        known = published_pilots_file["families"][plan.pilots.family]["allocations"]["rah"]
        found = [plan.plans[0].allocation.tokens[pool] for pool in published_pilots_file["pools"]]
        np.testing.assert_allclose(found, known, atol=5)
        assert plan.scope_reason.startswith("highest sum of dev retentions")
    write_run(tmp_path, "base", coordinates("llama", "unpruned"), {"math": 5}, {"math": 10})
    with pytest.raises(DataError, match="has no pilots with dev evaluations"):
        read_pilots(tmp_path)


def test_pilots_of_a_study_under_way_do_not_stop_the_report(study_folder, tmp_path):
    shutil.copytree(study_folder, tmp_path / "study")
    for run in (tmp_path / "study" / "runs").glob("llama-pilot-general-*"):
        shutil.rmtree(run)
    found = paper_of(read_study(tmp_path / "study"), drawing=SMALL)
    assert any("'knowledge' has no pool" in note for note in found.notes)
    assert found.recovery.points["family"].unique().to_list() == ["qwen"] and found.results.height == 12


def test_every_number_leads_to_run_folders(paper, study_folder):
    frames = [paper.retention, paper.concordance, paper.scopes, paper.results, paper.comparisons, paper.matched]
    frames += [paper.budgets, paper.refusals, paper.recovery.points.filter(polars.col("tokens") > 0)]
    for frame in frames:
        assert frame.height
        for runs in frame["runs"]:
            assert runs and all((study_folder / place / RESULT).exists() for place in runs.split("; "))


def test_refusal_points_are_the_two_rates(paper, study_folder):
    row = paper.refusals.filter((polars.col("family") == "llama") & (polars.col("model") == "Pruned")).row(
        0, named=True
    )
    _, items = read_evaluation(study_folder / "runs" / "llama-pruned")
    unsafe = [item.score for item in items if item.details.get("kind") == "unsafe"]
    assert row["unsafe_refused"] == pytest.approx(sum(unsafe) / len(unsafe))
    models = paper.refusals.filter(polars.col("family") == "llama")["model"].to_list()
    assert models[0] == "Unpruned" and "RAH-capped" in models and models[-1] == "Uniform, token-matched"


def test_unequal_items_are_refused_with_their_ids(study_folder, tmp_path):
    shutil.copytree(study_folder, tmp_path / "study")
    folder = RunFolder(tmp_path / "study" / "runs" / "llama-rah-last-k-1000000-s1")
    record, items = read_evaluation(folder.path)
    renamed = [i.model_copy(update={"item_id": "math-999"}) if i.item_id == "math-003" else i for i in items]
    folder.write_evaluation(record, renamed)
    with pytest.raises(DataError) as refused:
        paper_of(read_study(tmp_path / "study"), drawing=SMALL)
    assert "cannot be paired" in str(refused.value) and "math-003" in str(refused.value)
    changed = [i.model_copy(update={"prompt_sha256": "0"}) if i.item_id == "math-003" else i for i in items]
    folder.write_evaluation(record, changed)
    with pytest.raises(DataError, match=r"runs/llama-rah-last-k-1000000-s1.*prompts of math differ: math-003"):
        paper_of(read_study(tmp_path / "study"), drawing=SMALL)


def test_two_runs_in_one_place_are_refused(study_folder, tmp_path):
    shutil.copytree(study_folder / "runs", tmp_path / "runs")
    shutil.copytree(tmp_path / "runs" / "qwen-rah-last-k-1000000-s0", tmp_path / "runs" / "qwen-again")
    with pytest.raises(DataError, match=r"'runs/qwen-again' and 'runs/qwen-rah.*' have the same coordinates"):
        families_of(read_study(tmp_path).runs)


def test_one_seed_is_told_and_only_items_are_tested(tmp_path):
    write_study(tmp_path, families=("llama",), per_capability=12, seeds=1, pilots=False)
    found = paper_of(read_study(tmp_path), drawing=SMALL)
    assert found.comparisons["p_seed"].is_nan().all() and found.comparisons["p_item"].is_not_nan().all()
    assert set(found.comparisons["reason"]) == {ONE_SEED} and found.results["capped_mean_sd"].is_nan().all()
    said = " ".join(next(grid for grid in grids_of(found) if grid.key == "tests").notes)
    assert "one seed" in said
    assert "Pruning llama left" in study_sentences(found)[0]


def test_a_capability_that_the_unpruned_model_cannot_do_is_left_out_and_named(tmp_path):
    sizes = {"math": 10, "knowledge": 20}
    write_run(tmp_path, "a", coordinates("llama", "unpruned"), {"math": 0, "knowledge": 12}, sizes)
    write_run(tmp_path, "b", coordinates("llama", "pruned"), {"math": 0, "knowledge": 6}, sizes)
    found = paper_of(read_study(tmp_path), drawing=SMALL)
    row = found.retention.filter((polars.col("capability") == "math") & (polars.col("stage") == "pruned")).row(
        0, named=True
    )
    assert math.isnan(row["kept"]) and row["reason"] == "the unpruned score is 0"
    assert any("math has no retention" in note for note in found.notes)
    assert found.families[0].capped(found.families[0].cuts[0]) == 0.5


def test_a_family_without_an_unpruned_evaluation_is_left_out(study_folder, tmp_path):
    shutil.copytree(study_folder / "runs", tmp_path / "runs")
    shutil.rmtree(tmp_path / "runs" / "qwen-unpruned")
    families, notes = families_of(read_study(tmp_path).runs)
    assert [family.name for family in families] == ["llama"] and "qwen is left out" in notes[0]
    shutil.rmtree(tmp_path / "runs" / "llama-unpruned")
    with pytest.raises(DataError, match="no family of the study has an unpruned evaluation"):
        families_of(read_study(tmp_path).runs)


def test_tables_are_numbered_and_have_whole_rows(paper):
    grids = grids_of(paper)
    assert [(grid.number, grid.key) for grid in grids] == [
        (1, "retention"),
        (2, "scopes"),
        (3, "results"),
        (4, "tests"),
        (5, "matched"),
    ]
    for grid in grids:
        assert {len(line.cells) for line in grid.lines} == {len(grid.heads)}
    cells = [cell for line in result_grid(paper).lines for cell in line.cells]
    bold = paper.results["best_capped_mean"].sum() + paper.results["best_worst_case"].sum()
    assert sum(cell.bold for cell in cells) == bold >= 4
    assert "Pilots paid for (4.48M)" in {head.group for head in matched_grid(paper).heads}


def test_latex_has_a_cell_for_every_column_and_no_stray_command(paper):
    for grid in grids_of(paper):
        text = latex_of(grid)
        body = text.split(r"\midrule")[1].split(r"\bottomrule")[0]
        lines = [line.split(" % ")[0] for line in body.splitlines() if line.rstrip().split(" % ")[0].endswith(r"\\")]
        assert len(lines) == len(grid.lines)
        for line in lines:
            assert len(re.findall(r"(?<!\\)&", line)) == len(grid.heads) - 1
        assert text.count(r"\begin{") == text.count(r"\end{") == 2
        assert not re.search(r"[≤±−–]", body)
    assert escaped("a_b & 50% {x} \\y") == r"a\_b \& 50\% \{x\} \textbackslash{}y"


def test_csv_has_empty_cells_for_what_is_undefined(paper):
    text = csv_of(paper.scopes)
    assert "NaN" not in text and text.splitlines()[0].startswith("family,scope,budget")
    read = polars.read_csv(text.encode())
    assert read.height == paper.scopes.height and read["difference"].null_count() == 2


def test_files_are_written_and_say_which_runs_they_come_from(paper, tmp_path):
    begun = []
    written = write_paper_files(tmp_path, paper, grids_of(paper), [], begin=begun.append)
    names = {path.relative_to(tmp_path).as_posix() for path in written}
    assert {"tables/table3-results.csv", "tables/table3-results.tex", "tables/runs.csv"} <= names
    assert len(names) == 10 + len(extra_frames(paper)) and all(path.stat().st_size for path in written)
    assert begun == [f"table {number}" for number in range(1, 6)]
    assert "runs/llama-rah-last-k-1000000-s0" in (tmp_path / "tables" / "table3-results.tex").read_text()


def test_the_findings_say_what_the_tests_say(paper):
    damage, scope, fixed, matched = study_sentences(paper)
    assert "2 families" in damage and "W = " in damage
    assert "last-k in qwen" in scope
    stand = paper.comparisons.filter(polars.col("tests") == FIXED)
    assert f"{(stand['holm_seed'] <= 0.05).sum()} of 16 tests" in fixed
    behind = paper.comparisons.filter((polars.col("tests") == TOKEN_MATCHED) & (polars.col("difference") < 0)).height
    assert f"ahead in {behind} of 8 comparisons" in matched
