"""Records of a data set, read from a local data folder or fetched from the hub: a list of plain dictionaries.

JSON Lines (also under the name .json), one JSON list, CSV (commas, semicolons or tabs) and parquet are read. A fault
names the file and the line.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regrow.data.catalogue import CATALOGUE, DataSet
from regrow.data.missing import MissingDataSet
from regrow.data.text import DATA_FOLDER_VARIABLE
from regrow.errors import DataError
from regrow.models.hub_reach import hub_is_reachable
from regrow.records.fingerprint import fingerprint

Row = dict[str, Any]


@dataclass(frozen=True)
class Rows:
    """The records of one part in file order. ``origin`` says where they come from, ``where(n)`` which record n is."""

    rows: list[Row]
    origin: str
    licence: str

    def where(self, number: int) -> str:
        return f"record {number + 1} of {self.origin}"

    @property
    def fingerprint(self) -> str:
        """The sha256 (hex) of all records in their order."""
        return fingerprint(self.rows)


def read_part(data: DataSet, part: str, folder: str | Path | None = None) -> Rows:
    """Return the records of ``part``, from ``folder`` (default: the folder that REGROW_DATA names) or from the hub.

    A folder that lacks the data set is not an error of its own: the hub is asked next. Raises DataError with the
    command that fetches the files when they are nowhere, and names the line when a file is broken.
    """
    found = local_files(data, part, folder)
    origin = ", ".join(f"'{file}'" for file in found)
    if not found:
        found = _fetched(data, part, folder)
        origin = f"{data.hub_id}@{data.revision[:12]} ({part})"
    rows = [row for file in found for row in read_rows(file, again=data.fetch_command(part))]
    if not rows:
        raise DataError(f"{origin} holds no records", hint=f"fetch it again: {data.fetch_command(part)}")
    return Rows(rows, origin, data.licence)


def local_files(data: DataSet, part: str, folder: str | Path | None = None) -> list[Path]:
    """Return the files of ``part`` in a data folder, sorted; empty where the folder lacks the data set.

    Raises DataError when the folder does not exist, or has the data set but not this part of it.
    """
    given = folder or os.environ.get(DATA_FOLDER_VARIABLE)
    if not given:
        return []
    root = Path(given).expanduser()
    if not root.is_dir():
        raise DataError(
            f"the data folder '{root}' does not exist",
            hint=f"correct --data or {DATA_FOLDER_VARIABLE}, or leave it out to use the hub",
        )
    there = [root / place for place in data.places if (root / place).is_dir()]
    for place in there:
        for pattern in data.parts[part]:
            files = sorted(place.glob(pattern))
            if files:
                return _whole(files, data.fetch_command(part))
    if there:
        raise DataError(
            f"'{there[0]}' holds no '{part}' of {data.hub_id} (looked for {', '.join(data.parts[part])})",
            hint=f"fetch it: {data.fetch_command(part)}",
        )
    _refuse_one_too_deep(root)
    return []


def _whole(files: list[Path], command: str) -> list[Path]:
    """Return ``files``; raise DataError when their names (...-00000-of-00002.parquet) say that some are missing."""
    numbered = [found for file in files if (found := re.search(r"-(\d+)-of-(\d+)\.", file.name))]
    if numbered:
        wanted = int(numbered[0][2])
        there = {int(each[1]) for each in numbered}
        if len(there) < wanted:
            raise DataError(
                f"'{files[0].parent}' holds {len(there)} of the {wanted} files {files[0].name} belongs to",
                hint=f"fetch them again: {command}",
            )
    return files


def _refuse_one_too_deep(root: Path) -> None:
    """Raise DataError for the folder of one data set in place of the folder that holds it."""
    places = {place for each in CATALOGUE.values() for place in each.places}
    above = root.resolve().parent
    if root.resolve().name in places and not any((root / place).is_dir() for place in places):
        raise DataError(
            f"'{root}' seems to be one data set, the folder that holds data sets is wanted", hint=f"--data {above}"
        )


def _fetched(data: DataSet, part: str, folder: str | Path | None) -> list[Path]:
    from huggingface_hub import snapshot_download

    patterns = list(data.parts[part])
    looked = folder or os.environ.get(DATA_FOLDER_VARIABLE)
    try:
        snapshot = snapshot_download(
            data.hub_id,
            repo_type="dataset",
            revision=data.revision,
            allow_patterns=patterns,
            local_files_only=not hub_is_reachable(),
        )
    # huggingface_hub has no one base for what goes wrong on the way: names, rights, network, disk.
    except Exception as error:
        place = f"the data folder {looked}" if looked else "a data folder"
        why = _first_line(error) if hub_is_reachable() else "it does not answer"
        raise MissingDataSet(
            data.name,
            f"is not in {place} and cannot be fetched from the hub ({why})",
            data.fetch_command(part),
        ) from error
    # As in a folder: the first layout that is there counts, so that both ways give the same records.
    for pattern in patterns:
        files = sorted(Path(snapshot).glob(pattern))
        if files:
            return _whole(files, data.fetch_command(part))
    if not hub_is_reachable():
        raise MissingDataSet(
            data.name,
            "is only partly in the hub's cache, and the hub does not answer",
            data.fetch_command(part),
        )
    raise DataError(
        f"{data.hub_id} at {data.revision[:12]} has no file '{' or '.join(patterns)}'",
        hint=f"download the data set by hand into DIR/{data.name} and pass --data DIR",
    )


def read_rows(path: Path, *, again: str = "") -> list[Row]:
    """Return the records of one file. ``again`` is the command that would fetch it anew, for the error's hint."""
    hint = f"fetch it again: {again}" if again else "correct the file, or fetch it again"
    try:
        if path.suffix == ".parquet":
            return _parquet(path)
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"'{path}' is not UTF-8 text (byte {error.start})", hint=hint) from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"'{path}' cannot be read: {error}", hint=hint) from error
    if path.name.removesuffix(".gz").endswith((".csv", ".tsv")):
        return _table(text, path, hint)
    if text.lstrip().startswith("["):
        return _list(text, path, hint)
    return _lines(text, path, hint)


def _table(text: str, path: Path, hint: str) -> list[Row]:
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    # What stands most often between the names of the columns; a spreadsheet of another language writes semicolons.
    mark = max(",;\t", key=text.partition("\n")[0].count)
    try:
        return [dict(row) for row in csv.DictReader(io.StringIO(text, newline=""), strict=True, delimiter=mark)]
    except csv.Error as error:
        raise DataError(f"'{path}' is not a table of separated values ({mark!r}): {error}", hint=hint) from error


def _parquet(path: Path) -> list[Row]:
    import polars

    try:
        return polars.read_parquet(path).to_dicts()
    except polars.exceptions.PolarsError as error:
        raise OSError(_first_line(error)) from error


def _list(text: str, path: Path, hint: str) -> list[Row]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"'{path}' is not JSON, or was cut in the middle: {error}", hint=hint) from error
    return [_object(row, f"entry {number} of '{path}'", hint) for number, row in enumerate(found, start=1)]


def _lines(text: str, path: Path, hint: str) -> list[Row]:
    found: list[Row] = []
    lines = text.split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            last = "; the file was cut in the middle" if not any(map(str.strip, lines[number:])) else ""
            raise DataError(f"line {number} of '{path}' is not JSON ({error}){last}", hint=hint) from error
        found.append(_object(row, f"line {number} of '{path}'", hint))
    return found


def _object(row: Any, where: str, hint: str) -> Row:
    if not isinstance(row, dict):
        raise DataError(f"{where} is {type(row).__name__}, not an object", hint=hint)
    return row


def need(row: Row, fields: Sequence[str], where: str) -> None:
    """Raise DataError when ``row`` lacks one of ``fields``, or has it empty: an item without a question or a gold."""
    for name in fields:
        value = row.get(name)
        if value is None or value in ("", [], {}) or (isinstance(value, str) and not value.strip()):
            there = ", ".join(sorted(map(str, row)))
            raise DataError(
                f"{where} has no '{name}' (it has: {there})",
                hint="correct or delete the record; an item without a question or a gold cannot be scored",
            )


def need_text(row: Row, fields: Sequence[str], where: str) -> None:
    """Raise DataError when one of ``fields`` is missing, empty or no text."""
    need(row, fields, where)
    for name in fields:
        if not isinstance(row[name], str):
            raise DataError(
                f"{where} has {str(row[name])[:60]!r} as its '{name}', which is not a text",
                hint="correct or delete the record, or fetch the data set again",
            )


@contextmanager
def sound(where: str) -> Iterator[None]:
    """Turn what a record of another shape raises while it is read into a DataError that names the record."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{where} is not of the form that this data set has ({type(error).__name__}: {error})",
            hint="correct or delete the record, or fetch the data set again",
        ) from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
