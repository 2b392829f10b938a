"""The options that several commands share, and how a spec file and the command line combine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, TypeVar

from cyclopts import Parameter, validators

from regrow.errors import ConfigError

S = TypeVar("S")


def _whole_number(_: Any, tokens: Any) -> int:
    text = tokens[0].value.strip()
    if not re.fullmatch(r"[+-]?[0-9][0-9_]*", text):
        raise ValueError(f"'{text}' is not a whole number")
    return int(text)


def whole(**about: Any) -> Parameter:
    """Return an option that takes a whole number: 1.5 is refused, where cyclopts would round it to 2."""
    return Parameter(converter=_whole_number, **about)


def from_zero(**about: Any) -> Parameter:
    """Return an option that takes a whole number from 0 on."""
    return Parameter(converter=_whole_number, validator=validators.Number(gte=0), **about)


Output = Annotated[Path, Parameter(name=["--output", "-o"], help="Folder to write; must not hold anything else.")]
Device = Annotated[str, Parameter(help="auto, cpu, cuda, cuda:N or mps.")]
Dtype = Annotated[str, Parameter(help="auto, float32, bfloat16 or float16.")]
Json = Annotated[bool, Parameter(name="--json", negative="", help="Print the result as JSON on standard output.")]
Quiet = Annotated[bool, Parameter(name=["--quiet", "-q"], negative="", help="No progress and no notes.")]
SpecFile = Annotated[Path | None, Parameter(name="--spec", help="YAML file with these options; the command line wins.")]
Calibration = Annotated[
    str | None,
    Parameter(help="bundled, healing-pools, wikitext2, c4, a .txt or .jsonl file, or hub:ID. Default: bundled."),
]
Pools = Annotated[Path | None, Parameter(help="Folder with (or for) the healing pools. Default: the cache.")]


def merged(kind: type[S], file: Path | None, given: dict[str, Any]) -> S:
    """Return a spec from a YAML file overridden by the options typed (those that are not None)."""
    from regrow.records.specs import build, read_yaml

    values: dict[str, Any] = read_yaml(file) if file is not None else {}
    where = f"'{file}'" if file is not None else "the options"
    typed = {key: value for key, value in given.items() if value is not None}
    hint = "see the command's --help for what is allowed"
    hint += "; a key of the file is an option with _ for each -" if file is not None else ""
    return build(kind, {**values, **typed}, where=where, hint=hint)  # type: ignore[type-var]


def one_of(first: Any, second: Any, names: str) -> None:
    """Raise ConfigError when both of two exclusive options were given."""
    if first is not None and second is not None:
        raise ConfigError(f"{names} exclude each other", hint="give one of them")
