"""What an allocation rule is: it says what it needs before it is run, and splits a budget once it has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from regrow.errors import ConfigError, DataError
from regrow.planning.curves import ShapeName
from regrow.planning.global_fit import fit_global
from regrow.planning.least_squares import Fit, Transfer, fit_study
from regrow.planning.optimum import Objective
from regrow.planning.pilots import (
    BUDGETS,
    DEV_ITEMS,
    GENERAL,
    PILOT_SCOPE,
    SCOPE_TOKENS,
    SCOPES,
    PilotRun,
    Pilots,
)
from regrow.planning.planner import Mixture, Solver, checked_budget, plan_mixture

Floats = NDArray[np.float64]

STUDY_CAPABILITIES = (
    "structured_output",
    "function_calling",
    "instruction_following",
    "math",
    "safety",
    "knowledge",
)


@dataclass(frozen=True)
class Design:
    """What is measured and what can be trained on; the defaults are the study's."""

    capabilities: tuple[str, ...] = STUDY_CAPABILITIES
    pools: tuple[str, ...] = (*STUDY_CAPABILITIES[:-1], GENERAL)
    budgets: tuple[int, ...] = BUDGETS
    scope_tokens: int = SCOPE_TOKENS
    scopes: tuple[str, ...] = SCOPES
    dev_items: int = DEV_ITEMS

    @staticmethod
    def of(pilots: Pilots) -> Design:
        """Return the design behind a set of pilots. Scope pilots have the tokens of the largest single-pool one, as in
        the study."""
        return Design(
            pilots.capabilities,
            pilots.pools,
            pilots.budgets,
            scope_tokens=pilots.largest,
            dev_items=int(max(pilots.dev_items)),
        )

    def single_pool_pilots(self, pools: Sequence[str] | None = None) -> tuple[PilotRun, ...]:
        """Return one pilot for each pool (all, or those given) and budget."""
        return tuple(PilotRun(pool, tokens) for pool in pools or self.pools for tokens in self.budgets)

    def scope_pilots(self) -> tuple[PilotRun, ...]:
        """Return the uniform pilot under each scope."""
        return tuple(PilotRun("uniform", self.scope_tokens, scope) for scope in self.scopes)


@dataclass(frozen=True)
class Needs:
    """What must be run before a rule can be: ``pilots`` healed and scored on dev, ``loss_runs`` healed with their
    pools' losses read (not scored), ``evaluations`` of the unpruned and the pruned model on dev, and ``read_tokens``
    that only pass through a model. ``during`` says what the rule asks of the heal itself."""

    pilots: tuple[PilotRun, ...] = ()
    loss_runs: tuple[PilotRun, ...] = ()
    evaluations: int = 0
    read_tokens: int = 0
    during: str = ""

    @property
    def training_tokens(self) -> int:
        """Return the tokens trained on before the heal itself."""
        return sum(run.tokens for run in (*self.pilots, *self.loss_runs))

    @property
    def words(self) -> str:
        """Return the needs as a phrase for a table: "21 pilots, 2 evaluations"."""
        parts = [
            (len(self.pilots), "pilot"),
            (len(self.loss_runs), "small run"),
            (self.evaluations, "evaluation"),
        ]
        said = [f"{count} {word}{'s' if count > 1 else ''}" for count, word in parts if count]
        if self.read_tokens:
            said.append("losses read")
        if self.during:
            said.append(self.during)
        return ", ".join(said) or "nothing"


@dataclass(frozen=True)
class Evidence:
    """What a rule may use; each rule says in words what is missing.

    ``losses`` (rounds, P) are pool losses measured at equal steps of a run, ``reference_losses`` (P,) what they are
    compared with; ``runs`` and ``prompts`` belong to the rules data-mixing and paser. ``solver`` "study" uses the
    study's fits and solver, "exact" the global fits and the certified optimum.
    """

    pools: tuple[str, ...]
    pilots: Pilots | None = None
    others: tuple[Pilots, ...] = ()
    losses: ArrayLike | None = None
    reference_losses: ArrayLike | None = None
    runs: Any = None
    prompts: Any = None
    solver: Solver = "study"
    transfer: Transfer = "free"
    seed: int = 0
    _fits: dict[tuple[ShapeName, Transfer], Fit] = field(default_factory=dict, compare=False, repr=False)
    _mixtures: dict[tuple[ShapeName, Transfer, float, Objective], Mixture] = field(
        default_factory=dict, compare=False, repr=False
    )

    @staticmethod
    def of(pilots: Pilots, **more: Any) -> Evidence:
        """Return the evidence that a family's pilots are."""
        return Evidence(pools=pilots.pools, pilots=pilots, **more)

    def the_pilots(self, rule: str) -> Pilots:
        """Return the pilots. Raises DataError when there are none."""
        if self.pilots is None:
            raise DataError(f"rule '{rule}' needs dev counts", hint="regrow plan FILE, with a file of pilots")
        return self.pilots

    def fit(self, rule: str, shape: ShapeName, transfer: Transfer) -> Fit:
        """Return the fitted curves, fitted once."""
        key = (shape, transfer)
        if key not in self._fits:
            fitted = fit_study if self.solver == "study" and transfer != "signed" else fit_global
            self._fits[key] = fitted(self.the_pilots(rule), shape=shape, transfer=transfer)
        return self._fits[key]

    def mixture(self, rule: str, shape: ShapeName, transfer: Transfer, budget: float, objective: Objective) -> Mixture:
        """Return the best mixture under the fitted curves, found once."""
        key = (shape, transfer, budget, objective)
        if key not in self._mixtures:
            curves, largest = self.fit(rule, shape, transfer).curves, self.the_pilots(rule).largest
            self._mixtures[key] = plan_mixture(curves, budget, largest, objective=objective, solver=self.solver)
        return self._mixtures[key]


@dataclass(frozen=True)
class Allocation:
    """A rule's answer: ``tokens`` by pool, the scope to train, what a reader must know, and where there are such, the
    curves and the certified mixture behind it and the ids of the ``chosen`` examples."""

    tokens: dict[str, float]
    scope: str = PILOT_SCOPE
    notes: tuple[str, ...] = ()
    fit: Fit | None = None
    mixture: Mixture | None = None
    chosen: tuple[str, ...] = ()


class Rule(Protocol):
    """A rule of the registry; also callable as protocols.AllocationRule (see :class:`CallableRule`)."""

    @property
    def name(self) -> str: ...

    def needs(self, design: Design) -> Needs: ...

    def allocate(self, evidence: Evidence, budget: float) -> Allocation: ...

    def configured(self, argument: float) -> Rule: ...

    def __call__(self, pools: Sequence[str], budget_tokens: float, **evidence: Any) -> dict[str, float]: ...


class CallableRule:
    """Base of the rules here: makes ``allocate`` callable with plain keywords."""

    name: str = ""

    def allocate(self, evidence: Evidence, budget: float) -> Allocation:
        raise NotImplementedError

    def configured(self, argument: float) -> Rule:
        """Return the rule with its one number set. Raises ConfigError: most rules have none."""
        raise ConfigError(f"rule '{self.name}' takes no number, got {argument:g}", hint=f"--rule {self.name}")

    def __call__(self, pools: Sequence[str], budget_tokens: float, **evidence: Any) -> dict[str, float]:
        """Return tokens per pool, summing to ``budget_tokens``; keywords are those of :class:`Evidence`."""
        return self.allocate(Evidence(pools=tuple(pools), **evidence), budget_tokens).tokens


def by_pool(pools: Sequence[str], shares: ArrayLike, budget: float) -> dict[str, float]:
    """Return tokens by pool name in proportion to ``shares`` (non-negative). Raises ConfigError for a budget that is
    not positive."""
    weights = np.asarray(shares, np.float64)
    tokens = checked_budget(budget) * weights / weights.sum()
    return {pool: float(value) for pool, value in zip(pools, tokens, strict=True)}
