"""Rows with named fields as a frame."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, get_type_hints

import polars

_TYPES: dict[Any, type[polars.DataType]] = {
    str: polars.String,
    float: polars.Float64,
    int: polars.Int64,
    bool: polars.Boolean,
}


def frame_of(kind: type[NamedTuple], rows: Iterable[Any]) -> polars.DataFrame:
    """Return a frame with the fields of ``kind`` (a NamedTuple of str, float, int and bool) as columns, in order.

    Without rows the columns are there all the same. Undefined numbers are NaN.
    """
    schema = {name: _TYPES[hint] for name, hint in get_type_hints(kind).items()}
    return polars.DataFrame([tuple(row) for row in rows], schema=schema, orient="row")


def csv_of(frame: polars.DataFrame) -> str:
    """Return a frame as CSV; undefined numbers are empty cells."""
    return frame.with_columns(polars.selectors.float().fill_nan(None)).write_csv()
