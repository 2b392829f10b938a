"""Healing speed, memory and loss curve: regrow against transformers' Trainer + PEFT, on the same sequences.

Every engine trains the same LoRA (rank 16, the same first weights) on the same sequences in the same updates with the
same schedule, in a process of its own, on a model that lost two blocks. The Trainer has a collator that pads
to the longest sequence of a batch, and the number format of the run as autocast. Tokens per second count prompt and
response tokens of the sequences, no padding, and a shared prefix as often as it occurs.

Run: python benchmarks/healing.py [--model embedded:smollm2-135m] [--tokens 20k] [--json]
Target: at least 1.4 x the Trainer at an equal loss curve, and no more memory.
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

    return HealSpec(
        tokens=options.tokens,
        dropout=options.dropout,
        precision=precision,
        share_prefix=engine == "prefix sharing",
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

    with tempfile.TemporaryDirectory() as folder:
        result = loop.heal(
            loaded,
            make_pools(options.examples),
            spec_of(options, precision, engine),
            Path(folder) / "run",
            on_progress=note,
        )
        lines = [json.loads(line) for line in result.log_file.read_text().splitlines()]
    spent = lines[-1]["tokens"] - lines[0]["tokens"]
    computed = sum(line["computed_tokens"] for line in lines[1:])
    return measured(marks, losses, spent, computed)


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


def measured(marks: list[tuple[float, float]], losses: list[float], tokens: int, computed: int) -> dict:
    """Return the record of a run; the first update, which warms up, is left out of the speed."""
    wall, cpu = marks[-1][0] - marks[0][0], marks[-1][1] - marks[0][1]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {
        "tokens_per_second": tokens / wall,
        "tokens_per_cpu_second": tokens / cpu,
        "computed_share": computed / tokens if computed else None,
        "peak_memory_gb": peak / 1e9,
        "losses": losses,
    }


def child(options: argparse.Namespace) -> None:
    precision, engine = options.child.split("/")
    result = run_trainer(options, precision) if engine == "trainer" else run_regrow(options, precision, engine)
    print("RESULT " + json.dumps(result))


def print_table(engines: dict[str, dict]) -> None:
    base = engines.get("trainer")
    names = ("engine", "tokens/s", "per CPU s", "ratio", "computed", "peak GB", "loss", "apart")
    print("{:16} {:>9} {:>9} {:>6} {:>9} {:>8} {:>14} {:>7}".format(*names))
    for name, row in engines.items():
        ratio = apart = float("nan")
        if base:
            ratio = row["tokens_per_second"] / base["tokens_per_second"]
            apart = max(abs(a - b) for a, b in zip(row["losses"], base["losses"]))
        share = f"{row['computed_share']:.0%}" if row["computed_share"] else ""
        ends = f"{row['losses'][0]:.3f}->{row['losses'][-1]:.3f}"
        speed, per_cpu = row["tokens_per_second"], row["tokens_per_cpu_second"]
        print(
            f"{name:16} {speed:9.0f} {per_cpu:9.0f} {ratio:6.2f} {share:>9} {row['peak_memory_gb']:8.2f} {ends:>14} "
            f"{apart:7.4f}"
        )


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
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(options)
    results: dict[str, dict[str, dict]] = {}
    passed = [word for word in sys.argv[1:] if word != "--json"]
    for precision in options.precisions.split(","):
        for engine in options.engines.split(","):
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
