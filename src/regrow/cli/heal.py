"""``regrow heal``."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from regrow.cli.options import Device, Dtype, Json, Output, Pools, Quiet, SpecFile


def heal(
    pruned: str,
    /,
    *,
    output: Output,
    tokens: Annotated[str | None, Parameter(help="Budget in prompt and response tokens: 60k, 1M.")] = None,
    mixture: Annotated[str | None, Parameter(help="uniform, or a YAML file of tokens per pool.")] = None,
    scope: Annotated[str | None, Parameter(help="What is trained; see `regrow ls scopes`. Default: all-lora.")] = None,
    rank: Annotated[int | None, Parameter(help="LoRA rank. Default: 16.")] = None,
    learning_rate: Annotated[float | None, Parameter(help="Default: the scope's own.")] = None,
    sequences_per_update: Annotated[int | None, Parameter(help="Sequences per optimizer step. Default: 16.")] = None,
    suite: Annotated[str, Parameter(help="Suite whose healing pools are used.")] = "mini",
    pool_examples: Annotated[int, Parameter(help="Prompts the unpruned model answers per pool.")] = 200,
    unpruned: Annotated[str | None, Parameter(help="The original model, when it is no longer where it was.")] = None,
    pools: Pools = None,
    seed: Annotated[int | None, Parameter(help="Seed of the mixture, the dropout and the adapter. Default: 0.")] = None,
    spec: SpecFile = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fine-tune a pruned or repaired checkpoint on answers of the unpruned model, under an exact token budget.

    Stopped at any moment, the same command continues; the healed checkpoint is merged and the adapter lies in it.

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
        "rank": rank,
        "learning_rate": learning_rate,
        "sequences_per_update": sequences_per_update,
        "seed": seed,
    }
    if tokens is None and spec is None:
        raise ConfigError("the budget is missing", hint="say how many tokens to train on, for example --tokens 60k")
    asked = merged(HealSpec, spec, given)
    from regrow.report.card import model_card
    from regrow.study.stages.heal import heal as work

    facts = work(
        pruned,
        asked,
        output,
        watch=watcher(quiet),
        suite=suite,
        unpruned=unpruned,
        pool_examples=pool_examples,
        pools_folder=pools,
        dtype=dtype,
        device=device,
        card=model_card,
    )
    if json:
        print_json({"output": str(output), **facts.model_dump(mode="json")})
        return
    print(f"healed on {facts.healing_tokens:,} tokens; checkpoint in {output}, adapter in {output / 'adapter'}")
    print(f"next: regrow eval {output} --output {output}-eval")
