"""A step of a study: one piece of work, known by the hash of what shapes its result.

Apart from the design that makes steps, because who only looks at a study needs no rules, no curves and no scipy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from regrow.records.fingerprint import fingerprint

Kind = Literal["pools", "prune", "repair", "evaluate", "heal"]


@dataclass(frozen=True)
class Step:
    """One piece of work. ``request`` holds what shapes its result; ``parents`` the ids of the steps it reads, by the
    part they play; ``place`` the coordinates of an evaluated model (see :mod:`regrow.records.study_runs`), ``also``
    other families that share it."""

    kind: Kind
    family: str
    title: str
    request: Mapping[str, Any]
    parents: Mapping[str, str] = field(default_factory=dict)
    place: Mapping[str, Any] | None = None
    also: tuple[str, ...] = ()

    @cached_property
    def id(self) -> str:
        """Return the first 16 hex digits of the content hash."""
        return fingerprint([self.kind, dict(self.request), dict(self.parents)])[:16]
