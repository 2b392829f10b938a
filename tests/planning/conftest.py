"""The published pilots, and synthetic ones made from known curves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regrow.planning.curves import SHAPES, Curves
from regrow.planning.pilot_files import read_pilots
from regrow.planning.pilots import Pilots

PUBLISHED = Path(__file__).with_name("published.json")
FAMILIES = ("llama", "qwen")
CAPABILITIES = ("structured_output", "function_calling", "instruction_following", "math", "safety", "knowledge")
POOLS = ("structured_output", "function_calling", "instruction_following", "math", "safety", "general")
BUDGETS = (30_000, 100_000, 300_000)


@pytest.fixture(scope="session")
def published() -> dict[str, Any]:
    """Return the published numbers as they stand in the file."""
    return json.loads(PUBLISHED.read_text("utf-8"))


@pytest.fixture(scope="session")
def published_pilots() -> dict[str, Pilots]:
    """Return the published pilots by family."""
    return {one.family: one for one in read_pilots(PUBLISHED)}


def random_curves(
    rng: np.random.Generator, *, capabilities: int = 6, pools: int = 6, shape: str = "exponential", batch: int = 0
) -> Curves:
    """Return plausible curves: own pool first, transfer up to 0.6."""
    lead = (batch,) if batch else ()
    start = rng.uniform(0, 0.9, (*lead, capabilities))
    transfer = rng.uniform(0, 0.6, (*lead, capabilities, pools)) * (rng.random((*lead, capabilities, pools)) < 0.6)
    for c in range(capabilities):
        transfer[..., c, c % pools] = 1.0
    return Curves(
        start=start,
        gain=rng.uniform(0, 1.2 - start),
        tau=np.exp(rng.uniform(np.log(3e3), np.log(3e6), (*lead, capabilities))),
        transfer=transfer,
        shape=shape,  # type: ignore[arg-type]
    )


@pytest.fixture
def pilots_from() -> Callable[..., Pilots]:
    """Return a function that makes pilots whose counts follow given curves, exactly or as binomial draws."""

    def make(
        curves: Curves,
        *,
        items: int = 60,
        unpruned: float = 0.8,
        rng: np.random.Generator | None = None,
        capabilities: tuple[str, ...] = CAPABILITIES,
        pools: tuple[str, ...] = POOLS,
        budgets: tuple[int, ...] = BUDGETS,
    ) -> Pilots:
        z = np.einsum("cp,b->pbc", curves.transfer, np.asarray(budgets, float)) / curves.tau
        chance = unpruned * np.minimum(1.2, curves.start + curves.gain * SHAPES[curves.shape].rise(z))
        counts = items * chance if rng is None else rng.binomial(items, chance).astype(float)
        before = items * unpruned * curves.start if rng is None else rng.binomial(items, unpruned * curves.start)
        return Pilots(
            family="made",
            capabilities=capabilities,
            pools=pools,
            budgets=budgets,
            unpruned=np.full(len(capabilities), items * unpruned),
            pruned=np.asarray(before, float),
            healed=counts,
            dev_items=np.full(len(capabilities), float(items)),
        )

    return make
