import pytest

from regrow.report.findings import Verdict, findings, verdict_of
from regrow.report.tables import main_table
from tests.report.sample_runs import all_stages, evaluation


@pytest.fixture(scope="module")
def table():
    return main_table(all_stages())


def test_what_broke_what_came_back_what_did_not(table):
    text = " ".join(findings(table).sentences())
    assert text.startswith("Removing blocks 13 and 14 of 30 broke function calling (55% → 2%)")
    assert "Healing on 61k tokens brought back structured output (30% → 95%)" in text
    assert "In part: math (3% → 18%, 61% kept [" in text
    assert "would often go undetected" in text


def test_every_claim_is_a_significant_test(table):
    for column in findings(table).columns:
        for told in column.verdicts:
            gap = table.change(told.row, "unpruned", column.column)
            gain = table.change(told.row, "pruned", column.column)
            if told.verdict is Verdict.BROKE:
                assert gap.significant and gap.difference < 0
            if told.verdict in (Verdict.CAME_BACK, Verdict.PARTLY):
                assert gain.significant and gain.difference > 0
            if told.verdict is Verdict.HELD:
                assert not gap.significant


def test_verdicts_of_the_repair_and_of_the_unbroken(table):
    assert verdict_of(table, "knowledge", 1) is Verdict.HELD
    assert verdict_of(table, "function_calling", 2) is Verdict.PARTLY
    assert verdict_of(table, "math", 2) is Verdict.NOT_BACK
    assert verdict_of(table, "safety.benign", 3) is Verdict.CAME_BACK


def test_nothing_broke():
    record, items = evaluation("unpruned")
    cut = evaluation("pruned")[0]
    text = " ".join(findings(main_table([(record, items), (cut, items)])).sentences())
    assert "Removing blocks 13 and 14 of 30: no loss was detected." in text
    assert "brought back" not in text
    full = findings(main_table([(record, items), (cut, items)]))
    assert "No difference was detected in" in " ".join(full.columns[0].sentences)


def test_a_rise_above_the_unpruned_model_is_said():
    record, items = evaluation("unpruned")
    better = [i.model_copy(update={"score": 1.0}) if i.capability == "math" else i for i in items]
    cut = evaluation("pruned")[0]
    table = main_table([(record, items), (cut, better)])
    assert verdict_of(table, "math", 1) is Verdict.ROSE
    assert "Math (30% → 100%) rose." in " ".join(findings(table).lead)


def test_what_only_breaks_later_is_said():
    (record, items), (cut, _), (healed, _) = evaluation("unpruned"), evaluation("pruned"), evaluation("healed")
    worse = [i.model_copy(update={"score": 0.0}) if i.capability == "knowledge" else i for i in items]
    table = main_table([(record, items), (cut, items), (healed, worse)])
    assert verdict_of(table, "knowledge", 2) is Verdict.BROKE
    assert "Knowledge (43% → 0%) broke only here." in " ".join(findings(table).lead)


def test_without_a_pruned_stage_the_comparison_is_with_the_unpruned():
    text = " ".join(findings(main_table([evaluation("unpruned"), evaluation("healed")])).sentences())
    assert text.startswith("Compared with the unpruned model, no loss of 'healed' was detected.")


def test_without_an_unpruned_model_nothing_is_said_to_be_broken():
    text = " ".join(findings(main_table([evaluation("pruned"), evaluation("healed")])).sentences())
    assert "broke" not in text and "Healing on 61k tokens raised structured output" in text
    assert "No unpruned model was evaluated" in text
    nothing = " ".join(findings(main_table([evaluation("repaired"), evaluation("healed")])).sentences())
    assert nothing.startswith("There is no unpruned and no pruned model among these")


def test_one_model_alone():
    assert "nothing to compare it with" in findings(main_table([evaluation("pruned")])).lead[0]


def test_enough_items_need_no_caveat():
    assert not any(
        "intervals are wide" in line for line in findings(main_table(all_stages(per_capability=600))).caveats
    )
