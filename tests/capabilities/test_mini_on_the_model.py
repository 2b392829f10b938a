"""The promise of the embedded items: a whole model gets most of them right, one without blocks 13 and 14 does not."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from regrow.capabilities.evaluate import evaluate
from regrow.capabilities.suites import suite
from regrow.models.load import LoadedModel
from regrow.records.specs import EvalSpec
from regrow.surgery import remove_blocks

UNPRUNED = {
    "structured_output": (0.6, 0.95),
    "function_calling": (0.5, 0.95),
    "instruction_following": (0.5, 0.95),
    "math": (0.35, 0.8),
    "safety": (0.65, 0.95),
    "knowledge": (0.5, 0.95),
}
"""Where the scores of the whole model lie on half of the 60 dev items."""

LEFT_AT_MOST = {
    "structured_output": 0.6,
    "function_calling": 0.4,
    "instruction_following": 0.5,
    "math": 0.4,
    "safety": 0.9,
    "knowledge": 1.0,
}
"""The share of the score that is left without blocks 13 and 14."""


def scores(loaded: LoadedModel) -> dict[str, float]:
    capabilities = suite("mini")
    found = evaluate(loaded, capabilities, EvalSpec(split="dev", items=30, perplexity=False)).items
    return {
        each.name: each.summarise([score for score in found if score.capability == each.name])["score"]
        for each in capabilities
    }


@pytest.mark.slow
def test_the_whole_model_is_neither_lost_nor_perfect_and_damage_shows(smollm2: Any) -> None:

    whole = scores(smollm2)
    assert {name: score for name, score in whole.items() if not UNPRUNED[name][0] <= score <= UNPRUNED[name][1]} == {}
    pruned = copy.deepcopy(smollm2.model)
    remove_blocks(pruned, [13, 14])
    left = scores(replace(smollm2, model=pruned))
    kept = {name: left[name] / whole[name] for name in whole}
    assert {name: share for name, share in kept.items() if share > LEFT_AT_MOST[name]} == {}
