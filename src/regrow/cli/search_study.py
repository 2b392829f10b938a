"""``regrow search-study``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from regrow.cli.options import Device, Dtype, Json, Output, Pools, Quiet, whole


def search_study(
    model: str,
    /,
    *,
    output: Output,
    remove: Annotated[str | None, Parameter(help="How many blocks: a count (4) or a share (25%). Default: 4.")] = None,
    text: Annotated[
        str | None,
        Parameter(help="Texts, comma-separated: as --calibration of `regrow prune`. Default: bundled."),
    ] = None,
    samples: Annotated[str | None, Parameter(help="Chunks of a text, comma-separated. Default: 4,16.")] = None,
    chunk_tokens: Annotated[str | None, Parameter(help="Tokens of a chunk, comma-separated. Default: 128.")] = None,
    search: Annotated[
        str | None,
        Parameter(
            help="Of one-shot, greedy, beam, swap, random, evolutionary, annealing. Default: one-shot,greedy,random."
        ),
    ] = None,
    seeds: Annotated[
        str | None, Parameter(help="Seeds, comma-separated; each draws samples and drives searches. Default: 0,1,2.")
    ] = None,
    budget: Annotated[
        float | None, Parameter(help="Forward passes over its text that one search may spend. Default: one per block.")
    ] = None,
    protect: Annotated[str | None, Parameter(help="Blocks never removed; -1 is the last. Default: 0.")] = None,
    common: Annotated[
        str | None, Parameter(help="Text that compares the cuts; no search sees it. Default: bundled-evaluation.")
    ] = None,
    common_tokens: Annotated[str | None, Parameter(help="Tokens of it. Default: 4096.")] = None,
    capabilities: Annotated[
        str | None, Parameter(help="Capabilities behind the accuracy, comma-separated. Default: all.")
    ] = None,
    items: Annotated[
        int | None, whole(help="Dev items per capability behind the accuracy; 0 leaves it out. Default: 8.")
    ] = None,
    pools: Pools = None,
    spec: Annotated[
        Path | None,
        Parameter(help="YAML file with these options, or calibration-or-search; the command line wins."),
    ] = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find out what decides a cut: the calibration text or the search algorithm.

    Every combination of text, samples, chunk length, search and seed chooses a cut; the cuts are compared by overlap,
    by perplexity on a text that no search saw and by accuracy, and the variance of each is split between the factors.
    Stopped at any moment, the same command continues.

    Parameters
    ----------
    model
        A hub id, a checkpoint folder, a .gguf file or embedded:smollm2-135m.
    """
    from regrow.cli.options import merged
    from regrow.cli.output import print_json, stdout_console, watcher
    from regrow.records.kinds import find_file, refuse_other_kind
    from regrow.records.quantities import parse_blocks, parse_tokens
    from regrow.records.search_study import SearchStudySpec
    from regrow.records.specs import read_yaml

    given: dict[str, Any] = {
        "remove": remove,
        "protect": parse_blocks(protect, option="--protect", from_the_end=True) if protect is not None else None,
        "texts": text,
        "samples": _counts(samples, "--samples"),
        "chunk_tokens": _counts(chunk_tokens, "--chunk-tokens"),
        "searches": search,
        "seeds": _counts(seeds, "--seeds"),
        "budget": budget,
        "common": common,
        "common_tokens": parse_tokens(common_tokens, option="--common-tokens") if common_tokens else None,
        "capabilities": capabilities,
        "items": items,
    }
    file = find_file(str(spec), "search-study") if spec is not None else None
    if file is not None:
        refuse_other_kind(read_yaml(file), "search-study", file)
    asked = merged(SearchStudySpec, file, given)
    from regrow.study.stages.search_study import study_search

    study = study_search(model, asked, output, watch=watcher(quiet), pools_folder=pools, dtype=dtype, device=device)
    if json:
        print_json({"output": str(output), **study.model_dump(mode="json")})
        return
    from regrow.cli.search_study_text import print_search_study

    print_search_study(stdout_console(), study)
    print(f"study and every cut's evaluation in {output}")


def _counts(text: str | None, option: str) -> tuple[int, ...] | None:
    """Return whole numbers from "4,16"."""
    from regrow.errors import ConfigError

    if text is None:
        return None
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isascii() and part.isdecimal() and len(part) < 10 for part in parts):
        raise ConfigError(f"{option} '{text}' is not a list of whole numbers", hint=f"write for example {option} 4,16")
    return tuple(int(part) for part in parts)
