"""Figure 2: what came back, capability by capability, from the cut to the healed model."""

from __future__ import annotations

import polars

from regrow.records.study_runs import MAIN_CUT
from regrow.report.charts.paper.dots import Dot, dots_panel
from regrow.report.charts.paper.palette import Ink, stage_ink
from regrow.report.charts.paper.panel import PaperFigure
from regrow.report.paper.families import Family, Method
from regrow.report.paper.grids import tokens
from regrow.report.paper.paper import Paper
from regrow.report.wording import capability_name, percent


def stages_figure(paper: Paper) -> PaperFigure | None:
    """Return the dot chart of retention by stage, one panel a family; None where nothing but unpruned models is."""
    whole = paper.retention.filter(polars.col("kind") == "")
    panels, inks, said = [], dict[str, Ink](), []
    kept_rows = []
    for family in paper.families:
        shown = _shown(family, paper.budget)
        if not shown:
            continue
        dots = []
        for ink, method in shown:
            inks.setdefault(ink.label, ink)
            places = f"{family.base.places}; {method.places}"
            for row in whole.filter(polars.col("runs") == places).iter_rows(named=True):
                name = capability_name(row["capability"])
                dots.append(Dot(name, ink.label, row["kept"], row["kept_low"], row["kept_high"], row["runs"]))
                said.append(f"{family.name}, {ink.label}, {name.lower()} {percent(row['kept'])}")
            kept_rows.append(places)
        order = list(dict.fromkeys(dot.row for dot in dots))
        own = [ink for ink, _ in shown]
        panels.append(dots_panel(family.name, family.name, dots, order, own, "share of the unpruned model"))
    if not panels:
        return None
    return PaperFigure(
        "stages",
        2,
        "What came back",
        "Each stage's score as a share of the unpruned model's (the grey line), seeds averaged. Healed: the uniform "
        f"mixture. Lines: {percent(paper.drawing.level)} intervals from resampled items.",
        f"Dot charts of retention by capability and stage, one a family. {'; '.join(said)}.",
        tuple(panels),
        tuple(inks.values()),
        whole.filter(polars.col("runs").is_in(kept_rows)),
    )


def _shown(family: Family, budget: int) -> list[tuple[Ink, Method]]:
    found: list[tuple[Ink, Method]] = []
    for method in family.cuts:
        main = method.cut == MAIN_CUT
        if main or len(family.cuts) == 2:
            found.append((stage_ink("pruned" if main else "light", "pruned" if main else f"{method.cut} cut"), method))
    if len(family.repaired) == 1:
        found.append((stage_ink("repaired", "repaired"), family.repaired[0]))
    uniform, matched = family.uniform(budget), family.matched(budget)
    if uniform is not None:
        found.append((stage_ink("healed", f"healed, {tokens(uniform.budget)}"), uniform))
    if matched is not None:
        found.append((stage_ink("longer", f"healed, {tokens(matched.budget)}"), matched))
    return found
