"""Data sets that are nowhere to be had: all of them in one refusal, with the commands that fetch them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
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


def read_all(readers: Iterable[tuple[str, Callable[[], T]]]) -> dict[str, T]:
    """Return what each reader returns, by its name. Raises DataError that names every missing data set, not only the
    first; any other fault is raised as it comes."""
    found: dict[str, T] = {}
    missing: dict[str, MissingDataSet] = {}
    for name, read in readers:
        try:
            found[name] = read()
        except MissingDataSet as error:
            missing.setdefault(error.name, error)
    if len(missing) == 1:
        raise next(iter(missing.values()))
    if missing:
        by_reason: dict[str, list[str]] = {}
        for each in missing.values():
            by_reason.setdefault(each.why, []).append(each.name)
        raise DataError(
            f"{len(missing)} data sets are missing: "
            + "; ".join(f"{', '.join(names)} {'each ' if names[1:] else ''}{why}" for why, names in by_reason.items()),
            hint="where there is a network:\n  "
            + "\n  ".join(each.command for each in missing.values())
            + "\nthen pass --data DIR; or name what is there with --capabilities, or --suite mini, which needs no data",
        )
    return found
