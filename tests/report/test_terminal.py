import io

import pytest
from rich.console import Console

from regrow.report.findings import findings
from regrow.report.tables import main_table
from regrow.report.terminal import print_report
from tests.report.sample_runs import all_stages, evaluation


def printed(table, width, found=None):
    console = Console(width=width, file=io.StringIO())
    print_report(console, table, found)
    return console.file.getvalue()


@pytest.fixture(scope="module")
def table():
    return main_table(all_stages())


@pytest.mark.parametrize("width", [200, 120, 80, 60, 40])
def test_no_width_loses_a_row_or_wraps(table, width):
    text = printed(table, width)
    for row in table.rows:
        assert row.name in text
    assert all(len(line) <= width for line in text.splitlines())
    assert "11%" in text and "90%" in text


def test_limits_stand_beside_the_values_or_below_them(table):
    wide = next(line for line in printed(table, 130).splitlines() if "Math" in line)
    assert wide.split()[:6] == ["Math", "30%", "20–43", "3%", "1–11", "11%"]
    lines = printed(table, 80).splitlines()
    at = next(index for index, line in enumerate(lines) if "Math" in line)
    assert lines[at + 1].split() == ["20–43", "1–11", "3–16", "11–30"]
    # Each ends where its value ends, not where the kept share does.
    assert lines[at + 1].index("1–11") + 4 == lines[at].index(" 3%") + 3


def test_labels_are_not_read_as_markup():
    text = printed(main_table([evaluation("unpruned", label="[red]x[/red]")]), 100)
    assert "[red]x[/red]" in text


def test_the_findings_follow_the_table(table):
    text = printed(table, 100, findings(table))
    assert "Removing blocks 13 and 14 of 30 broke" in text
    assert text.index("Parameters") < text.index("Healing on 61k tokens brought back")
