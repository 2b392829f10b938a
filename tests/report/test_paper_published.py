"""The published numbers come out of run folders that hold the published counts."""

import math

import numpy as np
import pytest

from regrow.records.study_runs import read_study
from regrow.report.paper.comparisons import FIXED, Compared, corrected
from regrow.report.paper.families import families_of
from regrow.report.paper.grids import p_text, retention_grid, two
from regrow.report.paper.main_results import Result, with_best
from regrow.report.paper.paper import paper_of
from regrow.report.paper.retention import concordance_frame
from regrow.report.scored import Drawing
from tests.report.sample_study import CAPABILITIES, TEST_COUNTS, TEST_ITEMS, write_published_damage


@pytest.fixture(scope="module")
def damage(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published")
    write_published_damage(folder)
    return paper_of(read_study(folder), drawing=Drawing(0, 200))


def cell(paper, family, stage, capability):
    rows = [
        row
        for row in paper.retention.iter_rows(named=True)
        if (row["family"], row["stage"], row["capability"], row["kind"]) == (family, stage, capability, "")
    ]
    assert len(rows) == 1
    return rows[0]


@pytest.mark.parametrize("family", TEST_COUNTS)
def test_retentions_are_the_quotients_of_the_published_counts(damage, family):
    unpruned, pruned = TEST_COUNTS[family]
    for capability, before, after in zip(CAPABILITIES, unpruned, pruned, strict=True):
        row = cell(damage, family, "pruned", capability)
        assert row["kept"] == pytest.approx(after / before, abs=1e-12)
        assert row["right"] == after or capability == "safety"
        assert row["items"] == TEST_ITEMS[capability]
        base = cell(damage, family, "unpruned", capability)
        assert base["score"] == pytest.approx(before / TEST_ITEMS[capability], abs=1e-12) and base["kept"] == 1


@pytest.mark.parametrize(
    ("family", "safety", "knowledge"),
    [("llama", 0.388, -0.045), ("qwen", 0.370, 0.240), ("smollm2", 0.292, 0.679), ("olmo", 0.643, 0.091)],
)
def test_chance_corrected_values(damage, family, safety, knowledge):
    assert round(cell(damage, family, "pruned", "safety")["corrected"], 3) == safety
    assert round(cell(damage, family, "pruned", "knowledge")["corrected"], 3) == knowledge


def test_concordance_of_the_four_families(damage):
    by_measure = {
        measure: [row for row in damage.concordance.iter_rows(named=True) if row["measure"] == measure]
        for measure in ("raw", "corrected")
    }
    assert by_measure["raw"][0]["w"] == pytest.approx(0.9191, abs=5e-5)
    assert by_measure["corrected"][0]["w"] == pytest.approx(0.6241, abs=5e-5)
    assert by_measure["corrected"][0]["p_value"] == pytest.approx(0.0115, abs=0.0015)
    ranks = {row["capability"]: row["mean_rank"] for row in by_measure["corrected"]}
    assert ranks == {
        "structured_output": 3.25,
        "function_calling": 1.625,
        "instruction_following": 5.25,
        "math": 2.125,
        "safety": 5.0,
        "knowledge": 3.75,
    }


def test_the_table_prints_them(damage):
    grid = retention_grid(damage)
    text = [[(cell.text, cell.small) for cell in line.cells] for line in grid.lines]
    llama = next(line for line in text if line[1][0] == "Pruned")
    assert llama[2:8] == [
        (".06", ""),
        (".00", ""),
        (".43", ""),
        (".07", ""),
        (".75", "(.39)"),
        (".76", "(\N{MINUS SIGN}.05)"),
    ]
    ranks = [line for line in text if line[1][0].startswith("by ")]
    assert ranks[0][1] == ("by retention", "W = .92, p < .001") or ranks[0][1][1].startswith("W = .92")
    assert ranks[1][1][1].startswith("W = .62, p = .01")
    assert [line[0] for line in ranks[1][2:8]] == ["3.25", "1.62", "5.25", "2.12", "5.00", "3.75"]
    assert not damage.results.height and not damage.comparisons.height and damage.budget == 0


def test_one_family_has_no_concordance(damage):
    families, _ = families_of([run for run in damage.study.runs if run.coordinates.family == "llama"])
    frame = concordance_frame(families)
    assert frame["w"].is_nan().all() and set(frame["reason"]) == {"W compares rankings of two families or more"}


def a_test(p_value, *, bound=False, tests=FIXED):
    nan = math.nan
    return Compared(
        tests, "llama", "RAH", "Uniform", "capped_mean", 0.8, 0.8, 0.0, nan, nan, p_value, bound, nan, False,
        nan, False, nan, False, nan, nan, 3, 3, 1, 1, "", "",
    )  # fmt: skip


def test_the_published_ladder_of_holm():
    ladder = [a_test(0.001, bound=True)] * 3 + [a_test(0.002), a_test(0.012)] + [a_test(0.4)] * 23
    fixed = corrected(
        [*ladder, *([a_test(0.001, bound=True, tests="token-matched")] + 13 * [a_test(0.9, tests="token-matched")])]
    )
    assert len(ladder) == 28
    shown = [p_text(test.holm_item, bound=test.holm_bound_item) for test in fixed]
    assert shown[:5] == ["< .028", "< .028", "< .028", ".050", ".288"]
    assert fixed[3].holm_item == pytest.approx(0.002 * 25) and fixed[4].holm_item == pytest.approx(0.012 * 24)
    assert shown[28] == "< .014", "the token-matched tests are a family of their own"
    assert all(math.isnan(test.holm_seed) for test in fixed)


PUBLISHED = {
    "llama": {"uniform": (0.82, 0.38), "damage": (0.83, 0.43), "rah": (0.84, 0.54), "capped": (0.83, 0.55)},
    "qwen": {"uniform": (0.62, 0.21), "damage": (0.61, 0.19), "rah": (0.64, 0.19)},
    "smollm2": {"uniform": (0.77, 0.15), "damage": (0.76, 0.14), "rah": (0.77, 0.10), "capped": (0.78, 0.10)},
    "olmo": {"uniform": (0.74, 0.21), "damage": (0.77, 0.32), "rah": (0.75, 0.29), "capped": (0.76, 0.36)},
}
MATCHED = {"llama": (0.86, 0.58), "qwen": (0.65, 0.29), "smollm2": (0.79, 0.34), "olmo": (0.78, 0.37)}
BOLD = {
    "llama": ({"rah"}, {"capped"}),
    "qwen": ({"rah"}, {"uniform"}),
    "smollm2": ({"capped"}, {"uniform"}),
    "olmo": ({"damage"}, {"capped"}),
}


def a_result(rule, capped, worst, *, fixed=True):
    blank = dict.fromkeys(Result._fields, 0)
    return Result(**{**blank, "rule": rule, "fixed": fixed, "capped_mean": capped, "worst_case": worst})


@pytest.mark.parametrize("family", PUBLISHED)
def test_bold_goes_to_the_best_rule_at_the_fixed_budget(family):
    rows = [a_result(rule, *values) for rule, values in PUBLISHED[family].items()]
    rows.append(a_result("token-matched", *MATCHED[family], fixed=False))
    found = with_best(rows)
    assert {row.rule for row in found if row.best_capped_mean} == BOLD[family][0]
    assert {row.rule for row in found if row.best_worst_case} == BOLD[family][1]


def test_ties_as_printed_share_the_bold():
    found = with_best([a_result("a", 0.8349, 0.1), a_result("b", 0.8251, math.nan), a_result("c", 0.8, 0.1)])
    assert [row.best_capped_mean for row in found] == [True, True, False]
    assert [row.best_worst_case for row in found] == [True, False, True]
    assert not with_best([a_result("alone", 0.9, 0.9)])[0].best_capped_mean


@pytest.mark.parametrize("family", ["llama", "qwen"])
def test_curves_are_the_published_fits(paper, published_pilots_file, family):
    known = published_pilots_file["families"][family]["fit"]
    rows = [row for row in paper.recovery.fits.iter_rows(named=True) if row["family"] == family]
    assert [row["capability"] for row in rows] == published_pilots_file["capabilities"]
    np.testing.assert_allclose([row["a"] for row in rows], known["a"], rtol=1e-5, atol=1e-12)
    np.testing.assert_allclose([row["tau"] for row in rows], known["tau"], rtol=1e-5)
    np.testing.assert_allclose([row["rmse"] for row in rows], known["rmse"], rtol=1e-5)


def test_numbers_are_printed_as_in_the_paper():
    assert [two(value) for value in (0.824, -0.0452, 1.02, 0.0, -0.001, math.nan)] == [
        ".82",
        "\N{MINUS SIGN}.05",
        "1.02",
        ".00",
        ".00",
        "\N{EN DASH}",
    ]
    assert [p_text(value) for value in (0.0004, 0.0123, 0.288, 0.9999, math.nan)] == [
        "< .001",
        ".012",
        ".288",
        "1",
        "\N{EN DASH}",
    ]
