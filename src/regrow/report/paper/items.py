"""Every test item of a study with what each method made of it."""

from __future__ import annotations

from typing import Any

from regrow.report.paper.families import Family, Method
from regrow.report.paper.names import method_name, rule_order, stage_name
from regrow.report.paper.paper import Paper
from regrow.report.samples import RIGHT_AT, question_of
from regrow.report.wording import capability_name
from regrow.stats.transitions import fates

CHARACTERS = 6_000_000
"""Characters of answers that a page holds; longer answers are cut so that all together stay below."""
SHORTEST, LONGEST = 80, 1_500


def study_items(paper: Paper) -> dict[str, Any]:
    """Return all items as plain values for the item table: family, capability, id, fate, mean score and one answer a
    method (the first seed's). The fate is judged at the uniform heal, else at the pruned model."""
    shown = {family.name: _methods(family, paper.budget) for family in paper.families}
    columns = list(dict.fromkeys(label for methods in shown.values() for label in methods))
    cells = sum(
        len(family.paired.scores[name][0]) * len(shown[family.name])
        for family in paper.families
        for name in family.paired.capabilities
    )
    longest = max(SHORTEST, min(LONGEST, CHARACTERS // max(1, cells)))
    rows = []
    for family in paper.families:
        methods = shown[family.name]
        for capability in family.paired.capabilities:
            rows += _rows(family, capability, methods, columns, longest, paper.budget)
    return {"columns": columns, "rightAt": RIGHT_AT, "rows": rows}


def _rows(
    family: Family, capability: str, methods: dict[str, Method], columns: list[str], longest: int, budget: int
) -> list[dict[str, Any]]:
    scores = {label: family.items(method, capability).mean(axis=0) for label, method in methods.items()}
    answers = {label: family.paired.items[capability][method.columns[0]] for label, method in methods.items()}
    last = family.uniform(budget) or (family.cuts[0] if family.cuts else None)
    base = family.items(family.base, capability)[0]
    ways = []
    if last is not None:
        between = [family.items(cut, capability)[0] for cut in family.cuts[:1]] if last.stage == "healed" else []
        ways = [fate.value for fate in fates(base, family.items(last, capability).mean(axis=0), between)]
    found = []
    for index, item in enumerate(family.paired.items[capability][family.base.columns[0]]):
        own = [answers[label][index].response if label in answers else None for label in columns]
        found.append(
            {
                "m": family.name,
                "c": capability_name(capability),
                "i": item.item_id,
                "k": str(item.details.get("kind") or ""),
                "f": ways[index] if ways else "",
                "q": question_of(item)[:LONGEST],
                "s": [round(float(scores[label][index]), 4) if label in scores else None for label in columns],
                "r": [None if text is None else text[:longest] for text in own],
                "l": [0 if text is None else len(text) for text in own],
            }
        )
    return found


def _methods(family: Family, budget: int) -> dict[str, Method]:
    """The columns of a family, by label."""
    compared = sorted(family.rules(budget), key=lambda method: rule_order(method.rule))
    named = {stage_name(method): method for method in [family.base, *family.cuts, *family.repaired]}
    named |= {method_name(method, compared): method for method in compared}
    matched = family.matched(budget)
    if matched is not None:
        named["Uniform, token-matched"] = matched
    return named
