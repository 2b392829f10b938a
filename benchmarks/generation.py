"""Items per second on the generative mini items: regrow's generation against transformers' ``model.generate``.

Both answer the same prompts greedily with the same end tokens, the same ``max_new_tokens`` per item and the same batch
size. transformers gets each capability's prompts sorted by length, padded on the left, batch after batch, and runs
every prompt in full; a batch lasts as long as its longest answer. regrow answers all items as one stream: common
prefixes run once, rows leave when they are decided, and others take their places ("whole answers" leaves them to the
end token).
In float32 the whole answers must be the same token by token, and the grades the same in all three.

Run: python benchmarks/generation.py [--model embedded:smollm2-135m] [--items 32] [--dtype float32] [--json]
Target: at least 2.5 x the items/s of model.generate.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass


@dataclass
class Work:
    """One capability's share of the job."""

    capability: object
    items: list
    prompts: list[str]
    ids: list[list[int]]


def prepare(options: argparse.Namespace, loaded) -> list[Work]:
    from regrow.capabilities.evaluate import chosen_items
    from regrow.capabilities.suites import suite
    from regrow.data.chat import render_chat, tokenise_prompt

    found = []
    for capability in suite("mini"):
        if capability.kind != "generative" or (options.only and capability.name not in options.only):
            continue
        items = chosen_items(capability, "test", options.items, seed=0)
        prompts = [render_chat(loaded.tokenizer, item.messages, add_generation_prompt=True) for item in items]
        ids = [tokenise_prompt(loaded.tokenizer, prompt) for prompt in prompts]
        found.append(Work(capability, items, prompts, ids))
    return found


def by_transformers(options: argparse.Namespace, loaded, works: list[Work]) -> tuple[list[tuple[int, ...]], list[str]]:
    from regrow.capabilities.growing_text import decode
    from regrow.capabilities.model_call import end_ids
    from regrow.capabilities.plain_generation import generate_plainly

    ends = end_ids(loaded.model, loaded.tokenizer)
    tokens, texts = [], []
    for work in works:
        order = sorted(range(len(work.ids)), key=lambda at: -len(work.ids[at]))
        written: dict[int, list[int]] = {}
        for begin in range(0, len(order), options.batch_size):
            part = order[begin : begin + options.batch_size]
            answers = generate_plainly(
                loaded.model,
                [work.ids[at] for at in part],
                max_new_tokens=work.capability.max_new_tokens,
                end_ids=ends,
            )
            written.update(zip(part, answers, strict=True))
        kept = [[token for token in written[at] if token not in ends] for at in range(len(work.ids))]
        tokens += [tuple(ids) for ids in kept]
        texts += [decode(loaded.tokenizer, ids) for ids in kept]
    return tokens, texts


def by_regrow(options: argparse.Namespace, loaded, works: list[Work], *, fast_stop: bool):
    from regrow.capabilities.generation import Request, generate

    requests = [
        Request(prompt, work.capability.max_new_tokens, work.capability.decided)
        for work in works
        for prompt in work.prompts
    ]
    answers = generate(loaded, requests, batch_size=options.batch_size, fast_stop=fast_stop)
    return [answer.token_ids for answer in answers], [answer.text for answer in answers]


def timed(function, *arguments, **options):
    wall, cpu = time.perf_counter(), time.process_time()
    result = function(*arguments, **options)
    return result, time.perf_counter() - wall, time.process_time() - cpu


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded:smollm2-135m")
    parser.add_argument("--items", type=int, default=32, help="per capability")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--only", nargs="*", default=[], help="capabilities")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    from regrow.models.load import load_model

    loaded = load_model(options.model, dtype=options.dtype, device=options.device)
    works = prepare(options, loaded)
    items = [(work.capability, item) for work in works for item in work.items]
    if not items:
        parser.error("no generative capability was chosen")
    # One short pass of each first, so that neither pays for allocations and lazy imports.
    few = [Work(work.capability, work.items[:1], work.prompts[:1], work.ids[:1]) for work in works[:1]]
    by_transformers(options, loaded, few)
    by_regrow(options, loaded, few, fast_stop=True)

    runs = {
        "regrow": timed(by_regrow, options, loaded, works, fast_stop=True),
        "regrow, whole answers": timed(by_regrow, options, loaded, works, fast_stop=False),
        "model.generate": timed(by_transformers, options, loaded, works),
    }
    grades = {
        name: [capability.grade(item, text).score for (capability, item), text in zip(items, texts, strict=True)]
        for name, ((_, texts), _, _) in runs.items()
    }
    plain = runs["model.generate"]
    result = {
        "model": options.model,
        "dtype": options.dtype,
        "items": len(items),
        "batch_size": options.batch_size,
        "prompt_tokens": sum(len(ids) for work in works for ids in work.ids),
        "engines": {
            name: {
                "seconds": wall,
                "cpu_seconds": cpu,
                "items_per_second": len(items) / wall,
                "generated_tokens": sum(map(len, tokens)),
                "ratio": plain[1] / wall,
                "cpu_ratio": plain[2] / cpu,
                "same_grades": sum(a == b for a, b in zip(grades[name], grades["model.generate"], strict=True)),
                "mean_score": sum(grades[name]) / len(items),
            }
            for name, ((tokens, _), wall, cpu) in runs.items()
        },
        "same_whole_answers": sum(
            a == b for a, b in zip(runs["regrow, whole answers"][0][0], plain[0][0], strict=True)
        ),
    }
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        print(f"{options.model}, {options.dtype}, {len(items)} items, batches of {options.batch_size}")
        for name, facts in result["engines"].items():
            print(
                f"{name:24s} {facts['items_per_second']:6.2f} items/s  {facts['ratio']:5.2f} x "
                f"(CPU time {facts['cpu_ratio']:5.2f} x)  {facts['generated_tokens']:6d} tokens  "
                f"same grades {facts['same_grades']}/{len(items)}  mean score {facts['mean_score']:.3f}"
            )
        print(f"whole answers equal to model.generate token by token: {result['same_whole_answers']}/{len(items)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
