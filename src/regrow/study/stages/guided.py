"""The cut that hurts one skill least, guided by the model's own right answers to dev items of that skill."""

from __future__ import annotations

from dataclasses import dataclass

from regrow.capabilities.evaluate import chosen_items
from regrow.capabilities.suites import suite
from regrow.capabilities.teacher import build_pool
from regrow.criteria.guided import Examples, guided_choice
from regrow.errors import DataError
from regrow.models.families import blocks_of
from regrow.models.load import LoadedModel
from regrow.protocols import Capability, Watcher
from regrow.records.results import LayerScores
from regrow.records.specs import PruneSpec
from regrow.seeding import stream
from regrow.study.stages.answer_tally import AnswerTally

GUIDING_ITEMS = 24
"""Dev items answered for a guided choice: each right answer is read about n N/2 times."""


def guiding_capability(name: str, suite_name: str = "mini") -> Capability:
    """Return the capability of that name. Raises DataError for one that is not answered by text."""
    capability = suite(suite_name, [name])[0]
    if capability.kind == "likelihood":
        able = [one.name for one in suite(suite_name) if one.kind != "likelihood"]
        raise DataError(f"'{name}' is not answered by text", hint=f"--for takes: {', '.join(able)}")
    return capability


@dataclass(frozen=True)
class RightAnswers:
    """(prompt ids, answer ids) of each dev item answered right, and the tokens read and written for all that were
    asked."""

    examples: Examples
    prompt_tokens: int
    generated_tokens: int


def right_answers(loaded: LoadedModel, capability: Capability, items: int, seed: int, watch: Watcher) -> RightAnswers:
    """Return what the model answers right of the dev items drawn. DataError when that is nothing."""
    shown = capability.name.replace("_", " ")
    watch.begin(f"answering dev items of {shown}")
    tally = AnswerTally()
    pool = build_pool(loaded, capability, chosen_items(capability, "dev", items, seed), watch=watch, journal=tally)
    watch.end(f"{len(pool.examples)} right answers")
    if not pool.examples:
        raise DataError(
            f"the model answers none of {items} dev items of '{capability.name}' right",
            hint="choose another capability with --for, or more items with --for-items",
        )
    examples = [(entry.prompt_ids, entry.response_ids) for entry in pool.examples]
    return RightAnswers(examples, tally.prompt_tokens, tally.generated_tokens)


def least_hurting(
    loaded: LoadedModel, capability: Capability, examples: Examples, spec: PruneSpec, remove: int, watch: Watcher
) -> LayerScores:
    """Return the cut of ``remove`` blocks that raises the loss on ``examples`` least, found greedily."""
    shown = capability.name.replace("_", " ")
    blocks = len(blocks_of(loaded.model))
    # The last round scores the blocks around the cut that was found.
    watch.begin(f"searching the cut that hurts {shown} least", most_passes(blocks, remove + 1), "block passes at most")
    scores, _ = guided_choice(
        loaded.model,
        examples,
        remove=remove,
        protect=spec.protect,
        contiguous=spec.contiguous,
        generator=stream(spec.seed, "guided", capability.name),
        name=f"for:{capability.name}",
        on_work=watch.advance,
    )
    watch.end("removes " + ", ".join(map(str, scores.removed)))
    return scores


def most_passes(blocks: int, rounds: int) -> float:
    """Return how many block passes leaving out each block in turn takes, round after round."""
    return blocks + sum((blocks - gone) ** 2 / 2 for gone in range(rounds))
