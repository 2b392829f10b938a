"""One colour and one shape for every family, stage and rule, the same in every figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from regrow.report.charts.frame import SHAPES
from regrow.report.paper.names import rule_name
from regrow.report.theme import Theme


class Ink(NamedTuple):
    """How something is drawn: its label, its colour by theme name, its shape (a name of Vega)."""

    label: str
    light: str
    dark: str
    shape: str

    def colour(self, theme: Theme) -> str:
        return self.dark if theme.name == "dark" else self.light


_SERIES = (
    ("#2c6fb0", "#6aa8e8"),
    ("#b07f10", "#dcb04e"),
    ("#8a56a8", "#c397dd"),
    ("#0b8563", "#3fc598"),
    ("#b5487f", "#e58ab6"),
    ("#4f8f9c", "#86c2ce"),
    ("#6b6f2a", "#b9bf62"),
    ("#9c4a32", "#e39a80"),
)
"""Hues after Okabe and Ito, kept apart by the common kinds of colour blindness; light and dark."""

_STAGES = {
    "unpruned": ("#7a766f", "#a29e96", "square"),
    "pruned": ("#c8501e", "#f0824f", "diamond"),
    "light": ("#d89a7b", "#c08468", "diamond"),
    "repaired": ("#2c6fb0", "#6aa8e8", "triangle-up"),
    "healed": ("#0b8563", "#3fc598", "circle"),
    "longer": ("#0a4a63", "#9fe6d0", "cross"),
}

_RULES = {
    "uniform": ("#0b8563", "#3fc598", "circle"),
    "damage-proportional": ("#4f8f9c", "#86c2ce", "square"),
    "rah": ("#8a56a8", "#c397dd", "triangle-up"),
    "rah-capped": ("#b5487f", "#e58ab6", "triangle-down"),
    "slowest-first": ("#b07f10", "#dcb04e", "diamond"),
    "token-matched": ("#0a4a63", "#9fe6d0", "cross"),
}


def family_inks(families: Sequence[str]) -> list[Ink]:
    """Return one ink a family, in the given order."""
    return [
        Ink(name, *_SERIES[place % len(_SERIES)], SHAPES[place % len(SHAPES)]) for place, name in enumerate(families)
    ]


def scope_inks(scopes: Sequence[str]) -> list[Ink]:
    """Return one ink a scope; all-lora has that of the uniform rule, which trains it."""
    order = {"all-lora": 3, "cut-lora": 1, "last-k": 0}
    spare = iter(place for place in range(len(_SERIES)) if place not in order.values())
    found = []
    for place, scope in enumerate(scopes):
        at = order[scope] if scope in order else next(spare, place % len(_SERIES))
        found.append(Ink(scope, *_SERIES[at], SHAPES[place % len(SHAPES)]))
    return found


def stage_ink(stage: str, label: str) -> Ink:
    """Return the ink of a stage under the given label."""
    return Ink(label, *_STAGES[stage])


def rule_inks(rules: Sequence[str]) -> list[Ink]:
    """Return one ink a rule, labelled with the rule's name."""
    others = [rule for rule in rules if rule not in _RULES]
    found = []
    for rule in rules:
        if rule in _RULES:
            found.append(Ink(rule_name(rule), *_RULES[rule]))
        else:
            place = others.index(rule)
            found.append(Ink(rule_name(rule), *_SERIES[(6 + place) % len(_SERIES)], SHAPES[(6 + place) % len(SHAPES)]))
    return found
