"""Pilots: the small healing runs a plan is made from, as counts of dev items, and which of them are missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from regrow.errors import DataError
from regrow.planning.tokens import show_tokens
from regrow.stats.retention import retention

Floats = NDArray[np.float64]

BUDGETS = (30_000, 100_000, 300_000)
"""Tokens of the study's single-pool pilots."""
SCOPE_TOKENS = 300_000
SCOPES = ("all-lora", "cut-lora", "last-k")
PILOT_SCOPE = "all-lora"
PILOT_SEED = 42
DEV_ITEMS = 60
LOSS_EXAMPLES = 50
"""Examples of a pool on which a loss is read."""
SEQUENCE_TOKENS = 215
"""Mean tokens of a healing example, for cost estimates (the study: 168 to 262)."""
MIXTURE = "uniform"
"""The name that stands for all pools in equal parts where a single pool could stand."""
GENERAL = "general"
"""The pool of a capability that has none of its own."""


@dataclass(frozen=True, order=True)
class PilotRun:
    """One pilot: heal the pruned model on ``pool`` (or the uniform mixture) with ``tokens``, then score the dev
    split."""

    pool: str
    tokens: int
    scope: str = PILOT_SCOPE
    seed: int = PILOT_SEED

    @property
    def name(self) -> str:
        """Return a short name that also serves as a folder: "math-100k", "uniform-300k-last-k"."""
        return f"{self.pool}-{show_tokens(self.tokens)}" + ("" if self.scope == PILOT_SCOPE else f"-{self.scope}")

    @property
    def words(self) -> str:
        """Return the pilot as a phrase: "pool math at 100k tokens"."""
        what = "the uniform mixture" if self.pool == MIXTURE else f"pool {self.pool}"
        return f"{what} at {show_tokens(self.tokens)} tokens, scope {self.scope}"

    @property
    def command(self) -> str:
        """Return the commands that make this pilot and score it."""
        first, mixture = "", MIXTURE
        if self.pool != MIXTURE:
            mixture = f"{self.name}.yaml"
            first = f"echo '{self.pool}: {self.tokens}' > {mixture} && "
        return (
            f"{first}regrow heal PRUNED -o {self.name} --tokens {self.tokens} --mixture {mixture} "
            f"--scope {self.scope} --seed {self.seed} && regrow eval {self.name} -o {self.name}-dev --split dev"
        )


@dataclass(frozen=True)
class Pilots:
    """Dev counts of one family. Items right: ``unpruned`` and ``pruned`` (capabilities,), ``healed`` (pools, budgets,
    capabilities) with NaN for a pilot not run, out of ``dev_items`` (capabilities,).

    ``scope_counts`` holds the uniform pilots by scope, ``scope`` a choice made elsewhere; ``nll_gap`` (capabilities,)
    is the pruned model's mean negative log-likelihood of its own pool's examples minus the teacher's, NaN if not
    measured. ``evidence`` holds by rule what only that rule reads (see :mod:`regrow.planning.evidence_files`). Raises
    DataError for counts that cannot be.
    """

    family: str
    capabilities: tuple[str, ...]
    pools: tuple[str, ...]
    budgets: tuple[int, ...]
    unpruned: Floats
    pruned: Floats
    healed: Floats
    dev_items: Floats
    scope_counts: Mapping[str, Floats] = field(default_factory=dict)
    scope: str | None = None
    nll_gap: Floats | None = None
    evidence: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        _check_names(self)
        _check_counts(self)

    @property
    def own(self) -> tuple[int, ...]:
        """Return the index of each capability's own pool."""
        return own_pools(self.capabilities, self.pools)

    @property
    def usable(self) -> NDArray[np.bool_]:
        """Return which capabilities have a retention at all: those the unpruned model gets at least one item of."""
        return np.asarray(self.unpruned > 0)

    @property
    def pruned_retention(self) -> Floats:
        """Return r of the pruned model, (capabilities,); NaN where undefined."""
        return np.asarray(retention(self.pruned, self.unpruned), np.float64)

    @property
    def retention(self) -> Floats:
        """Return r of every pilot, (pools, budgets, capabilities); NaN where undefined or not run."""
        return np.asarray(retention(self.healed, self.unpruned), np.float64)

    @property
    def largest(self) -> int:
        """Return the tokens of the largest single-pool pilot."""
        return max(self.budgets)

    def runs(self) -> list[PilotRun]:
        """Return the single-pool pilots that the layout has room for, in the order of ``healed``."""
        return [PilotRun(pool, tokens) for pool in self.pools for tokens in self.budgets]

    def missing(self) -> list[PilotRun]:
        """Return the single-pool pilots without counts."""
        absent = np.isnan(self.healed).any(axis=2).ravel()
        return [run for run, gone in zip(self.runs(), absent, strict=True) if gone]

    def require(self, *, own_pool_only: bool = False) -> None:
        """Raise DataError naming the pilots that are missing, with the command that makes the first one."""
        absent = self.missing()
        if own_pool_only:
            needed = {self.pools[index] for index in self.own}
            absent = [run for run in absent if run.pool in needed]
        if absent:
            rest = f" and {len(absent) - 1} more ({', '.join(run.name for run in absent[1:6])})" if absent[1:] else ""
            raise DataError(
                f"family '{self.family}': the pilot of {absent[0].words} is missing{rest}", hint=absent[0].command
            )

    def with_healed(self, healed: ArrayLike) -> Pilots:
        """Return these pilots with other counts (simulated ones, for example)."""
        return replace(self, healed=np.asarray(healed, np.float64))


def own_pools(capabilities: Sequence[str], pools: Sequence[str]) -> tuple[int, ...]:
    """Return the index of each capability's own pool: the one of its name, else the general one."""
    found = []
    for name in capabilities:
        home = name if name in pools else GENERAL
        if home not in pools:
            raise DataError(
                f"capability '{name}' has no pool: none of that name and no '{GENERAL}' among {', '.join(pools)}",
                hint=f"add a pool '{name}' or a pool '{GENERAL}'",
            )
        found.append(list(pools).index(home))
    return tuple(found)


def _check_names(pilots: Pilots) -> None:
    where = f"family '{pilots.family}'"
    for what, names in (("capabilities", pilots.capabilities), ("pools", pilots.pools), ("budgets", pilots.budgets)):
        if not names:
            raise DataError(f"{where}: there are no {what}", hint="see docs/planning.md for the layout")
        if len(set(names)) != len(names):
            raise DataError(f"{where}: {what} contain a value twice: {list(names)}", hint="name each once")
    for tokens in pilots.budgets:
        if tokens <= 0:
            raise DataError(
                f"{where}: a pilot's budget must be positive, got {tokens}", hint="write tokens, such as 30000"
            )
    own_pools(pilots.capabilities, pilots.pools)


def _check_counts(pilots: Pilots) -> None:
    shape = (len(pilots.pools), len(pilots.budgets), len(pilots.capabilities))
    for what, counts, wanted in (
        ("the unpruned model", pilots.unpruned, shape[2:]),
        ("the pruned model", pilots.pruned, shape[2:]),
        ("the pilots", pilots.healed, shape),
        *((f"the uniform pilot under {scope}", counts, shape[2:]) for scope, counts in pilots.scope_counts.items()),
    ):
        if counts.shape != wanted:
            raise DataError(
                f"family '{pilots.family}': counts of {what} have shape {counts.shape}, expected {wanted}",
                hint="one count for each capability, in the order of 'capabilities'",
            )
        outside = np.argwhere((counts < 0) | (counts > pilots.dev_items))
        if outside.size:
            place = tuple(int(index) for index in outside[0])
            run = PilotRun(pilots.pools[place[0]], pilots.budgets[place[1]]).words if len(place) == 3 else what
            raise DataError(
                f"family '{pilots.family}', {run}: {counts[place]:g} items right of "
                f"{pilots.dev_items[place[-1]]:g} in {pilots.capabilities[place[-1]]}",
                hint="counts lie between 0 and the number of dev items (dev_items, 60 unless the file says otherwise)",
            )
    for what, counts in (("unpruned", pilots.unpruned), ("pruned", pilots.pruned)):
        if np.isnan(counts).any():
            gone = pilots.capabilities[int(np.argmax(np.isnan(counts)))]
            raise DataError(
                f"family '{pilots.family}': the {what} model has no count for {gone}",
                hint=f"regrow eval {what.upper()} -o {what}-dev --split dev",
            )
