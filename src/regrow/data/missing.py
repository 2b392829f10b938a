"""Data sets that are nowhere to be had: all of them in one refusal, with the commands that fetch them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from regrow.errors import DataError

T = TypeVar("T")


class MissingDataSet(DataError):
    """A part of a data set is neither in the data folder nor to be fetched from the hub."""

    def __init__(self, name: str, why: str, command: str) -> None:
        super().__init__(
            f"the data set '{name}' {why}", hint=f"where there is a network: {command}; then pass --data DIR"
        )
        self.name, self.why, self.command = name, why, command


class MissingDataSets(DataError):
    """Several are missing."""

    def __init__(self, missing: Sequence[MissingDataSet]) -> None:
        by_reason: dict[str, list[str]] = {}
        for each in missing:
            by_reason.setdefault(each.why, []).append(each.name)
        super().__init__(
            f"{len(missing)} data sets are missing: "
            + "; ".join(f"{', '.join(names)} {'each ' if names[1:] else ''}{why}" for why, names in by_reason.items()),
            hint="where there is a network:\n  "
            + "\n  ".join(each.command for each in missing)
            + "\nthen pass --data DIR; or name what is there with --capabilities, or --suite mini, which needs no data",
        )
        self.missing = tuple(missing)


def read_all(readers: Iterable[tuple[str, Callable[[], T]]]) -> dict[str, T]:
    """Return what each reader returns, by its name. Raises MissingDataSets that names every one, not only the first
    (MissingDataSet for a single one); any other fault is raised as it comes."""
    found: dict[str, T] = {}
    missing: dict[str, MissingDataSet] = {}
    for name, read in readers:
        try:
            found[name] = read()
        except MissingDataSet as error:
            missing.setdefault(error.name, error)
        except MissingDataSets as error:
            for each in error.missing:
                missing.setdefault(each.name, each)
    if len(missing) == 1:
        raise next(iter(missing.values()))
    if missing:
        raise MissingDataSets(list(missing.values()))
    return found
