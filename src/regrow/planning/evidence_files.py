"""What the rules with evidence of their own read from a pilot file.

A family's ``evidence`` maps rules to what they need, pools by name:

- ``doremi``, ``dynamic-batch-loading``: ``losses``: pool -> one loss a step (the proxy's; the heal's rounds), and
  ``reference_losses``: pool -> the loss compared with.
- ``data-mixing``: ``runs``: a list of ``{"tokens": pool -> tokens, "losses": pool -> held-out loss}``.
- ``paser``: ``prompts``: a list of ``{"pool", "id", "embedding", "degradation", "tokens"}``, or the name of a file of
  such objects, one a line, beside the pilot file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from regrow.errors import DataError, did_you_mean
from regrow.planning.rules.data_mixing import MixingRuns
from regrow.planning.rules.paser import Prompts

LAYOUT = "see docs/planning.md for the layout of 'evidence'"
Pools = tuple[str, ...]


def read_evidence(values: Any, pools: Pools, where: str, folder: Path) -> dict[str, dict[str, Any]]:
    """Return by rule the keywords of :class:`regrow.planning.rule.Evidence` that a family's ``evidence`` amounts to.

    Raises DataError for a rule that has none, a pool that is not there or missing, and values that are no numbers.
    """
    if values is None:
        return {}
    _mapping(values, f"'evidence' of {where}")
    found = {}
    for text, given in values.items():
        rule = str(text).replace("_", "-")
        if rule not in _READERS:
            raise DataError(f"'evidence' of {where} names '{text}'", hint=did_you_mean(rule, _READERS))
        name = f"evidence of '{rule}' of {where}"
        found[rule] = _READERS[rule](_mapping(given, name), pools, name, folder)
    return found


def _losses(given: Mapping[str, Any], pools: Pools, where: str, folder: Path) -> dict[str, Any]:
    _only(given, ("losses", "reference_losses"), where)
    series = _by_pool(given["losses"], pools, f"'losses' in {where}")
    steps = {len(one) if isinstance(one, list) else 0 for one in series}
    if len(steps) != 1 or steps == {0}:
        raise DataError(f"'losses' in {where} must list as many losses for every pool, one a step", hint=LAYOUT)
    table = [[_number(one, f"'losses' in {where}") for one in row] for row in zip(*series, strict=True)]
    reference = _by_pool(given["reference_losses"], pools, f"'reference_losses' in {where}")
    return {"losses": table, "reference_losses": [_number(one, f"'reference_losses' in {where}") for one in reference]}


def _runs(given: Mapping[str, Any], pools: Pools, where: str, folder: Path) -> dict[str, Any]:
    _only(given, ("runs",), where)
    tokens, losses = [], []
    for place, run in enumerate(_list(given["runs"], f"'runs' in {where}")):
        name = f"run {place + 1} in {where}"
        _only(_mapping(run, name), ("tokens", "losses"), name)
        tokens.append([_number(value, name) for value in _by_pool(run["tokens"], pools, f"'tokens' of {name}")])
        losses.append([_number(value, name) for value in _by_pool(run["losses"], pools, f"'losses' of {name}")])
    return {"runs": MixingRuns.of(tokens, losses)}


def _prompts(given: Mapping[str, Any], pools: Pools, where: str, folder: Path) -> dict[str, Any]:
    _only(given, ("prompts",), where)
    rows = given["prompts"]
    if isinstance(rows, str):
        rows = _lines(folder / rows)
    fields: tuple[str, ...] = ("pool", "id", "embedding", "degradation", "tokens")
    columns: dict[str, list[Any]] = {name: [] for name in fields}
    for place, row in enumerate(_list(rows, f"'prompts' in {where}")):
        name = f"prompt {place + 1} in {where}"
        _only(_mapping(row, name), fields, name)
        columns["pool"].append(str(row["pool"]))
        columns["id"].append(str(row["id"]))
        columns["embedding"].append([_number(value, name) for value in _list(row["embedding"], name)])
        columns["degradation"].append(_number(row["degradation"], name))
        columns["tokens"].append(_number(row["tokens"], name))
    widths = {len(one) for one in columns["embedding"]}
    if len(widths) != 1:
        raise DataError(f"the embeddings in {where} have {sorted(widths)} numbers", hint="all need the same number")
    return {"prompts": Prompts.of(*(columns[name] for name in fields))}


_READERS: dict[str, Callable[[Mapping[str, Any], Pools, str, Path], dict[str, Any]]] = {
    "doremi": _losses,
    "dynamic-batch-loading": _losses,
    "data-mixing": _runs,
    "paser": _prompts,
}


def _lines(path: Path) -> list[Any]:
    try:
        return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise DataError(f"the prompts' file '{path}' cannot be read: {error}", hint=LAYOUT) from error


def _mapping(values: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(values, dict):
        raise DataError(f"{what} must be an object, got {_short(values)}", hint=LAYOUT)
    return values


def _list(values: Any, what: str) -> Sequence[Any]:
    if not isinstance(values, list) or not values:
        raise DataError(f"{what} must be a list that is not empty, got {_short(values)}", hint=LAYOUT)
    return values


def _only(values: Mapping[str, Any], keys: Sequence[str], what: str) -> None:
    for key in values:
        if key not in keys:
            raise DataError(f"unknown key '{key}' in {what}", hint=did_you_mean(key, keys))
    for key in keys:
        if key not in values:
            raise DataError(f"'{key}' is missing in {what}", hint=LAYOUT)


def _by_pool(values: Any, pools: Pools, what: str) -> list[Any]:
    """Return the values in the order of the pools."""
    named = _mapping(values, what)
    for name in named:
        if name not in pools:
            raise DataError(f"unknown pool '{name}' in {what}", hint=did_you_mean(str(name), pools))
    for pool in pools:
        if pool not in named:
            raise DataError(f"pool '{pool}' is missing in {what}", hint=LAYOUT)
    return [named[pool] for pool in pools]


def _number(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(f"{what} must hold numbers, got {_short(value)}", hint=LAYOUT)
    return float(value)


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
