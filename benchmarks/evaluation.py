"""Items per second on real benchmark items: regrow against lm-evaluation-harness's hf backend, in one run.

Both get the same requests, the harness's own ``Instance`` objects: GSM8K and IFEval prompts to be answered greedily up
to the same number of tokens and to the same stops, MMLU and the zero-shot sets as continuations to be weighed. The
hf backend runs in a process of its own, as its user would run it, without what regrow sets in its process; it is timed
at several batch sizes and its best one counts. In float32 the answers must be the same texts and
the likelihoods agree to 1e-3. Beside the ratio stand the tokens that each of the two ran, padding included, the share
of regrow's time that the matrix products alone take at their best, those of the blocks for every token that was run and
the vocabulary's for every place whose logits were made, and the ratio if nothing else took any time: the limit of this
machine.

Run: python benchmarks/evaluation.py --data DIR [--model embedded:smollm2-135m] [--items 32] [--only gsm8k] [--json]
Target: at least 2 x on gsm8k and ifeval, at least 3 x on mmlu and the zero-shot sets.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from functools import partial
from pathlib import Path

NEW_TOKENS = {"gsm8k": 256, "ifeval": 384}
TARGET = {"gsm8k": 2.0, "ifeval": 2.0}


def written(name: str, options: argparse.Namespace, loaded) -> list:
    """Return the requests of a set to be answered, as rendered chats."""
    from lm_eval.api.instance import Instance

    from regrow.capabilities.evaluate import chosen_items
    from regrow.capabilities.suites import suite
    from regrow.data.chat import render_chat

    capability = {"gsm8k": "math", "ifeval": "instruction_following"}[name]
    (source,) = suite("full", [capability], data=options.data)
    return [
        Instance(
            "generate_until",
            {},
            (
                render_chat(loaded.tokenizer, item.messages, add_generation_prompt=True),
                {"until": [], "max_gen_toks": options.new_tokens or NEW_TOKENS[name], "do_sample": False},
            ),
            number,
        )
        for number, item in enumerate(chosen_items(source, "test", options.items, seed=0))
    ]


def weighed(name: str, options: argparse.Namespace, loaded) -> list:
    """Return the requests of a set to be weighed: a context and one continuation each."""
    from lm_eval.api.instance import Instance

    from regrow.capabilities.evaluate import chosen_items
    from regrow.capabilities.prompts import CONTEXTS, prompt_of
    from regrow.capabilities.suites import suite

    (source,) = (
        suite("full", ["knowledge"], data=options.data)
        if name == "mmlu"
        else suite("zero-shot", [name], data=options.data)
    )
    requests = []
    for item in chosen_items(source, "test", options.items, seed=0):
        contexts = item.facts.get(CONTEXTS) or [prompt_of(loaded.tokenizer, item)] * len(item.choices)
        requests += [
            Instance("loglikelihood", {}, pair, number)
            for number, pair in enumerate(zip(contexts, item.choices, strict=True))
        ]
    return requests


def timed(function, requests, model):
    """Return what ``function`` makes of the requests, its seconds, its CPU seconds, the tokens that went through the
    model's blocks, padding included, and the places whose logits were made."""
    from regrow.models.families import blocks_of

    counts = {"tokens": 0, "logits": 0}

    def counting(name):
        def count(block, args, kwargs):
            states = args[0] if args else kwargs["hidden_states"]
            counts[name] += states.shape[:-1].numel()

        return count

    handles = [
        blocks_of(model)[0].register_forward_pre_hook(counting("tokens"), with_kwargs=True),
        model.get_output_embeddings().register_forward_pre_hook(counting("logits"), with_kwargs=True),
    ]
    try:
        began, cpu = time.perf_counter(), time.process_time()
        result = function(requests)
        return result, time.perf_counter() - began, time.process_time() - cpu, counts["tokens"], counts["logits"]
    finally:
        for handle in handles:
            handle.remove()


def their_process(pipe, options: argparse.Namespace) -> None:
    """Answer calls from ``pipe``, (set, batch size), by the hf backend: what :func:`timed` returns."""
    from lm_eval.models.huggingface import HFLM

    from regrow.models import load

    load.keep_freed_memory = lambda: False  # regrow's own setting, which the harness does without
    loaded = load.load_model(options.model, dtype=options.dtype, device=options.device)
    while (asked := pipe.recv()) is not None:
        name, size = asked
        write = name in NEW_TOKENS
        requests = (written if write else weighed)(name, options, loaded)
        model = HFLM(pretrained=loaded.model, tokenizer=loaded.tokenizer, batch_size=size)
        function = partial(getattr(model, "generate_until" if write else "loglikelihood"), disable_tqdm=True)
        function(requests[:1])
        pipe.send(timed(function, requests, loaded.model))


def bare_products(model, rows: int = 2048) -> tuple[float, float]:
    """Return the seconds a token that nothing but the matrix products of the blocks takes, and those of the logits, at
    many rows at once: what no way of batching can go below."""
    import torch

    from regrow.models.families import blocks_of

    blocks = [each for block in blocks_of(model) for each in block.modules() if isinstance(each, torch.nn.Linear)]
    # Logits are made a slice at a time: at 2,048 rows of a wide vocabulary memory is what takes the time.
    return _seconds_a_row(model, blocks, rows), _seconds_a_row(model, [model.get_output_embeddings()], rows // 8)


def _seconds_a_row(model, layers, rows: int) -> float:
    import torch

    from regrow.models.prepacked import prepacked

    states = {
        width: torch.randn(rows, width, dtype=layers[0].weight.dtype, device=layers[0].weight.device)
        for width in {layer.in_features for layer in layers}
    }
    best = float("inf")
    with torch.no_grad(), prepacked(model):
        for _ in range(4):
            began = time.perf_counter()
            for layer in layers:
                layer(states[layer.in_features])
            best = min(best, time.perf_counter() - began)
    return best / rows


def exact_likelihoods(model, tokenizer, requests) -> list[float]:
    """Return the likelihoods in float64, every text run alone."""
    import torch

    wide = model.double()
    found = []
    with torch.no_grad():
        for request in requests:
            context, choice = request.args
            before = tokenizer(context.rstrip()).input_ids
            whole = tokenizer(context.rstrip() + context[len(context.rstrip()) :] + choice).input_ids
            logits = wide(torch.tensor([whole], device=wide.device)).logits[0].log_softmax(-1)
            found.append(sum(logits[at - 1, whole[at]].item() for at in range(len(before), len(whole))))
    wide.float()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="local data folder")
    parser.add_argument("--model", default="embedded:smollm2-135m")
    parser.add_argument("--items", type=int, default=32, help="per set")
    parser.add_argument("--batch-size", type=int, default=32, help="regrow's")
    parser.add_argument("--their-batch-sizes", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--repeats", type=int, default=1, help="timings of each by turns, whose fastest counts")
    parser.add_argument("--new-tokens", type=int, help="at most so many per answer (default: the suite's)")
    parser.add_argument(
        "--only",
        nargs="+",
        default=[
            "gsm8k",
            "ifeval",
            "mmlu",
            "boolq",
            "piqa",
            "hellaswag",
            "winogrande",
            "arc_easy",
            "arc_challenge",
            "openbookqa",
        ],
    )
    parser.add_argument("--exact", action="store_true", help="also the distance of likelihoods from float64")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    from regrow.capabilities.harness.adapter import RegrowLM
    from regrow.models.load import load_model

    spawn = multiprocessing.get_context("spawn")
    pipe, end = spawn.Pipe()
    spawn.Process(target=their_process, args=(end, options), daemon=True).start()

    def theirs_at(name: str, size: int):
        pipe.send((name, size))
        return pipe.recv()

    loaded = load_model(options.model, dtype=options.dtype, device=options.device)
    ours = RegrowLM(loaded, batch_size=options.batch_size)
    products, logit_products = bare_products(loaded.model)
    found = {}
    for name in options.only:
        write = name in NEW_TOKENS
        requests = (written if write else weighed)(name, options, loaded)
        call = "generate_until" if write else "loglikelihood"
        # A first short pass of each, so that neither pays for allocations and lazy imports.
        getattr(ours, call)(requests[:1])
        mine = [timed(getattr(ours, call), requests, loaded.model)]
        theirs = {size: theirs_at(name, size) for size in options.their_batch_sizes}
        best = min(theirs, key=lambda size: theirs[size][1])
        others = [theirs[best]]
        for _ in range(options.repeats - 1):  # by turns: a machine is not equally fast all the time
            mine.append(timed(getattr(ours, call), requests, loaded.model))
            others.append(theirs_at(name, best))
        result, wall, cpu, tokens, logits = min(mine, key=lambda one: one[1])
        answers, their_wall, their_cpu, their_tokens, their_logits = min(others, key=lambda one: one[1])
        least = products * tokens + logit_products * logits
        if write:
            same = sum(a.strip() == b.strip() for a, b in zip(result, answers, strict=True))
        else:
            same = sum(abs(a[0] - b[0]) <= 1e-3 for a, b in zip(result, answers, strict=True))
        found[name] = {
            "requests": len(requests),
            "seconds": wall,
            "requests_per_second": len(requests) / wall,
            "their_seconds": {size: of[1] for size, of in theirs.items()},
            "their_best_batch_size": best,
            "ratio": their_wall / wall,
            "cpu_ratio": their_cpu / cpu,
            "tokens": tokens,
            "their_tokens": their_tokens,
            "logits": logits,
            "their_logits": their_logits,
            "products_share": least / wall,
            "most": their_wall / least,
            "same": same,
            "target": TARGET.get(name, 3.0),
        }
        if options.exact and not write:
            exact = exact_likelihoods(loaded.model, loaded.tokenizer, requests)
            for key, values in (("exact_distance", result), ("their_exact_distance", answers)):
                found[name][key] = max(abs(value[0] - true) for value, true in zip(values, exact, strict=True))
        if not options.json:
            facts = found[name]
            print(
                f"{name:14s} {facts['requests_per_second']:7.2f} requests/s  {facts['ratio']:5.2f} x hf at batch size "
                f"{best} (CPU time {facts['cpu_ratio']:5.2f} x, target {facts['target']:.0f} x)  "
                f"same {same}/{len(requests)}; tokens run {tokens:,}, hf {their_tokens:,} "
                f"({their_tokens / tokens:.2f} x), logits {logits:,}, hf {their_logits:,}; "
                f"bare products {facts['products_share']:.0%} of our time, so at most {facts['most']:.2f} x here"
                + (
                    f"; furthest from float64 {facts['exact_distance']:.1e}, hf {facts['their_exact_distance']:.1e}"
                    if "exact_distance" in facts
                    else ""
                ),
                flush=True,
            )
    pipe.send(None)
    if options.json:
        print(json.dumps({"model": options.model, "dtype": options.dtype, "sets": found}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
