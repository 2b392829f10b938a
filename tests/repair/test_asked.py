"""Names, ranks and options turned into one spec per repair."""

from __future__ import annotations

import pytest

from regrow.errors import ConfigError
from regrow.records.specs import RepairSpec
from regrow.repair.asked import asked_repairs
from regrow.repair.registry import REPAIRS


def test_every_rank_is_a_row_of_its_own() -> None:
    asked = asked_repairs(["lra", "fold"], [4, 8], RepairSpec(calibration_tokens=999))
    assert asked.labels == ("lra-rank4", "lra-rank8", "fold")
    assert [(spec.method, spec.rank) for spec in asked.specs] == [("lra", 4), ("lra", 8), ("fold", None)]
    assert {spec.calibration_tokens for spec in asked.specs} == {999}
    assert asked.notes == ("fold has no use for --rank and is fitted without",)


def test_options_go_where_they_mean_something() -> None:
    common = RepairSpec(ridge=0.5, sequential=True)
    asked = asked_repairs(["lra", "replace-me", "linear-patch"], [], common)
    assert [(spec.ridge, spec.sequential) for spec in asked.specs] == [(0.5, True), (0.5, False), (None, False)]
    assert "replace-me has no use for --sequential" in asked.notes[0]
    assert "linear-patch has no use for --ridge, --sequential" in asked.notes[1]


def test_a_single_repair_keeps_every_option_so_that_it_can_refuse_it() -> None:
    asked = asked_repairs(["fold"], [64], RepairSpec())
    assert asked.specs[0].rank == 64 and asked.notes == ()


def test_all_is_every_repair_and_lenient() -> None:
    asked = asked_repairs(["all"], [], RepairSpec())
    assert list(asked.labels) == REPAIRS.names() and asked.lenient
    assert not asked_repairs(["lra", "fold"], [], RepairSpec()).lenient


@pytest.mark.parametrize(
    ("names", "ranks", "common", "said"),
    [
        (["lra", "lar"], [], RepairSpec(), "unknown repair 'lar'"),
        (["lra", "lra"], [], RepairSpec(), "'lra' is named twice"),
        (["lra"], [4, 4], RepairSpec(), "rank '4' is named twice"),
        ([], [], RepairSpec(), "no repair was named"),
        (["fold", "replace-me"], [8], RepairSpec(), "has a use for --rank"),
        (["lra", "fold"], [], RepairSpec(passes=3), "has a use for --passes"),
    ],
)
def test_what_makes_no_sense_is_refused(names: list[str], ranks: list[int], common: RepairSpec, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        asked_repairs(names, ranks, common)
    assert caught.value.hint
