"""A chart as a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from regrow.errors import ConfigError
from regrow.records.atomic import write_bytes


def write_chart(spec: Any, path: Path) -> None:
    """Write a Vega-Lite chart as .png (two pixels a point), .svg or .pdf, by the file's ending."""
    import vl_convert

    text = json.dumps(spec)
    match path.suffix:
        case ".png":
            write_bytes(path, vl_convert.vegalite_to_png(text, scale=2))
        case ".svg":
            write_bytes(path, vl_convert.vegalite_to_svg(text).encode("utf-8"))
        case ".pdf":
            write_bytes(path, vl_convert.vegalite_to_pdf(text))
        case other:
            raise ConfigError(f"charts cannot be written as '{other}'", hint="name a .png, .svg or .pdf file")
