"""How badly the curves miss the pilots they were fitted on."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from regrow.planning.likelihood import CurveDraws
from regrow.planning.pilots import PilotRun
from regrow.seeding import stream


class Misfit(NamedTuple):
    """``p_value``: how often counts simulated from the curves lie as far from them as the real ones do (small: the
    curve's form is wrong, or pilots vary by more than the items drawn). ``worst`` is the pilot furthest off and
    ``deviation`` by how many standard deviations; ``reason`` says why something is NaN."""

    capability: str
    p_value: float
    worst: PilotRun | None
    deviation: float
    reason: str = ""


def misfits(drawn: CurveDraws, *, seed: int = 0) -> list[Misfit]:
    """Return one Misfit a capability (posterior predictive check on the sum of squared standardised residuals).

    Pilots of other pools are left out when the curves were drawn without transfer.
    """
    pilots = drawn.pilots
    chance = drawn.probabilities()
    found = []
    for c, name in enumerate(pilots.capabilities):
        if not pilots.usable[c]:
            found.append(Misfit(name, np.nan, None, np.nan, "the unpruned model gets no item right"))
            continue
        used = ~np.isnan(pilots.healed[:, :, c])
        if drawn.transfer == "none":
            used &= (np.arange(len(pilots.pools)) == pilots.own[c])[:, None]
        if not used.any():
            found.append(Misfit(name, np.nan, None, np.nan, "no pilot was run"))
            continue
        n, p, counts = pilots.dev_items[c], chance[..., c], pilots.healed[:, :, c]
        spread = np.sqrt(n * p * (1 - p))
        generator = stream(seed, "misfit", pilots.family, name)
        simulated = generator.binomial(round(float(n)), p)
        real = np.where(used, ((counts - n * p) / spread) ** 2, 0.0).sum(axis=(1, 2))
        replayed = np.where(used, ((simulated - n * p) / spread) ** 2, 0.0).sum(axis=(1, 2))
        centre = (n * p).mean(axis=0)
        total = np.sqrt((spread**2).mean(axis=0) + (n * p).var(axis=0))
        off = np.where(used, (counts - centre) / total, 0.0)
        at = np.unravel_index(np.abs(off).argmax(), off.shape)
        worst = PilotRun(pilots.pools[int(at[0])], pilots.budgets[int(at[1])])
        found.append(Misfit(name, float((replayed >= real).mean()), worst, float(off[at])))
    return found
