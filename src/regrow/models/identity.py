"""What a model is, by content: a hash of the files that shape its answers, whatever the folder is called."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from regrow.models.load import SHAPING_FILES, hash_weights, locate_file, read_config, weight_files
from regrow.records.fingerprint import file_sha256, fingerprint


@dataclass(frozen=True)
class ModelIdentity:
    """``weights_sha256`` as :class:`regrow.models.load.LoadedModel` has it; ``sha256`` over weights, configuration,
    tokenizer and chat template: two models with the same one give the same answers."""

    weights_sha256: str
    sha256: str


def model_identity(source: str | Path, *, revision: str | None = None) -> ModelIdentity:
    """Return the identity of the model called ``source`` (see :func:`regrow.models.load.load_model`) without loading
    it; reads its files once. Raises ModelError when there is no such model."""
    place = locate_file(str(source), revision)
    if place.is_file():
        weights = file_sha256(place)
        return ModelIdentity(weights, weights)
    read_config(place)
    weights = hash_weights(weight_files(place))
    beside = {name: file_sha256(place / name) for name in SHAPING_FILES if (place / name).is_file()}
    return ModelIdentity(weights, fingerprint({"weights": weights, "beside": beside}))
