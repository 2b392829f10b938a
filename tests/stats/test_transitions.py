import pytest

from regrow.errors import DataError
from regrow.stats.transitions import Fate, fates, transitions


def test_every_way_an_item_can_go():
    unpruned = [1, 1, 1, 1, 0, 0, 0]
    pruned__ = [1, 0, 1, 0, 0, 1, 1]
    healed__ = [1, 1, 0, 0, 1, 1, 0]
    assert fates(unpruned, healed__, pruned__) == [
        Fate.KEPT,
        Fate.CAME_BACK,
        Fate.BROKE,
        Fate.BROKE,
        Fate.NEW,
        Fate.NEW,
        Fate.NEVER,
    ]
    assert transitions(unpruned, healed__, [pruned__, unpruned]) == (1, 2, 1, 2, 1)
    assert transitions(unpruned, pruned__) == (2, 2, 0, 2, 1)
    assert sum(transitions(unpruned, healed__)) == 7


def test_graded_scores_are_right_from_the_threshold_on():
    assert fates([0.5, 0.9], [0.4, 0.6]) == [Fate.BROKE, Fate.KEPT]
    assert fates([0.5, 0.9], [0.4, 0.6], right_at=0.7) == [Fate.NEVER, Fate.BROKE]


def test_unequal_items_are_refused():
    with pytest.raises(DataError, match="2 items against 1"):
        fates([1, 1], [1])
