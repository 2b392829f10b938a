"""The cut that hurts one skill least: a search whose objective is the loss on answers that show the skill."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from regrow.criteria.objective import Objective, answer_batches
from regrow.criteria.search import SearchResult, as_scores, search
from regrow.data.fingerprints import examples_fingerprint
from regrow.records.results import LayerScores

Examples = Sequence[tuple[Sequence[int], Sequence[int]]]


def guided_choice(
    model: Any,
    examples: Examples,
    *,
    remove: int,
    protect: Sequence[int] = (0,),
    contiguous: bool = False,
    algorithm: str = "greedy",
    budget: float = math.inf,
    generator: np.random.Generator | None = None,
    max_tokens: int = 512,
    name: str = "guided",
    on_work: Callable[[float], None] | None = None,
) -> tuple[LayerScores, SearchResult]:
    """Return the cut found for the least NLL of the answers, as a criterion's answer, and the search's own result.

    ``examples`` are (prompt ids, answer ids) of one capability, right answers to its dev items; only answer tokens are
    scored. ``algorithm`` and ``budget`` (block forwards) are those of :func:`regrow.criteria.search.search`.
    ``on_work`` is told the block forwards so far.
    """
    objective = Objective(model, answer_batches(examples, max_tokens=max_tokens), on_work=on_work)
    result = search(
        objective,
        algorithm,
        remove=remove,
        protect=protect,
        contiguous=contiguous,
        budget=budget,
        generator=generator,
    )
    scores = as_scores(result, objective, protect=protect, criterion=name, fingerprint=examples_fingerprint(examples))
    return scores, result


def damage_of(model: Any, examples: Mapping[str, Examples], cuts: Sequence[Sequence[int]]) -> dict[str, list[float]]:
    """Return, for every named set of examples, how much each cut raises the mean NLL of the answers.

    A table of what each cut does to each capability, at the price of one suffix pass per cut and capability.
    """
    found = {}
    for name, pairs in examples.items():
        objective = Objective(model, answer_batches(pairs))
        found[name] = [value - objective.whole for value in objective.many(cuts)]
    return found
