"""How many parameters a model has, for a forecast: counted from the headers of its files, else read from its name."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import NamedTuple

from regrow.models.load import weight_files

_NAMED = re.compile(r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)\s*([bm])(?![A-Za-z0-9])", re.IGNORECASE)
_SCALE = {"b": 1e9, "m": 1e6}
_PUBLISHED = {
    "llama-3.2-1b-instruct": 1.2358e9,
    "qwen2.5-1.5b-instruct": 1.5437e9,
    "smollm2-1.7b-instruct": 1.7114e9,
    "olmo-2-0425-1b-instruct": 1.4849e9,
}
"""Parameters of the study's models, input embeddings that are also the output's counted once."""
_LONGEST_HEADER = 100_000_000


class ModelSize(NamedTuple):
    """``parameters``, NaN where nothing tells; ``exact`` when they were counted, else what the name says, rounded as
    names are ("1B" of a model of 1.24e9)."""

    parameters: float
    exact: bool


def model_size(model: str) -> ModelSize:
    """Return the size of the model called ``model`` (a folder, a hub id, ...). Weights are not read, nothing is
    fetched."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        return ModelSize(float(sum(_in_header(file) for file in weight_files(folder))), True)
    called = model.rpartition("/")[2].lower()
    if called in _PUBLISHED:
        return ModelSize(_PUBLISHED[called], True)
    found = _NAMED.findall(model.rpartition("/")[2].replace("_", "-"))
    if not found:
        return ModelSize(math.nan, False)
    number, unit = found[-1]
    return ModelSize(float(number) * _SCALE[unit.lower()], False)


def _in_header(file: Path) -> int:
    """Return the parameters in a safetensors file; 0 where its header cannot be read: loading it says what is wrong."""
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(length)) if length < _LONGEST_HEADER else {}
        return sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return 0
