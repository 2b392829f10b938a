"""Named independent random streams from one root seed."""

from __future__ import annotations

import hashlib

import numpy as np


def derive_seed(root: int, *names: str | int) -> int:
    """Return a 63-bit seed that depends on the root seed and on every name, and on nothing else.

    The same root with other names gives independent streams, so adding one consumer of randomness never shifts the
    draws of another.
    """
    text = "\x1f".join([str(int(root)), *(str(name) for name in names)])
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:8], "big") >> 1


def stream(root: int, *names: str | int) -> np.random.Generator:
    """Return the NumPy generator of the stream called ``names`` under ``root``."""
    return np.random.default_rng(derive_seed(root, *names))
