"""``regrow eval``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from regrow.cli.options import Device, Dtype, Json, Output, Quiet, SpecFile, from_zero, whole


def evaluate(
    model: str,
    /,
    *,
    output: Output,
    suite: Annotated[str | None, Parameter(help="mini (embedded items), full or zero-shot. Default: mini.")] = None,
    tasks: Annotated[
        str | None, Parameter(help="In place of a suite: tasks of lm-evaluation-harness, comma-separated.")
    ] = None,
    data: Annotated[Path | None, Parameter(help="Local data folder. Default: REGROW_DATA, else the hub.")] = None,
    capabilities: Annotated[
        str | None, Parameter(help="Only these, comma-separated; see `regrow ls capabilities`.")
    ] = None,
    split: Annotated[str | None, Parameter(help="dev or test. Default: test.")] = None,
    items: Annotated[int | None, whole(help="At most this many items per capability. Default: all.")] = None,
    perplexity: Annotated[bool | None, Parameter(help="Measure perplexity too. Default: yes, not with tasks.")] = None,
    text: Annotated[
        str | None, Parameter(help="Text of the perplexity: wikitext2:test, a .txt or .jsonl file. Default: bundled.")
    ] = None,
    few_shot: Annotated[int | None, from_zero(help="Worked examples of a task. Default: the task's own.")] = None,
    chat: Annotated[bool, Parameter(help="Ask a task's questions in the chat template.")] = False,
    engine: Annotated[str, Parameter(help="Who writes answers: transformers, vllm or openai.")] = "transformers",
    endpoint: Annotated[
        str | None, Parameter(help="Base address of an OpenAI-compatible API, for --engine openai.")
    ] = None,
    batch_size: Annotated[int | None, whole(help="Rows decoded together. Default: 32.")] = None,
    fast_stop: Annotated[
        Literal["on", "off"] | None, Parameter(help="Stop a row once its score cannot change any more. Default: on.")
    ] = None,
    label: Annotated[str | None, Parameter(help="Name of this model in reports. Default: its stage.")] = None,
    seed: Annotated[int | None, whole(help="Seed of the item subset. Default: 0.")] = None,
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
        A hub id, a checkpoint folder, a .gguf file or embedded:smollm2-135m; with --engine openai the name of the
        model that the endpoint serves.
    """
    from regrow.capabilities.suites import chosen_capabilities
    from regrow.cli.options import merged, one_of
    from regrow.cli.output import print_json, stdout_console, watcher
    from regrow.errors import ConfigError
    from regrow.records.specs import EvalSpec

    given = {
        "suite": suite,
        "capabilities": tuple(part.strip() for part in capabilities.split(",") if part.strip())
        if capabilities is not None
        else None,
        "split": split,
        "items": items,
        "perplexity": perplexity,
        "batch_size": batch_size,
        "fast_stop": None if fast_stop is None else fast_stop == "on",
        "seed": seed,
    }
    one_of(suite, tasks, "--suite and --tasks")
    if tasks is not None:
        one_of(capabilities, tasks, "--capabilities and --tasks")
        one_of(split, tasks, "--split and --tasks")
        one_of(text, tasks, "--text and --tasks")
        one_of(endpoint, tasks, "--endpoint and --tasks")
        one_of(perplexity or None, tasks, "--perplexity and --tasks")
        if engine != "transformers":
            raise ConfigError(
                f"--tasks are asked by the harness with transformers, not with --engine {engine}",
                hint="leave out --engine, or measure a suite: --suite full",
            )
        names = tuple(part.strip() for part in tasks.split(",") if part.strip())
        if not names:
            raise ConfigError("no task was named", hint="--tasks boolq,piqa,wikitext")
        given |= {"suite": "tasks", "capabilities": names, "perplexity": False}
    asked = merged(EvalSpec, spec, given)
    if asked.suite != "tasks" and (few_shot is not None or chat):
        raise ConfigError("--few-shot and --chat belong to --tasks", hint="name tasks: --tasks gsm8k --few-shot 5")
    if asked.suite != "tasks":
        chosen_capabilities(asked, data)  # a wrong name is refused before anything heavy is imported
    watch = watcher(quiet)
    if asked.suite == "tasks":
        from regrow.study.stages.tasks import evaluate_tasks

        record, _ = evaluate_tasks(
            model,
            asked,
            output,
            watch=watch,
            label=label,
            dtype=dtype,
            device=device,
            data=data,
            few_shot=few_shot,
            chat=chat,
        )
    else:
        from regrow.study.stages.evaluate import evaluate as work

        record, _ = work(
            model,
            asked,
            output,
            watch=watch,
            label=label,
            dtype=dtype,
            device=device,
            data=data,
            text=text,
            engine=engine,
            endpoint=endpoint,
        )
    measured = {entry.name: entry.value for entry in record.measurements}
    if asked.suite == "tasks":
        if json:
            print_json({"output": str(output), "tasks": list(asked.capabilities or ()), "measurements": measured})
            return
        for name, value in measured.items():
            print(f"{name:<44} {value:.4f}")
        print(f"items and record in {output}")
        return
    from regrow.report.inputs import pair, read_evaluations
    from regrow.report.tables import main_table, to_json
    from regrow.report.terminal import print_report

    table = main_table(pair(read_evaluations([output])))
    if json:
        print_json({"output": str(output), **to_json(table)})
        return
    print_report(stdout_console(), table)
    print(f"items and record in {output}; compare stages with: regrow report {output} OTHER -o report.html")
