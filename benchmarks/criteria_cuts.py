"""What every criterion removes from one model at several counts, what perplexity that leaves, and how far they agree.

Calibration: the bundled calibration text, or ``--calibration``; perplexity: the bundled evaluation text in windows of
256 tokens, from cuts followed through the model, so nothing is saved. The second table is about WRP, which runs no
forward pass and is derived from an abstract: overlap of its cut, for each of its similarities, with those of the
criteria that read activations.

Run: python benchmarks/criteria_cuts.py [--model embedded:smollm2-135m] [--remove 2,4,7] [--output cuts.json]
"""

from __future__ import annotations

import argparse
import copy
import math
import sys
from pathlib import Path
from typing import Any

SIMILARITIES = ("gram", "cosine", "subspace")
ACTIVATION_BASED = ("block-influence", "angular", "streamline", "lorp", "perplexity", "greedy-perplexity", "taylor")


def answers_of(model, calibration, criteria: list[str], counts: list[int]) -> dict[str, dict[int, Any]]:
    """Return criterion -> count -> answer, with one similarity record and one oracle for all."""
    from regrow.criteria.objective import Objective, text_batches
    from regrow.criteria.ranking import reads_similarity, score_blocks
    from regrow.criteria.similarity import similarity

    record = similarity(model, calibration) if any(reads_similarity(name) for name in criteria) else None
    oracle = Objective(model, text_batches(calibration, 1))
    found: dict[str, dict[int, Any]] = {}
    for name in criteria:
        base, _, kind = name.partition("/")
        options: dict[str, Any] = {"similarity": kind} if kind else {}
        if base in ("perplexity", "greedy-perplexity"):
            options["objective"] = oracle
        for count in counts:
            answer = score_blocks(base, model, calibration, remove=count, record=record, options=options)
            found.setdefault(name, {})[count] = answer
            print(f"{name} {count}: {answer.removed}", file=sys.stderr, flush=True)
    return found


def perplexities(model, text, answers: dict[str, dict[int, Any]]) -> tuple[float, dict[str, dict[int, float]]]:
    """Return the perplexity of the whole model and of every cut; merges are applied where the answer carries them."""
    from regrow.criteria.merging import merge_blocks, merges_of
    from regrow.criteria.objective import Objective, text_batches

    oracle = Objective(model, text_batches(text, 1))
    found: dict[str, dict[int, float]] = {}
    for name, by_count in answers.items():
        for count, answer in by_count.items():
            merges = merges_of(answer)
            asked = (
                oracle if not merges else Objective(merge_blocks(copy.deepcopy(model), merges), text_batches(text, 1))
            )
            found.setdefault(name, {})[count] = math.exp(min(asked(answer.removed), 700.0))
    return math.exp(oracle.whole), found


def jaccard(one, other) -> float:
    return len(set(one) & set(other)) / len(set(one) | set(other))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded:smollm2-135m")
    parser.add_argument("--remove", default="2,4,7")
    parser.add_argument("--calibration", default="bundled")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--criteria", help="comma-separated; default: all")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--output", type=Path, help="write everything as JSON")
    options = parser.parse_args()

    from regrow.criteria.registry import CRITERIA
    from regrow.data.calibration import load_calibration
    from regrow.models.load import load_model
    from regrow.records.atomic import write_json

    loaded = load_model(options.model, dtype=options.dtype, device="cpu")
    counts = [int(count) for count in options.remove.split(",")]
    chosen = options.criteria.split(",") if options.criteria else CRITERIA.names()
    names = [name for name in chosen if name != "wrp"]
    names += [f"wrp/{kind}" for kind in SIMILARITIES if "wrp" in chosen]
    calibration = load_calibration(options.calibration, loaded.tokenizer, tokens=options.tokens, chunk_tokens=256)
    text = load_calibration("bundled-evaluation", loaded.tokenizer, tokens=10**6, chunk_tokens=256, shuffle=False)
    answers = answers_of(loaded.model, calibration, names, counts)
    whole, left = perplexities(loaded.model, text, answers)

    print(
        f"Perplexity with all blocks: {whole:.1f} ({text.tokens:,} tokens). "
        f"Calibration: {calibration.name}, {calibration.tokens:,} tokens.\n"
    )
    print("| criterion | " + " | ".join(f"{count} removed | perplexity" for count in counts) + " |")
    print("|---|" + "---|---:|" * len(counts))
    for name in names:
        cells = [f"{', '.join(map(str, answers[name][c].removed))} | {left[name][c]:.1f}" for c in counts]
        print(f"| {name} | " + " | ".join(cells) + " |")
    readers = [name for name in names if name in ACTIVATION_BASED]
    derived = [name for name in names if name.startswith("wrp/")]
    if readers and derived:
        print(
            "\nJaccard overlap of WRP's cut with each activation-based one, "
            + ", ".join(map(str, counts))
            + " blocks:\n"
        )
        print("| similarity | " + " | ".join(readers) + " | mean |")
        print("|---|" + "---:|" * (len(readers) + 1))
        for name in derived:
            shares = {
                reader: [jaccard(answers[name][c].removed, answers[reader][c].removed) for c in counts]
                for reader in readers
            }
            mean = sum(map(sum, shares.values())) / (len(readers) * len(counts))
            cells = [" / ".join(f"{share:.2f}" for share in shares[reader]) for reader in readers]
            print(f"| {name.removeprefix('wrp/')} | " + " | ".join(cells) + f" | {mean:.2f} |")
    if options.output:
        write_json(
            options.output,
            {
                "model": options.model,
                "perplexity_of_all_blocks": whole,
                "answers": {
                    name: {str(c): answer.model_dump(mode="json") for c, answer in by_count.items()}
                    for name, by_count in answers.items()
                },
                "perplexities": {name: {str(c): v for c, v in by_count.items()} for name, by_count in left.items()},
            },
        )


if __name__ == "__main__":
    main()
