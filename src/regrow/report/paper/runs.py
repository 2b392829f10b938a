"""Every run of a study: what each number can be traced to."""

from __future__ import annotations

from typing import Any, NamedTuple

import polars

from regrow.planning.tokens import show_tokens
from regrow.records.study_runs import MAIN_CUT, Study, StudyRun
from regrow.report.paper.frames import frame_of
from regrow.report.paper.names import rule_order
from regrow.report.wording import STAGES, blocks_phrase


class RunRow(NamedTuple):
    """One run folder: its place in the design, the model that was scored, and what scoring it used."""

    run: str
    family: str
    stage: str
    cut: str
    rule: str
    scope: str
    budget: int
    seed: int
    pilot: str
    mixture: str
    split: str
    source: str
    blocks: str
    removed: str
    healed_tokens: int
    items: int
    generated_tokens: int
    flops: float
    wall_seconds: float
    measured: str
    weights_sha256: str


def run_frame(study: Study) -> polars.DataFrame:
    """Return one row a finished run, by family, stage, rule, scope, budget and seed."""
    rows = []
    for run in sorted(study.runs, key=_order):
        at, model = run.coordinates, run.record.model
        rows.append(
            RunRow(
                run.place,
                at.family,
                at.stage,
                at.cut,
                at.rule,
                at.scope,
                at.budget,
                at.seed,
                at.pilot,
                ", ".join(f"{pool} {show_tokens(tokens)}" for pool, tokens in at.mixture.items() if tokens),
                run.record.split,
                model.source,
                f"{model.blocks} of {model.unpruned_blocks or model.blocks}",
                blocks_phrase(model.removed_blocks),
                model.healing_tokens,
                len(run.items),
                run.record.cost.generated_tokens,
                run.record.cost.flops,
                run.record.cost.wall_seconds,
                run.record.provenance.created,
                model.weights_sha256,
            )
        )
    return frame_of(RunRow, rows)


def _order(run: StudyRun) -> tuple[Any, ...]:
    at = run.coordinates
    return (
        at.family,
        at.pilot != "",
        run.record.split != "test",
        STAGES.index(at.stage),
        at.cut != MAIN_CUT,
        at.budget if at.pilot else rule_order(at.rule),
        at.pilot,
        at.scope,
        at.budget,
        at.seed,
    )
