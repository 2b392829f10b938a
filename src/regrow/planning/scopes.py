"""Which parameters to train: the scope whose uniform pilot keeps most on the dev split."""

from __future__ import annotations

import numpy as np

from regrow.planning.pilots import MIXTURE, PILOT_SCOPE, SCOPES, PilotRun, Pilots
from regrow.stats.retention import retention


def choose_scope(pilots: Pilots) -> tuple[str, str]:
    """Return the scope and why, in words.

    The highest sum of uncapped dev retentions among the scopes' uniform pilots; ties go to the scope listed first.
    Without such pilots the scope that the file states, else all-lora, the one the curves are measured under.
    """
    if pilots.scope_counts:
        kept = {
            scope: float(np.nansum(retention(counts, pilots.unpruned)[pilots.usable]))
            for scope, counts in pilots.scope_counts.items()
        }
        best = max(kept, key=lambda scope: kept[scope])
        shown = ", ".join(f"{scope} {total:.2f}" for scope, total in kept.items())
        return best, f"highest sum of dev retentions ({shown})"
    if pilots.scope:
        return pilots.scope, "as the file states"
    return PILOT_SCOPE, "no uniform pilots to choose from"


def missing_scope_pilots(pilots: Pilots) -> tuple[str, ...]:
    """Return a warning where a scope was chosen although some of the three uniform pilots were not run, with the
    command that makes each."""
    if not pilots.scope_counts:
        return ()
    absent = [PilotRun(MIXTURE, pilots.largest, scope) for scope in SCOPES if scope not in pilots.scope_counts]
    if not absent:
        return ()
    names = " and ".join(run.scope for run in absent)
    return (
        f"the scope was chosen without the uniform pilot under {names}: " + "; ".join(run.command for run in absent),
    )
