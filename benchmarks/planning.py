"""Prints how long `regrow plan` takes on the published pilots, and planning 200 drawn sets of curves at once.

Targets: `regrow plan` under 3 s including start. Beside the batched certified solver stands SciPy's SLSQP, one set of
curves at a time, from the uniform split with exact gradients.
Run: python benchmarks/planning.py [FILE] [--json]
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

from regrow.planning.likelihood import draw_curves
from regrow.planning.optimum import maximise, value_of
from regrow.planning.pilot_files import read_pilots

PUBLISHED = Path(__file__).parents[1] / "tests" / "planning" / "published.json"
DRAWS, BUDGET, CAP = 200, 1e6, 6e5


def best_of(times: int, work) -> float:
    found = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return min(found)


def command(file: Path, *words: str) -> float:
    line = [sys.executable, "-m", "regrow", "plan", str(file), *words]
    return best_of(5, lambda: subprocess.run(line, check=True, capture_output=True))


def one_at_a_time(curves, count: int) -> list[float]:
    """Return the best values found by SLSQP for the first ``count`` sets of curves."""
    found = []
    for s in range(count):
        one = type(curves)(curves.start[s], curves.gain[s], curves.tau[s], curves.transfer[s], curves.shape)
        end = minimize(
            lambda w, one=one: -float(value_of(one, w * BUDGET, "sum")),
            np.full(6, 1 / 6),
            jac=lambda w, one=one: -BUDGET * (one.slopes(w * BUDGET) @ one.transfer),
            method="SLSQP",
            bounds=[(0, CAP / BUDGET)] * 6,
            constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": np.ones_like},
            options={"ftol": 1e-12, "maxiter": 500},
        )
        found.append(-float(end.fun))
    return found


def main() -> None:
    given = [word for word in sys.argv[1:] if not word.startswith("-")]
    file = Path(given[0]) if given else PUBLISHED
    curves = draw_curves(read_pilots(file)[0]).first(DRAWS)
    batch = best_of(3, lambda: maximise(curves, BUDGET, CAP))
    found = maximise(curves, BUDGET, CAP)
    part = DRAWS // 4
    start = time.perf_counter()
    single = one_at_a_time(curves, part)
    loop = (time.perf_counter() - start) * DRAWS / part
    result = {
        "plan_seconds": round(command(file), 2),
        "plan_json_seconds": round(command(file, "--json"), 2),
        "plans_at_once_seconds": round(batch, 3),
        "one_at_a_time_seconds": round(loop, 3),
        "ratio": round(loop / batch, 1),
        "largest_gap": float(found.gap.max()),
        "other_solver_short_by": float(max(found.value[:part] - np.array(single))),
    }
    if "--json" in sys.argv:
        print(json.dumps(result))
        return
    print(f"regrow plan            {result['plan_seconds']:.2f} s, with --json {result['plan_json_seconds']:.2f} s")
    print(f"{DRAWS} plans at once      {batch:.3f} s, each proven within {result['largest_gap']:.0e} of the optimum")
    print(f"one at a time (SLSQP)  {loop:.3f} s, up to {result['other_solver_short_by']:.0e} short of it, unproven")
    print(f"ratio                  {loop / batch:.1f} x")


if __name__ == "__main__":
    main()
