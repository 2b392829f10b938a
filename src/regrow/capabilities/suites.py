"""Suites by name: which items the six capabilities are measured on."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path

from regrow.errors import ConfigError, did_you_mean
from regrow.protocols import Capability
from regrow.records.specs import EvalSpec
from regrow.registry import Registry

MakesSuite = Callable[..., list[Capability]]
"""Returns capabilities; one that reads data takes the data folder as ``data`` (a Path, None for the default)."""

SUITES: Registry[MakesSuite] = Registry("suite", entry_point_group="regrow.suites")
SUITES.declare(
    "mini",
    "regrow.capabilities.mini:capabilities",
    summary="embedded items, graded for models of about 100 M parameters",
)
SUITES.declare(
    "full",
    "regrow.capabilities.benchmarks:capabilities",
    summary="JSONSchemaBench, BFCL, IFEval, GSM8K, XSTest and MMLU, from --data DIR or the hub",
)
SUITES.declare(
    "zero-shot",
    "regrow.capabilities.zero_shot:capabilities",
    summary="BoolQ, PIQA, HellaSwag, WinoGrande, ARC-e, ARC-c and OpenBookQA as lm-evaluation-harness defines them",
)


def suite(name: str, only: Sequence[str] | None = None, *, data: Path | None = None) -> list[Capability]:
    """Return the capabilities of the suite ``name``, in the order of every table; those in ``only`` if given.

    ``data``: local folder with the data sets, for suites that read some (default: the folder that REGROW_DATA names,
    else the hub). Raises ConfigError when there is no such suite or capability, or ``only`` is empty.
    """
    found = _made(SUITES.get(name), data)
    if only is None:
        return found
    for wanted in only:
        if wanted not in (capability.name for capability in found):
            raise ConfigError(
                f"the suite '{name}' does not measure '{wanted}'",
                hint=did_you_mean(wanted, [capability.name for capability in found]),
            )
    if not only:
        raise ConfigError("no capability was asked for", hint=did_you_mean("", [each.name for each in found]))
    return [capability for capability in found if capability.name in only]


def chosen_capabilities(spec: EvalSpec, data: Path | None = None) -> list[Capability]:
    """Return the capabilities of a suite that a spec asks for, in the suite's order. Unknown names are refused."""
    if spec.split not in ("dev", "test"):
        raise ConfigError(f"unknown split '{spec.split}'", hint=did_you_mean(spec.split, ["dev", "test"]))
    there = suite(spec.suite, data=data)
    if spec.capabilities is None:
        return there
    names = [capability.name for capability in there]
    for name in spec.capabilities:
        if name not in names:
            raise ConfigError(f"unknown capability '{name}'", hint=did_you_mean(name, names))
    return [capability for capability in there if capability.name in spec.capabilities]


HEALING_SUITES: Registry[MakesSuite] = Registry("suite", entry_point_group="regrow.healing_suites")
HEALING_SUITES.declare("mini", "regrow.capabilities.mini:heal_capabilities", summary="prompts of the embedded items")


HEALING_SUITES.declare(
    "full",
    "regrow.capabilities.pools:heal_capabilities",
    summary="prompts of glaive, Alpaca, GSM8K train and PKU-SafeRLHF, disjoint from the benchmarks' items",
)


def healing_suite(name: str, *, data: Path | None = None) -> list[Capability]:
    """Return what the healing pools of a suite are made with: the "heal" items of each are the prompts, and its
    ``grade`` says which of the teacher's answers show the skill. Raises ConfigError when there is no such suite."""
    return _made(HEALING_SUITES.get(name), data)


def _made(make: MakesSuite, data: Path | None) -> list[Capability]:
    return make(data=data) if "data" in inspect.signature(make).parameters else make()
