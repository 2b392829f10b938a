"""Who owns what: every word and every question belongs to one split for ever, by rule and not by chance.

Nothing here keeps the state of a random generator. Each choice is a hash of what it is for, so the items are the same
on every machine, Python version and library version, and adding one template never shifts the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from regrow.records.results import Split
from regrow.seeding import derive_seed

T = TypeVar("T")

SEED = 20
"""Root of all draws of the mini suite. Another value is another suite: the golden fingerprint in the tests changes."""

_SHARES: tuple[Split, ...] = ("heal", "dev", "test", "heal", "test", "heal")


def words_of(words: Sequence[T], split: Split) -> list[T]:
    """Return the members of ``words`` that belong to ``split``: one sixth is dev, two sixths test, half heal.

    Ownership goes by position, so a list may grow at its end without moving a word from one split to another.
    """
    return [word for place, word in enumerate(words) if _SHARES[place % len(_SHARES)] == split]


def owner_of(*content: str | int) -> Split:
    """Return the split that owns a tuple of values (the same shares as :func:`words_of`, decided by a hash)."""
    return _SHARES[derive_seed(SEED, "owner", *content) % len(_SHARES)]


class Draw:
    """Choices for one item, each a hash of the item's key and of how many choices came before it. ``owned`` tells
    whether any of them was a word that belongs to the split alone."""

    def __init__(self, split: Split, *key: str | int) -> None:
        self.split = split
        self.owned = False
        self._key = (split, *key)
        self._count = 0

    def between(self, low: int, high: int) -> int:
        """Return a whole number from ``low`` to ``high``, both included."""
        self._count += 1
        return low + derive_seed(SEED, *self._key, self._count) % (high - low + 1)

    def any_of(self, options: Sequence[T]) -> T:
        """Return one of ``options``, whoever owns them."""
        return options[self.between(0, len(options) - 1)]

    def own(self, words: Sequence[T]) -> T:
        """Return one of the words that the split owns."""
        self.owned = True
        return self.any_of(words_of(words, self.split))

    def several(self, options: Sequence[T], count: int) -> list[T]:
        """Return ``count`` different members of ``options`` in drawn order."""
        left = list(options)
        return [left.pop(self.between(0, len(left) - 1)) for _ in range(count)]

    def own_several(self, words: Sequence[T], count: int) -> list[T]:
        """Return ``count`` different words that the split owns."""
        self.owned = True
        return self.several(words_of(words, self.split), count)
