"""Colours of the report in light and dark; hues after Okabe and Ito, which common colour blindness keeps apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from regrow.records.results import Stage
from regrow.stats.transitions import Fate


class Theme(NamedTuple):
    """Colours as #rrggbb. ``stages`` and ``fates`` colour data; ``extra`` serves further models of the same stage."""

    name: str
    paper: str
    surface: str
    sunken: str
    ink: str
    muted: str
    line: str
    accent: str
    stages: dict[Stage, str]
    fates: dict[Fate, str]
    extra: tuple[str, ...]


LIGHT = Theme(
    name="light",
    paper="#faf9f7",
    surface="#ffffff",
    sunken="#f3f1ed",
    ink="#1d1c1a",
    muted="#67635c",
    line="#e3dfd8",
    accent="#0a7a5c",
    stages={"unpruned": "#7a766f", "pruned": "#c8501e", "repaired": "#2c6fb0", "healed": "#0b8563"},
    fates={
        Fate.KEPT: "#56667a",
        Fate.CAME_BACK: "#0b8563",
        Fate.NEW: "#57b2e4",
        Fate.BROKE: "#d9622b",
        Fate.NEVER: "#dedad2",
    },
    extra=("#8a56a8", "#b07f10", "#b5487f", "#4f8f9c"),
)

DARK = Theme(
    name="dark",
    paper="#131416",
    surface="#1a1c1f",
    sunken="#212428",
    ink="#ecebe7",
    muted="#a5a199",
    line="#31353a",
    accent="#4ccba2",
    stages={"unpruned": "#a29e96", "pruned": "#f0824f", "repaired": "#6aa8e8", "healed": "#3fc598"},
    fates={
        Fate.KEPT: "#8797ab",
        Fate.CAME_BACK: "#3fc598",
        Fate.NEW: "#7cc8f2",
        Fate.BROKE: "#f0824f",
        Fate.NEVER: "#3d4147",
    },
    extra=("#c397dd", "#dcb04e", "#e58ab6", "#86c2ce"),
)

THEMES = {theme.name: theme for theme in (LIGHT, DARK)}


def column_colours(stages: Sequence[Stage], theme: Theme) -> list[str]:
    """Return one colour a column: its stage's, or one of ``extra`` for the second and later models of a stage."""
    colours: list[str] = []
    spare = 0
    for index, stage in enumerate(stages):
        if stage in stages[:index]:
            colours.append(theme.extra[spare % len(theme.extra)])
            spare += 1
        else:
            colours.append(theme.stages[stage])
    return colours
