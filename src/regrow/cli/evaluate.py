"""``regrow eval``."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from regrow.cli.options import Device, Dtype, Json, Output, Quiet, SpecFile


def evaluate(
    model: str,
    /,
    *,
    output: Output,
    suite: Annotated[str | None, Parameter(help="The item suite. Default: mini.")] = None,
    capabilities: Annotated[
        str | None, Parameter(help="Only these, comma-separated; see `regrow ls capabilities`.")
    ] = None,
    split: Annotated[str | None, Parameter(help="dev or test. Default: test.")] = None,
    items: Annotated[int | None, Parameter(help="At most this many items per capability. Default: all.")] = None,
    perplexity: Annotated[bool | None, Parameter(help="Measure perplexity on the bundled text too.")] = None,
    batch_size: Annotated[int | None, Parameter(help="Rows decoded together. Default: 32.")] = None,
    fast_stop: Annotated[bool | None, Parameter(help="Stop a row once its score cannot change any more.")] = None,
    label: Annotated[str | None, Parameter(help="Name of this model in reports. Default: its stage.")] = None,
    seed: Annotated[int | None, Parameter(help="Seed of the item subset. Default: 0.")] = None,
    spec: SpecFile = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure a model: six capabilities an agent needs, each with its interval, and perplexity.

    Every item's answer and score goes into the output folder, so that `regrow report` can pair models item by item.

    Parameters
    ----------
    model
        A hub id, a checkpoint folder, a .gguf file or embedded:smollm2-135m.
    """
    from regrow.cli.options import merged
    from regrow.cli.output import print_json, stdout_console, watcher
    from regrow.records.specs import EvalSpec

    given = {
        "suite": suite,
        "capabilities": tuple(part.strip() for part in capabilities.split(",") if part.strip())
        if capabilities
        else None,
        "split": split,
        "items": items,
        "perplexity": perplexity,
        "batch_size": batch_size,
        "fast_stop": fast_stop,
        "seed": seed,
    }
    asked = merged(EvalSpec, spec, given)
    from regrow.study.stages.evaluate import evaluate as work

    work(model, asked, output, watch=watcher(quiet), label=label, dtype=dtype, device=device)
    from regrow.report.inputs import pair, read_evaluations
    from regrow.report.tables import main_table, to_json
    from regrow.report.terminal import print_report

    table = main_table(pair(read_evaluations([output])))
    if json:
        print_json({"output": str(output), **to_json(table)})
        return
    print_report(stdout_console(), table)
    print(f"items and record in {output}; compare stages with: regrow report {output} OTHER -o report.html")
