"""Table 5: what a plan gains at the same budget, and what is left of it once its pilots are paid for."""

from __future__ import annotations

import math
from typing import NamedTuple

import polars

from regrow.report.paper.comparisons import FIXED, TOKEN_MATCHED
from regrow.report.paper.families import UNIFORM
from regrow.report.paper.frames import frame_of
from regrow.report.paper.names import rule_name


class Matched(NamedTuple):
    """A planned rule by one metric: against the uniform mixture on the same healing tokens, and against it on as many
    tokens as the planned rule trained on with its pilots. p values are Holm's, seed-aware where there are seeds."""

    family: str
    planner: str
    metric: str
    planned: float
    uniform: float
    gain: float
    gain_low: float
    gain_high: float
    gain_p: float
    gain_bound: bool
    tokens: int
    longer: float
    left: float
    left_low: float
    left_high: float
    left_p: float
    left_bound: bool
    left_equivalence_p: float
    longer_tokens: int
    runs: str


def matched_frame(comparisons: polars.DataFrame) -> polars.DataFrame:
    """Return one row a family, planned rule and metric from the table of tests; NaN where one side was not run."""
    fixed = comparisons.filter((polars.col("tests") == FIXED) & (polars.col("b") == rule_name(UNIFORM)))
    longer = comparisons.filter(polars.col("tests") == TOKEN_MATCHED)
    keys = ["family", "a", "metric"]
    both = {tuple(row[key] for key in keys): row for row in longer.iter_rows(named=True)}
    known = {tuple(row[key] for key in keys): row for row in fixed.iter_rows(named=True)}
    found = []
    for key in dict.fromkeys([*known, *both]):
        near, far = known.get(key), both.get(key)
        one = near or far or {}
        gain_p, gain_bound = _p(near)
        left_p, left_bound = _p(far)
        found.append(
            Matched(
                key[0],
                key[1],
                key[2],
                one["value_a"],
                _of(near, "value_b"),
                _of(near, "difference"),
                _of(near, "low"),
                _of(near, "high"),
                gain_p,
                gain_bound,
                near["tokens_b"] if near else 0,
                _of(far, "value_b"),
                _of(far, "difference"),
                _of(far, "low"),
                _of(far, "high"),
                left_p,
                left_bound,
                _of(far, "equivalence_p"),
                far["tokens_b"] if far else 0,
                "; ".join(dict.fromkeys("; ".join(row["runs"] for row in (near, far) if row).split("; "))),
            )
        )
    return frame_of(Matched, found)


def _of(row: dict[str, float] | None, key: str) -> float:
    return row[key] if row else math.nan


def _p(row: dict[str, float] | None) -> tuple[float, bool]:
    if row is None:
        return math.nan, False
    if math.isfinite(row["p_seed"]):
        return row["holm_seed"], bool(row["holm_bound_seed"])
    return row["holm_item"], bool(row["holm_bound_item"])
