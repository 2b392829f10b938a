"""``regrow repair``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from regrow.cli.options import Calibration, Device, Dtype, Json, Pools, Quiet, SpecFile, whole


def repair(
    pruned: str,
    /,
    *,
    output: Annotated[
        Path | None,
        Parameter(
            name=["--output", "-o"],
            help="Folder of the repaired checkpoint; with several repairs one subfolder each. Without it the table is "
            "printed and nothing is saved.",
        ),
    ] = None,
    method: Annotated[
        str | None, Parameter(help="One repair or several, comma-separated, or all; see `regrow ls repairs`.")
    ] = None,
    rank: Annotated[
        str | None,
        Parameter(help="Truncate the operator to this rank, or to each of several, comma-separated."),
    ] = None,
    rank_weighting: Annotated[
        Literal["plain", "activations"] | None,
        Parameter(help="Truncate by the SVD of the operator, or of what it does to the calibration tokens."),
    ] = None,
    ridge: Annotated[
        str | None,
        Parameter(help="Shrinkage, as a share of the mean diagonal of X'X, or held-out. Default: the method's own."),
    ] = None,
    skip_first: Annotated[int | None, whole(help="Leave out this many tokens at the start of a sequence.")] = None,
    granularity: Annotated[
        Literal["block", "span"] | None, Parameter(help="Fit per removed block, merged exactly, or per removed run.")
    ] = None,
    sequential: Annotated[
        bool | None, Parameter(help="Fit each cut on the streams of the model with the earlier cuts repaired.")
    ] = None,
    rows: Annotated[
        Literal["plain", "inverse-norm"] | None, Parameter(help="Weigh tokens alike, or by 1 / norm of their stream.")
    ] = None,
    passes: Annotated[int | None, whole(help="Passes over the tokens, for repairs that train.")] = None,
    calibration: Calibration = None,
    calibration_tokens: Annotated[str | None, Parameter(help="Tokens the fit reads. Default: 16k.")] = None,
    chunk_tokens: Annotated[int | None, whole(help="Tokens of a calibration sequence. Default: 256.")] = None,
    unpruned: Annotated[str | None, Parameter(help="The original model, when it is no longer where it was.")] = None,
    pools: Pools = None,
    seed: Annotated[int | None, whole(help="Seed of the calibration draw. Default: 0.")] = None,
    spec: SpecFile = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Repair the cut of a pruned checkpoint, or compare repairs, from one pass over calibration text.

    An operator on the residual stream is fitted to what the removed blocks did. Repairs marked portable leave a plain
    checkpoint for any program; the others add a bridge: load them with `regrow.load_model`, or with
    AutoModelForCausalLM after `import regrow` (a plain load refuses). An option is given to the repairs that heed it.

    Parameters
    ----------
    pruned
        A checkpoint folder written by `regrow prune`.
    """
    from regrow.cli.options import merged
    from regrow.cli.output import print_json, stdout_console, watcher
    from regrow.records.quantities import parse_tokens
    from regrow.records.specs import RepairSpec
    from regrow.repair.registry import REPAIRS

    given: dict[str, Any] = {
        "method": method,
        "rank_weighting": rank_weighting,
        "skip_first": skip_first,
        "granularity": granularity,
        "sequential": sequential,
        "rows": rows,
        "passes": passes,
        "calibration": calibration,
        "calibration_tokens": parse_tokens(calibration_tokens, option="--calibration-tokens")
        if calibration_tokens
        else None,
        "chunk_tokens": chunk_tokens,
        "seed": seed,
        **(_ridge(ridge) if ridge is not None else {}),
    }
    ranks = _ranks(rank) if rank is not None else []
    if ranks:
        given["rank"] = ranks[0]
    common = merged(RepairSpec, spec, given)
    names = [part.strip() for part in common.method.split(",") if part.strip()]
    for name in names if "all" not in names else ():
        REPAIRS.entry(name)
    from regrow.repair.asked import asked_repairs
    from regrow.report.card import model_card
    from regrow.study.stages.repair import repair_all

    watch = watcher(quiet)
    asked = asked_repairs(names, ranks or ([common.rank] if common.rank is not None else []), common)
    for note in asked.notes:
        watch.note(f"note: {note}")
    done = repair_all(
        pruned,
        asked,
        output,
        watch=watch,
        pools_folder=pools,
        unpruned=unpruned,
        dtype=dtype,
        device=device,
        card=model_card,
    )
    if json:
        table = done.table.model_dump(mode="json")
        if output is not None and list(done.saved.values()) == [output]:
            (facts,) = done.facts.values()
            print_json({"output": str(output), **facts.model_dump(mode="json"), "table": table})
        else:
            places = {label: str(place) for label, place in done.saved.items()}
            print_json({"saved": places, "refused": done.refused, **table})
        return
    from regrow.cli.repair_text import repair_lines

    console = stdout_console()
    for line in repair_lines(done.table, done.refused):
        console.print(line, highlight=False, soft_wrap=True)
    for label, place in done.saved.items():
        print(f"{label}: checkpoint in {place}")
    first = next(iter(done.saved.values()), None)
    if first is not None:
        print(f"next: regrow heal {first} --tokens 60k --output {first}-healed")
    else:
        print("nothing was saved; add --output DIR to save what was fitted")


def _ranks(text: str) -> list[int]:
    from regrow.errors import ConfigError

    try:
        found = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(
            f"--rank '{text}' is not a list of whole numbers", hint="write for example --rank 64 or --rank 32,64,128"
        ) from error
    wrong = next((number for number in found if number < 1), None)
    if wrong is not None:
        raise ConfigError(f"a rank must be at least 1, got {wrong}", hint="write for example --rank 64")
    return found


def _ridge(text: str) -> dict[str, Any]:
    import math

    from regrow.errors import ConfigError

    if text == "held-out":
        return {"ridge_choice": "held-out"}
    try:
        amount = float(text)
    except ValueError:
        amount = math.nan
    if not math.isfinite(amount) or amount < 0:
        raise ConfigError(
            f"--ridge '{text}' is not a share of the mean diagonal",
            hint="write a number from 0 on, for example --ridge 1e-4, or --ridge held-out",
        )
    return {"ridge": amount}
