"""The exception family of regrow: one base, four causes, each with the next command to type.

Anything raised from this family is a user's mistake or a fact of the user's machine; the command line prints it as a
sentence and exits with code 2. Any other exception is a bug of regrow and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class RegrowError(Exception):
    """A problem the user can mend. ``hint`` holds the remedy, usually the next command."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class ConfigError(RegrowError):
    """An option, a spec file or a name is not valid."""


class DataError(RegrowError):
    """A text, data set or record file cannot be used."""


class ModelError(RegrowError):
    """A model cannot be loaded, cut, repaired or saved as asked."""


class StudyError(RegrowError):
    """A run folder or a study is in a state that forbids what was asked."""


def did_you_mean(value: str, allowed: Iterable[str]) -> str:
    """Return a phrase naming the allowed values, led by the nearest one to ``value`` when one is near."""
    names = sorted(allowed)
    near = difflib.get_close_matches(value, names, n=1, cutoff=0.5)
    lead = f"did you mean '{near[0]}'? " if near else ""
    return f"{lead}Allowed: {', '.join(names)}"
