"""Pilots from a file and to a file.

Layout (JSON): ``capabilities``, ``pools``, ``budgets`` (tokens) and ``families``: name -> ``unpruned_items``,
``pruned_items`` (items right, one a capability) and ``delta_items``: pool -> one row a budget of one number a
capability: items right minus the pruned model's, null for a pilot not run. Optional, for the whole file or one family:
``dev_items`` (60). Optional for a family: ``scope_items``: scope -> items right of its uniform pilot; ``scope``: a
choice made elsewhere; ``nll_gap``: one number a capability; ``evidence``: what some rules need beside dev counts
(:mod:`regrow.planning.evidence_files`). ``fit``, ``allocations`` and ``about`` are ignored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regrow.errors import DataError, did_you_mean
from regrow.planning.pilots import DEV_ITEMS, Pilots
from regrow.records.atomic import write_json
from regrow.records.study_runs import is_study

Floats = NDArray[np.float64]

FILE = "pilots.json"
LAYOUT = "see docs/planning.md for the layout"

_TOP = ("about", "capabilities", "pools", "budgets", "families", "dev_items")
_FAMILY = (
    "unpruned_items",
    "pruned_items",
    "delta_items",
    "dev_items",
    "scope_items",
    "scope",
    "nll_gap",
    "evidence",
    "fit",
    "allocations",
)


def read_pilots(path: Path) -> list[Pilots]:
    """Return the pilots of every family in a file, in ``pilots.json`` of a folder, or in the runs of a study folder.

    Raises DataError for a file that is absent, not JSON, of another layout, or holds counts that cannot be. A pilot
    that is missing is NaN here and is asked for by name when a rule needs it.
    """
    if path.is_dir() and not (path / FILE).exists() and is_study(path):
        from regrow.planning.study_pilots import pilots_in_study

        return pilots_in_study(path)
    content = _read(path)
    _refuse_unknown(content, _TOP, f"'{path}'")
    capabilities = _names(content, "capabilities", path)
    pools = _names(content, "pools", path)
    budgets = _budgets(content.get("budgets"), path)
    families = content.get("families")
    if not isinstance(families, dict) or not families:
        raise DataError(f"'{path}' names no family", hint=f"families: name -> counts; {LAYOUT}")
    return [
        _family(str(name), values, capabilities, pools, budgets, content.get("dev_items", DEV_ITEMS), path)
        for name, values in families.items()
    ]


def write_pilots(path: Path, families: Iterable[Pilots]) -> None:
    """Write the pilots of families that share capabilities, pools and budgets, whole or not at all."""
    kept = list(families)
    shared = {(one.capabilities, one.pools, one.budgets) for one in kept}
    if len(shared) != 1:
        raise DataError(
            "the families' pilots differ in capabilities, pools or budgets", hint="write one file for each layout"
        )
    first = kept[0]
    write_json(
        path,
        {
            "capabilities": list(first.capabilities),
            "pools": list(first.pools),
            "budgets": list(first.budgets),
            "families": {one.family: _as_family(one) for one in kept},
        },
    )


def _as_family(pilots: Pilots) -> dict[str, Any]:
    delta = pilots.healed - pilots.pruned
    found: dict[str, Any] = {
        "unpruned_items": _plain(pilots.unpruned),
        "pruned_items": _plain(pilots.pruned),
        "delta_items": {pool: [_plain(row) for row in delta[p]] for p, pool in enumerate(pilots.pools)},
        "dev_items": _plain(pilots.dev_items),
    }
    if pilots.scope_counts:
        found["scope_items"] = {scope: _plain(counts) for scope, counts in pilots.scope_counts.items()}
    if pilots.scope:
        found["scope"] = pilots.scope
    if pilots.nll_gap is not None:
        found["nll_gap"] = _plain(pilots.nll_gap)
    return found


def _plain(values: Floats) -> list[float | int | None]:
    return [None if math.isnan(v) else int(v) if v == int(v) else float(v) for v in values]


def _read(path: Path) -> dict[str, Any]:
    file = path / FILE if path.is_dir() else path
    if not file.exists():
        what = f"the folder '{path}' holds no {FILE}" if path.is_dir() else f"there is no file '{path}'"
        raise DataError(what, hint="`regrow plan` without a file lists the pilots each rule needs")
    try:
        content = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"'{file}' is not readable JSON: {error}", hint=LAYOUT) from error
    if not isinstance(content, dict):
        raise DataError(f"'{file}' must hold an object, not a {type(content).__name__}", hint=LAYOUT)
    return content


def _refuse_unknown(values: Mapping[str, Any], allowed: Sequence[str], where: str) -> None:
    for key in values:
        if key not in allowed:
            raise DataError(f"unknown key '{key}' in {where}", hint=did_you_mean(key, allowed))


def _names(content: Mapping[str, Any], key: str, path: Path) -> tuple[str, ...]:
    names = content.get(key)
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise DataError(f"'{key}' in '{path}' must be a list of names, got {_short(names)}", hint=LAYOUT)
    return tuple(names)


def _budgets(values: Any, path: Path) -> tuple[int, ...]:
    if not isinstance(values, list) or not values:
        raise DataError(f"'budgets' in '{path}' must be a list of token counts, got {_short(values)}", hint=LAYOUT)
    found = []
    for value in values:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value or value <= 0:
            raise DataError(
                f"a budget in '{path}' must be a positive number of tokens, got {_short(value)}",
                hint="write for example 30000",
            )
        found.append(round(value))
    return tuple(found)


def _family(
    name: str,
    values: Any,
    capabilities: tuple[str, ...],
    pools: tuple[str, ...],
    budgets: tuple[int, ...],
    dev_items: Any,
    path: Path,
) -> Pilots:
    where = f"family '{name}' in '{path}'"
    if not isinstance(values, dict):
        raise DataError(f"{where} must be an object, got {_short(values)}", hint=LAYOUT)
    _refuse_unknown(values, _FAMILY, where)
    count = len(capabilities)
    items = values.get("dev_items", dev_items)
    items = [items] * count if isinstance(items, (int, float)) else items
    pruned = _row(values.get("pruned_items"), count, f"'pruned_items' of {where}")
    scopes = values.get("scope_items") or {}
    gap = values.get("nll_gap")
    scope = values.get("scope")
    if scope is not None and not isinstance(scope, str):
        raise DataError(f"'scope' of {where} must be a name, got {_short(scope)}", hint=LAYOUT)
    if not isinstance(scopes, dict):
        raise DataError(f"'scope_items' of {where} must map scopes to counts, got {_short(scopes)}", hint=LAYOUT)
    return Pilots(
        family=name,
        capabilities=capabilities,
        pools=pools,
        budgets=budgets,
        unpruned=_row(values.get("unpruned_items"), count, f"'unpruned_items' of {where}"),
        pruned=pruned,
        healed=_healed(values.get("delta_items"), pools, budgets, count, where) + pruned,
        dev_items=_row(items, count, f"'dev_items' of {where}"),
        scope_counts={
            str(key): _row(row, count, f"scope '{key}' in 'scope_items' of {where}") for key, row in scopes.items()
        },
        scope=scope,
        nll_gap=None if gap is None else _row(gap, count, f"'nll_gap' of {where}"),
        evidence=_evidence(values.get("evidence"), pools, where, path),
    )


def _evidence(values: Any, pools: tuple[str, ...], where: str, path: Path) -> dict[str, dict[str, Any]]:
    if values is None:
        return {}
    from regrow.planning.evidence_files import read_evidence

    return read_evidence(values, pools, where, path if path.is_dir() else path.parent)


def _healed(table: Any, pools: tuple[str, ...], budgets: tuple[int, ...], count: int, where: str) -> Floats:
    """Return (pools, budgets, capabilities) of differences to the pruned model; NaN for pilots that are absent."""
    if not isinstance(table, dict):
        raise DataError(f"'delta_items' of {where} must map pools to rows, got {_short(table)}", hint=LAYOUT)
    _refuse_unknown(table, pools, f"'delta_items' of {where}")
    found = np.full((len(pools), len(budgets), count), np.nan)
    for p, pool in enumerate(pools):
        rows = table.get(pool) or []
        if not isinstance(rows, list) or len(rows) > len(budgets):
            raise DataError(
                f"'delta_items' of {where}: pool '{pool}' needs one row for each of the {len(budgets)} budgets, "
                f"got {_short(rows)}",
                hint=LAYOUT,
            )
        for b, row in enumerate(rows):
            if row is not None:
                found[p, b] = _row(row, count, f"pool '{pool}' at {budgets[b]:,} tokens of {where}")
    return found


def _row(values: Any, count: int, what: str) -> Floats:
    if not isinstance(values, list) or len(values) != count:
        raise DataError(f"{what} must hold {count} numbers, got {_short(values)}", hint=LAYOUT)
    for value in values:
        number = value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))
        if not number or (isinstance(value, float) and math.isinf(value)):
            raise DataError(f"{what} must hold numbers, got {_short(value)}", hint=LAYOUT)
    return np.array([math.nan if value is None else value for value in values], np.float64)


def _short(value: Any) -> str:
    if value is None:
        return "nothing"
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
