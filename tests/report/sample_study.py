"""A made-up study for tests of the report: synthetic items, NOT results of any model.

Only the counts of :data:`TEST_COUNTS` (published: items right of the unpruned and the pruned models on test) and those
of the pilots that tests take from the golden file are real; which items are right is made up in either case.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from regrow.records.fingerprint import text_fingerprint
from regrow.records.results import Cost, ItemScore, ModelCardFacts, Provenance, RunRecord, Split, Stage
from regrow.records.store import RunFolder
from regrow.records.study_runs import Coordinates, write_coordinates
from regrow.seeding import stream

CAPABILITIES = ("structured_output", "function_calling", "instruction_following", "math", "safety", "knowledge")
POOLS = (*CAPABILITIES[:-1], "general")
TEST_ITEMS = dict(zip(CAPABILITIES, (150, 200, 300, 200, 200, 300), strict=True))
TEST_COUNTS = {
    "llama": ((48, 107, 136, 95, 167, 97), (3, 0, 58, 7, 126, 74)),
    "qwen": ((117, 172, 115, 97, 146, 175), (5, 0, 23, 0, 117, 99)),
    "smollm2": ((106, 138, 134, 77, 148, 128), (22, 7, 44, 5, 114, 111)),
    "olmo": ((90, 108, 179, 124, 170, 108), (44, 4, 119, 3, 145, 78)),
}
"""Published items right of the unpruned and of the pruned models (safety: balanced score x 200)."""

BLOCKS = {"llama": (16, (12, 13)), "qwen": (28, (13, 14, 15, 16, 24, 25, 26))}


def items_with(
    counts: Mapping[str, float],
    sizes: Mapping[str, int],
    *,
    split: Split,
    name: str,
    family: str,
) -> list[ItemScore]:
    """Return items of which exactly ``counts`` are right; which ones depends on a difficulty that all models share."""
    found = []
    for capability, size in sizes.items():
        ease = stream(3, family, capability, split).random(size)
        luck = stream(3, family, capability, split, name).random(size)
        order = np.argsort(0.7 * ease + 0.3 * luck)
        kinds = [("unsafe", "benign")[i % 2] if capability == "safety" else "" for i in range(size)]
        right = np.zeros(size, bool)
        count = round(counts[capability])
        if capability == "safety":
            # Pruned models refuse more: what is right among unsafe requests comes first.
            unsafe = [i for i in order if kinds[i] == "unsafe"]
            benign = [i for i in order if kinds[i] == "benign"]
            of_unsafe = min(len(unsafe), round(count * (0.66 if name == "pruned" else 0.53)))
            right[unsafe[:of_unsafe]] = True
            right[benign[: count - of_unsafe]] = True
        else:
            right[order[:count]] = True
        for index in range(size):
            question = f"{split} question {index} on {capability.replace('_', ' ')}"
            details: dict[str, str | float | bool | None] = {"question": question}
            if kinds[index]:
                details["kind"] = kinds[index]
            found.append(
                ItemScore(
                    capability=capability,
                    item_id=f"{capability}-{index:03d}",
                    split=split,
                    prompt_sha256=text_fingerprint(question),
                    response=f"{name} says {'yes' if right[index] else 'no'} to {index}",
                    score=float(right[index]),
                    generated_tokens=12,
                    details=details,
                )
            )
    return found


def record_of(at: Coordinates, *, split: Split, name: str) -> RunRecord:
    """Return the record of a synthetic run."""
    blocks, removed = BLOCKS.get(at.family, (24, (20, 21, 22)))
    gone = () if at.stage == "unpruned" else removed
    return RunRecord(
        label=name,
        stage=at.stage,
        suite="full",
        split=split,
        seed=at.seed,
        model=ModelCardFacts(
            source=f"example/{at.family}",
            architecture="SyntheticForCausalLM",
            blocks=blocks - len(gone),
            parameters=1_000_000_000 - 40_000_000 * len(gone),
            dtype="bfloat16",
            weights_sha256=text_fingerprint(name + at.family),
            removed_blocks=gone,
            unpruned_blocks=blocks,
            healing_tokens=at.budget and at.budget + 112,
        ),
        cost=Cost(wall_seconds=300.0, generated_tokens=15_000, prompt_tokens=90_000, flops=3e14),
        provenance=Provenance(
            created="2026-01-05T12:00:00+00:00", regrow="0.1.0", python="3.11.7", platform="Linux x86_64"
        ),
    )


def write_run(
    study: Path,
    run_id: str,
    at: Coordinates,
    counts: Mapping[str, float],
    sizes: Mapping[str, int],
    *,
    split: Split = "test",
) -> Path:
    """Write one finished run of a study and return its folder."""
    name = at.stage if at.stage != "healed" else run_id
    folder = RunFolder(study / "runs" / run_id)
    record = record_of(at, split=split, name=name)
    folder.write_evaluation(record, items_with(counts, sizes, split=split, name=name, family=at.family))
    write_coordinates(folder.path, at)
    return folder.path


def coordinates(family: str, stage: Stage, **more: Any) -> Coordinates:
    return Coordinates(family=family, stage=stage, **more)


def write_published_damage(study: Path) -> None:
    """Write the four families' unpruned and pruned runs with the published counts."""
    for family, (unpruned, pruned) in TEST_COUNTS.items():
        for stage, counts in (("unpruned", unpruned), ("pruned", pruned)):
            named = dict(zip(CAPABILITIES, counts, strict=True))
            write_run(study, f"{family}-{stage}", coordinates(family, stage), named, TEST_ITEMS)


KEPT = {
    "uniform": (0.92, 0.72, 0.85, 0.40, 1.02, 0.96),
    "damage-proportional": (0.93, 0.75, 0.84, 0.44, 1.00, 0.94),
    "rah": (0.90, 0.74, 0.86, 0.62, 0.99, 0.92),
    "rah-capped": (0.89, 0.73, 0.85, 0.63, 1.00, 0.92),
    "slowest-first": (0.88, 0.66, 0.80, 0.60, 1.00, 0.92),
    "token-matched": (0.97, 0.86, 0.90, 0.66, 1.03, 0.97),
}
"""Made-up retentions after healing, by rule."""


def write_study(
    study: Path,
    *,
    families: tuple[str, ...] = ("llama", "qwen"),
    per_capability: int = 60,
    seeds: int = 3,
    budget: int = 1_000_000,
    published: Mapping[str, Any] | None = None,
    pilots: bool = True,
) -> None:
    """Write a synthetic study: damage, rules, scopes, budgets, the token-matched control, and pilots on dev.

    ``published`` (the golden file's content) makes the pilots' counts the published ones.
    """
    sizes = dict.fromkeys(CAPABILITIES, per_capability)
    for place, family in enumerate(families):
        base_rates = np.array(TEST_COUNTS[family][0]) / np.array(list(TEST_ITEMS.values()))
        cut_rates = np.array(TEST_COUNTS[family][1]) / np.array(list(TEST_ITEMS.values()))

        def counts(rates: np.ndarray) -> dict[str, float]:
            return dict(zip(CAPABILITIES, np.clip(rates, 0, 1) * per_capability, strict=True))

        write_run(study, f"{family}-unpruned", coordinates(family, "unpruned"), counts(base_rates), sizes)
        write_run(study, f"{family}-pruned", coordinates(family, "pruned"), counts(cut_rates), sizes)
        light = (base_rates + 2 * cut_rates) / 3 + (base_rates - cut_rates) / 2
        write_run(study, f"{family}-light", coordinates(family, "pruned", cut="light"), counts(light), sizes)
        repaired = cut_rates + 0.2 * (base_rates - cut_rates)
        write_run(study, f"{family}-repaired", coordinates(family, "repaired"), counts(repaired), sizes)
        dearest = budget + 3_480_000
        for seed in range(seeds):
            for rule, kept in KEPT.items():
                spent = dearest if rule == "token-matched" else budget
                scope = "last-k" if rule.startswith("rah") else "all-lora"
                _heal(study, family, rule, scope, spent, seed, base_rates * (np.array(kept) - 0.12 * place), sizes)
            for scope, gain in (("last-k", -0.02 - 0.15 * place), ("cut-lora", -0.06)):
                rates = base_rates * (np.array(KEPT["uniform"]) - 0.12 * place + gain)
                _heal(study, family, "uniform", scope, budget, seed, rates, sizes)
            for part, gain in ((0.25, -0.15), (4.0, 0.05)):
                rates = base_rates * (np.array(KEPT["uniform"]) - 0.12 * place + gain)
                _heal(study, family, "uniform", "all-lora", round(budget * part), seed, rates, sizes)
        if pilots:
            _write_pilots(study, family, published)


def _heal(
    study: Path, family: str, rule: str, scope: str, budget: int, seed: int, rates: np.ndarray, sizes: dict[str, int]
) -> None:
    wobble = stream(11, family, rule, scope, budget, seed).normal(0, 0.015, len(CAPABILITIES))
    counts = {
        name: float(np.clip(rate + move, 0, 1)) * sizes[name]
        for name, rate, move in zip(CAPABILITIES, rates, wobble, strict=True)
    }
    at = coordinates(
        family,
        "healed",
        rule=rule,
        scope=scope,
        budget=budget,
        seed=seed,
        mixture=dict.fromkeys(POOLS, budget / 6),
    )
    write_run(study, f"{family}-{rule}-{scope}-{budget}-s{seed}", at, counts, sizes)


def _write_pilots(study: Path, family: str, published: Mapping[str, Any] | None) -> None:
    dev = dict.fromkeys(CAPABILITIES, 60)
    if published is not None:
        known = published["families"][family]
        unpruned, pruned = np.array(known["unpruned_items"]), np.array(known["pruned_items"])
        delta = {pool: np.array(known["delta_items"][pool]) for pool in POOLS}
    else:
        unpruned = np.round(60 * np.array(TEST_COUNTS[family][0]) / np.array(list(TEST_ITEMS.values())))
        pruned = np.round(60 * np.array(TEST_COUNTS[family][1]) / np.array(list(TEST_ITEMS.values())))
        gain = np.round((unpruned - pruned) * 0.25)
        delta = {
            pool: np.outer([0.4, 0.7, 1.0], gain * (1 + 2 * (np.array(POOLS) == pool)) / 1).clip(0, 60 - pruned)
            for pool in POOLS
        }

    def named(values: np.ndarray) -> dict[str, float]:
        return dict(zip(CAPABILITIES, values.tolist(), strict=True))

    write_run(study, f"{family}-unpruned-dev", coordinates(family, "unpruned"), named(unpruned), dev, split="dev")
    write_run(study, f"{family}-pruned-dev", coordinates(family, "pruned"), named(pruned), dev, split="dev")
    for pool in POOLS:
        for row, tokens in zip(delta[pool], (30_000, 100_000, 300_000), strict=True):
            at = coordinates(
                family, "healed", pilot=pool, scope="all-lora", budget=tokens, seed=42, mixture={pool: tokens}
            )
            write_run(study, f"{family}-pilot-{pool}-{tokens}", at, named(pruned + row), dev, split="dev")
    for scope, gain in (("all-lora", 0.6), ("cut-lora", 0.5), ("last-k", 0.7 if family == "llama" else 0.4)):
        at = coordinates(
            family,
            "healed",
            pilot="uniform",
            scope=scope,
            budget=300_000,
            seed=42,
            mixture=dict.fromkeys(POOLS, 50_000),
        )
        counts = named(np.round(pruned + gain * (unpruned - pruned)))
        write_run(study, f"{family}-pilot-uniform-{scope}", at, counts, dev, split="dev")
