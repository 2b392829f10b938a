"""``regrow pools``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from regrow.cli.options import Device, Dtype, Json, Output, Quiet, whole


def pools(
    unpruned: str,
    /,
    *,
    output: Output,
    suite: Annotated[str, Parameter(help="Suite whose capabilities the pools heal: mini or full.")] = "mini",
    data: Annotated[Path | None, Parameter(help="Local data folder. Default: REGROW_DATA, else the hub.")] = None,
    examples: Annotated[int, whole(help="Examples wanted per pool.")] = 1000,
    only: Annotated[str | None, Parameter(help="Only these pools, comma-separated.")] = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make the healing pools: prompts answered by the unpruned model, kept where the answer shows the skill.

    Stopped at any moment, the same command continues. A card (CARD.md) says what is in the pools, from which sources
    and licences, and why prompts were left out. Use them with `regrow heal PRUNED --pools DIR`.

    Parameters
    ----------
    unpruned
        The original model: a hub id, a checkpoint folder, a .gguf file or embedded:smollm2-135m.
    """
    from functools import cache

    from regrow.capabilities.suites import healing_suite
    from regrow.cli.output import print_json, stdout_console, watcher
    from regrow.data.pool_card import pool_card, pool_facts
    from regrow.data.pools import tokenise
    from regrow.errors import ConfigError, did_you_mean
    from regrow.models.identity import model_identity
    from regrow.models.load import LoadedModel, load_model
    from regrow.records.atomic import write_text
    from regrow.study.stages.pools import pools_of

    names = [part.strip() for part in only.split(",") if part.strip()] if only is not None else None
    known = [each.name for each in healing_suite(suite, data=data)]
    for name in names or []:
        if name not in known:
            raise ConfigError(f"the suite '{suite}' has no pool '{name}'", hint=did_you_mean(name, known))
    if names == []:
        raise ConfigError("--only names no pool", hint=f"allowed: {', '.join(known)}")
    if examples < 1:
        raise ConfigError(f"{examples} examples a pool were asked for", hint="allowed: 1 or more")
    watch = watcher(quiet)

    @cache
    def teacher() -> LoadedModel:
        watch.begin(f"loading {unpruned}")
        loaded = load_model(unpruned, dtype=dtype, device=device)
        watch.end()
        return loaded

    made = pools_of(
        suite,
        teacher,
        source=unpruned,
        weights_sha256=model_identity(unpruned).weights_sha256,
        examples=examples,
        watch=watch,
        folder=output,
        only=names,
        data=data,
    )
    counted = {
        name: pool if pool.examples and pool.examples[0].prompt_ids else tokenise(pool, teacher().tokenizer, 10**9)
        for name, pool in made.items()
    }
    write_text(output / "CARD.md", pool_card(counted, teacher=unpruned, suite=suite))
    facts = pool_facts(counted)
    if json:
        print_json({"output": str(output), "pools": facts})
        return
    from rich.table import Table

    table = Table("pool", "examples", "tokens", "dropped", "licence", box=None)
    for row in facts:
        dropped = ", ".join(f"{count} {reason}" for reason, count in row["dropped"].items()) or "none"
        table.add_row(row["pool"], f"{row['examples']:,}", f"{row['tokens']:,}", dropped, row["licence"])
    stdout_console().print(table)
    print(
        f"card in {output / 'CARD.md'}; next: regrow heal PRUNED --pools {output} --suite {suite} --tokens 60k -o DIR"
    )
