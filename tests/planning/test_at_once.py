import os

import pytest

from regrow.errors import DataError
from regrow.planning.at_once import at_once
from regrow.planning.overview import as_json, plan_families
from regrow.planning.pilot_files import read_pilots
from tests.planning.conftest import PUBLISHED


def test_jobs_are_shared_out_and_answers_keep_their_order():
    jobs = [lambda at=at: (at, os.getpid()) for at in range(5)]
    alone = at_once(jobs, processes=1)
    assert [at for at, _ in alone] == list(range(5)) and {pid for _, pid in alone} == {os.getpid()}
    shared = at_once(jobs, processes=2)
    assert [at for at, _ in shared] == list(range(5)) and len({pid for _, pid in shared}) == 2
    assert len({pid for _, pid in at_once(jobs, processes=9)}) == 5
    assert at_once([], processes=2) == []


@pytest.mark.parametrize("at", [0, 1])
def test_an_error_is_raised_wherever_it_happened(at):
    def fails():
        raise DataError("no pilots", hint="run them")

    jobs = [lambda: 1, lambda: 2]
    jobs[at] = fails
    with pytest.raises(DataError, match="no pilots") as caught:
        at_once(jobs, processes=2)
    assert caught.value.hint == "run them"


def test_a_process_that_dies_is_said():
    with pytest.raises(RuntimeError, match="ended early"):
        at_once([lambda: 1, lambda: os._exit(1)], processes=2)


def test_the_plans_do_not_depend_on_how_many_processes_made_them():
    families = read_pilots(PUBLISHED)
    one, two = (plan_families(families, [1e6], ["rah"], uncertain=True, processes=count) for count in (1, 2))
    assert as_json(one, [1e6]) == as_json(two, [1e6])
    for a, b in zip(one, two, strict=True):
        assert a.notes == b.notes and a.uncertainty.worth == b.uncertainty.worth
        assert (a.uncertainty.drawn.curves.tau == b.uncertainty.drawn.curves.tau).all()
