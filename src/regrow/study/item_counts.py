"""How many items a study asks, without the data they are drawn from: how large the suites are is in the program."""

from __future__ import annotations

from regrow.capabilities.benchmarks import (
    function_calling,
    instruction_following,
    knowledge,
    math,
    safety,
    structured_output,
)
from regrow.capabilities.suites import suite
from regrow.records.study_spec import StudySpec

_FULL = {
    part.NAME: part.SIZES
    for part in (structured_output, function_calling, instruction_following, math, safety, knowledge)
}


def item_counts(spec: StudySpec, split: str, asked: int | None) -> dict[str, int]:
    """Return the items of a split that are asked, by capability: ``asked`` of each, or all.

    Only suites that are neither embedded nor the full one have to be read for it; what cannot be read raises
    DataError.
    """
    found = {}
    for one in suite(spec.suite):
        if spec.capabilities is not None and one.name not in spec.capabilities:
            continue
        if spec.suite == "full" and one.name in _FULL:
            there = int(getattr(_FULL[one.name], split))
        else:
            there = len(list(one.items(split)))  # type: ignore[arg-type]
        found[one.name] = there if asked is None else min(there, asked)
    return found
