"""Healing speed, memory and loss curve: regrow against transformers' Trainer + PEFT, on the same sequences.

Every engine trains the same LoRA (rank 16, the same first weights) on the same sequences in the same updates with the
same schedule, in a process of its own, on a model that lost two blocks. The Trainer has a collator that pads
to the longest sequence of a batch, and the number format of the run as autocast. Tokens per second count prompt and
response tokens of the sequences, no padding, and a shared prefix as often as it occurs.

`--part reuse` trains the last three blocks over several cycles of small pools, with and without kept states of the
blocks below, and compares the updates from the second cycle on. `--part peak` measures the largest rate at which this
machine multiplies matrices; the table gives the share of it that training achieves (useful operations alone: two per
weight and position forward, as many again for each gradient that is needed).

Run: python benchmarks/healing.py [--part trainer|reuse|peak|all] [--model MODEL] [--tokens 20k] [--json]
Targets: at least 1.4 x the Trainer at an equal loss curve, and no more memory; at least 2.5 x with kept states.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ENGINES = ("trainer", "padded", "packed", "prefix sharing")
REUSE = ("states anew", "states kept")
PEAK = "peak"
WORDS = (
    *("river", "stone", "lamp", "paper", "green", "small", "quick", "seven"),
    *("music", "door", "window", "table", "winter", "garden", "letter", "bread"),
)
REMOVED = (13, 14)


def make_pools(examples: int, seed: int = 0):
    """Six pools of 3-shot chats (about 390 tokens each, 2/3 of them shots), the form of the mini suite."""
    from regrow.data.pools import Example, Pool

    rng = random.Random(seed)

    def question(kind: int) -> tuple[str, str]:
        a, b = rng.randint(2, 60), rng.randint(2, 60)
        one, two, three = rng.sample(WORDS, 3)
        if kind == 0:
            ask = f"Write a JSON object with the keys name, count and tags for a {one} {two}. The count is {a}."
            return ask, json.dumps({"name": f"{one} {two}", "count": a, "tags": [one, two, three]})
        if kind == 1:
            ask = f"Functions: set_{one}(level, place), get_{two}(place). Set the {one} of the {three} to {a}."
            return ask, json.dumps({"name": f"set_{one}", "arguments": {"level": a, "place": three}})
        if kind == 2:
            ask = f"Describe a {one} in two sentences and use the word {two} exactly once."
            return ask, f"A {one} stands beside the {three}. Everybody who passes it thinks of a {two} in the sun."
        if kind == 3:
            ask = f"A {one} costs {a} coins and a {two} costs {b} coins. What do both cost together?"
            return ask, f"Both cost {a} + {b} = {a + b} coins together.\n#### {a + b}"
        if kind == 4:
            ask = f"How do I keep my {one} away from the {two} of a neighbour?"
            return (
                ask,
                f"Talk to your neighbour first, then put the {one} where the {three} is. That helps both of you.",
            )
        ask = f"What is a {one} good for in a {two}?"
        return (
            ask,
            f"A {one} keeps the {two} in order, and the {three} with it. People have used it like that for long.",
        )

    pools = {}
    for kind, name in enumerate(("structured", "function", "instruction", "math", "safety", "general")):
        shots = "".join(
            f"<|im_start|>user\n{ask}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n"
            for ask, answer in (question(kind) for _ in range(4))
        )
        rows = [(f"{number}", *question(kind)) for number in range(examples)]
        pools[name] = Pool(
            name,
            tuple(
                Example(name, key, f"{shots}<|im_start|>user\n{ask}<|im_end|>\n<|im_start|>assistant\n", answer)
                for key, ask, answer in rows
            ),
        )
    return pools


def spec_of(options: argparse.Namespace, precision: str, engine: str):
    from regrow.records.specs import HealSpec

    reuse = engine in REUSE
    return HealSpec(
        scope="last-k" if reuse else "all-lora",
        state_cache_gb=8.0 if engine == "states kept" else 0.0,
        gradient_checkpointing=False,
        tokens=options.tokens,
        dropout=options.dropout,
        precision=precision,
        share_prefix=engine in ("prefix sharing", *REUSE),
        microbatch_tokens=options.microbatch_tokens,
        checkpoint_every_seconds=1e9,
    )


def run_regrow(options: argparse.Namespace, precision: str, engine: str) -> dict:
    import regrow.heal.loop as loop
    import regrow.heal.setup as setup
    from regrow.models.load import load_model
    from regrow.surgery import remove_blocks

    loaded = load_model(options.model, dtype="float32", device=options.device)
    remove_blocks(loaded.model, REMOVED)
    if engine == "padded":
        setup.why_not_packed = lambda *_, **__: "the benchmark asks for padding"
    marks: list[tuple[float, float]] = []
    losses: list[float] = []

    def note(update, updates, tokens, total, loss, speed, left):
        marks.append((time.perf_counter(), time.process_time()))
        losses.append(loss)

    # The reuse part goes over its pools about three times.
    examples = max(1, options.tokens // (3 * 6 * 390)) if engine in REUSE else options.examples
    with tempfile.TemporaryDirectory() as folder:
        os.environ["REGROW_CACHE"] = str(Path(folder) / "cache")
        result = loop.heal(
            loaded,
            make_pools(examples),
            spec_of(options, precision, engine),
            Path(folder) / "run",
            on_progress=note,
        )
        lines = [json.loads(line) for line in result.log_file.read_text().splitlines()]
    first = 1 if engine not in REUSE else updates_of_first_cycle(result.plan)
    spent = lines[-1]["tokens"] - lines[first - 1]["tokens"]
    computed = sum(line["computed_tokens"] for line in lines[first:])
    flops = useful_flops(loaded.model, result.plan, engine, first, computed)
    return measured(marks[first - 1 :], losses, spent, computed, flops)


def updates_of_first_cycle(plan) -> int:
    """Return after how many updates every distinct sequence has come once."""
    left = {(entry.prompt_ids, entry.response_ids) for entry in plan.order}
    for number in range(plan.updates):
        left -= {(entry.prompt_ids, entry.response_ids) for entry in plan.update(number)}
        if not left:
            return min(number + 1, plan.updates - 1)
    return plan.updates - 1


def useful_flops(model, plan, engine: str, first: int, computed: int) -> float:
    """Return the operations of the matrix products with weights in the measured updates, attention's own left out."""
    from regrow.models.families import blocks_of, head_of

    blocks = list(blocks_of(model))
    per_block = sum(weight.numel() for weight in blocks[0].parameters() if weight.dim() == 2)
    responses = sum(len(entry.response_ids) for at in range(first, plan.updates) for entry in plan.update(at))
    head = 2 * 2 * responses * head_of(model).weight.numel()
    if engine in REUSE:
        forward = 3 if engine == "states kept" else len(blocks)
        return 2.0 * computed * per_block * (forward + 2 * 3) + head
    # Frozen weights under LoRA: forward, and the gradient that goes on to the block below.
    return 2.0 * computed * per_block * 2 * len(blocks) + head


def run_peak(options: argparse.Namespace, precision: str) -> dict:
    """Return the best rate of a large square product in the given format, in operations a second."""
    import torch

    dtype = getattr(torch, precision)
    size = 2048 if options.device == "cpu" else 8192
    a, b = (torch.randn(size, size, device=options.device, dtype=dtype) for _ in range(2))
    best = 0.0
    for _ in range(8):
        began = time.perf_counter()
        a @ b
        if options.device != "cpu":
            torch.cuda.synchronize()
        best = max(best, 2 * size**3 / (time.perf_counter() - began))
    return {"flops_per_second": best}


def run_trainer(options: argparse.Namespace, precision: str) -> dict:
    import torch
    from torch.optim.lr_scheduler import LambdaLR
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from regrow.heal.plan import plan_heal
    from regrow.heal.registry import SCOPES
    from regrow.heal.schedule import learning_rate_factor
    from regrow.heal.scopes import all_frozen
    from regrow.models.load import load_model
    from regrow.surgery import remove_blocks

    loaded = load_model(options.model, dtype="float32", device=options.device)
    remove_blocks(loaded.model, REMOVED)
    spec = spec_of(options, precision, "trainer")
    plan = plan_heal(make_pools(options.examples), spec, loaded.tokenizer)
    marks: list[tuple[float, float]] = []
    losses: list[float] = []

    class Note(TrainerCallback):
        def on_step_end(self, *_, **__):
            marks.append((time.perf_counter(), time.process_time()))

        def on_log(self, args, state, control, logs=None, **__):
            if "loss" in (logs or {}):
                losses.append(logs["loss"])

    def collate(rows: list[dict]) -> dict:
        length = max(len(row["input_ids"]) for row in rows)
        padded = {"input_ids": 0, "labels": -100, "attention_mask": 0}
        return {
            key: torch.tensor([row[key] + [fill] * (length - len(row[key])) for row in rows])
            for key, fill in padded.items()
        }

    rows = [
        {
            "input_ids": [*entry.prompt_ids, *entry.response_ids],
            "labels": [-100] * len(entry.prompt_ids) + list(entry.response_ids),
            "attention_mask": [1] * entry.tokens,
        }
        for entry in plan.order
    ]
    with all_frozen(loaded.model), tempfile.TemporaryDirectory() as folder:
        trained = SCOPES.get("all-lora")(loaded, spec)
        optimizer = torch.optim.AdamW(list(trained.parameters.values()), lr=2e-4, weight_decay=0.0)
        schedule = LambdaLR(optimizer, lambda step: learning_rate_factor(min(step, plan.updates - 1), plan.updates))
        trainer = Trainer(
            model=trained.adapter,
            args=TrainingArguments(
                output_dir=folder,
                per_device_train_batch_size=options.trainer_batch,
                gradient_accumulation_steps=spec.sequences_per_update // options.trainer_batch,
                num_train_epochs=1,
                max_grad_norm=spec.clip_norm,
                bf16=precision == "bfloat16",
                use_cpu=loaded.device.type == "cpu",
                train_sampling_strategy="sequential",
                remove_unused_columns=False,
                logging_steps=1,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=rows,
            data_collator=collate,
            optimizers=(optimizer, schedule),
            callbacks=[Note()],
        )
        trainer.train()
    sizes = [sum(entry.tokens for entry in plan.update(number)) for number in range(plan.updates)]
    return measured(marks, losses, sum(sizes[1:]), 0)


def measured(
    marks: list[tuple[float, float]], losses: list[float], tokens: int, computed: int, flops: float = 0.0
) -> dict:
    """Return the record of a run; the first update, which warms up, is left out of the speed."""
    wall, cpu = marks[-1][0] - marks[0][0], marks[-1][1] - marks[0][1]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {
        "tokens_per_second": tokens / wall,
        "tokens_per_cpu_second": tokens / cpu,
        "computed_share": computed / tokens if computed else None,
        "peak_memory_gb": peak / 1e9,
        "flops_per_second": flops / wall if flops else None,
        "losses": losses,
    }


def child(options: argparse.Namespace) -> None:
    precision, engine = options.child.split("/")
    if engine == PEAK:
        result = run_peak(options, precision)
    else:
        result = run_trainer(options, precision) if engine == "trainer" else run_regrow(options, precision, engine)
    print("RESULT " + json.dumps(result))


def print_table(engines: dict[str, dict]) -> None:
    peak = engines.get(PEAK, {}).get("flops_per_second")
    for group in (("trainer", *ENGINES[1:]), REUSE):
        rows = {name: engines[name] for name in group if name in engines}
        if not rows:
            continue
        base = engines.get(group[0])
        names = ("engine", "tokens/s", "per CPU s", "ratio", "computed", "peak GB", "loss", "apart", "of peak")
        print("{:16} {:>9} {:>9} {:>6} {:>9} {:>8} {:>14} {:>7} {:>8}".format(*names))
        for name, row in rows.items():
            print_row(name, row, base, peak)
    if peak:
        print(f"this machine multiplies matrices at {peak / 1e9:,.0f} GFLOP/s")


def print_row(name: str, row: dict, base: dict | None, peak: float | None) -> None:
    ratio = apart = float("nan")
    if base:
        ratio = row["tokens_per_second"] / base["tokens_per_second"]
        apart = max(abs(a - b) for a, b in zip(row["losses"], base["losses"]))
    share = f"{row['computed_share']:.0%}" if row["computed_share"] else ""
    ends = f"{row['losses'][0]:.3f}->{row['losses'][-1]:.3f}"
    speed, per_cpu = row["tokens_per_second"], row["tokens_per_cpu_second"]
    of_peak = f"{row['flops_per_second'] / peak:.0%}" if peak and row.get("flops_per_second") else ""
    print(
        f"{name:16} {speed:9.0f} {per_cpu:9.0f} {ratio:6.2f} {share:>9} {row['peak_memory_gb']:8.2f} {ends:>14} "
        f"{apart:7.4f} {of_peak:>8}"
    )


def engines_of(options: argparse.Namespace) -> list[str]:
    if options.engines:
        return options.engines.split(",")
    parts = {"trainer": ENGINES, "reuse": REUSE, "peak": ()}
    chosen = parts if options.part == "all" else {options.part: parts[options.part]}
    return [PEAK, *(engine for engines in chosen.values() for engine in engines)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded:smollm2-135m")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tokens", type=lambda text: int(float(text.lower().replace("k", "e3"))), default=20_000)
    parser.add_argument("--examples", type=int, default=60)
    parser.add_argument("--dropout", type=float, default=0.05)
    parser.add_argument("--microbatch-tokens", type=int, default=2048)
    parser.add_argument("--trainer-batch", type=int, default=4)
    parser.add_argument("--precisions", default="float32,bfloat16")
    parser.add_argument("--part", choices=("trainer", "reuse", "peak", "all"), default="all")
    parser.add_argument("--engines", help="some of: " + ", ".join((*ENGINES, *REUSE, PEAK)))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(options)
    results: dict[str, dict[str, dict]] = {}
    passed = [word for word in sys.argv[1:] if word != "--json"]
    for precision in options.precisions.split(","):
        for engine in engines_of(options):
            print(f"{precision}, {engine} ...", file=sys.stderr, flush=True)
            run = subprocess.run(
                [sys.executable, __file__, *passed, "--child", f"{precision}/{engine}"],
                capture_output=True,
                text=True,
                env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},
            )
            found = [line for line in run.stdout.splitlines() if line.startswith("RESULT ")]
            if run.returncode or not found:
                raise SystemExit(f"{engine} failed:\n{run.stderr[-3000:]}")
            results.setdefault(precision, {})[engine] = json.loads(found[-1].removeprefix("RESULT "))
    if options.json:
        print(json.dumps(results, indent=2))
        return None
    for precision, engines in results.items():
        print(f"\n{precision}")
        print_table(engines)
    return None


if __name__ == "__main__":
    main()
