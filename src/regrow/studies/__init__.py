"""The studies that come with regrow, as YAML files: the published protocol and small ones for two cores."""

from __future__ import annotations

from pathlib import Path

from regrow.errors import ConfigError, did_you_mean

HERE = Path(__file__).parent


REPAIR = "repair"
"""Folder of the studies for ``regrow repair-study``."""
SEARCH = "search"
"""Folder of the studies for ``regrow search-study``."""


def shipped(folder: str = "") -> dict[str, Path]:
    """Return the studies that come with regrow, by name: those of ``regrow study``, or of a folder of others."""
    return {file.stem: file for file in sorted((HERE / folder).glob("*.yaml"))}


def find_study(name: str, folder: str = "") -> Path:
    """Return the file called ``name``: a path, or the name of a study that comes with regrow. Raises ConfigError."""
    path = Path(name)
    if path.is_file():
        return path
    known = shipped(folder)
    plain = path.stem if path.suffix in (".yaml", ".yml") else name
    if plain in known and path.parent.name in ("", folder or "studies"):
        return known[plain]
    raise ConfigError(f"there is no study '{name}'", hint=did_you_mean(plain, known))
