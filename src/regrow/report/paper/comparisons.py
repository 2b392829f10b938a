"""Tables 4 and 5: paired tests of methods over the same items, Holm-corrected within named families of tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import polars

from regrow.report.paper.families import HOME_SCOPE, UNIFORM, Family, Method
from regrow.report.paper.frames import frame_of
from regrow.report.paper.names import method_name
from regrow.report.scored import Drawing
from regrow.seeding import stream
from regrow.stats.bootstrap import BothBootstraps, Difference, both_bootstraps, paired_bootstrap
from regrow.stats.decisions import holm_by_family, smallest_detectable_difference, tost

PLANNERS = ("rah", "rah-capped")
"""The planned rules whose superiority is tested; other rules are shown without a test."""
BASELINES = (UNIFORM, "damage-proportional")
METRICS = ("capped_mean", "worst_case")
MARGIN = 0.05
"""Difference of retention below which two methods count as equally good."""

FIXED, TOKEN_MATCHED, SCOPES = "fixed budget", "token-matched", "scope"
ONE_SEED = "one seed: the seed-aware test needs two or more for each method"


class Compared(NamedTuple):
    """One metric of method ``a`` minus method ``b`` in one family.

    ``tests`` names the family of tests that Holm's correction ranges over. Each p value is two-sided; ``bound`` marks
    one that is "below this" (no resample crossed zero). ``low``/``high`` are the seed-aware limits where there are
    seeds, else the item-level ones. ``equivalence_p`` is the TOST p for a difference within the margin, ``detectable``
    the true difference that this test finds 4 times in 5.
    """

    tests: str
    family: str
    a: str
    b: str
    metric: str
    value_a: float
    value_b: float
    difference: float
    low: float
    high: float
    p_item: float
    bound_item: bool
    holm_item: float
    holm_bound_item: bool
    p_seed: float
    bound_seed: bool
    holm_seed: float
    holm_bound_seed: bool
    equivalence_p: float
    detectable: float
    seeds_a: int
    seeds_b: int
    tokens_a: int
    tokens_b: int
    reason: str
    runs: str

    @property
    def sure(self) -> bool:
        """Return whether the difference stands after correction: by the seed-aware test, the item-level one without."""
        p_value = self.holm_seed if math.isfinite(self.p_seed) else self.holm_item
        return bool(p_value <= 0.05)


def comparison_frame(
    families: Sequence[Family],
    budget: int,
    drawing: Drawing,
    *,
    planners: Sequence[str] = PLANNERS,
    baselines: Sequence[str] = BASELINES,
) -> polars.DataFrame:
    """Return every test of planned rules: against each baseline at the same budget, and against the uniform mixture
    that heals on the pilots' tokens too. Families of tests: "fixed budget" and "token-matched"."""
    tests = []
    for family in families:
        for rule in planners:
            for planned in family.find(rule, budget):
                paid = budget + family.pilot_tokens
                for baseline in baselines:
                    other = next(iter(family.find(baseline, budget, HOME_SCOPE)), None)
                    if other is not None:
                        tests += compare(family, FIXED, planned, other, drawing, tokens=(budget, budget))
                matched = family.matched(budget)
                if matched is not None:
                    tests += compare(family, TOKEN_MATCHED, planned, matched, drawing, tokens=(paid, matched.budget))
    return frame_of(Compared, corrected(tests))


def compare(
    family: Family, tests: str, a: Method, b: Method, drawing: Drawing, *, tokens: tuple[int, int]
) -> list[Compared]:
    """Return the comparison of two methods by each metric, p values not yet corrected."""
    names = family.defined
    first, second = ({name: family.items(method, name) for name in names} for method in (a, b))
    base = {name: family.base_scores[name] for name in names}
    strata = {name: kinds for name, kinds in family.paired.kinds.items() if name in names}
    generator = stream(drawing.seed, "compare", family.name, *map(str, (*a.key, *b.key)))
    by_item: dict[str, Difference]
    by_seed: dict[str, Difference] = {}
    if min(a.seeds, b.seeds) > 1:
        both: BothBootstraps = both_bootstraps(
            first,
            second,
            base,
            metrics=METRICS,
            strata=strata,
            resamples=drawing.resamples,
            level=drawing.level,
            generator=generator,
        )
        by_item, by_seed = both.item_level, both.seed_aware
    else:
        by_item = paired_bootstrap(
            first,
            second,
            base,
            metrics=METRICS,
            strata=strata,
            resamples=drawing.resamples,
            level=drawing.level,
            generator=generator,
        )
    named = [m for m in family.methods if m.stage == "healed"]
    return [
        _compared(
            family,
            tests,
            (a, b),
            (method_name(a, [m for m in named if m.budget == a.budget]), method_name(b, [a, b])),
            by_item[metric],
            by_seed.get(metric),
            tokens,
        )
        for metric in METRICS
    ]


def corrected(tests: Sequence[Compared]) -> list[Compared]:
    """Return the tests with Holm's adjusted p values, within each named family of tests and for each bootstrap."""
    if not tests:
        return []
    names = [test.tests for test in tests]
    item = holm_by_family([test.p_item for test in tests], names, bounds=[test.bound_item for test in tests])
    seed = holm_by_family([test.p_seed for test in tests], names, bounds=[test.bound_seed for test in tests])
    return [
        test._replace(
            holm_item=float(item.adjusted[at]),
            holm_bound_item=bool(item.bounds[at]),
            holm_seed=float(seed.adjusted[at]),
            holm_bound_seed=bool(seed.bounds[at]),
        )
        for at, test in enumerate(tests)
    ]


def _compared(
    family: Family,
    tests: str,
    pair: tuple[Method, Method],
    names: tuple[str, str],
    item: Difference,
    seed: Difference | None,
    tokens: tuple[int, int],
) -> Compared:
    best = seed or item
    equivalent = tost(best.difference, best.standard_error, MARGIN)
    return Compared(
        tests=tests,
        family=family.name,
        a=names[0],
        b=names[1],
        metric=item.metric,
        value_a=item.a,
        value_b=item.b,
        difference=item.difference,
        low=best.low,
        high=best.high,
        p_item=item.p_value,
        bound_item=item.bound,
        holm_item=math.nan,
        holm_bound_item=False,
        p_seed=seed.p_value if seed else math.nan,
        bound_seed=seed.bound if seed else False,
        holm_seed=math.nan,
        holm_bound_seed=False,
        equivalence_p=equivalent.p_value,
        detectable=smallest_detectable_difference(best.standard_error),
        seeds_a=pair[0].seeds,
        seeds_b=pair[1].seeds,
        tokens_a=tokens[0],
        tokens_b=tokens[1],
        reason=item.reason or ("" if seed else ONE_SEED),
        runs=f"{family.base.places}; {pair[0].places}; {pair[1].places}",
    )
