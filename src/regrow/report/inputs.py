"""Evaluations read, put in stage order and paired item by item, or refused."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regrow.errors import ConfigError, DataError, did_you_mean
from regrow.records.results import ItemScore, RunRecord
from regrow.records.store import read_evaluation
from regrow.report.wording import CAPABILITIES, STAGES

WINDOW = "perplexity"
"""The capability under which text windows are kept among the items (score: mean nats a token; details: tokens)."""

NAMED_AT_MOST = 5
"""Ids spelled out in an error; the rest are counted."""


Run = tuple[RunRecord, Sequence[ItemScore]]
"""One finished evaluation: its record and its items."""


@dataclass(frozen=True)
class Windows:
    """The same text windows seen by several evaluations: ``nll`` (evaluations, windows) is the summed negative
    log-likelihood in nats, NaN for an evaluation without perplexity; ``tokens`` (windows,) how many were predicted."""

    nll: NDArray[np.float64]
    tokens: NDArray[np.float64]


@dataclass(frozen=True)
class Paired:
    """Evaluations of the same items, in stage order.

    ``scores[c]`` is (evaluations, items) and ``items[c]`` lists, for each evaluation, the ItemScores in the same
    order. ``kinds[c]`` holds the items' kind (unsafe, benign) where the capability is scored as balanced rates.
    ``windows`` holds the text windows on which perplexity was measured, where the records keep them. ``base`` is the
    index of the unpruned evaluation, ``cut`` that of the first pruned one; None when absent.
    """

    records: tuple[RunRecord, ...]
    labels: tuple[str, ...]
    capabilities: tuple[str, ...]
    items: dict[str, tuple[tuple[ItemScore, ...], ...]]
    scores: dict[str, NDArray[np.float64]]
    kinds: dict[str, tuple[str, ...]]
    base: int | None
    cut: int | None
    windows: Windows | None = None
    notes: tuple[str, ...] = ()


def read_evaluations(folders: Iterable[Path]) -> list[Run]:
    """Return the evaluations in ``folders``. Raises DataError for a folder that holds no finished one."""
    return [read_evaluation(folder) for folder in folders]


def pair(runs: Sequence[Run], *, capabilities: Sequence[str] | None = None) -> Paired:
    """Return the evaluations in stage order, their items aligned by id.

    ``capabilities`` restricts what is compared (None: all). Raises DataError when two evaluations differ in items or
    in the text of an item's prompt (the differing ids are named), and ConfigError for two unpruned evaluations.
    """
    if not runs:
        raise DataError("there is no evaluation to report", hint="run `regrow eval MODEL --output DIR` first")
    ordered = sorted(runs, key=lambda run: STAGES.index(run[0].stage))
    _refuse_two_bases(ordered)
    _refuse_other_items(ordered)
    wanted = _capabilities(ordered, capabilities)
    tables = [_by_id(run, wanted) for run in ordered]
    labels = _labels(ordered)
    for index in range(1, len(ordered)):
        for capability in wanted:
            _refuse_unequal(capability, labels[0], tables[0][capability], labels[index], tables[index][capability])
    items: dict[str, tuple[tuple[ItemScore, ...], ...]] = {}
    scores: dict[str, NDArray[np.float64]] = {}
    kinds: dict[str, tuple[str, ...]] = {}
    notes: list[str] = []
    for capability in wanted:
        ids = [i for i in tables[0][capability] if all(math.isfinite(table[capability][i].score) for table in tables)]
        dropped = sorted(set(tables[0][capability]) - set(ids))
        if dropped:
            notes.append(
                f"{len(dropped)} {capability} items have no score in some run and are left out: {_named(dropped)}"
            )
        items[capability] = tuple(tuple(table[capability][i] for i in ids) for table in tables)
        scores[capability] = np.array([[item.score for item in row] for row in items[capability]], np.float64)
        kind = tuple(str(item.details.get("kind", "")) for item in items[capability][0])
        if len(set(kind)) == 2 and all(kind):
            kinds[capability] = kind
    stages = [record.stage for record, _ in ordered]
    return Paired(
        tuple(record for record, _ in ordered),
        labels,
        tuple(wanted),
        items,
        scores,
        kinds,
        stages.index("unpruned") if "unpruned" in stages else None,
        stages.index("pruned") if "pruned" in stages else None,
        _windows(ordered, labels),
        tuple(notes),
    )


def _refuse_two_bases(ordered: Sequence[Run]) -> None:
    bases = [record.label for record, _ in ordered if record.stage == "unpruned"]
    if len(bases) > 1:
        raise ConfigError(
            f"{len(bases)} unpruned evaluations ({', '.join(bases)}): the others can only be compared with one",
            hint="report one model family at a time",
        )


def _refuse_other_items(ordered: Sequence[Run]) -> None:
    for word in ("suite", "split"):
        found = dict.fromkeys(str(getattr(record, word)) for record, _ in ordered)
        if len(found) > 1:
            raise DataError(
                f"the evaluations are of different {word}s: {', '.join(found)}",
                hint=f"measure all of them with the same --{word}",
            )


def _capabilities(ordered: Sequence[Run], asked: Sequence[str] | None) -> list[str]:
    met = dict.fromkeys(item.capability for _, items in ordered for item in items if item.capability != WINDOW)
    known = [name for name in CAPABILITIES if name in met]
    every = known + [name for name in met if name not in CAPABILITIES]
    if asked is None:
        return every
    for name in asked:
        if name not in met:
            raise ConfigError(f"no evaluation holds the capability '{name}'", hint=did_you_mean(name, met))
    return [name for name in every if name in asked]


def _by_id(run: Run, wanted: Sequence[str]) -> dict[str, dict[str, ItemScore]]:
    table: dict[str, dict[str, ItemScore]] = {name: {} for name in wanted}
    twice = []
    for item in run[1]:
        if item.capability not in table:
            continue
        if item.item_id in table[item.capability]:
            twice.append(item.item_id)
        table[item.capability][item.item_id] = item
    if twice:
        raise DataError(
            f"'{run[0].label}' scores an item twice: {_named(sorted(set(twice)))}",
            hint="measure it again with `regrow eval` into a new folder",
        )
    return table


def _refuse_unequal(
    capability: str, first: str, ours: dict[str, ItemScore], second: str, theirs: dict[str, ItemScore]
) -> None:
    for label, only in ((first, sorted(set(ours) - set(theirs))), (second, sorted(set(theirs) - set(ours)))):
        if only:
            raise DataError(
                f"'{first}' and '{second}' cannot be paired: {capability} items only in '{label}': {_named(only)}",
                hint="measure both with the same suite, split and --items, or compare fewer with --capabilities",
            )
    changed = sorted(i for i in ours if ours[i].prompt_sha256 != theirs[i].prompt_sha256)
    if changed:
        raise DataError(
            f"'{first}' and '{second}' cannot be paired: the prompts of {capability} differ: {_named(changed)}",
            hint="measure both with the same version of the suite and the same chat template",
        )


def _windows(ordered: Sequence[Run], labels: Sequence[str]) -> Windows | None:
    tables = [_by_id(run, [WINDOW])[WINDOW] for run in ordered]
    measured = [index for index, table in enumerate(tables) if table]
    if not measured:
        return None
    first = tables[measured[0]]
    for index in measured[1:]:
        _refuse_unequal(WINDOW, labels[measured[0]], first, labels[index], tables[index])
    tokens = np.array([float(item.details.get("tokens") or 0.0) for item in first.values()])
    nll = np.full((len(ordered), tokens.size), np.nan)
    for index in measured:
        nll[index] = [tables[index][name].score for name in first] * tokens
    return Windows(nll, tokens) if tokens.sum() > 0 else None


def _labels(ordered: Sequence[Run]) -> tuple[str, ...]:
    """Labels as given; what is not unique gets its seed, or else a number."""
    given = [record.label or record.stage for record, _ in ordered]
    labels: list[str] = []
    for index, label in enumerate(given):
        alike = [i for i, other in enumerate(given) if other == label]
        seeds = [ordered[i][0].seed for i in alike]
        if len(alike) > 1:
            number = alike.index(index) + 1
            label = f"{label} (seed {seeds[number - 1]})" if len(set(seeds)) == len(seeds) else f"{label} ({number})"
        labels.append(label)
    return tuple(labels)


def _named(ids: Sequence[str]) -> str:
    more = len(ids) - NAMED_AT_MOST
    return ", ".join(ids[:NAMED_AT_MOST]) + (f" and {more} more" if more > 0 else "")
