"""The names and weights in an objective such as "response-cross-entropy+0.5*distillation"; imports no loss."""

from __future__ import annotations

import math
import re

from regrow.errors import ConfigError
from regrow.heal.registry import LOSSES

_PLUS = re.compile(r"(?<![eE])\+")
_EXAMPLE = "write for example response-cross-entropy or response-cross-entropy+0.5*distillation"


def terms_of(text: str) -> list[tuple[str, float]]:
    """Return (name, weight) of the losses in ``text``: joined by "+", each with an optional "weight*" before it.

    Raises ConfigError for an unknown loss, one that is named twice, or a weight that is not a positive number.
    """
    found: list[tuple[str, float]] = []
    for part in _PLUS.split(text):
        factor, star, name = part.strip().rpartition("*")
        name = name.strip()
        if not name:
            raise ConfigError(f"the loss '{text}' has an empty term", hint=_EXAMPLE)
        LOSSES.entry(name)
        weight = 1.0
        if star:
            try:
                weight = float(factor.strip())
            except ValueError:
                weight = math.nan
            if not (math.isfinite(weight) and weight > 0):
                raise ConfigError(
                    f"the weight '{factor.strip()}' of the loss '{name}' is not a positive number", hint=_EXAMPLE
                )
        if name in (known for known, _ in found):
            raise ConfigError(f"the loss '{name}' stands twice in '{text}'", hint="name each loss once")
        found.append((name, weight))
    return found
