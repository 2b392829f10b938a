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


def test_limits_where_there_is_room(table):
    assert "20–43" in printed(table, 120)
    assert "20–43" not in printed(table, 80)


def test_labels_are_not_read_as_markup():
    text = printed(main_table([evaluation("unpruned", label="[red]x[/red]")]), 100)
    assert "[red]x[/red]" in text


def test_the_findings_follow_the_table(table):
    text = printed(table, 100, findings(table))
    assert "Removing blocks 13 and 14 of 30 broke" in text
    assert text.index("Parameters") < text.index("Healing on 61k tokens brought back")
