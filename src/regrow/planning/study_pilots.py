"""Pilots from the run folders of a study."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from regrow.errors import DataError
from regrow.planning.pilot_counts import pilots_of
from regrow.planning.pilots import MIXTURE, PilotRun, Pilots
from regrow.planning.rule import STUDY_CAPABILITIES
from regrow.records.study_runs import MAIN_CUT, StudyRun, read_study

NOT_GRADED = "perplexity"
"""Windows of text are kept among the items, but are no capability."""

Places = dict[tuple[str, int], str]
"""The run folder of each single-pool pilot, by pool and tokens."""


def pilots_in_study(folder: Path) -> list[Pilots]:
    """Return the pilots of every family in a study folder. Raises DataError when no family has any, or their dev
    evaluations are missing."""
    runs = read_study(folder).runs
    found = []
    for family in sorted({run.coordinates.family for run in runs}):
        pilots, _ = family_pilots(family, [run for run in runs if run.coordinates.family == family])
        if pilots is not None:
            found.append(pilots)
    if not found:
        raise DataError(
            f"the study '{folder}' has no pilots with dev evaluations of the unpruned and the pruned model beside them",
            hint="`regrow plan` without a file lists the pilots each rule needs",
        )
    return found


def family_pilots(family: str, runs: Sequence[StudyRun]) -> tuple[Pilots | None, Places]:
    """Return a family's dev counts and where each single-pool pilot was run; None without pilots, or without dev
    evaluations of the unpruned and the pruned model."""
    dev = [run for run in runs if run.record.split == "dev"]
    made = [run for run in dev if run.coordinates.pilot]
    singles = [run for run in made if run.coordinates.pilot != MIXTURE]
    unpruned, pruned = (
        next((r for r in dev if r.coordinates.stage == stage and r.coordinates.cut == MAIN_CUT), None)
        for stage in ("unpruned", "pruned")
    )
    if not singles or unpruned is None or pruned is None:
        return None, {}
    scored = dict.fromkeys(item.capability for item in unpruned.items if item.capability != NOT_GRADED)
    capabilities = [name for name in STUDY_CAPABILITIES if name in scored]
    capabilities += [name for name in scored if name not in capabilities]
    met = dict.fromkeys(run.coordinates.pilot for run in singles)
    # The suite's order, not the folders': the study's solver stops a last digit earlier or later in another one.
    pools = [name for name in capabilities if name in met] + [name for name in met if name not in capabilities]
    by_run = {
        PilotRun(run.coordinates.pilot, run.coordinates.budget, run.coordinates.scope, run.coordinates.seed): run
        for run in made
    }
    pilots = pilots_of(
        family,
        capabilities,
        pools,
        sorted({run.coordinates.budget for run in singles}),
        unpruned=unpruned.items,
        pruned=pruned.items,
        runs={key: run.items for key, run in by_run.items()},
    )
    return pilots, {(key.pool, key.tokens): run.place for key, run in by_run.items() if key.pool != MIXTURE}
