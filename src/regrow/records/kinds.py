"""The three kinds of study file, told apart: each has a command of its own, and a file given to another one says which.

Told by its keys, so that nothing that computes is imported for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from regrow.errors import ConfigError, did_you_mean
from regrow.studies import REPAIR, SEARCH, find_study, shipped

Kind = Literal["study", "repair-study", "search-study"]


class _About(NamedTuple):
    folder: str
    keys: frozenset[str]
    words: str
    command: str


_KINDS: dict[Kind, _About] = {
    "study": _About("", frozenset({"families", "pilots", "rules"}), "a study", "regrow study run {} -o DIR"),
    "repair-study": _About(
        REPAIR, frozenset({"cuts", "repairs", "calibrations"}), "a repair study", "regrow repair-study {} -o DIR"
    ),
    "search-study": _About(
        SEARCH,
        frozenset({"texts", "searches", "common", "samples"}),
        "a search study",
        "regrow search-study MODEL --spec {} -o DIR",
    ),
}


def refuse_other_kind(values: Mapping[str, Any], kind: Kind, file: Path) -> None:
    """Raise ConfigError, with the command that it is for, where a file's keys are those of another kind of study."""
    if values.keys() & _KINDS[kind].keys:
        return
    for about in _KINDS.values():
        if values.keys() & about.keys:
            raise _other(str(file), kind, about)


def find_file(name: str, kind: Kind) -> Path:
    """Return the file of a study: a path, or the name of one of this kind that comes with regrow. Raises ConfigError,
    which knows folders and the studies of the other kinds."""
    try:
        return find_study(name, _KINDS[kind].folder)
    except ConfigError:
        path = Path(name)
        plain = path.stem if path.suffix in (".yaml", ".yml") else name
        for about in _KINDS.values():
            if plain in shipped(about.folder) and path.parent.name in ("", about.folder or "studies"):
                raise _other(name, kind, about) from None
        if path.is_dir():
            looked = f"; what it did: regrow study status {name}" if (path / "study.json").exists() else ""
            raise ConfigError(
                f"'{name}' is a folder, the file of {_KINDS[kind].words} is wanted",
                hint=f"{did_you_mean('', shipped(_KINDS[kind].folder))}, or a YAML file{looked}",
            ) from None
        raise


def _other(name: str, kind: Kind, about: _About) -> ConfigError:
    return ConfigError(f"'{name}' is {about.words}, not {_KINDS[kind].words}", hint=about.command.format(name))
