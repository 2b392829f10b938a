"""``regrow prune``."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from regrow.cli.options import Calibration, Device, Dtype, Json, Output, Pools, Quiet, SpecFile, whole


def prune(
    model: str,
    /,
    *,
    output: Output,
    remove: Annotated[str | None, Parameter(help="How many blocks: a count (2) or a share (25%).")] = None,
    blocks: Annotated[str | None, Parameter(help="Which blocks instead, 0-based: 13,14 or 12-15.")] = None,
    criterion: Annotated[str | None, Parameter(help="See `regrow ls criteria`. Default: block-influence.")] = None,
    for_capability: Annotated[
        str | None,
        Parameter(name="--for", help="Search the cut that hurts this capability least, instead of a criterion."),
    ] = None,
    for_items: Annotated[int, whole(help="Dev items of it that the model answers for that search.")] = 24,
    protect: Annotated[
        str | None, Parameter(help="Blocks never removed: 0,-1 for the first and the last, or none. Default: 0.")
    ] = None,
    contiguous: Annotated[bool | None, Parameter(help="Remove one unbroken span.")] = None,
    calibration: Calibration = None,
    calibration_tokens: Annotated[str | None, Parameter(help="Tokens the criterion reads. Default: 16k.")] = None,
    chunk_tokens: Annotated[int | None, whole(help="Tokens of one calibration chunk. Default: 256.")] = None,
    pools: Pools = None,
    seed: Annotated[int | None, whole(help="Seed of the calibration draw. Default: 0.")] = None,
    spec: SpecFile = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Remove the least important blocks of a model and save a plain Hugging Face checkpoint.

    Every kept block is renumbered and every per-layer config field cut. The saved checkpoint is loaded again and must
    give the same logits and the same cached generation; `regrow.json` in it says what was removed and why.

    Parameters
    ----------
    model
        A hub id, a checkpoint folder, a .gguf file or embedded:smollm2-135m.
    """
    from regrow.cli.options import merged, one_of
    from regrow.cli.output import print_json, watcher
    from regrow.errors import ConfigError
    from regrow.records.quantities import parse_blocks, parse_tokens
    from regrow.records.specs import PruneSpec

    one_of(remove, blocks, "--remove and --blocks")
    one_of(criterion, blocks, "--criterion and --blocks")
    one_of(for_capability, blocks, "--for and --blocks")
    one_of(for_capability, criterion, "--for and --criterion")
    if for_items < 1:
        raise ConfigError(f"--for-items must be at least 1, got {for_items}", hint="--for-items 24")
    given = {
        "remove": remove,
        "blocks": parse_blocks(blocks) if blocks is not None else None,
        "criterion": criterion if for_capability is None else f"for:{for_capability}",
        "protect": parse_blocks(protect, option="--protect", from_the_end=True) if protect is not None else None,
        "contiguous": contiguous,
        "calibration": calibration,
        "calibration_tokens": parse_tokens(calibration_tokens, option="--calibration-tokens")
        if calibration_tokens
        else None,
        "chunk_tokens": chunk_tokens,
        "seed": seed,
    }
    asked = merged(PruneSpec, spec, given)
    from regrow.report.card import model_card
    from regrow.study.stages.prune import prune as work

    facts = work(
        model,
        asked,
        output,
        watch=watcher(quiet),
        pools_folder=pools,
        dtype=dtype,
        device=device,
        card=model_card,
        guiding_items=for_items,
    )
    if json:
        print_json({"output": str(output), **facts.model_dump(mode="json")})
        return
    gone = ", ".join(map(str, facts.removed_blocks))
    print(f"removed blocks {gone} of {facts.unpruned_blocks}; checkpoint in {output}")
    print(f"next: regrow eval {output} --output {output}-eval, or regrow repair {output} --output {output}-repaired")
