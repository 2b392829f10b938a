"""Families planned in forked processes are planned as in one."""

from __future__ import annotations

import os

import pytest

from regrow.errors import ConfigError
from regrow.planning.overview import plan_families
from regrow.planning.parallel import in_processes
from regrow.planning.pilots import Pilots


@pytest.mark.parametrize("processes", [1, 2, 3, 9])
def test_results_come_in_order_and_some_from_other_processes(processes: int) -> None:
    found = in_processes(lambda thing: (thing * thing, os.getpid()), range(5), processes)
    assert [square for square, _ in found] == [0, 1, 4, 9, 16]
    assert len({process for _, process in found}) == min(processes, 5)


@pytest.mark.parametrize("bad", [0, 3])
def test_an_error_is_raised_with_its_hint(bad: int) -> None:
    def work(thing: int) -> int:
        if thing == bad:
            raise ConfigError(f"{thing} is bad", hint="leave it out")
        return thing

    with pytest.raises(ConfigError, match=f"{bad} is bad") as caught:
        in_processes(work, range(4), 2)
    assert caught.value.hint == "leave it out"


def test_a_child_that_dies_is_an_error() -> None:
    def work(thing: int) -> int:
        if thing == 1:
            os._exit(3)
        return thing

    with pytest.raises(RuntimeError, match="ended early"):
        in_processes(work, range(2), 2)


def test_plans_are_the_same(published_pilots: dict[str, Pilots]) -> None:
    families = list(published_pilots.values())
    one, two = (plan_families(families, [1e6], ["rah", "uniform"], uncertain=True, processes=n) for n in (1, 2))
    for first, second in zip(one, two, strict=True):
        assert first.pilots.family == second.pilots.family and first.notes == second.notes
        assert [plan.allocation.tokens for plan in first.plans] == [plan.allocation.tokens for plan in second.plans]
        assert first.uncertainty is not None and second.uncertainty is not None
        assert first.uncertainty.worth == second.uncertainty.worth
