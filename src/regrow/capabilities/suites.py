"""Suites by name: which items the six capabilities are measured on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from regrow.capabilities.registry import CAPABILITIES
from regrow.errors import ConfigError, did_you_mean
from regrow.protocols import Capability
from regrow.registry import Registry

SUITES: Registry[Callable[[], list[Capability]]] = Registry("suite", entry_point_group="regrow.suites")
SUITES.declare(
    "mini",
    "regrow.capabilities.mini:capabilities",
    summary="embedded items, graded for models of about 100 M parameters",
)


def suite(name: str, only: Sequence[str] | None = None) -> list[Capability]:
    """Return the capabilities of the suite ``name``, always in the order of the registry; those in ``only`` if given.

    Raises ConfigError when there is no such suite or capability, or ``only`` is empty.
    """
    found = SUITES.get(name)()
    if only is None:
        return found
    for wanted in only:
        CAPABILITIES.entry(wanted)
        if wanted not in (capability.name for capability in found):
            raise ConfigError(
                f"the suite '{name}' does not measure '{wanted}'",
                hint=did_you_mean(wanted, [capability.name for capability in found]),
            )
    if not only:
        raise ConfigError("no capability was asked for", hint=did_you_mean("", [each.name for each in found]))
    return [capability for capability in found if capability.name in only]


HEALING_SUITES: Registry[Callable[[], list[Capability]]] = Registry("suite", entry_point_group="regrow.healing_suites")
HEALING_SUITES.declare("mini", "regrow.capabilities.mini:heal_capabilities", summary="prompts of the embedded items")


def healing_suite(name: str) -> list[Capability]:
    """Return what the healing pools of a suite are made with: the "heal" items of each are the prompts, and its
    ``grade`` says which of the teacher's answers show the skill. Raises ConfigError when there is no such suite."""
    return HEALING_SUITES.get(name)()
