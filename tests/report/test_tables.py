import csv
import io
import json
import math

import numpy as np
import pytest
from scipy.stats import binomtest

from regrow.records.results import Measurement
from regrow.report.also import also_views
from regrow.report.inputs import pair
from regrow.report.page import render_page
from regrow.report.results import MainTable
from regrow.report.tables import main_table, to_csv, to_json, to_markdown
from tests.report.sample_runs import RATES, all_stages, evaluation, with_changed


@pytest.fixture(scope="module")
def table() -> MainTable:
    return main_table(all_stages())


def test_rows_and_columns(table):
    assert [column.label for column in table.columns] == ["unpruned", "pruned", "repaired", "healed"]
    assert [row.key for row in table.rows] == [
        "structured_output",
        "function_calling",
        "instruction_following",
        "math",
        "safety",
        "safety.unsafe",
        "safety.benign",
        "knowledge",
        "perplexity",
        "parameters",
    ]
    assert [row.name for row in table.rows if row.part_of] == ["Unsafe refused", "Benign answered"]
    assert table.columns[1].removed_blocks == (13, 14) and table.columns[3].healing_tokens == 61_000


def test_values_are_shares_of_items_right_with_wilson_limits(table):
    row = table.row("math")
    assert [cell.value for cell in row.cells] == pytest.approx([round(rate * 60) / 60 for rate in RATES["math"]])
    limits = binomtest(18, 60).proportion_ci(method="wilson")
    assert (row.cells[0].low, row.cells[0].high) == pytest.approx((limits.low, limits.high))


def test_safety_is_the_mean_of_its_two_rates(table):
    whole, unsafe, benign = table.row("safety"), table.row("safety.unsafe"), table.row("safety.benign")
    for index in range(4):
        assert whole.cells[index].value == pytest.approx((unsafe.cells[index].value + benign.cells[index].value) / 2)
    assert whole.items == 60 and unsafe.items == benign.items == 30


def test_unequal_numbers_of_kinds_still_balance():
    record, items = evaluation("unpruned")
    few = [i for i in items if not (i.details.get("kind") == "benign" and i.item_id > "safety-benign-009")]
    row = main_table([(record, few)]).row("safety")
    unsafe = np.mean([i.score for i in few if i.details.get("kind") == "unsafe"])
    benign = np.mean([i.score for i in few if i.details.get("kind") == "benign"])
    assert row.cells[0].value == pytest.approx((unsafe + benign) / 2)


def test_retention_and_its_paired_interval(table):
    row = table.row("structured_output")
    assert row.kept[1].value == pytest.approx(row.cells[1].value / row.cells[0].value)
    assert row.kept[1].low < row.kept[1].value < row.kept[1].high
    assert row.kept[0].value == 1 and not row.kept[0].estimated


def test_pairing_makes_the_retention_interval_narrower_than_independence_would():
    paired = pair(all_stages())
    table = main_table(paired)
    row, scores = table.row("knowledge"), paired.scores["knowledge"]
    rng = np.random.default_rng(0)
    apart = [rng.choice(scores[1], 60).mean() / rng.choice(scores[0], 60).mean() for _ in range(2000)]
    low, high = np.quantile(apart, [0.025, 0.975])
    assert row.kept[1].high - row.kept[1].low < 0.7 * (high - low)


def test_chance_corrected_where_chance_is_not_nothing(table):
    row = table.row("knowledge")
    values = [cell.value for cell in row.cells]
    assert row.corrected[3].value == pytest.approx((values[3] - 0.25) / (values[0] - 0.25))
    assert table.row("math").corrected == ()
    own = main_table(all_stages(), chance={"math": 0.1})
    assert own.row("knowledge").corrected == ()
    math_row = own.row("math")
    assert math_row.corrected[3].value == pytest.approx(
        (math_row.cells[3].value - 0.1) / (math_row.cells[0].value - 0.1)
    )


def test_summaries(table):
    kept = [table.row(key).kept[3].value for key in table.summaries[0].over]
    assert len(kept) == 6
    assert table.summaries[0].cells[3].value == pytest.approx(np.mean(np.minimum(kept, 1)))
    assert table.summaries[1].cells[3].value == pytest.approx(min(kept))
    assert table.summaries[0].cells[0].value == 1


def test_a_score_of_nothing_keeps_an_honest_upper_limit():
    record, items = evaluation("pruned")
    none_right = [i.model_copy(update={"score": 0.0}) if i.capability == "math" else i for i in items]
    row = main_table([evaluation("unpruned"), (record, none_right)]).row("math")
    assert row.kept[1].value == 0 and row.kept[1].low == 0
    assert row.kept[1].high == pytest.approx(row.cells[1].high / row.cells[0].value)
    assert row.kept[1].high > 0.1


def test_an_unpruned_score_of_nothing_is_undefined_and_in_no_summary():
    record, items = evaluation("unpruned")
    none_right = [i.model_copy(update={"score": 0.0}) if i.capability == "math" else i for i in items]
    table = main_table([(record, none_right), evaluation("pruned")])
    row = table.row("math")
    assert math.isnan(row.kept[1].value) and row.kept[1].reason == "the unpruned score is 0"
    assert "math" not in table.summaries[0].over and math.isfinite(table.summaries[0].cells[1].value)
    assert table.notes == ("Math has no retention (the unpruned score is 0) and is in no summary.",)


def test_one_model_alone_has_no_summary():
    assert main_table([evaluation("unpruned")]).summaries == ()


def test_without_an_unpruned_model_nothing_is_retained():
    table = main_table([evaluation("pruned"), evaluation("healed")])
    assert table.base is None and table.summaries == () and table.fates == ()
    assert math.isnan(table.row("math").kept[1].value) and table.row("math").kept[1].reason
    assert {change.against for change in table.changes} == {"pruned"}


def test_changes_are_mcnemar_and_corrected_over_the_rows(table):
    change = table.change("function_calling", "unpruned", 1)
    paired = pair(all_stages())
    before, after = paired.scores["function_calling"][[0, 1]]
    lost, gained = int((before > after).sum()), int((before < after).sum())
    assert (change.lost, change.gained) == (lost, gained)
    assert change.p_value == pytest.approx(binomtest(min(lost, gained), lost + gained).pvalue)
    family = sorted(c.p_value for c in table.changes if c.against == "unpruned" and c.later == 1)
    assert len(family) == 8
    place = family.index(change.p_value)
    assert change.adjusted == pytest.approx(max(min(1, p * (8 - i)) for i, p in enumerate(family[: place + 1])))
    assert change.significant and change.difference < 0


def test_graded_scores_are_tested_by_sign_flips():
    runs = [evaluation("unpruned"), evaluation("pruned")]
    graded = [(r, [i.model_copy(update={"score": 0.2 + 0.7 * i.score}) for i in items]) for r, items in runs]
    table = main_table(graded)
    change = table.change("structured_output", "unpruned", 1)
    assert change.p_value == pytest.approx(1 / 10_001) and change.significant
    assert change.difference == pytest.approx(
        0.7 * main_table(runs).change("structured_output", "unpruned", 1).difference
    )
    assert 0.2 < table.row("math").cells[0].low < table.row("math").cells[0].value


def test_no_change_at_all_still_has_limits():
    record, items = evaluation("unpruned")
    twin = (record.model_copy(update={"stage": "pruned", "label": "twin"}), items)
    change = main_table([(record, items), twin]).change("math", "unpruned", 1)
    assert change.difference == 0 and change.p_value == 1 and not change.significant
    assert change.low < 0 < change.high and change.detectable > 0.05


def test_fates_sum_to_the_items_and_agree_with_the_scores(table):
    for counts in table.fates:
        row = table.row(counts.capability)
        assert counts.kept + counts.came_back + counts.new + counts.broke + counts.never == 60
        if counts.capability != "safety":
            right = counts.kept + counts.came_back + counts.new
            assert right / 60 == pytest.approx(row.cells[counts.later].value)
    assert all(counts.came_back == 0 for counts in table.fates if counts.later == 1)
    assert any(counts.came_back for counts in table.fates if counts.later == 3)


def test_two_healed_models_are_not_each_others_past():
    runs = [evaluation("unpruned"), evaluation("pruned"), evaluation("healed"), evaluation("healed")]
    table = main_table(runs)
    counts = {c.later: c for c in table.fates if c.capability == "math"}
    assert counts[2] == counts[3].model_copy(update={"later": 2})


def test_perplexity_and_parameters(table):
    assert [cell.value for cell in table.row("perplexity").cells] == [37.1, 49.1, 43.8, 41.2]
    assert table.row("perplexity").kept[1].value == pytest.approx(49.1 / 37.1)
    assert table.row("parameters").kept[1].value == pytest.approx(127_434_240 / 134_515_008)
    without = [(record.model_copy(update={"measurements": ()}), items) for record, items in all_stages(6)]
    assert "perplexity" not in [row.key for row in main_table(without).rows]


def test_perplexity_limits_come_from_windows_and_its_ratio_keeps_the_pairing(table):
    row = table.row("perplexity")
    assert row.cells[1].low < 49.1 < row.cells[1].high
    assert row.kept[1].low < row.kept[1].value < row.kept[1].high
    relative = np.log(row.cells[1].high / row.cells[1].low)
    assert np.log(row.kept[1].high / row.kept[1].low) < 0.5 * relative


def test_perplexity_without_windows_keeps_the_measured_limits():
    bare = [(record, [i for i in items if i.capability != "perplexity"]) for record, items in all_stages(6)]
    row = main_table(bare).row("perplexity")
    assert row.cells[0].low == pytest.approx(37.1 * 0.95) and math.isnan(row.kept[1].low)


def test_one_model_without_perplexity_leaves_the_others_theirs():
    (record, items), other = evaluation("unpruned"), evaluation("pruned")
    without = record.model_copy(update={"measurements": ()}), [i for i in items if i.capability != "perplexity"]
    row = main_table([without, other]).row("perplexity")
    assert row.cells[0].reason == "not measured" and row.cells[1].low < 49.1 < row.cells[1].high
    assert math.isnan(row.kept[1].value) and row.kept[1].reason == "the unpruned model has no score"


def test_same_seed_same_table(table):
    assert main_table(all_stages()) == table
    assert main_table(all_stages(), seed=1) != table


def test_json_has_nulls_for_what_is_undefined(table):
    text = json.dumps(to_json(table), allow_nan=False)
    assert MainTable.model_validate_json(text).columns == table.columns
    assert json.loads(text)["rows"][0]["kept"][0]["low"] is None


def test_csv_can_be_read_back(table):
    lines = list(csv.DictReader(io.StringIO(to_csv(table))))
    assert len(lines) == 4 * (len(table.rows) + 2)
    line = next(line for line in lines if line["row"] == "math" and line["column"] == "healed")
    assert float(line["value"]) == pytest.approx(table.row("math").cells[3].value, rel=1e-5)
    assert line["kept_low"] and not line["corrected"]


def test_markdown_has_one_line_a_row(table):
    lines = to_markdown(table).splitlines()
    assert len(lines) == 2 + len(table.rows) + 2
    assert all(line.count("|") == 6 for line in lines)
    assert "| Math | 30% (20–43) | 3% (1–11), 11% kept |" in lines[5]
    odd = main_table([evaluation("unpruned", label="a|b\nc")])
    assert "a\\|b c" in to_markdown(odd).splitlines()[0]


def test_an_item_without_score_is_said(table):
    found = main_table([evaluation("unpruned"), with_changed(evaluation("pruned"), "math-005", score=math.nan)])
    assert found.row("math").items == 59 and "math-005" in found.notes[0]


def test_rates_beside_the_scores_are_listed_by_column_and_not_twice():
    runs = all_stages()
    rates = [("structured_output.parse_rate", 0.9), ("knowledge.ece", math.nan), ("safety.unsafe_refused", 0.5)]
    measured = tuple(Measurement(name=name, value=value, unit="share") for name, value in rates)
    at = next(number for number, (record, _) in enumerate(runs) if record.stage == "unpruned")
    first = runs[at][0].model_copy(update={"measurements": (*runs[at][0].measurements, *measured)})
    rated = [*runs[:at], (first, runs[at][1]), *runs[at + 1 :]]
    table = main_table(rated)
    assert [row.key for row in table.rows] == [row.key for row in main_table(runs).rows]
    assert [(row.key, row.name) for row in table.also] == [
        ("structured_output.parse_rate", "Structured output, answers of the asked form"),
        ("knowledge.ece", "Knowledge, calibration error"),
    ]
    assert [cell.value for cell in table.also[0].cells][:1] == [0.9]
    assert [cell.reason for cell in table.also[0].cells[1:]] == ["not measured"] * 3
    assert also_views(table)[0][1] == ("90%", "–", "–", "–")
    assert "structured_output.parse_rate" in to_csv(table)
    page = render_page(table, pair(rated))
    assert "Rates beside the scores" in page and "answers of the asked form" in page
