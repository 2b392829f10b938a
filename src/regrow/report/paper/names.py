"""How methods, rules and budgets are called in tables and figures."""

from __future__ import annotations

from collections.abc import Sequence

from regrow.planning.tokens import show_tokens
from regrow.records.study_runs import MAIN_CUT
from regrow.report.paper.families import HOME_SCOPE, MATCHED, UNIFORM, Method

_RULES = {
    UNIFORM: "Uniform",
    "damage-proportional": "Damage-proportional",
    "rah": "RAH",
    "rah-capped": "RAH-capped",
    "rah-max-min": "RAH max-min",
    "rah-no-transfer": "RAH without transfer",
    "rah-no-scope": "RAH without scope choice",
    "rah-hyperbolic": "RAH hyperbolic",
    "rah-proxy": "RAH by proxy",
    "slowest-first": "Slowest-first",
    "paser": "PASER-style",
    "dynamic-batch-loading": "Dynamic batch loading",
    "doremi": "DoReMi",
    "data-mixing": "Data mixing",
    MATCHED: "Uniform, token-matched",
}
"""In the order of the main table."""


def rule_name(rule: str) -> str:
    """Return a rule as a reader knows it."""
    plain = rule.replace("_", "-")
    return _RULES.get(plain, plain[:1].upper() + plain[1:])


def rule_order(rule: str) -> tuple[int, str]:
    """Return the place of a rule in tables: the known ones first, others by name."""
    known = list(_RULES)
    plain = rule.replace("_", "-")
    return (known.index(plain) if plain in known else len(known), plain)


def stage_name(method: Method) -> str:
    """Return a model that was not healed, or the heal's rule, as a row of a table names it."""
    repair = f" ({method.repair})" if method.repair and method.stage == "repaired" else ""
    cut = "" if method.cut == MAIN_CUT else f", {method.cut} cut"
    if method.stage != "healed":
        return f"{method.stage.capitalize()}{repair}{cut}"
    return f"Healed, {rule_name(method.rule).lower() if method.rule == UNIFORM else rule_name(method.rule)}{cut}"


def method_name(method: Method, among: Sequence[Method] = ()) -> str:
    """Return the rule's name, with what tells it from the others ``among`` which it stands: scope, repair, budget."""
    alike = [other for other in among if other.rule == method.rule and other.key != method.key]
    extra = []
    if any(other.scope != method.scope for other in alike) or (not among and method.scope != HOME_SCOPE):
        extra.append(method.scope)
    if any(other.repair != method.repair for other in alike):
        extra.append(method.repair or "no repair")
    if any(other.budget != method.budget for other in alike):
        extra.append(show_tokens(method.budget))
    return rule_name(method.rule) + (f" ({', '.join(extra)})" if extra else "")
