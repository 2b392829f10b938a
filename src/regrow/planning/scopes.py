"""Which parameters to train: the scope whose uniform pilot keeps most on the dev split."""

from __future__ import annotations

import numpy as np

from regrow.planning.pilots import PILOT_SCOPE, Pilots
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
