"""Which records of a benchmark are dev and which are test: fixed, disjoint, the same on every machine."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from regrow.data.rows import sound
from regrow.errors import DataError
from regrow.protocols import Item
from regrow.records.fingerprint import fingerprint
from regrow.records.results import Split
from regrow.seeding import derive_seed

SEED = 0
"""Root of the draw. Another value is another suite."""

Balance = Literal["proportional", "equal"]


@dataclass(frozen=True)
class Sizes:
    """Items of each split."""

    dev: int
    test: int


def draw(
    ids: Sequence[str],
    sizes: Sizes,
    *,
    name: str,
    strata: Sequence[Hashable] | None = None,
    balance: Balance = "proportional",
) -> dict[str, list[int]]:
    """Return the indices of the dev and the test items, each in file order.

    The order of the draw is a hash of the record's id, so it does not depend on its place in the file. With ``strata``
    (one an id) each split holds them in proportion to their size, or equally often; a stratum that runs out is made up
    for by the others. Raises DataError when there are fewer records than the two splits need, or an id twice.
    """
    refuse_twice(ids, name)
    if len(ids) < sizes.dev + sizes.test:
        raise DataError(
            f"{name} holds {len(ids)} usable records, {sizes.dev} dev and {sizes.test} test items are wanted",
            hint="the file may have been cut: fetch the data set again",
        )
    labels = list(strata) if strata is not None else [None] * len(ids)
    members: dict[Hashable, list[int]] = {}
    for index, label in enumerate(labels):
        members.setdefault(label, []).append(index)
    place: dict[int, tuple[float, int]] = {}
    for listed in members.values():
        for rank, index in enumerate(sorted(listed, key=lambda index: _key(name, ids[index]))):
            share = (rank + 0.5) / len(listed) if balance == "proportional" else float(rank)
            place[index] = (share, _key(name, ids[index]))
    order = sorted(place, key=place.__getitem__)
    return {"dev": sorted(order[: sizes.dev]), "test": sorted(order[sizes.dev : sizes.dev + sizes.test])}


def items_of(
    chosen: Mapping[str, Sequence[int]], item: Callable[[Split, int], Item], where: Callable[[int], str]
) -> dict[Split, list[Item]]:
    """Return the dev and test items of a draw. ``item`` makes the item of a record; what it raises on a record of
    another form becomes a DataError with the record's place, ``where``."""
    splits: tuple[Split, ...] = ("dev", "test")
    found: dict[Split, list[Item]] = {split: [] for split in splits}
    for split in splits:
        for at in chosen[split]:
            with sound(where(at)):
                found[split].append(item(split, at))
    return found


def refuse_twice(ids: Sequence[str], name: str) -> None:
    """Raise DataError when an id stands in ``ids`` twice, saying where."""
    first: dict[str, int] = {}
    for number, each in enumerate(ids, start=1):
        if each in first:
            raise DataError(
                f"{name} holds the id '{each}' twice (records {first[each]} and {number})",
                hint="delete one of the two records, or fetch the data set again",
            )
        first[each] = number


def content_id(prefix: str, *parts: object) -> str:
    """Return an id for a record that has none: the prefix and a hash of its content."""
    return f"{prefix}-{fingerprint(list(parts))[:12]}"


def _key(name: str, identity: str) -> int:
    return derive_seed(SEED, "benchmark", name, identity)
