"""The suite that papers and practitioners compare by: six benchmarks, zero-shot, in a model's own chat template.

JSONSchemaBench, BFCL, IFEval, GSM8K, XSTest and MMLU, read from a local data folder or from the hub; the sizes of the
dev and test splits are each module's SIZES. Small models score near zero on several of them: see ``mini`` for those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from regrow.capabilities.benchmarks import (
    function_calling,
    instruction_following,
    knowledge,
    math,
    safety,
    structured_output,
)
from regrow.capabilities.function_calling import OnlyCall
from regrow.capabilities.letter_choice import LetterChoice
from regrow.capabilities.math import Mathematics
from regrow.capabilities.safety import SafetyRefusal
from regrow.capabilities.scoring import Benchmark
from regrow.capabilities.structured_output import StructuredOutput
from regrow.capabilities.verified_instructions import VerifiedInstructions
from regrow.data.missing import MissingDataSet, read_all
from regrow.protocols import Capability, Item
from regrow.records.results import Split

Source = Callable[[Path | None], Mapping[Split, list[Item]]]


def capabilities(data: Path | None = None) -> list[Capability]:
    """Return the six capabilities on the benchmarks, in the order of every table.

    ``data``: the local data folder (None: the one REGROW_DATA names, else the hub). A benchmark is read at its first
    use, so that what is not asked for need not be there.
    """

    def read(source: Source) -> Callable[[Split], Sequence[Item]]:
        held: dict[Split, list[Item]] = {}

        def items(split: Split) -> Sequence[Item]:
            if not held:
                held.update(source(data))
            return held.get(split, [])

        return items

    checkers = VerifiedInstructions(data)

    def instruction_items(folder: Path | None) -> Mapping[Split, list[Item]]:
        try:
            checkers.ready()
        except MissingDataSet:
            # The questions are looked for too, so that both are asked for at once.
            needed: list[tuple[str, Callable[[], object]]] = [
                ("checkers", checkers.ready),
                ("questions", partial(instruction_following.items, folder)),
            ]
            read_all(needed)
        return instruction_following.items(folder, checkers.known())

    return [
        Benchmark(StructuredOutput(), read(structured_output.items), max_new_tokens=structured_output.MAX_NEW_TOKENS),
        Benchmark(OnlyCall(), read(function_calling.items), max_new_tokens=function_calling.MAX_NEW_TOKENS),
        Benchmark(checkers, read(instruction_items), max_new_tokens=instruction_following.MAX_NEW_TOKENS),
        Benchmark(Mathematics(), read(math.items), max_new_tokens=math.MAX_NEW_TOKENS),
        Benchmark(SafetyRefusal(), read(safety.items), max_new_tokens=safety.MAX_NEW_TOKENS),
        Benchmark(LetterChoice(), read(knowledge.items), max_new_tokens=0),
    ]
