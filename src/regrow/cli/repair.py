"""``regrow repair``."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from regrow.cli.options import Calibration, Device, Dtype, Json, Output, Pools, Quiet, SpecFile


def repair(
    pruned: str,
    /,
    *,
    output: Output,
    method: Annotated[str | None, Parameter(help="See `regrow ls repairs`. Default: lra.")] = None,
    ridge: Annotated[float | None, Parameter(help="Shrinkage, as a share of the mean diagonal of X'X.")] = None,
    calibration: Calibration = None,
    calibration_tokens: Annotated[str | None, Parameter(help="Tokens the fit reads. Default: 16k.")] = None,
    unpruned: Annotated[str | None, Parameter(help="The original model, when it is no longer where it was.")] = None,
    pools: Pools = None,
    seed: Annotated[int | None, Parameter(help="Seed of the calibration draw. Default: 0.")] = None,
    spec: SpecFile = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Bridge the cut of a pruned checkpoint without training.

    An operator on the residual stream is fitted to what the removed blocks did, from streamed sums over calibration
    text. It is part of the saved checkpoint: load that with `regrow.load_model`, or with AutoModelForCausalLM after
    `import regrow`; a plain load refuses it.

    Parameters
    ----------
    pruned
        A checkpoint folder written by `regrow prune`.
    """
    from regrow.cli.options import merged
    from regrow.cli.output import print_json, watcher
    from regrow.records.quantities import parse_tokens
    from regrow.records.specs import RepairSpec

    given = {
        "method": method,
        "ridge": ridge,
        "calibration": calibration,
        "calibration_tokens": parse_tokens(calibration_tokens, option="--calibration-tokens")
        if calibration_tokens
        else None,
        "seed": seed,
    }
    asked = merged(RepairSpec, spec, given)
    from regrow.report.card import model_card
    from regrow.study.stages.repair import repair as work

    facts = work(
        pruned,
        asked,
        output,
        watch=watcher(quiet),
        pools_folder=pools,
        unpruned=unpruned,
        dtype=dtype,
        device=device,
        card=model_card,
    )
    if json:
        print_json({"output": str(output), **facts.model_dump(mode="json")})
        return
    added = sum(bridge.parameters for bridge in facts.bridges)
    print(f"{len(facts.bridges)} bridge(s) by {asked.method}, {added:,} parameters added; checkpoint in {output}")
    print(f"next: regrow heal {output} --tokens 60k --output {output}-healed")
