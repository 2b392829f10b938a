"""Pilots from evaluations: graded items of the unpruned, the pruned and the pilots' models into counts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from regrow.errors import DataError
from regrow.planning.pilots import PILOT_SCOPE, PilotRun, Pilots
from regrow.records.results import ItemScore
from regrow.stats.resampling import stratified_mean

Floats = NDArray[np.float64]


WHOLE = 1e-9
"""Distance to a whole number that is rounding error, not a graded item."""


def items_right(scores: Sequence[ItemScore], capability: str) -> tuple[float, int]:
    """Return how many items of a capability are right, and of how many; NaN and 0 when none was scored.

    Items that carry a kind (unsafe, benign) count as their capability is scored: the mean of the kinds' rates, times
    the items.
    """
    own = [item for item in scores if item.capability == capability]
    if not own:
        return math.nan, 0
    kinds = [item.details.get("kind") for item in own]
    mean = stratified_mean([item.score for item in own], kinds if all(kind is not None for kind in kinds) else None)
    right = mean * len(own)
    # A whole count must be whole: where a fit's valley is flat its last digits would move the answer.
    return (float(round(right)) if abs(right - round(right)) < WHOLE else right), len(own)


def pilots_of(
    family: str,
    capabilities: Sequence[str],
    pools: Sequence[str],
    budgets: Sequence[int],
    *,
    unpruned: Sequence[ItemScore],
    pruned: Sequence[ItemScore],
    runs: Mapping[PilotRun, Sequence[ItemScore]],
) -> Pilots:
    """Return a family's pilots from graded dev items.

    ``runs`` holds single-pool pilots and uniform ones (which decide the scope); pilots that are absent stay missing.
    Raises DataError when evaluations scored different items, or any that are not of the dev split.
    """
    everything = {"unpruned": unpruned, "pruned": pruned, **{run.name: scores for run, scores in runs.items()}}
    _refuse_other_items(family, everything, capabilities)
    sizes = [items_right(unpruned, capability)[1] for capability in capabilities]

    def counts(scores: Sequence[ItemScore]) -> Floats:
        return np.array([items_right(scores, capability)[0] for capability in capabilities])

    healed = np.full((len(pools), len(budgets), len(capabilities)), np.nan)
    scopes: dict[str, Floats] = {}
    for run, scores in runs.items():
        if run.pool in pools and run.tokens in budgets and run.scope == PILOT_SCOPE:
            healed[list(pools).index(run.pool), list(budgets).index(run.tokens)] = counts(scores)
        elif run.pool not in pools:
            scopes[run.scope] = counts(scores)
        else:
            raise DataError(
                f"family '{family}': the pilot of {run.words} has no place in the design",
                hint=f"budgets {list(budgets)}, scope {PILOT_SCOPE}",
            )
    return Pilots(
        family=family,
        capabilities=tuple(capabilities),
        pools=tuple(pools),
        budgets=tuple(budgets),
        unpruned=counts(unpruned),
        pruned=counts(pruned),
        healed=healed,
        dev_items=np.array(sizes, np.float64),
        scope_counts=scopes,
    )


def _refuse_other_items(family: str, runs: Mapping[str, Sequence[ItemScore]], capabilities: Sequence[str]) -> None:
    seen: dict[str, set[str]] = {}
    for name, scores in runs.items():
        outside = next((item for item in scores if item.split != "dev"), None)
        if outside is not None:
            raise DataError(
                f"family '{family}': '{name}' was scored on the {outside.split} split",
                hint="plans are made on dev: regrow eval MODEL --split dev",
            )
        for capability in capabilities:
            ids = {item.item_id for item in scores if item.capability == capability}
            first = seen.setdefault(capability, ids)
            if ids != first:
                differing = sorted(ids ^ first)
                raise DataError(
                    f"family '{family}': '{name}' was scored on other {capability} items than the unpruned model "
                    f"({', '.join(differing[:5])}{' ...' if len(differing) > 5 else ''})",
                    hint="score all of a family's models on the same items",
                )
