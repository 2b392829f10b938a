"""``regrow rank``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from regrow.cli.options import Calibration, Device, Dtype, Json, Pools, Quiet, SpecFile, whole

SIMILARITY = "block-influence,angular,streamline,lorp"


def rank(
    model: str,
    /,
    *,
    criterion: Annotated[
        str | None,
        Parameter(help=f"Criteria, comma-separated, or all; see `regrow ls criteria`. Default: {SIMILARITY}."),
    ] = None,
    remove: Annotated[str | None, Parameter(help="How many blocks: a count (2) or a share (25%). Default: 2.")] = None,
    for_capability: Annotated[
        str | None, Parameter(name="--for", help="Also search the cut that hurts these capabilities least.")
    ] = None,
    for_items: Annotated[int, whole(help="Dev items of each that the model answers for it.")] = 24,
    protect: Annotated[
        str | None, Parameter(help="Blocks never removed: 0,-1 for the first and the last, or none. Default: 0.")
    ] = None,
    contiguous: Annotated[bool | None, Parameter(help="Remove one unbroken span.")] = None,
    calibration: Calibration = None,
    calibration_tokens: Annotated[str | None, Parameter(help="Tokens the criteria read. Default: 16k.")] = None,
    chunk_tokens: Annotated[int | None, whole(help="Tokens of one calibration chunk. Default: 256.")] = None,
    picture: Annotated[
        Path | None, Parameter(help="Draw the stream similarity and the cuts: a .png, .svg or .pdf file.")
    ] = None,
    pools: Pools = None,
    seed: Annotated[int | None, whole(help="Seed of the calibration draw and of random criteria. Default: 0.")] = None,
    spec: SpecFile = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show side by side which blocks the criteria of the field would remove; nothing is written but the picture.

    All similarity criteria read one pass over the calibration text, which is kept, so ranking again costs nothing.

    Parameters
    ----------
    model
        A hub id, a checkpoint folder, a .gguf file or embedded:smollm2-135m.
    """
    from regrow.cli.options import merged
    from regrow.cli.output import print_json, stdout_console, watcher
    from regrow.criteria.ranking import guided_by
    from regrow.criteria.registry import CRITERIA
    from regrow.errors import ConfigError
    from regrow.records.quantities import parse_blocks, parse_tokens
    from regrow.records.specs import PruneSpec, build, read_yaml

    if criterion is None and spec is not None:
        values = read_yaml(spec)
        criterion = build(PruneSpec, values, where=f"'{spec}'").criterion if "criterion" in values else None
    unasked = criterion is None
    criterion = SIMILARITY if criterion is None else criterion
    names = CRITERIA.names() if criterion == "all" else [part.strip() for part in criterion.split(",") if part.strip()]
    if "all" in names:
        raise ConfigError(
            "'all' stands for every criterion, beside which no other can be named", hint="--criterion all"
        )
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"the criterion '{twice}' is named twice", hint="name each criterion once")
    if not names:
        raise ConfigError("no criterion was named", hint="regrow ls criteria")
    guided = [capability for name in names if (capability := guided_by(name)) is not None]
    guided += [part.strip() for part in (for_capability or "").split(",") if part.strip()]
    names = [name for name in names if guided_by(name) is None]
    for name in names:
        CRITERIA.entry(name)
    if for_items < 1:
        raise ConfigError(f"--for-items must be at least 1, got {for_items}", hint="--for-items 24")
    if picture is not None and not set(names) & {"angular", "streamline", "lorp"}:
        raise ConfigError(
            "there is no similarity matrix to draw from these criteria", hint="add angular, streamline or lorp"
        )
    if picture is not None and picture.suffix not in (".png", ".svg", ".pdf"):
        raise ConfigError(f"a picture cannot be written as '{picture.name}'", hint="name a .png, .svg or .pdf file")
    given = {
        "remove": remove,
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
    from regrow.study.stages.rank import rank_blocks

    ranking, record = rank_blocks(
        model,
        names,
        asked,
        watch=watcher(quiet),
        guided_by=guided,
        guiding_items=for_items,
        pools_folder=pools,
        leave_out=unasked or criterion == "all",
        dtype=dtype,
        device=device,
    )
    if picture is not None:
        from regrow.report.charts.similarity import similarity_figure
        from regrow.report.figures import save_figure

        figure = similarity_figure(record, ranking) if record is not None else None
        if figure is None:
            raise ConfigError(
                "no criterion that reads the similarity matrix is left to draw", hint="remove fewer blocks"
            )
        save_figure(figure, picture)
    if json:
        print_json({**ranking.model_dump(mode="json"), "jaccard": ranking.jaccard()})
        return
    from regrow.cli.rank_text import ranking_lines

    console = stdout_console()
    for line in ranking_lines(ranking):
        console.print(line, highlight=False, soft_wrap=True)
