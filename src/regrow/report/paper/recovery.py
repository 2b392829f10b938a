"""Figure 4: what the pilots reached, the curves fitted to them, and what they leave open."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars

from regrow.errors import DataError
from regrow.planning.least_squares import Fit, fit_study
from regrow.planning.likelihood import CurveDraws, draw_curves
from regrow.planning.outlook import own_pool_retention
from regrow.planning.pilot_files import FILE, read_pilots
from regrow.planning.pilots import Pilots
from regrow.planning.study_pilots import family_pilots
from regrow.report.paper.families import Family
from regrow.report.paper.frames import frame_of
from regrow.stats.intervals import wilson

LEVEL = 0.9
POINTS = 49
BEYOND = 10
"""Curves are drawn to this many times the largest pilot: beyond the pilots they are extrapolation."""


class PilotPoint(NamedTuple):
    """The retention of a capability after a pilot on its own pool, with Wilson's limits of the count."""

    family: str
    capability: str
    pool: str
    tokens: int
    right: float
    items: int
    kept: float
    low: float
    high: float
    runs: str


class FittedCurve(NamedTuple):
    """A capability's fitted curve: gain ``a``, ``tau`` in tokens, ``rmse`` of all pilots; 90 % intervals from the
    binomial likelihood of the counts. NaN with a reason where it was not fitted."""

    family: str
    capability: str
    pruned: float
    a: float
    a_low: float
    a_high: float
    tau: float
    tau_low: float
    tau_high: float
    rmse: float
    reason: str
    runs: str


class CurvePoint(NamedTuple):
    """Retention predicted after ``tokens`` of the capability's own pool, with the drawn curves' limits."""

    family: str
    capability: str
    tokens: float
    kept: float
    low: float
    high: float
    extrapolated: bool


class Recovery(NamedTuple):
    """The three frames of the figure, and sentences on what is missing."""

    points: polars.DataFrame
    fits: polars.DataFrame
    curves: polars.DataFrame
    notes: tuple[str, ...]


def recovery_of(families: Sequence[Family], study: Path | None = None, *, seed: int = 0) -> Recovery:
    """Return the pilots and curves of every family: from the pilot runs, else from ``pilots.json`` in the study folder.

    A family whose pilots are incomplete has points without a curve, and a note that names what is missing.
    """
    from_file = _from_file(study)
    points: list[PilotPoint] = []
    fits: list[FittedCurve] = []
    curves: list[CurvePoint] = []
    notes: list[str] = []
    for name in dict.fromkeys([*(family.name for family in families), *from_file]):
        family = next((one for one in families if one.name == name), None)
        try:
            pilots, places = (None, {}) if family is None else family_pilots(name, [*family.dev, *family.pilots])
        except DataError as error:
            notes.append(f"no curve is fitted: {error}")
            continue
        if pilots is None and name in from_file:
            pilots, places = from_file[name], {}
        if pilots is None:
            if family is not None and family.pilots:
                notes.append(f"{name}: its unpruned and pruned models were not scored on dev, so no curve is fitted")
            continue
        points += _points(pilots, places)
        source = "; ".join(places.values()) or FILE
        try:
            pilots.require()
        except DataError as error:
            notes.append(f"no curve is fitted: {error}")
            fits += [_unfitted(pilots, c, str(error), source) for c in range(len(pilots.capabilities))]
            continue
        drawn = draw_curves(pilots, seed=seed)
        fit = fit_study(pilots)
        fits += _fits(pilots, fit, drawn, source)
        curves += _curves(pilots, fit, drawn)
    return Recovery(
        frame_of(PilotPoint, points), frame_of(FittedCurve, fits), frame_of(CurvePoint, curves), tuple(notes)
    )


def _from_file(study: Path | None) -> dict[str, Pilots]:
    if study is None or not (study / FILE).exists():
        return {}
    return {pilots.family: pilots for pilots in read_pilots(study)}


def _points(pilots: Pilots, places: dict[tuple[str, int], str]) -> list[PilotPoint]:
    found = []
    for c, capability in enumerate(pilots.capabilities):
        base, items = float(pilots.unpruned[c]), round(float(pilots.dev_items[c]))
        if not base > 0:
            continue
        pool = pilots.pools[pilots.own[c]]
        counts = [(0, float(pilots.pruned[c]))]
        counts += list(zip(pilots.budgets, pilots.healed[pilots.own[c], :, c].tolist(), strict=True))
        for tokens, right in counts:
            if np.isnan(right):
                continue
            limits = wilson(right, items)
            scale = items / base
            found.append(
                PilotPoint(
                    pilots.family,
                    capability,
                    pool if tokens else "",
                    tokens,
                    right,
                    items,
                    right / base,
                    limits.low * scale,
                    limits.high * scale,
                    places.get((pool, tokens), "" if places else FILE),
                )
            )
    return found


def _fits(pilots: Pilots, fit: Fit, drawn: CurveDraws, source: str) -> list[FittedCurve]:
    gains, taus = drawn.interval(drawn.curves.gain, LEVEL), drawn.interval(drawn.curves.tau, LEVEL)
    return [
        FittedCurve(
            pilots.family,
            capability,
            float(pilots.pruned_retention[c]),
            float(fit.curves.gain[c]),
            float(gains[1, c]),
            float(gains[2, c]),
            float(fit.curves.tau[c]),
            float(taus[1, c]),
            float(taus[2, c]),
            float(fit.rmse[c]),
            "" if pilots.usable[c] else "the unpruned model gets no item right",
            source,
        )
        for c, capability in enumerate(pilots.capabilities)
    ]


def _unfitted(pilots: Pilots, c: int, reason: str, source: str) -> FittedCurve:
    nan = float("nan")
    start = float(pilots.pruned_retention[c])
    return FittedCurve(pilots.family, pilots.capabilities[c], start, nan, nan, nan, nan, nan, nan, nan, reason, source)


def _curves(pilots: Pilots, fit: Fit, drawn: CurveDraws) -> list[CurvePoint]:
    found = []
    first = pilots.budgets[0] / 10
    for tokens in np.geomspace(first, BEYOND * pilots.largest, POINTS):
        retained = own_pool_retention(drawn, float(tokens))
        _, low, high = drawn.interval(retained, LEVEL)
        for c, capability in enumerate(pilots.capabilities):
            if not pilots.usable[c]:
                continue
            alone = np.zeros(len(pilots.pools))
            alone[pilots.own[c]] = tokens
            kept = float(fit.curves.retention(alone)[c])
            found.append(
                CurvePoint(
                    pilots.family,
                    capability,
                    float(tokens),
                    kept,
                    float(low[c]),
                    float(high[c]),
                    bool(tokens > pilots.largest * 1.0001),
                )
            )
    return found
