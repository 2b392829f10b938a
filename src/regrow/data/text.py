"""Text by reference: the bundled samples, files, WikiText-2, C4 and hub data sets, as a stream of documents.

A reference is one string, so that it can stand in an option, a spec file and a fingerprint:

``bundled``                     the calibration sample written for this project
``bundled-evaluation``          the evaluation sample written for this project; shares no passage with the other
``PATH.txt``                    a UTF-8 text file (also .md)
``PATH.jsonl`` / ``.jsonl.gz``  one JSON object a line, text under ``text`` (another field: ``PATH.jsonl#field``)
``wikitext2[:split]``           WikiText-2 raw (default split: train)
``c4[:split]``                  C4 English (default split: train)
``hub:ID[:config][:split]``     any data set of the Hugging Face hub with a text field (``#field`` as above)

``wikitext2`` and ``c4`` are read from a local folder when there is one (``data_dir``, else the environment variable
REGROW_DATA), laid out as ``wikitext2_raw/SPLIT.jsonl`` and ``c4/SPLIT.jsonl``, or as the hub's own files (parquet,
json.gz) under those names; otherwise they are streamed from the hub.
"""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any

from regrow.errors import ConfigError, DataError, did_you_mean

BUNDLED = "bundled"
BUNDLED_EVALUATION = "bundled-evaluation"
DATA_FOLDER_VARIABLE = "REGROW_DATA"
TEXT_SUFFIXES = (".txt", ".md")
JSON_SUFFIXES = (".jsonl", ".jsonl.gz", ".json.gz")
PIECE_CHARACTERS = 4_000


@dataclass(frozen=True)
class NamedSet:
    """Where a data set known by name lies: its hub id, configuration, local folders tried in order, default split,
    and the commit that is read on the hub."""

    hub_id: str
    config: str
    folders: tuple[str, ...]
    split: str
    separator: str
    revision: str


NAMED = {
    "wikitext2": NamedSet(
        "Salesforce/wikitext",
        "wikitext-2-raw-v1",
        ("wikitext2_raw", "wikitext-2-raw-v1", "wikitext2"),
        "train",
        "",
        "b08601e04326c79dfdd32d625aee71d232d685c3",
    ),
    "c4": NamedSet("allenai/c4", "en", ("c4", "en"), "train", "\n\n", "1588ec454efa1a09f29cd18ddd04fe05fc8653a2"),
}


@dataclass(frozen=True)
class TextSource:
    """Text behind a reference. ``documents()`` starts a fresh stream of them; nothing is read before it is asked for.

    ``separator`` is what stands between two documents when they are joined to one text. ``streamed`` is True when the
    documents come over the network, so that reading many ahead is slow.
    """

    reference: str
    documents: Callable[[], Iterator[str]]
    separator: str = "\n\n"
    streamed: bool = False

    def text(self) -> str:
        """Return all documents as one text."""
        return self.separator.join(self.documents())


def bundled_text() -> str:
    """Return the evaluation sample: English prose, dialogue, instructions, code, JSON, written for this project.

    Meant for perplexity. It has no passage in common with :func:`bundled_calibration_text`, and since it was written
    here, no model has been trained on it before this project was published.
    """
    return "\n\n".join(_bundled("evaluation"))


def bundled_calibration_text() -> str:
    """Return the calibration sample: the same kinds of text as :func:`bundled_text`, other passages."""
    return "\n\n".join(_bundled("calibration"))


def open_text(reference: str, *, data_dir: str | Path | None = None) -> TextSource:
    """Return the text source behind a reference (see the module's docstring).

    Raises DataError when the text is absent, empty or not UTF-8, ConfigError when the reference is not understood.
    Contents of files are read as the stream is consumed, so faults deep in a file appear then.
    """
    bare, _, field = reference.partition("#")
    name, _, split = bare.partition(":")
    if bare in (BUNDLED, BUNDLED_EVALUATION):
        part = "calibration" if bare == BUNDLED else "evaluation"
        return TextSource(reference, lambda: iter(_bundled(part)))
    if name == "hub":
        return _hub_source(reference, split, field or "text")
    if name in NAMED:
        return _named_source(reference, NAMED[name], split or NAMED[name].split, field or "text", data_dir)
    path = Path(bare).expanduser()
    if path.is_file():
        return _file_source(reference, path, field or "text")
    if _looks_like_a_path(bare):
        raise DataError(f"there is no text file '{bare}'", hint="check the path; allowed: .txt, .md, .jsonl, .jsonl.gz")
    raise ConfigError(
        f"unknown text '{reference}'",
        hint=did_you_mean(reference, [BUNDLED, BUNDLED_EVALUATION, *NAMED, "hub:ID[:config][:split]", "PATH.txt"]),
    )


def read_text(reference: str, *, data_dir: str | Path | None = None) -> str:
    """Return the whole text behind a reference. Raises DataError when there is nothing in it."""
    text = open_text(reference, data_dir=data_dir).text()
    if not text.strip():
        raise DataError(f"the text '{reference}' is empty", hint="give a file with text in it, or use 'bundled'")
    return text


@cache
def _bundled(part: str) -> tuple[str, ...]:
    folder = files("regrow.data") / "bundled" / part
    found = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".txt")), key=lambda entry: entry.name)
    if not found:
        raise DataError(f"the bundled {part} text is missing from this installation", hint="install regrow again")
    return tuple(entry.read_text("utf-8").strip() for entry in found)


def _looks_like_a_path(text: str) -> bool:
    return "/" in text or os.sep in text or text.endswith((*TEXT_SUFFIXES, *JSON_SUFFIXES, ".parquet"))


def _file_source(reference: str, path: Path, field: str) -> TextSource:
    if path.name.endswith(JSON_SUFFIXES):
        return TextSource(reference, lambda: _json_documents(path, field))
    if path.suffix == ".parquet":
        return TextSource(reference, lambda: _parquet_documents(path, field))
    if path.suffix in TEXT_SUFFIXES:
        return TextSource(reference, lambda: pieces(_decode(path.read_bytes(), path)))
    raise DataError(
        f"'{path}' is not a kind of text file known here",
        hint=f"allowed: {', '.join((*TEXT_SUFFIXES, *JSON_SUFFIXES))}, .parquet",
    )


def pieces(text: str, characters: int = PIECE_CHARACTERS) -> Iterator[str]:
    """Yield a long text as pieces of at least ``characters``, cut at blank lines: what samples are drawn from."""
    held: list[str] = []
    length = 0
    for paragraph in re.split(r"\n[ \t]*\n", text.replace("\r\n", "\n")):
        if not paragraph.strip():
            continue
        held.append(paragraph.strip("\n"))
        length += len(paragraph)
        if length >= characters:
            yield "\n\n".join(held)
            held, length = [], 0
    if held:
        yield "\n\n".join(held)


def _decode(content: bytes, path: Path) -> str:
    for mark, name in ((b"\xff\xfe", "UTF-16"), (b"\xfe\xff", "UTF-16")):
        if content.startswith(mark):
            raise _wrong_encoding(path, "it begins as UTF-16 does", name)
    if b"\0" in content:
        raise DataError(f"'{path}' is not text (it holds NUL bytes)", hint="give a UTF-8 text, .jsonl or .parquet file")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _wrong_encoding(path, f"byte {error.start} is 0x{content[error.start]:02x}") from error


def _wrong_encoding(path: Path, where: str, encoding: str = "WINDOWS-1252") -> DataError:
    return DataError(
        f"'{path}' is not UTF-8 text ({where})",
        hint=f"convert it first: iconv -f {encoding} -t UTF-8 '{path}' > '{path.stem}-utf8{path.suffix}'",
    )


def _json_documents(path: Path, field: str) -> Iterator[str]:
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DataError(
                f"line {number} of '{path}' is not JSON ({error})", hint="one JSON object a line is expected"
            ) from error
        yield _field_of(row, field, f"line {number} of '{path}'")


def _lines(path: Path) -> Iterator[str]:
    """Yield lines cut at LF alone: other separators may stand inside JSON strings."""
    opener: Callable[..., Any] = gzip.open if path.suffix == ".gz" else Path.open
    number = 0
    try:
        with opener(path, "rb") as stream:
            for raw in stream:
                number += 1
                yield raw.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise _wrong_encoding(path, f"line {number}") from error
    except (OSError, EOFError) as error:
        raise DataError(f"'{path}' cannot be read: {error}", hint="check the file, or fetch it again") from error


def _field_of(row: Any, field: str, where: str) -> str:
    if not isinstance(row, dict) or not isinstance(row.get(field), str):
        there = ", ".join(sorted(row)) if isinstance(row, dict) else type(row).__name__
        raise DataError(
            f"{where} has no text under '{field}' (it has: {there})",
            hint="name the field that holds the text, for example PATH.jsonl#content",
        )
    return str(row[field])


def _parquet_documents(path: Path, field: str) -> Iterator[str]:
    import polars

    try:
        column = polars.read_parquet(path, columns=[field])[field]
    except (OSError, polars.exceptions.PolarsError) as error:
        raise DataError(
            f"'{path}' cannot be read as parquet with a column '{field}': {error}", hint="name the column: PATH#column"
        ) from error
    for value in column:
        if value is not None:
            yield str(value)


def _named_source(reference: str, named: NamedSet, split: str, field: str, data_dir: str | Path | None) -> TextSource:
    local = _local_files(named, split, data_dir)
    regroup = _wikitext_articles if named.separator == "" else iter
    if local:
        return TextSource(
            reference,
            lambda: regroup(chain.from_iterable(_rows_of(path, field) for path in local)),
            separator=named.separator,
        )
    return TextSource(
        reference,
        lambda: regroup(_hub_rows(named.hub_id, named.config, split, field, revision=named.revision)),
        separator=named.separator,
        streamed=True,
    )


def _rows_of(path: Path, field: str) -> Iterator[str]:
    return _parquet_documents(path, field) if path.suffix == ".parquet" else _json_documents(path, field)


def _local_files(named: NamedSet, split: str, data_dir: str | Path | None) -> list[Path]:
    given = data_dir or os.environ.get(DATA_FOLDER_VARIABLE)
    if not given:
        return []
    root = Path(given).expanduser()
    if not root.is_dir():
        raise DataError(
            f"the data folder '{root}' does not exist",
            hint=f"correct --data or {DATA_FOLDER_VARIABLE}, or leave it out to use the hub",
        )
    splits: set[str] = set()
    for folder in (root / name for name in named.folders):
        if not folder.is_dir():
            continue
        found = [file for file in sorted(folder.iterdir()) if file.name.endswith((*JSON_SUFFIXES, ".parquet"))]
        splits.update(re.split(r"[.-]", file.name.removeprefix("c4-"))[0] for file in found)
        chosen = [file for file in found if re.match(rf"(c4-)?{re.escape(split)}[.-]", file.name)]
        if chosen:
            return chosen
    if splits:
        raise DataError(
            f"no split '{split}' of {named.hub_id} under '{root}'", hint=f"there are: {', '.join(sorted(splits))}"
        )
    return []


def _wikitext_articles(rows: Iterable[str]) -> Iterator[str]:
    """Yield whole articles; joined without separator they are the official raw file, byte for byte."""
    held: list[str] = []
    for row in rows:
        if re.match(r" = [^=]", row) and any(line.strip() for line in held):
            yield "".join(held)
            held = []
        held.append(row or " \n")
    if held:
        yield "".join(held)


def _hub_source(reference: str, rest: str, field: str) -> TextSource:
    parts = rest.split(":")
    if not parts[0] or len(parts) > 3:
        raise ConfigError(
            f"'{reference}' is not a hub reference", hint="write hub:ID, hub:ID:split or hub:ID:config:split"
        )
    config = parts[1] if len(parts) == 3 else None
    split = parts[-1] if len(parts) > 1 else "train"
    return TextSource(reference, lambda: _hub_rows(parts[0], config, split, field), streamed=True)


def _hub_rows(hub_id: str, config: str | None, split: str, field: str, *, revision: str | None = None) -> Iterator[str]:
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            f"reading '{hub_id}' from the hub needs the package 'datasets'",
            hint=f'pip install "regrow[datasets]", or set {DATA_FOLDER_VARIABLE} to a folder that holds the data',
        ) from error
    try:
        rows = datasets.load_dataset(hub_id, config, split=split, revision=revision, streaming=True)
        for number, row in enumerate(rows, start=1):
            yield _field_of(row, field, f"row {number} of {hub_id}")
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise DataError(
            f"the data set '{hub_id}' ({config or 'default'}, {split}) cannot be read: {error}",
            hint=f"check the name; where there is a network: hf download {hub_id} --repo-type dataset"
            f"{f' --revision {revision}' if revision else ''} --include '{config or ''}*' --local-dir "
            f"DIR/{config or hub_id.split('/')[-1]}; then set {DATA_FOLDER_VARIABLE}=DIR",
        ) from error
