import pytest

from regrow.cli.output import PlainWatcher


def test_work_that_runs_over_its_estimate_has_no_time_left(capfd: pytest.CaptureFixture[str]) -> None:
    watch = PlainWatcher(every=0.0)
    watch.begin("searching", 10, "passes")
    watch.advance(5)
    watch.advance(12)
    lines = capfd.readouterr().err.splitlines()
    assert lines[1].startswith("searching: 5 of 10 passes, about ") and lines[1].endswith(" left")
    assert lines[2] == "searching: 12 of 10 passes"
