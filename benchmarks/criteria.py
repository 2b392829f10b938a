"""What the criteria cost, as ratios of runs made in turn in one process: same tokens, number format and threads.

similarity   all similarity criteria together (block-influence, angular, streamline, lorp: one pass), and Block
             Influence alone, against one plain forward pass of the model, with and without its head.
one-shot     the perplexity ranking against re-running the whole model without each block in turn.
greedy       seven of thirty blocks in rounds, against the same re-running in every round; same cut.
outside      Block Influence against optipfair's ``analyze_layer_importance`` where that package is installed
             (pip install --no-deps optipfair==0.4.2; no dependency of regrow): same order, and not slower.

Each pair is timed alternately, ``--repeats`` times; the ratio is that of the fastest runs.

Run: python benchmarks/criteria.py [--model embedded:smollm2-135m] [--tokens 4096] [--only similarity,one-shot] [--json]
Targets: similarity <= 1.3 and Block Influence <= 1.15 of a plain pass; one-shot >= 1.7 and greedy >= 1.8 x faster.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SECTIONS = ("similarity", "one-shot", "greedy", "outside")


# On a machine that others use too, processor time (--clock cpu) says more than the clock on the wall.
clock = time.perf_counter


def alternately(repeats: int, **runs: Callable[[], Any]) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the fastest time in seconds and the last result of each run; they take turns so that load hits all."""
    seconds = dict.fromkeys(runs, math.inf)
    results: dict[str, Any] = {}
    for _ in range(repeats):
        for name, run in runs.items():
            start = clock()
            results[name] = run()
            seconds[name] = min(seconds[name], clock() - start)
            print(f"  {name}: {seconds[name]:.2f} s", file=sys.stderr, flush=True)
    return seconds, results


def similarity_ratios(model, calibration, batch_size: int, repeats: int) -> dict[str, float]:
    import torch

    from regrow.criteria.ranking import rank
    from regrow.criteria.similarity import similarity
    from regrow.models.families import backbone_of, blocks_of

    def plain(run) -> None:
        with torch.inference_mode():
            for batch in calibration.batches(batch_size):
                run(input_ids=batch.input_ids.to(model.device), use_cache=False)

    names = ["block-influence", "angular", "streamline", "lorp"]
    counts = [count for count in (2, 4, 7) if count <= len(blocks_of(model)) - 2]

    def everything():
        record = similarity(model, calibration, batch_size=batch_size)
        return [rank(model, calibration, names, remove=count, record=record) for count in counts]

    seconds, _ = alternately(
        repeats,
        plain=lambda: plain(model),
        without_head=lambda: plain(backbone_of(model)),
        all=everything,
        block_influence=lambda: similarity(model, calibration, batch_size=batch_size, neighbours_only=True),
    )
    return {
        "plain_seconds": seconds["plain"],
        "all_over_plain": seconds["all"] / seconds["plain"],
        "all_over_plain_without_head": seconds["all"] / seconds["without_head"],
        "block_influence_over_plain": seconds["block_influence"] / seconds["plain"],
        "block_influence_over_plain_without_head": seconds["block_influence"] / seconds["without_head"],
    }


def loss_without(model, calibration, batch_size: int, cut: tuple[int, ...]) -> float:
    """Return the mean token NLL of the model run without the blocks of ``cut``: the usual leave-one-out loop."""
    import torch

    from regrow.models.families import anatomy_of

    anatomy = anatomy_of(model)
    kept = torch.nn.ModuleList([block for index, block in enumerate(anatomy.blocks) if index not in cut])
    total, tokens = 0.0, 0
    setattr(anatomy.backbone, anatomy.attribute, kept)
    try:
        with torch.inference_mode():
            for batch in calibration.batches(batch_size):
                ids = batch.input_ids.to(model.device)
                logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
                loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")
                total += float(loss)
                tokens += ids[:, 1:].numel()
    finally:
        setattr(anatomy.backbone, anatomy.attribute, anatomy.blocks)
    return total / tokens


def one_shot_ratio(model, calibration, batch_size: int, repeats: int) -> dict[str, float]:
    from regrow.criteria.ablation import perplexity
    from regrow.criteria.objective import Objective, text_batches
    from regrow.models.families import blocks_of

    count = len(blocks_of(model))

    def ours(give_up: bool = False):
        oracle = Objective(model, text_batches(calibration, batch_size))
        return perplexity(model, calibration, remove=min(7, count - 2), give_up=give_up, objective=oracle)

    seconds, results = alternately(
        repeats,
        ours=ours,
        giving_up=lambda: ours(give_up=True),
        theirs=lambda: [loss_without(model, calibration, batch_size, (block,)) for block in range(1, count)],
    )
    losses = [math.log(score) for score in results["ours"].scores[1:]]
    apart = max(abs(one - other) for one, other in zip(losses, results["theirs"]))
    return {
        "seconds": seconds["ours"],
        "times_faster": seconds["theirs"] / seconds["ours"],
        "times_faster_giving_up": seconds["theirs"] / seconds["giving_up"],
        "same_cut": results["ours"].removed == results["giving_up"].removed,
        "largest_difference_of_losses": apart,
    }


def greedy_ratio(model, calibration, batch_size: int, remove: int) -> dict[str, Any]:
    from regrow.criteria.ablation import greedy_perplexity
    from regrow.criteria.objective import Objective, text_batches
    from regrow.models.families import blocks_of

    count = len(blocks_of(model))

    def ours():
        objective = Objective(model, text_batches(calibration, batch_size))
        return greedy_perplexity(model, calibration, remove=remove, objective=objective)

    def theirs():
        cut: list[int] = []
        for _ in range(remove):
            free = [block for block in range(1, count - 1) if block not in cut]
            cut.append(min(free, key=lambda block: loss_without(model, calibration, batch_size, (*cut, block))))
        return cut

    seconds, results = alternately(1, ours=ours, theirs=theirs)
    return {
        "seconds": seconds["ours"],
        "times_faster": seconds["theirs"] / seconds["ours"],
        "same_cut": list(results["ours"].order[:remove]) == results["theirs"],
        "cut": results["theirs"],
    }


def outside_ratio(model, calibration, batch_size: int, repeats: int) -> dict[str, Any]:
    # Beside this script lies a statistics.py, which would stand in for Python's own in what is imported next.
    sys.path[:] = [place for place in sys.path if Path(place).resolve() != Path(__file__).resolve().parent]
    try:
        from optipfair import analyze_layer_importance
    except ImportError:
        return {"skipped": "pip install --no-deps optipfair==0.4.2"}
    from regrow.criteria.similarity import block_influence, similarity

    batches = [
        {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
        for batch in calibration.batches(batch_size)
    ]
    seconds, results = alternately(
        repeats,
        ours=lambda: similarity(model, calibration, batch_size=batch_size, neighbours_only=True, skip_first=0),
        theirs=lambda: analyze_layer_importance(model, batches, show_progress=False),
    )
    record = results["ours"]
    ours = block_influence(model, calibration, remove=1, protect=(), record=record)
    theirs = results["theirs"]
    return {
        "times_faster": seconds["theirs"] / seconds["ours"],
        "same_order": list(ours.order) == sorted(theirs, key=lambda block: (theirs[block], block)),
        "largest_difference": max(abs(ours.scores[block] - theirs[block]) for block in theirs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded:smollm2-135m")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--search-tokens", type=int, default=2048, help="for one-shot; greedy reads half of them")
    parser.add_argument("--chunk-tokens", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--greedy-batch-size", type=int, default=1, help="small: candidates are given up in between")
    parser.add_argument("--remove", type=int, default=7)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--only", help="comma-separated: " + ", ".join(SECTIONS))
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    global clock
    if options.clock == "cpu":
        clock = time.process_time

    import torch

    from regrow.data.calibration import load_calibration
    from regrow.models.load import load_model

    if options.threads:
        torch.set_num_threads(options.threads)
    wanted = options.only.split(",") if options.only else SECTIONS
    loaded = load_model(options.model, dtype=options.dtype, device="cpu")
    model = loaded.model

    def text(tokens: int):
        return load_calibration("bundled", loaded.tokenizer, tokens=tokens, chunk_tokens=options.chunk_tokens)

    found: dict[str, Any] = {
        "model": options.model,
        "dtype": options.dtype,
        "threads": torch.get_num_threads(),
        "tokens": options.tokens,
        "search_tokens": options.search_tokens,
    }
    if "similarity" in wanted:
        found["similarity"] = similarity_ratios(model, text(options.tokens), options.batch_size, options.repeats)
    if "one-shot" in wanted:
        found["one-shot"] = one_shot_ratio(
            model, text(options.search_tokens), options.batch_size, min(2, options.repeats)
        )
    if "greedy" in wanted:
        few = text(options.search_tokens // 2)
        found["greedy"] = greedy_ratio(model, few, options.greedy_batch_size, options.remove)
    if "outside" in wanted:
        found["outside"] = outside_ratio(model, text(options.tokens), options.batch_size, options.repeats)
    if options.json:
        print(json.dumps(found, indent=1))
        return
    for section, values in found.items():
        if not isinstance(values, dict):
            print(f"{section}: {values}")
            continue
        print(section)
        for name, value in values.items():
            shown = f"{value:.4g}" if isinstance(value, float) else value
            print(f"  {name}: {shown}")


if __name__ == "__main__":
    main()
