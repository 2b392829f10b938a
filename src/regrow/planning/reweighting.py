"""Exponentiated-gradient weights over pools, the step that dynamic batch loading and DoReMi share."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from regrow.errors import DataError

Floats = NDArray[np.float64]


def reweight(weights: Floats, excess: Floats, *, eta: float, smoothing: float) -> Floats:
    """Return (1 - c) softmax(log w + eta * excess) + c / k, with c = ``smoothing`` and k pools; sums to one."""
    raised = np.log(np.maximum(weights, np.finfo(np.float64).tiny)) + eta * excess
    raised = np.exp(raised - raised.max())
    return np.asarray((1 - smoothing) * raised / raised.sum() + smoothing / len(raised))


def loss_rounds(losses: ArrayLike | None, reference: ArrayLike | None, pools: int, rule: str) -> tuple[Floats, Floats]:
    """Return losses (rounds, pools) and reference losses (pools,), checked. Raises DataError when they are absent, of
    another size or not finite."""
    if losses is None or reference is None:
        raise DataError(
            f"rule '{rule}' needs the pools' losses over a run and the reference losses",
            hint=f"put them into the file under 'evidence', '{rule}' (docs/planning.md has the layout)",
        )
    table = np.atleast_2d(np.asarray(losses, np.float64))
    target = np.asarray(reference, np.float64)
    if table.shape[1] != pools or target.shape != (pools,) or table.shape[0] == 0:
        raise DataError(
            f"rule '{rule}': losses have shape {table.shape} and references {target.shape} for {pools} pools",
            hint="one column of losses and one reference loss for each pool",
        )
    if not (np.isfinite(table).all() and np.isfinite(target).all()):
        raise DataError(f"rule '{rule}': a loss is not finite", hint="stop the run at the last finite step")
    return table, target
