"""What one more pilot would be worth, against what its tokens would do in the heal itself."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regrow.errors import ConfigError
from regrow.planning.curves import Curves
from regrow.planning.likelihood import CurveDraws
from regrow.planning.optimum import maximise, value_of
from regrow.planning.pilots import PilotRun
from regrow.planning.plan_spread import PlanSpread
from regrow.planning.planner import trust_region
from regrow.seeding import stream

Floats = NDArray[np.float64]

OUTCOMES = 40


class PilotWorth(NamedTuple):
    """In units of the mean retention over capabilities: what the pilot's knowledge adds to the planned mixture
    (``knowledge``), and what its tokens would add if they were healed on instead (``healing``)."""

    run: PilotRun
    knowledge: float
    healing: float

    @property
    def pays(self) -> bool:
        return self.knowledge > self.healing


class Worth(NamedTuple):
    """``perfect``: what knowing the drawn curves exactly would add; no pilot is worth more. ``pilots`` best first."""

    perfect: float
    pilots: tuple[PilotWorth, ...]


def worth_of_pilots(
    drawn: CurveDraws, spread: PlanSpread, *, tokens: float | None = None, outcomes: int = OUTCOMES, seed: int = 0
) -> Worth:
    """Return what one more single-pool pilot of ``tokens`` (default: the trust region, twice the largest) is worth.

    Preposterior analysis over the spread's plans: counts of the new pilot are simulated from the drawn curves, the
    draws reweighted by them, and the best of the plans under the new weights compared with the best under the old.
    Each capability is reweighted by its own count, which is exact because the objective is a sum. An estimate: with few
    draws it is a little too high. Raises ConfigError for the objective "min", which is no sum.
    """
    if spread.objective == "min":
        raise ConfigError("the worth of a pilot is defined for sums of retentions", hint="use rah or rah-capped")
    curves, pilots = spread.curves, drawn.pilots
    count, capabilities = curves.start.shape
    tokens = tokens if tokens is not None else 2.0 * pilots.largest
    plans = np.vstack([spread.tokens, spread.tokens.mean(axis=0)])
    kept = _retentions(curves, plans, spread.objective)  # (draws, plans, C)
    expected = kept.mean(axis=0).sum(axis=1)
    best = int(expected.argmax())
    own_best = value_of(curves, spread.tokens, spread.objective)
    perfect = float(own_best.mean() - expected[best]) / capabilities
    more = _healed_with(curves, plans[best], spread, pilots.largest, tokens) / capabilities
    items = pilots.dev_items[pilots.usable]
    found = []
    for p, pool in enumerate(pilots.pools):
        chance = _chance(curves, p, tokens, (pilots.unpruned / pilots.dev_items)[pilots.usable])
        generator = stream(seed, "worth", pilots.family, pool)
        gained = 0.0
        for truth in generator.integers(count, size=outcomes):
            right = generator.binomial(items.astype(int), chance[truth])
            logs = right * np.log(chance) + (items - right) * np.log1p(-chance)  # (draws, C)
            weights = np.exp(logs - logs.max(axis=0))
            weights /= weights.sum(axis=0)
            after = np.einsum("sc,sjc->j", weights, kept)
            gained += float(after.max() - after[best])
        found.append(PilotWorth(PilotRun(pool, round(tokens)), gained / outcomes / capabilities, more))
    ranked = sorted(found, key=lambda one: -one.knowledge)
    return Worth(max(perfect, 0.0), tuple(ranked))


def _retentions(curves: Curves, plans: Floats, objective: str) -> Floats:
    """Return the retention of every drawn curve under every plan, (draws, plans, C)."""
    wide = Curves(
        curves.start[:, None], curves.gain[:, None], curves.tau[:, None], curves.transfer[:, None], curves.shape
    )
    kept = wide.retention(plans[None])
    return np.minimum(kept, 1.0) if objective == "capped" else kept


def _chance(curves: Curves, pool: int, tokens: float, score: Floats) -> Floats:
    alone = np.zeros(curves.transfer.shape[-1])
    alone[pool] = tokens
    return np.clip(curves.retention(alone) * score, 1e-6, 1 - 1e-6)


def _healed_with(curves: Curves, plan: Floats, spread: PlanSpread, largest: float, extra: float) -> float:
    """Return the expected gain in summed retention when ``extra`` tokens more are healed on, split as well as the
    mean curve allows."""
    budget = spread.budget + extra
    cap = trust_region(largest, budget, len(plan))
    mean = Curves(
        curves.start.mean(axis=0),
        curves.gain.mean(axis=0),
        np.exp(np.log(curves.tau).mean(axis=0)),
        curves.transfer.mean(axis=0),
        curves.shape,
    )
    even = np.full(len(plan), budget / len(plan))
    candidates = [plan * budget / spread.budget, even]
    if cap > budget / len(plan):
        candidates.append(maximise(mean, budget, cap, spread.objective).tokens)
    best = max(float(value_of(curves, split, spread.objective).mean()) for split in candidates)
    return max(0.0, best - float(value_of(curves, plan, spread.objective).mean()))
