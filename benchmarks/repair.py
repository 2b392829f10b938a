"""Memory and time of fitting repairs.

Memory: the peak resident size of a process that fits lra at 16k and at 128k calibration tokens (streamed sums do not
grow), and of one that stores every token's streams and solves by least squares, which is how released
implementations do it. Each runs in a process of its own; what the model itself takes is subtracted for the ratio.
Time: all methods that do not train, fitted from one pass, against one pass for each.

Run: python benchmarks/repair.py [--model embedded:smollm2-135m] [--remove 12,13,14,17] [--json]
Targets: growth of the peak from 16k to 128k tokens <= 5 %; one pass >= 3 x faster than one pass per method.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

METHODS: tuple[dict, ...] = (
    {"method": "lra"},
    {"method": "lra", "rank": 64},
    {"method": "generic-affine"},
    {"method": "ghost"},
    {"method": "ridge-patch"},
    {"method": "linear-patch"},
    {"method": "linear-patch-diag"},
    {"method": "replace-me"},
    {"method": "fold", "ridge": 1e-2},
)


def load(options: argparse.Namespace):
    """Return the unpruned model, its pruned copy and the removed blocks."""
    import copy

    from regrow.models.load import LoadedModel, load_model
    from regrow.surgery import remove_blocks

    removed = [int(part) for part in options.remove.split(",")]
    unpruned = load_model(options.model, dtype=options.dtype, device=options.device)
    pruned = LoadedModel(copy.deepcopy(unpruned.model), unpruned.tokenizer, "pruned")
    remove_blocks(pruned.model, removed)
    return unpruned, pruned, removed


def tokens_of(loaded, count: int, chunk: int):
    """Return a calibration set of random token ids: what is measured does not depend on their sense."""
    import torch

    from regrow.data.calibration import make_set

    vocabulary = loaded.model.config.get_text_config().vocab_size
    generator = torch.Generator().manual_seed(0)
    return make_set("random ids", torch.randint(10, vocabulary, (count // chunk, chunk), generator=generator))


def megabytes() -> float:
    """Return this process's peak resident size so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def streamed(options: argparse.Namespace, tokens: int) -> dict[str, float]:
    """Return the peak of this process before and after the streamed fit."""
    from regrow.records.specs import RepairSpec
    from regrow.repair.fit import fit_repair

    unpruned, pruned, removed = load(options)
    warm = tokens_of(unpruned, 8 * options.chunk, options.chunk)
    fit_warm(unpruned, warm)
    before = megabytes()
    started = time.perf_counter()
    result = fit_repair(
        unpruned, pruned, tokens_of(unpruned, tokens, options.chunk), RepairSpec(), removed=removed, measure=False
    )
    return {
        "before_mb": before,
        "peak_mb": megabytes(),
        "seconds": time.perf_counter() - started,
        "held_out_error": result.row.cuts[0].held_out,
    }


def stored(options: argparse.Namespace, tokens: int) -> dict[str, float]:
    """Return the peak of this process before and after a fit that keeps all streams."""
    import torch

    from regrow.models.capture import observe_streams
    from regrow.models.families import backbone_of
    from regrow.repair.cuts import spans_of

    unpruned, _, removed = load(options)
    warm = tokens_of(unpruned, 8 * options.chunk, options.chunk)
    fit_warm(unpruned, warm)
    before = megabytes()
    started = time.perf_counter()
    calibration = tokens_of(unpruned, tokens, options.chunk)
    wanted = sorted({block for gone in removed for block in (gone, gone + 1)})
    kept: dict[int, list[torch.Tensor]] = {index: [] for index in wanted}

    def on_state(index: int, state: torch.Tensor) -> None:
        if index in kept:
            kept[index].append(state.flatten(0, 1).float().cpu())

    with torch.inference_mode(), observe_streams(unpruned.model, on_state):
        for ids, _ in calibration.batches(max(1, 2048 // options.chunk)):
            backbone_of(unpruned.model)(input_ids=ids.to(unpruned.device), use_cache=False)
    for span in spans_of(removed, unpruned.model.config.get_text_config().num_hidden_layers):
        for block in span.blocks:
            x, y = torch.cat(kept[block]), torch.cat(kept[block + 1])
            ones = torch.ones(len(x), 1)
            torch.linalg.lstsq(torch.cat([x, ones], dim=1), y - x, driver="gelsy")
    return {"before_mb": before, "peak_mb": megabytes(), "seconds": time.perf_counter() - started}


def fit_warm(unpruned, calibration) -> None:
    """One forward pass, so that buffers every run needs are in the size before."""
    import torch

    from regrow.models.families import backbone_of

    with torch.inference_mode():
        ids, _ = next(iter(calibration.batches(len(calibration))))
        backbone_of(unpruned.model)(input_ids=ids.to(unpruned.device), use_cache=False)


def passes(options: argparse.Namespace) -> dict[str, float]:
    """Return the seconds of all methods from one pass and of one pass each."""
    from regrow.records.specs import RepairSpec
    from regrow.repair.fit import fit_many, fit_repair

    unpruned, pruned, removed = load(options)
    calibration = tokens_of(unpruned, options.tokens, options.chunk)
    width = unpruned.model.config.get_text_config().hidden_size
    specs = [
        RepairSpec(**{**asked, "rank": min(asked["rank"], width)} if "rank" in asked else asked) for asked in METHODS
    ]
    fit_warm(unpruned, calibration.head(8))
    started, cpu = time.perf_counter(), time.process_time()
    for spec in specs:
        fit_repair(unpruned, pruned, calibration, spec, removed=removed, measure=False).undo(pruned)
    alone, alone_cpu = time.perf_counter() - started, time.process_time() - cpu
    started, cpu = time.perf_counter(), time.process_time()
    fit_many(unpruned, pruned, calibration, specs, removed=removed, measure=False)
    together, together_cpu = time.perf_counter() - started, time.process_time() - cpu
    return {
        "methods": len(specs),
        "one_pass_each_s": alone,
        "one_pass_s": together,
        "ratio": alone / together,
        "cpu_ratio": alone_cpu / together_cpu,
    }


def child(options: argparse.Namespace, part: str, tokens: int) -> dict[str, float]:
    """Return what a fresh process measures: a peak never comes down within one."""
    command = [sys.executable, __file__, "--part", part, "--tokens", str(tokens), "--json"]
    for name in ("model", "remove", "dtype", "device", "chunk"):
        command += [f"--{name}", str(getattr(options, name))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="embedded:smollm2-135m")
    parser.add_argument("--remove", default="12,13,14,17")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--chunk", type=int, default=256)
    parser.add_argument("--few", type=int, default=16_384)
    parser.add_argument("--many", type=int, default=131_072)
    parser.add_argument("--tokens", type=int, default=16_384, help="tokens of the time comparison")
    parser.add_argument("--part", choices=("all", "memory", "time", "streamed", "stored"), default="all")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.part in ("streamed", "stored"):
        measure = streamed if options.part == "streamed" else stored
        print(json.dumps(measure(options, options.tokens)))
        return
    found: dict[str, object] = {}
    if options.part in ("all", "memory"):
        few, many = (child(options, "streamed", tokens) for tokens in (options.few, options.many))
        kept = child(options, "stored", options.many)
        found["memory"] = {
            "streamed_few": few,
            "streamed_many": many,
            "stored_many": kept,
            "growth_percent": 100 * (many["peak_mb"] / few["peak_mb"] - 1),
            "stored_over_streamed": (kept["peak_mb"] - kept["before_mb"])
            / max(1.0, many["peak_mb"] - many["before_mb"]),
        }
    if options.part in ("all", "time"):
        found["time"] = passes(options)
    if options.json:
        print(json.dumps(found))
        return
    if "memory" in found:
        memory = found["memory"]
        print(f"lra, blocks {options.remove} of {options.model}, {options.dtype}")
        for name, tokens in (
            ("streamed_few", options.few),
            ("streamed_many", options.many),
            ("stored_many", options.many),
        ):
            part = memory[name]
            print(
                f"  {name.split('_')[0]:9s}{tokens:>9,} tokens: peak {part['peak_mb']:8.0f} MB, of it the fit's "
                f"{part['peak_mb'] - part['before_mb']:7.0f} MB, {part['seconds']:6.1f} s"
            )
        print(f"  growth of the streamed peak {memory['growth_percent']:+.1f} % (target <= 5 %)")
        print(f"  storing everything takes {memory['stored_over_streamed']:.1f} x the memory of the streamed fit")
    if "time" in found:
        spent = found["time"]
        print(
            f"  {spent['methods']} methods: one pass each {spent['one_pass_each_s']:.1f} s, one pass for all "
            f"{spent['one_pass_s']:.1f} s, {spent['ratio']:.1f} x (CPU time {spent['cpu_ratio']:.1f} x; target >= 3 x)"
        )


if __name__ == "__main__":
    main()
