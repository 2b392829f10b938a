"""The healing pools of a suite, answered by the unpruned model: made once per model and suite, kept in the cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from regrow.capabilities.cost_meter import CostMeter
from regrow.capabilities.pool_prompts import PoolPrompts
from regrow.capabilities.suites import healing_suite
from regrow.capabilities.teacher import build_pool
from regrow.data.missing import read_all
from regrow.data.pools import Pool, load_pool, save_pool
from regrow.errors import DataError, StudyError
from regrow.models.cache import cache_folder
from regrow.models.families import parameter_count
from regrow.models.load import LoadedModel
from regrow.planning.cost import READ_FLOPS
from regrow.protocols import Capability, Watcher
from regrow.records.atomic import disk_error, write_json
from regrow.records.faults import first_fault
from regrow.records.fingerprint import fingerprint
from regrow.records.results import Cost
from regrow.study.meter import total_cost
from regrow.study.stages.answer_tally import AnswerTally

_COST = ".{name}.cost.json"
"""Beside a pool: what answering its prompts took."""


def pools_of(
    suite_name: str,
    teacher: Callable[[], LoadedModel],
    *,
    source: str,
    weights_sha256: str,
    examples: int,
    watch: Watcher,
    folder: Path | None = None,
    owned: bool = False,
    only: Sequence[str] | None = None,
    data: Path | None = None,
    counted: bool = True,
) -> dict[str, Pool]:
    """Return the healing pools of a suite by name, each with at most ``examples`` prompts answered by the teacher.

    Pools found in ``folder`` (default: the cache, under the teacher's weights and the prompts' fingerprint) are read;
    the others are written as soon as they are complete; answers of an unfinished one are kept beside it, so that a
    stopped run loses seconds. ``teacher`` is called only when something must be answered. ``data``: local folder of the
    prompts' sources (default: REGROW_DATA, else the hub).

    A damaged pool in the cache, or in a folder that belongs to the run (``owned``), is moved aside and made again; in
    a user's folder it is refused, as is a pool that another model than ``weights_sha256`` answered. Raises DataError
    for both, before anything is answered. ``only`` names the pools wanted (default: all of the suite); with ``counted``
    a pool that was made for another number of examples is remarked on.
    """
    wanted = [each for each in healing_suite(suite_name, data=data) if only is None or each.name in only]
    asked_of = read_all((each.name, partial(each.items, "heal")) for each in wanted)
    prompts = {each.name: (each, list(asked_of[each.name])) for each in wanted}
    asked = fingerprint(
        {
            "weights": weights_sha256,
            "examples": examples,
            "prompts": {name: [list(item.messages) for item in items] for name, (_, items) in prompts.items()},
        }
    )
    place = folder or cache_folder("pools", asked[:24])
    found: dict[str, Pool] = {}
    for name in prompts:
        if not (place / name).exists():
            continue
        try:
            found[name] = load_pool(place / name)
        except DataError as error:
            if folder is not None and not owned:
                raise
            aside = _moved_aside(place / name)
            watch.note(f"note: {error}; it was moved to '{aside}' and the pool '{name}' is made again")
            continue
        _refuse_other_teacher(found[name], place / name, weights_sha256)
        if counted and folder is not None and not owned and found[name].asked not in (None, examples):
            watch.note(
                f"note: the pool '{place / name}' was made for {found[name].asked} examples, so --pool-examples "
                f"{examples} has no effect on it"
            )
    for name, (capability, items) in prompts.items():
        if name in found:
            continue
        shown = name.replace("_", " ")
        # Before the task begins: loading is a task of its own.
        model = teacher().model
        watch.begin(f"{source} answers healing prompts: {shown}", None, "prompts")
        journal = AnswerTally(place / f".{name}.answers.jsonl", weights_sha256)
        with journal:
            if len(journal):
                watch.note(f"{len(journal)} prompts were already answered; the rest follows")
            with CostMeter(model) as meter:
                pool = build_pool(
                    teacher(), capability, items, name=name, max_examples=examples, watch=watch, journal=journal
                )
                cost = meter.cost(prompt_tokens=journal.prompt_tokens, generated_tokens=journal.generated_tokens)
            before = float(READ_FLOPS * journal.found_tokens * parameter_count(model))
            cost = cost.model_copy(update={"flops": cost.flops + before})
        pool = replace(pool, teacher=source, teacher_weights_sha256=weights_sha256, asked=examples)
        try:
            write_json(place / _COST.format(name=name), cost.model_dump(mode="json"))
            save_pool(_with_origin(pool, capability), place / name)
            journal.remove()
        except StudyError as error:
            try:
                found[name] = load_pool(place / name)  # another process made it meanwhile
                journal.remove()
                watch.end(f"{len(found[name].examples)} kept, made by another process meanwhile")
                continue
            except DataError:
                pass
            if folder is None:
                raise StudyError(str(error), hint="free some space, or set REGROW_CACHE to another folder") from error
            raise
        watch.end(f"{len(pool.examples)} kept, {sum(pool.dropped.values())} dropped")
        if len(pool.examples) < examples:
            watch.note(
                f"note: the pool '{name}' has {len(pool.examples)} of the {examples} examples wanted: its source has "
                "no more prompts"
            )
        found[name] = _with_origin(pool, capability)
    return {name: found[name] for name in prompts}


def pools_cost(place: Path, names: Sequence[str]) -> Cost:
    """Return what answering the prompts of the pools in ``place`` took; pools made by hand or elsewhere took nothing
    here. Its tokens are of all answers, kept or dropped."""
    parts = []
    for name in names:
        try:
            parts.append(Cost.model_validate_json((place / _COST.format(name=name)).read_bytes()))
        except FileNotFoundError:
            continue
        except (ValidationError, OSError) as error:
            raise DataError(
                f"'{place / _COST.format(name=name)}' cannot be read ({first_fault(error)})",
                hint="delete the file: the cost of this pool is then counted as 0",
            ) from error
    return total_cost(*parts)


def _with_origin(pool: Pool, capability: Capability) -> Pool:
    """Return the pool with what is known of its prompts: source, licence, and what was left out before."""
    if not isinstance(capability, PoolPrompts):
        return pool
    prompts = capability.prompts()
    return replace(pool, source=prompts.source, licence=prompts.licence, dropped={**prompts.dropped, **pool.dropped})


def pools_content(suite_name: str, folder: Path | None, only: Sequence[str] | None = None) -> str | None:
    """Return the fingerprint of the pools of a suite in a user's folder; None when none is named or one is not there
    (or not readable: :func:`pools_of` says so)."""
    if folder is None:
        return None
    names = [entry.name for entry in healing_suite(suite_name) if only is None or entry.name in only]
    try:
        return fingerprint([load_pool(folder / name).fingerprint for name in names])
    except DataError:
        return None


def content_of(pools: dict[str, Pool]) -> str:
    """Return what :func:`pools_content` returns once ``pools`` are in their folder."""
    return fingerprint([pool.fingerprint for pool in pools.values()])


def _refuse_other_teacher(pool: Pool, place: Path, weights_sha256: str) -> None:
    if pool.teacher_weights_sha256 and weights_sha256 and pool.teacher_weights_sha256 != weights_sha256:
        raise DataError(
            f"the pool '{place}' was answered by '{pool.teacher}' (weights {pool.teacher_weights_sha256[:12]}), not by "
            f"the unpruned model of this checkpoint ({weights_sha256[:12]})",
            hint="name another folder with --pools, or none to use the cache",
        )


def _moved_aside(folder: Path) -> Path:
    number = 1
    while (aside := folder.with_name(f".{folder.name}.damaged-{number}")).exists():
        number += 1
    try:
        folder.rename(aside)
    except OSError as error:
        raise disk_error(folder, error) from error
    return aside
