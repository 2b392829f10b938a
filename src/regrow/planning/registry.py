"""The allocation rules by name, in the order in which tables show them.

A new rule is one file in ``regrow/planning/rules`` with an object like those here, and one ``declare`` line (or an
entry point of the group ``regrow.rules``).
"""

from __future__ import annotations

import re

from regrow.errors import ConfigError, did_you_mean
from regrow.planning.rule import Rule
from regrow.registry import Registry

RULES: Registry[Rule] = Registry("rule", entry_point_group="regrow.rules")

_HERE = "regrow.planning.rules"
_STUDY = "the study"
RULES.declare(
    "uniform", f"{_HERE}.uniform:UNIFORM", summary="the same tokens for every pool", paper=_STUDY, needs="nothing"
)
RULES.declare(
    "damage-proportional",
    f"{_HERE}.damage:DAMAGE_PROPORTIONAL",
    summary="tokens in proportion to what each capability lost",
    paper=_STUDY,
    needs="dev scores before and after the cut",
)
RULES.declare(
    "rah",
    f"{_HERE}.rah:RAH",
    summary="maximise the sum of retentions under fitted recovery curves",
    paper=_STUDY,
    needs="18 pool pilots + 3 scope pilots",
)
RULES.declare(
    "rah-capped",
    f"{_HERE}.rah:RAH_CAPPED",
    summary="the same, a retention above 1 counts as 1",
    paper=_STUDY,
    needs="as rah",
)
RULES.declare(
    "rah-max-min", f"{_HERE}.rah:RAH_MAX_MIN", summary="lift the worst capability highest", paper=_STUDY, needs="as rah"
)
RULES.declare(
    "rah-no-transfer",
    f"{_HERE}.rah:RAH_NO_TRANSFER",
    summary="rah without effects of a pool on other capabilities",
    paper=_STUDY,
    needs="as rah",
)
RULES.declare(
    "rah-no-scope",
    f"{_HERE}.rah:RAH_NO_SCOPE",
    summary="rah, trained all-lora like its pilots",
    paper=_STUDY,
    needs="18 pool pilots",
)
RULES.declare(
    "rah-hyperbolic",
    f"{_HERE}.rah:RAH_HYPERBOLIC",
    summary="rah with curves a x / (x + tau)",
    paper=_STUDY,
    needs="as rah",
)
RULES.declare(
    "rah-proxy",
    f"{_HERE}.proxy:PROXY",
    summary="gains guessed from losses by another family's fits",
    paper=_STUDY,
    needs="losses on 50 examples a pool; another family's pilots",
)
RULES.declare(
    "slowest-first",
    f"{_HERE}.slowest:SLOWEST_FIRST",
    summary="a fixed share (0.6) to the slowest capability, math; the rest even",
    paper=_STUDY,
    needs="nothing",
)
RULES.declare(
    "paser",
    f"{_HERE}.paser:PASER",
    summary="clusters of prompts by how much their outputs changed",
    paper="2502.12594",
    needs="outputs of both models on the pools' prompts",
)
RULES.declare(
    "dynamic-batch-loading",
    f"{_HERE}.dynamic_loading:DYNAMIC_LOADING",
    summary="reweight pools during the heal by distance to a target loss",
    paper="2310.06694",
    needs="target losses; losses during the heal",
)
RULES.declare(
    "doremi",
    f"{_HERE}.doremi:DOREMI",
    summary="average weights of a minimax proxy run",
    paper="2305.10429",
    needs="a reference run and a proxy run",
)
RULES.declare(
    "data-mixing",
    f"{_HERE}.data_mixing:DATA_MIXING",
    summary="minimise the sum of losses under fitted mixing laws",
    paper="2508.11953",
    needs="13 perturbed small runs",
)


def rule_named(text: str) -> Rule:
    """Return the rule that ``text`` names: "rah-capped", "rah_capped", "RAH-capped", "max-min", "slowest-first(0.5)".

    Raises ConfigError with the nearest name when there is none.
    """
    match = re.fullmatch(r"\s*([A-Za-z][A-Za-z_\- ]*?)\s*(?:\(\s*([0-9.]+)\s*\))?\s*", text)
    if not match:
        raise ConfigError(f"'{text}' does not name a rule", hint=did_you_mean(text, RULES.names()))
    name = canonical(match[1])
    rule = RULES.get(name)
    if match[2] is None:
        return rule
    try:
        argument = float(match[2])
    except ValueError:
        raise ConfigError(f"'{match[2]}' in rule '{text}' is not a number", hint=f"--rule '{name}(0.6)'") from None
    return rule.configured(argument)


def canonical(text: str) -> str:
    """Return a rule's registered name for the ways in which people write it."""
    name = re.sub(r"[_ ]+", "-", text.strip().lower())
    return f"rah-{name}" if name not in RULES and f"rah-{name}" in RULES else name
