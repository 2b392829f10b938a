"""The words and number formats that tables, sentences, charts and pages share."""

from __future__ import annotations

import math
from collections.abc import Sequence

CAPABILITIES = {
    "structured_output": "Structured output",
    "function_calling": "Function calling",
    "instruction_following": "Instruction following",
    "math": "Math",
    "safety": "Safety",
    "knowledge": "Knowledge",
}
"""The six capabilities in the order in which every table shows them; others follow in the order they are met."""

ZERO_SHOT = {
    "boolq": "BoolQ",
    "piqa": "PIQA",
    "hellaswag": "HellaSwag",
    "winogrande": "WinoGrande",
    "arc_easy": "ARC-e",
    "arc_challenge": "ARC-c",
    "openbookqa": "OpenBookQA",
}

CHANCE = {
    "knowledge": 0.25,
    "safety": 0.5,
    "boolq": 0.5,
    "piqa": 0.5,
    "hellaswag": 0.25,
    "winogrande": 0.5,
    "arc_easy": 0.25,
    "arc_challenge": 0.25,
    "openbookqa": 0.25,
}
"""Score of guessing: among the choices, and a balanced refusal score. 0 elsewhere."""

STAGES = ("unpruned", "pruned", "repaired", "healed")

MINUS, DASH = "\N{MINUS SIGN}", "\N{EN DASH}"


def capability_name(key: str) -> str:
    """Return the name of a capability as a reader knows it."""
    return {**CAPABILITIES, **ZERO_SHOT}.get(key, key.replace("_", " ").capitalize())


def percent(value: float, *, sign: bool = False) -> str:
    """Return a share as whole percent ("54%", "+12%"); a dash when undefined."""
    if not math.isfinite(value):
        return DASH
    number = round(100 * value)
    shown = f"{abs(number)}%"
    if sign and number > 0:
        return f"+{shown}"
    return f"{MINUS}{shown}" if number < 0 else shown


def percent_span(low: float, high: float) -> str:
    """Return the limits of a share in percent ("46–64"); empty when undefined."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return ""
    ends = [f"{MINUS}{abs(n)}" if n < 0 else str(n) for n in (round(100 * low), round(100 * high))]
    return f"{ends[0]}{DASH}{ends[1]}" if min(low, high) >= 0 else f"{ends[0]} to {ends[1]}"


def points(difference: float) -> str:
    """Return a difference of two shares in percentage points, unsigned ("12 points")."""
    number = abs(round(100 * difference))
    return f"{number} point" if number == 1 else f"{number} points"


def plain(value: float) -> str:
    """Return a positive number with as many digits as a reader uses: 37.1, 155, 1,204, 2.3M; a dash when undefined."""
    if not math.isfinite(value):
        return DASH
    if value >= 1e6:
        return f"{value / 1e6:,.1f}M"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def count(value: float) -> str:
    """Return a count in short form: 812, 61k, 134.5M, 1.24B; a dash when undefined."""
    if not math.isfinite(value):
        return DASH
    for scale, letter, digits in ((1e9, "B", 2), (1e6, "M", 1), (1e4, "k", 0)):
        if value >= scale:
            return f"{value / (1e3 if letter == 'k' else scale):,.{digits}f}{letter}"
    return f"{value:,.0f}"


def times(value: float) -> str:
    """Return a ratio ("×1.8"); a dash when undefined."""
    if not math.isfinite(value):
        return DASH
    return f"×{value:,.0f}" if value >= 100 else f"×{value:.1f}" if value >= 10 else f"×{value:.2f}"


def p_text(p_value: float, *, bound: bool = False) -> str:
    """Return a p value as printed in a sentence ("p < .001", "p = .03"); empty when undefined."""
    if not math.isfinite(p_value):
        return ""
    if p_value < 0.001:
        return "p < .001"
    digits = f"{p_value:.3f}" if p_value < 0.1 else f"{p_value:.2f}"
    return f"p {'≤' if bound else '='} {digits.lstrip('0') if p_value < 1 else '1'}"


def duration(seconds: float) -> str:
    """Return a length of time in the units that matter ("4.2 s", "3 min 20 s", "2 h 05 min"); a dash if undefined."""
    if not math.isfinite(seconds):
        return DASH
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def memory(size: int) -> str:
    """Return bytes as "812 MB" or "1.9 GB"; a dash for 0, which means not measured."""
    if size <= 0:
        return DASH
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def listed(parts: Sequence[str], *, last: str = "and") -> str:
    """Return the parts as a phrase: "a", "a and b", "a, b and c"."""
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} {last} {parts[-1]}"


def blocks_phrase(blocks: Sequence[int]) -> str:
    """Return block indices with runs joined: "13 and 14", "13–16 and 24–26"."""
    runs: list[list[int]] = []
    for block in sorted(blocks):
        if runs and block == runs[-1][-1] + 1:
            runs[-1].append(block)
        else:
            runs.append([block])
    parts = [[f"{run[0]}{DASH}{run[-1]}"] if len(run) > 2 else [str(block) for block in run] for run in runs]
    return listed([part for run in parts for part in run])
