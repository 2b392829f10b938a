"""What one pass over a calibration text says of the residual streams: their similarity, block by block."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from pydantic import Field, ValidationError

from regrow.errors import DataError
from regrow.records.atomic import write_text
from regrow.records.fingerprint import fingerprint
from regrow.records.results import Frozen, Number, Provenance

Square = tuple[tuple[Number, ...], ...]


class SimilarityRecord(Frozen):
    """Means over a calibration text of the similarity of the residual streams h_0..h_N of a model with N blocks.

    ``cosine[i][j]`` is the mean over tokens of cos(h_i, h_j); h_i enters block i, h_N leaves the last block before the
    final norm. ``angle[i][j]`` is the mean over tokens of arccos(cos(h_i, h_j))/pi, ``last_angle`` the same over the
    last real tokens of the sequences. ``tokens`` were averaged: real ones, without the first ``skip_first`` of each
    sequence. Where only neighbours were compared, the other entries are NaN and there are no angles.
    """

    schema_version: int = 1
    blocks: int
    cosine: Square
    last_angle: Square = ()
    angle: Square = ()
    tokens: int
    sequences: int
    skip_first: int
    calibration: str = ""
    data_fingerprint: str = ""
    model_fingerprint: str = ""
    neighbours_only: bool = False
    provenance: Provenance | None = Field(default=None)

    @property
    def fingerprint(self) -> str:
        """The hash of model, text and settings: equal for records that must hold the same numbers."""
        return similarity_key(
            self.model_fingerprint,
            self.data_fingerprint,
            skip_first=self.skip_first,
            neighbours_only=self.neighbours_only,
        )

    def matrix(self) -> np.ndarray:
        """Return the mean cosines as an array (N+1, N+1)."""
        return np.array(self.cosine, dtype=float)

    def save(self, path: Path) -> None:
        """Write the record as one small JSON file, whole or not at all."""
        write_text(path, self.model_dump_json(indent=1) + "\n")


def similarity_key(model_fingerprint: str, data_fingerprint: str, *, skip_first: int, neighbours_only: bool) -> str:
    """Return the hash that names a similarity record before it is computed."""
    return fingerprint(["similarity", 1, model_fingerprint, data_fingerprint, skip_first, neighbours_only])


def read_similarity(path: Path) -> SimilarityRecord:
    """Return a saved record. Raises DataError when the file is absent or not one."""
    try:
        return SimilarityRecord.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise DataError(
            f"'{path}' is not a similarity record: {error}", hint="compute it again with `regrow rank`"
        ) from error
