"""What a study's finished runs tell an allocation rule: dev counts of the unpruned, the pruned and the pilots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regrow.capabilities.suites import suite
from regrow.errors import DataError
from regrow.planning.pilots import MIXTURE, Pilots
from regrow.planning.rule import Design
from regrow.records.store import read_evaluation

Floats = NDArray[np.float64]


def right_items(run: Path, suite_name: str, capabilities: Sequence[str]) -> tuple[Floats, Floats]:
    """Return items right and items asked by capability, (C,) each, of an evaluation folder.

    "Right" is the capability's headline score times the items: for safety the balanced score, so it may be a half.
    """
    _, items = read_evaluation(run)
    by_name = {capability.name: capability for capability in suite(suite_name)}
    right, asked = [], []
    for name in capabilities:
        own = [item for item in items if item.capability == name]
        if not own:
            raise DataError(
                f"'{run}' holds no item of '{name}'", hint="delete the run's folder and run the study again"
            )
        right.append(by_name[name].summarise(own)["score"] * len(own))
        asked.append(len(own))
    return np.asarray(right, np.float64), np.asarray(asked, np.float64)


def pilots_from(
    family: str, runs: Path, parents: Mapping[str, str], suite_name: str, design: Design, capabilities: Sequence[str]
) -> Pilots:
    """Return the pilots that ``parents`` name (part -> run id): "unpruned", "pruned" and "pilot:POOL:TOKENS:SCOPE".

    A pilot that is not among them is NaN, and a rule that needs it says so.
    """
    unpruned, asked = right_items(runs / parents["unpruned"], suite_name, capabilities)
    pruned, _ = right_items(runs / parents["pruned"], suite_name, capabilities)
    healed = np.full((len(design.pools), len(design.budgets), len(capabilities)), np.nan)
    scopes: dict[str, Floats] = {}
    for part, run_id in parents.items():
        if not part.startswith("pilot:"):
            continue
        _, pool, tokens, scope = part.split(":")
        right, _ = right_items(runs / run_id, suite_name, capabilities)
        if pool == MIXTURE:
            scopes[scope] = right
        else:
            healed[design.pools.index(pool), design.budgets.index(int(tokens))] = right
    return Pilots(
        family=family,
        capabilities=tuple(capabilities),
        pools=design.pools,
        budgets=design.budgets,
        unpruned=unpruned,
        pruned=pruned,
        healed=healed,
        dev_items=asked,
        scope_counts=scopes,
    )
