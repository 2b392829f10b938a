"""The learning rate over the updates of a run: linear warm-up times a cosine."""

from __future__ import annotations

import math

from regrow.errors import ConfigError


def updates_of(sequences: int, sequences_per_update: int) -> int:
    """Return the number of updates; the last may hold fewer sequences."""
    return math.ceil(sequences / sequences_per_update)


def learning_rate_factor(update: int, updates: int, warmup_fraction: float = 0.05) -> float:
    """Return the factor on the learning rate at the 0-based ``update`` of ``updates``.

    min(1, (s + 1) / w) * (1 + cos(pi s / S)) / 2 with w = max(1, int(warmup_fraction * S)). It stays above zero in the
    last update. Raises ConfigError when ``update`` is not one of them.
    """
    if not 0 <= update < updates:
        raise ConfigError(f"there is no update {update} of {updates}", hint=f"allowed: 0 to {updates - 1}")
    warmup = max(1, int(warmup_fraction * updates))
    return min(1.0, (update + 1) / warmup) * (1.0 + math.cos(math.pi * update / updates)) / 2.0
