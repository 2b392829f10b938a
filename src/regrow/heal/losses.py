"""What a healing run minimises: sums over the response tokens of a micro-batch.

The loop divides by the number of response tokens of the whole update (end tokens included), so every response token of
an update weighs the same whatever its sequence, pool or micro-batch.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F

from regrow.heal.microbatch import MicroBatch


class Loss(Protocol):
    """Returns the sum of a loss over response tokens (a scalar, float32).

    ``logits`` (n, vocabulary) are those of the positions that predict the ``batch.labels`` (n,); the head is never
    computed elsewhere.
    """

    def __call__(self, logits: torch.Tensor, batch: MicroBatch) -> torch.Tensor: ...


def response_cross_entropy(logits: torch.Tensor, batch: MicroBatch) -> torch.Tensor:
    """Return the summed negative log-likelihood, in nats, of the response tokens and the end token."""
    return F.cross_entropy(logits.float(), batch.labels, reduction="sum")
