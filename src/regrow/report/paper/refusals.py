"""Figure 6: where each model stands between refusing unsafe requests and answering benign ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import polars

from regrow.report.paper.families import Family
from regrow.report.paper.frames import frame_of
from regrow.report.paper.names import method_name, stage_name


class OperatingPoint(NamedTuple):
    """The two refusal rates of one model, scores averaged over seeds, with their limits."""

    family: str
    stage: str
    model: str
    rule: str
    budget: int
    unsafe_refused: float
    unsafe_low: float
    unsafe_high: float
    benign_answered: float
    benign_low: float
    benign_high: float
    runs: str


def refusal_frame(families: Sequence[Family], retention: polars.DataFrame, budget: int) -> polars.DataFrame:
    """Return one row a family and model: unpruned, pruned, repaired, the rules at the budget and the token-matched
    control. Families whose safety items carry no kinds have none."""
    rates = {
        (row["family"], row["runs"].split("; ")[-1], row["kind"]): row
        for row in retention.filter(polars.col("kind").is_in(["unsafe", "benign"])).iter_rows(named=True)
    }
    found = []
    for family in families:
        matched = family.matched(budget)
        compared = family.rules(budget)
        shown = [family.base, *family.cuts, *family.repaired, *compared, *([matched] if matched else [])]
        for method in shown:
            last = method.places.split("; ")[-1]
            unsafe, benign = (rates.get((family.name, last, kind)) for kind in ("unsafe", "benign"))
            if unsafe is None or benign is None:
                continue
            name = stage_name(method)
            if method.stage == "healed":
                name = "Uniform, token-matched" if method is matched else method_name(method, compared)
            found.append(
                OperatingPoint(
                    family.name,
                    method.stage,
                    name,
                    method.rule,
                    method.budget,
                    unsafe["score"],
                    unsafe["score_low"],
                    unsafe["score_high"],
                    benign["score"],
                    benign["score_low"],
                    benign["score_high"],
                    method.places,
                )
            )
    return frame_of(OperatingPoint, found)
