"""``regrow rescore``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from regrow.cli.options import Json, from_zero


def rescore(
    run: Path,
    /,
    *,
    output: Annotated[
        Path | None, Parameter(name=["--output", "-o"], help="Write the regraded evaluation to this new folder.")
    ] = None,
    data: Annotated[
        Path | None, Parameter(help="Local data folder of the suite. Default: REGROW_DATA, else hub.")
    ] = None,
    show: Annotated[int, from_zero(help="Changed items to print.")] = 10,
    json: Json = False,
) -> None:
    """Grade the answers of an evaluation again with today's rules, without the model.

    Without --output it only says what would change.

    Parameters
    ----------
    run
        A folder written by `regrow eval`.
    """
    from rich.table import Table

    from regrow.capabilities.rates import rates_of, task_measurements
    from regrow.capabilities.rescore import own_tasks
    from regrow.capabilities.rescore import rescore as grade_again
    from regrow.capabilities.suites import SUITES, suite
    from regrow.capabilities.zero_shot import capabilities as task_sets
    from regrow.cli.output import print_json, stdout_console
    from regrow.errors import ConfigError, DataError
    from regrow.records.fingerprint import fingerprint
    from regrow.records.results import provenance
    from regrow.records.store import RunFolder, read_evaluation

    record, before = read_evaluation(run)
    own = own_tasks(before) if record.suite == "tasks" else []
    if record.suite not in SUITES and not own:
        raise DataError(
            f"'{run}' was measured on '{record.suite}', whose rules are not regrow's",
            hint="measure it again; rescoring knows the suites "
            + ", ".join(SUITES.names())
            + " and, of --tasks, the zero-shot sets",
        )
    capabilities = task_sets(data, own) if own else suite(record.suite, data=data)
    result = grade_again(before, capabilities)
    rows: list[dict[str, Any]] = []
    for capability in capabilities:
        old = [item for item in before if item.capability == capability.name]
        new = [item for item in result.items if item.capability == capability.name]
        if old:
            rows.append(
                {
                    "capability": capability.name,
                    "items": len(old),
                    "before": capability.summarise(old)["score"],
                    "now": capability.summarise(new)["score"],
                    "changed": sum(item.capability == capability.name for item, _ in result.changed),
                }
            )
    if output is not None:
        if output.resolve() == run.resolve():
            raise ConfigError(
                f"the output '{output}' is the evaluation that is rescored",
                hint="name a new folder, so that both can be compared",
            )
        settings = {"rescored": str(run), "before": record.provenance.model_dump(mode="json")}
        asked = {"rescored": str(run), "items": fingerprint([item.model_dump(mode="json") for item in result.items])}
        folder = RunFolder(output)
        with folder.claimed("evaluation", asked) as finished:
            if not finished:
                again = {capability.name for capability in capabilities}
                kept = [one for one in record.measurements if one.name.split(".")[0] not in again]
                rates = (task_measurements if record.suite == "tasks" else rates_of)(capabilities, result.items)
                changed = {
                    "provenance": provenance(settings, seed=record.seed),
                    "measurements": (*kept, *rates),
                }
                folder.write_evaluation(record.model_copy(update=changed), result.items)
    if json:
        print_json(
            {
                "run": str(run),
                "output": None if output is None else str(output),
                "capabilities": rows,
                "changed": [
                    {"capability": a.capability, "item": a.item_id, "before": a.score, "now": b.score}
                    for a, b in result.changed
                ],
                "untouched": result.untouched,
                "cut_short": list(result.cut_short),
            }
        )
        return
    console = stdout_console()
    table = Table("", "items", "before", "now", "changed", box=None)
    for row in rows:
        now, old_score = row["now"], row["before"]
        table.add_row(row["capability"], str(row["items"]), f"{old_score:.3f}", f"{now:.3f}", str(row["changed"]))
    console.print(table)
    for a, b in result.changed[:show]:
        fault = b.details.get("fault") or ""
        console.print(f"{a.capability} {a.item_id}: {a.score:g} -> {b.score:g} {fault}", markup=False, highlight=False)
    if len(result.changed) > show:
        print(f"and {len(result.changed) - show} more; --show {len(result.changed)} prints them")
    if result.cut_short:
        print(
            f"{len(result.cut_short)} answers were left early under the old rule and are open under this one; "
            "measure again with --fast-stop off to be sure of them"
        )
    for name, count in result.untouched.items():
        if name in {row["capability"] for row in rows}:
            print(
                f"{count} items of {name} were never asked, or are not in this suite or with another question; they "
                "kept their score"
            )
    if output is None:
        print("nothing was written; -o DIR writes the regraded evaluation")
    else:
        print(f"regraded evaluation in {output}")
