"""Prints how long both paired bootstraps take at the study's size, and how much a plain Python loop takes instead.

2,000 resamples of 1,350 items x 2 methods x 3 seeds; target: both together under 0.5 s and at least 50 x the loop.
Run: python benchmarks/bootstrap.py [--json]
"""

from __future__ import annotations

import json
import random
import sys
import time

import numpy as np

from regrow.stats.bootstrap import both_bootstraps

ITEMS = {
    "structured_output": 150,
    "function_calling": 200,
    "instruction_following": 300,
    "math": 200,
    "safety": 200,
    "knowledge": 300,
}
RESAMPLES, SEEDS = 2_000, 3


def scores(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: (rng.random((SEEDS, items)) < 0.5).astype(float) for name, items in ITEMS.items()}


def plain_loop(a, b, base, seeds: bool, resamples: int) -> tuple[list[float], list[float]]:
    """The same two bootstraps as one would first write them; returns resampled capped means and worst cases."""
    rng = random.Random(0)
    rows = {side: {name: table.tolist() for name, table in given.items()} for side, given in (("a", a), ("b", b))}
    capped, worst = [], []
    for _ in range(resamples):
        chosen = {
            side: [rng.randrange(SEEDS) for _ in range(SEEDS)] if seeds else list(range(SEEDS)) for side in ("a", "b")
        }
        kept: dict[str, list[float]] = {"a": [], "b": []}
        for name, items in ITEMS.items():
            drawn = [rng.randrange(items) for _ in range(items)]
            for side in ("a", "b"):
                total = 0.0
                for seed in chosen[side]:
                    row = rows[side][name][seed]
                    for item in drawn:
                        total += row[item]
                kept[side].append(total / (SEEDS * items) / base[name])
        capped.append(sum(min(r, 1) for r in kept["a"]) / 6 - sum(min(r, 1) for r in kept["b"]) / 6)
        worst.append(min(kept["a"]) - min(kept["b"]))
    return capped, worst


def main() -> None:
    a, b = scores(1), scores(2)
    base = dict.fromkeys(ITEMS, 0.6)
    ours = []
    for _ in range(7):
        start = time.perf_counter()
        found, aware = both_bootstraps(a, b, base, resamples=RESAMPLES)
        ours.append(time.perf_counter() - start)
    part = RESAMPLES // 10
    start = time.perf_counter()
    capped, _ = plain_loop(a, b, base, False, part)
    capped_aware, _ = plain_loop(a, b, base, True, part)
    loop = (time.perf_counter() - start) * RESAMPLES / part
    best = min(ours)
    result = {
        "both_bootstraps_seconds": round(best, 4),
        "plain_loop_seconds": round(loop, 2),
        "ratio": round(loop / best, 1),
        "standard_error_item_level": [round(found["capped_mean"].standard_error, 4), round(float(np.std(capped)), 4)],
        "standard_error_seed_aware": [
            round(aware["capped_mean"].standard_error, 4),
            round(float(np.std(capped_aware)), 4),
        ],
    }
    if "--json" in sys.argv:
        print(json.dumps(result))
        return
    print(f"both bootstraps    {best:.3f} s (best of {len(ours)}; target < 0.5 s)")
    print(f"plain Python loop  {loop:.1f} s (a tenth of the resamples, times ten)")
    print(f"ratio              {loop / best:.0f} x (target >= 50 x)")
    print(f"same answer        standard errors ours, loop: {result['standard_error_item_level']} item-level, ", end="")
    print(f"{result['standard_error_seed_aware']} seed-aware")


if __name__ == "__main__":
    main()
