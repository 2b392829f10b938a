"""``regrow heal``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from regrow.cli.options import Device, Dtype, Json, Pools, Quiet, SpecFile, whole


def heal(
    pruned: str,
    /,
    *,
    output: Annotated[
        Path | None, Parameter(name=["--output", "-o"], help="Folder to write; must not hold anything else.")
    ] = None,
    tokens: Annotated[str | None, Parameter(help="Budget in prompt and response tokens: 60k, 1M.")] = None,
    mixture: Annotated[str | None, Parameter(help="uniform, or a YAML file of tokens per pool.")] = None,
    scope: Annotated[str | None, Parameter(help="What is trained; see `regrow ls scopes`. Default: all-lora.")] = None,
    loss: Annotated[
        str | None,
        Parameter(help="A loss or a sum, as response-cross-entropy+0.5*distillation; see `regrow ls losses`."),
    ] = None,
    temperature: Annotated[float | None, Parameter(help="Softens the distributions of a distillation.")] = None,
    top_k: Annotated[int | None, whole(help="Tokens that distillation-top-k keeps. Default: 50.")] = None,
    rank: Annotated[int | None, whole(help="LoRA rank. Default: 16.")] = None,
    last_blocks: Annotated[int | None, whole(help="Blocks that last-k and partial train. Default: 3.")] = None,
    base_format: Annotated[
        str | None, Parameter(help="stored, or nf4: frozen weights in 4 bits (QLoRA, on CUDA).")
    ] = None,
    learning_rate: Annotated[float | None, Parameter(help="Default: the scope's own.")] = None,
    sequences_per_update: Annotated[int | None, whole(help="Sequences per optimizer step. Default: 16.")] = None,
    microbatch_tokens: Annotated[
        int | None, whole(help="Tokens run at once; changes memory, not the result. Default: 2048.")
    ] = None,
    max_cycles: Annotated[float | None, Parameter(help="How often a pool may be used up. Default: 50.")] = None,
    suite: Annotated[str, Parameter(help="Suite whose healing pools are used.")] = "mini",
    pool_examples: Annotated[int, whole(help="Prompts the unpruned model answers per pool.")] = 200,
    unpruned: Annotated[str | None, Parameter(help="The original model, when it is no longer where it was.")] = None,
    pools: Pools = None,
    seed: Annotated[int | None, whole(help="Seed of the mixture, the dropout and the adapter. Default: 0.")] = None,
    spec: SpecFile = None,
    log_to: Annotated[
        str | None, Parameter(help="Experiment trackers beside the JSONL log: tensorboard, trackio, wandb.")
    ] = None,
    dry_run: Annotated[
        bool, Parameter(negative="", help="Say what the heal would do and take on this machine; train nothing.")
    ] = False,
    dtype: Dtype = "auto",
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fine-tune a pruned or repaired checkpoint on answers of the unpruned model, under an exact token budget.

    Stopped at any moment, the same command continues; the healed checkpoint is merged and the adapter lies in it. On
    several GPUs: `torchrun --nproc-per-node N -m regrow heal ...`, with the same options.

    Parameters
    ----------
    pruned
        A checkpoint folder written by `regrow prune` or `regrow repair`.
    """
    from regrow.cli.options import merged
    from regrow.cli.output import print_json, watcher
    from regrow.errors import ConfigError
    from regrow.records.quantities import parse_tokens
    from regrow.records.specs import HealSpec

    given = {
        "tokens": parse_tokens(tokens, option="--tokens") if tokens is not None else None,
        "mixture": mixture,
        "scope": scope,
        "loss": loss,
        "temperature": temperature,
        "top_k": top_k,
        "rank": rank,
        "last_blocks": last_blocks,
        "base_format": base_format,
        "learning_rate": learning_rate,
        "sequences_per_update": sequences_per_update,
        "microbatch_tokens": microbatch_tokens,
        "max_cycles": max_cycles,
        "seed": seed,
    }
    if tokens is None and spec is None:
        raise ConfigError("the budget is missing", hint="say how many tokens to train on, for example --tokens 60k")
    if output is None and not dry_run:
        raise ConfigError("the output folder is missing", hint="name it with --output, or ask for a --dry-run")
    asked = merged(HealSpec, spec, given)
    trackers = [name.strip() for name in (log_to or "").split(",") if name.strip()]
    from regrow.heal.loggers import check_loggers
    from regrow.heal.processes import device_of_process, together

    check_loggers(trackers)
    with together() as processes:
        quiet = quiet or not processes.first
        place = {
            "suite": suite,
            "unpruned": unpruned,
            "pool_examples": pool_examples,
            "pools_folder": pools,
            "dtype": dtype,
            "device": device_of_process(device),
        }
        if dry_run:
            from regrow.cli.heal_text import print_forecast
            from regrow.study.stages.heal import forecast

            found = forecast(pruned, asked, watch=watcher(quiet), **place)  # type: ignore[arg-type]
            if processes.first and json:
                print_json(found.facts)
            elif processes.first:
                print_forecast(found)
            return
        from regrow.report.card import model_card
        from regrow.study.stages.heal import heal as work

        assert output is not None
        facts = work(
            pruned,
            asked,
            output,
            watch=watcher(quiet),
            card=model_card,
            log_to=trackers,
            **place,  # type: ignore[arg-type]
        )
        if not processes.first:
            return
    if json:
        print_json({"output": str(output), **facts.model_dump(mode="json")})
        return
    adapter = f", adapter in {output / 'adapter'}" if (output / "adapter").is_dir() else ""
    print(f"healed on {facts.healing_tokens:,} tokens; checkpoint in {output}{adapter}")
    print(f"next: regrow eval {output} --output {output}-eval")
