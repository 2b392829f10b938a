"""The folder where regrow keeps what it fetched or converted: REGROW_CACHE, else the user's cache folder."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(*parts: str) -> Path:
    """Return the cache folder, or the one called ``parts`` below it (not created)."""
    root = os.environ.get("REGROW_CACHE")
    if root:
        base = Path(root).expanduser()
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "regrow"
    return base.joinpath(*parts)
