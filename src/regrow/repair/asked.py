"""Which repairs a line of names and options asks for: one spec and one label each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from regrow.errors import ConfigError
from regrow.records.specs import RepairSpec
from regrow.repair.method import set_options
from regrow.repair.registry import REPAIRS

ALL = "all"


@dataclass(frozen=True)
class Asked:
    """``specs`` and their ``labels``, in the order asked for; ``notes`` tell which options a method does without;
    ``lenient`` that methods which cannot repair this cut are left out instead of refused."""

    specs: tuple[RepairSpec, ...]
    labels: tuple[str, ...]
    notes: tuple[str, ...] = ()
    lenient: bool = False


def asked_repairs(methods: Sequence[str], ranks: Sequence[int], common: RepairSpec) -> Asked:
    """Return one spec per method, and per rank where the method takes one; ``common`` holds all other options.

    An option of ``common`` goes to the methods that heed it; the others do without, which is noted. A single method
    keeps every option, so that its own refusal tells what it heeds. "all" stands for every repair there is. Raises
    ConfigError on an unknown or repeated name and on an option that no method heeds.
    """
    names = REPAIRS.names() if list(methods) == [ALL] else list(methods)
    if not names:
        raise ConfigError("no repair was named", hint=f"allowed: {', '.join(REPAIRS.names())}")
    if ALL in names:
        raise ConfigError(f"'{ALL}' stands for every repair, beside which no other can be named", hint="--method all")
    for name in names:
        REPAIRS.entry(name)
    for kind, values in (("repair", names), ("rank", [str(rank) for rank in ranks])):
        twice = next((value for value in values if values.count(value) > 1), None)
        if twice is not None:
            raise ConfigError(f"the {kind} '{twice}' is named twice", hint=f"name each {kind} once")
    wide = common.model_copy(update={"rank": ranks[0]}) if ranks else common
    options = set_options(wide)
    heeds = {name: tuple(REPAIRS.get(name).heeds) for name in names}
    if len(names) > 1:
        for option in options:
            if not any(option in heeded for heeded in heeds.values()):
                raise ConfigError(
                    f"none of the repairs {', '.join(names)} has a use for --{option.replace('_', '-')}",
                    hint="leave it out; regrow ls repairs",
                )
    specs: list[RepairSpec] = []
    labels: list[str] = []
    notes: list[str] = []
    for name in names:
        spec = common.model_copy(update={"method": name})
        left_out = [option for option in options if option not in heeds[name]] if len(names) > 1 else []
        if left_out:
            spec = spec.model_copy(update={option: type(spec).model_fields[option].default for option in left_out})
            words = ", ".join("--" + option.replace("_", "-") for option in left_out)
            notes.append(f"{name} has no use for {words} and is fitted without")
        chosen: Sequence[int | None] = ranks if ranks and "rank" not in left_out else (spec.rank,)
        for rank in chosen:
            specs.append(spec.model_copy(update={"rank": rank}))
            labels.append(name if rank is None else f"{name}-rank{rank}")
    return Asked(tuple(specs), tuple(labels), tuple(notes), lenient=list(methods) == [ALL])
