"""``regrow quickstart``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from regrow.cli.options import Device, Dtype, Json, Quiet, whole

TOKENS = "50k"
ITEMS = 50
POOL_EXAMPLES = 32


def quickstart(
    model: str = "embedded:smollm2-135m",
    /,
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"], help="Folder for everything the run makes.")] = Path(
        "quickstart"
    ),
    remove: Annotated[str, Parameter(help="How many blocks: a count (2) or a share (25%).")] = "2",
    tokens: Annotated[str, Parameter(help="Healing budget in prompt and response tokens.")] = TOKENS,
    items: Annotated[int, whole(help="Test items per capability.")] = ITEMS,
    pool_examples: Annotated[int, whole(help="Prompts the unpruned model answers per pool.")] = POOL_EXAMPLES,
    seed: Annotated[int, whole(help="Root seed of every draw.")] = 0,
    dtype: Dtype = "auto",
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Do the main job in one go: prune, measure, repair, heal, measure again, report.

    Prints one table (six capabilities, both refusal rates, perplexity and parameters, each with a 95 % interval and
    retention), says what broke and what came back, and writes one self-contained HTML page. Stopped at any moment, the
    same command continues.

    Parameters
    ----------
    model
        A hub id, a checkpoint folder, a .gguf file or an embedded model.
    """
    import time

    from regrow.cli.output import duration, print_json, stdout_console, watcher
    from regrow.errors import ConfigError
    from regrow.records.quantities import parse_tokens

    budget = parse_tokens(tokens, option="--tokens")
    if items < 1 or pool_examples < 1:
        raise ConfigError("--items and --pool-examples must be at least 1", hint=f"--items {ITEMS}")
    began = time.monotonic()
    watch = watcher(quiet)
    from regrow.report.card import model_card
    from regrow.study.quickstart import QuickstartPlan
    from regrow.study.quickstart import quickstart as work

    plan = QuickstartPlan.of(remove=remove, tokens=budget, items=items, seed=seed, pool_examples=pool_examples)
    result = work(model, plan, output, watch=watch, dtype=dtype, device=device, card=model_card)
    from regrow.report.findings import findings
    from regrow.report.inputs import pair, read_evaluations
    from regrow.report.page import write_page
    from regrow.report.tables import main_table, to_json
    from regrow.report.terminal import print_report

    watch.begin("drawing the report")
    paired = pair(read_evaluations(result.evaluations))
    table = main_table(paired)
    found = findings(table)
    page = output / "report.html"
    write_page(page, paired, table=table, healing_log=result.healing_log, facts=result.healed)
    watch.end()
    if json:
        print_json({"report": str(page), "findings": found.model_dump(mode="json"), **to_json(table)})
        return
    print_report(stdout_console(), table, found)
    print(f"report: {page}   (took {duration(time.monotonic() - began)})")
