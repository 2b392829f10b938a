"""The runs of a study by family and method, their items aligned, ready to be compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from regrow.errors import DataError
from regrow.records.results import Split, Stage
from regrow.records.study_runs import MAIN_CUT, StudyRun
from regrow.report.inputs import Paired, pair
from regrow.report.wording import CHANCE, STAGES
from regrow.stats.resampling import stratified_mean
from regrow.stats.retention import capped_mean, chance_corrected, undefined_reason, worst_case

Floats = NDArray[np.float64]

UNIFORM, MATCHED = "uniform", "token-matched"
HOME_SCOPE = "all-lora"
"""The scope of the rules that choose none."""
SAME_TOKENS = 0.02
"""Relative difference within which a longer uniform heal counts as the token-matched control."""


@dataclass(frozen=True)
class Method:
    """Models of one family made in the same way, one a seed. ``columns`` are their places in the family's table."""

    stage: Stage
    cut: str
    repair: str
    rule: str
    scope: str
    budget: int
    runs: tuple[StudyRun, ...]
    columns: tuple[int, ...]

    @property
    def key(self) -> tuple[str, str, str, str, str, int]:
        return (self.stage, self.cut, self.repair, self.rule, self.scope, self.budget)

    @property
    def seeds(self) -> int:
        return len(self.runs)

    @property
    def places(self) -> str:
        """Return the run folders behind this method, as the column ``runs`` of a frame holds them."""
        return "; ".join(run.place for run in self.runs)


@dataclass(frozen=True)
class Family:
    """All comparable runs of one family on one split. ``paired`` has one column a run; ``pilots`` are the runs that
    were made to plan (on dev), ``dev`` the other dev evaluations."""

    name: str
    paired: Paired
    methods: tuple[Method, ...]
    pilots: tuple[StudyRun, ...] = ()
    dev: tuple[StudyRun, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @cached_property
    def base(self) -> Method:
        return next(method for method in self.methods if method.stage == "unpruned")

    @property
    def cuts(self) -> list[Method]:
        """Return the pruned models, the main cut first."""
        return sorted((m for m in self.methods if m.stage == "pruned"), key=lambda m: (m.cut != MAIN_CUT, m.cut))

    @property
    def repaired(self) -> list[Method]:
        return [method for method in self.methods if method.stage == "repaired"]

    @property
    def healed(self) -> list[Method]:
        return [method for method in self.methods if method.stage == "healed"]

    @cached_property
    def base_scores(self) -> dict[str, float]:
        """Return the unpruned score of every capability."""
        return {name: float(self.scores(self.base, name)[0]) for name in self.paired.capabilities}

    @property
    def defined(self) -> list[str]:
        """Return the capabilities with a retention: those of which the unpruned model gets any item."""
        return [name for name in self.paired.capabilities if not undefined_reason(0.0, self.base_scores[name])]

    @property
    def above_chance(self) -> list[str]:
        """Return the capabilities with a chance-corrected retention: those that the unpruned model does not guess."""
        floors = {name: CHANCE.get(name, 0.0) for name in self.paired.capabilities}
        return [name for name in self.defined if not undefined_reason(0.0, self.base_scores[name], floors[name])]

    def items(self, method: Method, capability: str) -> Floats:
        """Return the item scores of a capability, (seeds, items)."""
        return np.asarray(self.paired.scores[capability][list(method.columns)])

    def scores(self, method: Method, capability: str) -> Floats:
        """Return the score of a capability for each seed, (seeds,): balanced over kinds where it has them."""
        kinds = self.paired.kinds.get(capability)
        return np.array([stratified_mean(row, kinds) for row in self.items(method, capability)])

    def kept(self, method: Method, *, corrected: bool = False) -> Floats:
        """Return retention by seed, (seeds, capabilities that have one); ``corrected`` for chance."""
        names = self.above_chance if corrected else self.defined
        scores = np.stack([self.scores(method, name) for name in names], axis=1)
        return self._retention(scores, corrected=corrected)

    def mean_kept(self, method: Method, *, corrected: bool = False) -> Floats:
        """Return the retention of the scores averaged over seeds, (capabilities that have one,)."""
        names = self.above_chance if corrected else self.defined
        scores = np.array([self.scores(method, name).mean() for name in names])
        return self._retention(scores, corrected=corrected)

    def capped(self, method: Method, *, corrected: bool = False) -> float:
        return float(capped_mean(self.mean_kept(method, corrected=corrected)))

    def worst(self, method: Method, *, corrected: bool = False) -> float:
        return float(worst_case(self.mean_kept(method, corrected=corrected)))

    def _retention(self, scores: Floats, *, corrected: bool) -> Floats:
        names = self.above_chance if corrected else self.defined
        base = [self.base_scores[name] for name in names]
        floors = [CHANCE.get(name, 0.0) if corrected else 0.0 for name in names]
        return np.asarray(chance_corrected(scores, base, floors))

    def find(self, rule: str, budget: int, scope: str | None = None) -> list[Method]:
        """Return the healed models of a rule at a budget, on the main cut, under a scope (None: any)."""
        return [
            m
            for m in self.healed
            if m.rule == rule and m.budget == budget and m.cut == MAIN_CUT and scope in (None, m.scope)
        ]

    def uniform(self, budget: int) -> Method | None:
        """Return the baseline: the uniform mixture, trained all-lora."""
        return _one(self.find(UNIFORM, budget, HOME_SCOPE))

    def rules(self, budget: int) -> list[Method]:
        """Return the methods that the main table compares: every rule at the budget, the uniform one only under
        all-lora (its other scopes are the scope experiment)."""
        found = [m for m in self.healed if m.budget == budget and m.cut == MAIN_CUT and m.rule != MATCHED]
        return [m for m in found if m.rule != UNIFORM or m.scope == HOME_SCOPE]

    @property
    def pilot_tokens(self) -> int:
        """Return the healing tokens of all pilots of this family."""
        return sum(run.coordinates.budget for run in self.pilots)

    def matched(self, budget: int) -> Method | None:
        """Return the token-matched control: the uniform mixture on the budget and the pilots' tokens together."""
        named = _one([m for m in self.healed if m.rule == MATCHED and m.cut == MAIN_CUT])
        if named is not None:
            return named
        wanted = budget + self.pilot_tokens
        near = [
            m
            for m in self.healed
            if (m.rule, m.scope, m.cut) == (UNIFORM, HOME_SCOPE, MAIN_CUT)
            and m.budget > budget
            and abs(m.budget - wanted) <= SAME_TOKENS * wanted
        ]
        return min(near, key=lambda m: abs(m.budget - wanted)) if near and self.pilots else None


def families_of(runs: Sequence[StudyRun], *, split: Split | None = None) -> tuple[list[Family], list[str]]:
    """Return the families of a study, in order of name, and what a reader must know (families left out).

    ``split`` None takes test where there are such runs, else dev. Raises DataError when runs of one family scored
    different items, naming the runs and the ids that differ, or when one run was recorded twice.
    """
    wanted: Split = split or ("test" if any(run.record.split == "test" for run in runs) else "dev")
    found, notes = [], []
    for name in sorted({run.coordinates.family for run in runs}):
        own = [run for run in runs if run.coordinates.family == name]
        compared = [run for run in own if run.record.split == wanted and not run.coordinates.pilot]
        if not any(run.coordinates.stage == "unpruned" for run in compared):
            notes.append(f"{name} is left out: its unpruned model was not evaluated on {wanted}")
            continue
        found.append(_family(name, own, compared))
    if not found:
        raise DataError(
            f"no family of the study has an unpruned evaluation on {wanted}: nothing can be said about what was kept",
            hint="evaluate the unpruned model, with coordinates of stage 'unpruned'",
        )
    return found, notes


def main_budget(families: Sequence[Family]) -> int:
    """Return the budget at which the most rules were run: the one that the main table compares at; 0 without heals."""
    rules: Counter[int] = Counter()
    for family in families:
        for budget in {method.budget for method in family.healed}:
            rules[budget] += len({m.rule for m in family.rules(budget)})
    return max(rules, key=lambda budget: (rules[budget], -budget)) if rules else 0


def _family(name: str, own: Sequence[StudyRun], compared: Sequence[StudyRun]) -> Family:
    by_place = {run.place: run for run in compared}
    paired = pair([(run.record.model_copy(update={"label": run.place}), run.items) for run in compared])
    ordered = [by_place[label] for label in paired.labels]
    groups: dict[tuple[str, str, str, str, str, int], list[int]] = {}
    for column, run in enumerate(ordered):
        at = run.coordinates
        repair = run.record.model.repair
        groups.setdefault((at.stage, at.cut, repair, at.rule, at.scope, at.budget), []).append(column)
    methods = []
    for columns in groups.values():
        columns.sort(key=lambda column: ordered[column].coordinates.seed)
        first = ordered[columns[0]]
        _refuse_twice(name, [ordered[column] for column in columns])
        methods.append(
            Method(
                stage=first.coordinates.stage,
                cut=first.coordinates.cut,
                repair=first.record.model.repair,
                rule=first.coordinates.rule,
                scope=first.coordinates.scope,
                budget=first.coordinates.budget,
                runs=tuple(ordered[column] for column in columns),
                columns=tuple(columns),
            )
        )
    methods.sort(key=lambda m: (STAGES.index(m.stage), m.cut != MAIN_CUT, m.budget))
    dev = tuple(run for run in own if run.record.split == "dev" and not run.coordinates.pilot)
    pilots = tuple(run for run in own if run.coordinates.pilot)
    return Family(name, paired, tuple(methods), pilots, dev, paired.notes)


def _refuse_twice(family: str, runs: Sequence[StudyRun]) -> None:
    seen: dict[int, StudyRun] = {}
    for run in runs:
        before = seen.setdefault(run.coordinates.seed, run)
        if before is not run:
            raise DataError(
                f"family '{family}': '{before.place}' and '{run.place}' have the same coordinates",
                hint="give them different seeds, or remove one of the two folders",
            )


def _one(methods: Sequence[Method]) -> Method | None:
    return methods[0] if methods else None
