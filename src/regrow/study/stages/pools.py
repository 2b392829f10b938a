"""The healing pools of a suite, answered by the unpruned model: made once per model and suite, kept in the cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from regrow.capabilities.suites import healing_suite
from regrow.capabilities.teacher import build_pool
from regrow.data.pools import Pool, load_pool, save_pool
from regrow.errors import DataError
from regrow.models.cache import cache_folder
from regrow.models.load import LoadedModel
from regrow.protocols import Watcher
from regrow.records.fingerprint import fingerprint


def pools_of(
    suite_name: str,
    teacher: Callable[[], LoadedModel],
    *,
    source: str,
    weights_sha256: str,
    examples: int,
    watch: Watcher,
    folder: Path | None = None,
) -> dict[str, Pool]:
    """Return the healing pools of a suite by name, each with at most ``examples`` prompts answered by the teacher.

    Pools found in ``folder`` (default: the cache, under the teacher's weights and the prompts' fingerprint) are read;
    the others are written as soon as they are complete, so that a stopped run loses at most one pool. ``teacher`` is
    called only when something must be answered.
    """
    prompts = {
        capability.name: (capability, list(capability.items("heal"))) for capability in healing_suite(suite_name)
    }
    asked = fingerprint(
        {
            "weights": weights_sha256,
            "examples": examples,
            "prompts": {name: [list(item.messages) for item in items] for name, (_, items) in prompts.items()},
        }
    )
    place = folder or cache_folder("pools", asked[:24])
    found: dict[str, Pool] = {}
    for name, (capability, items) in prompts.items():
        target = place / name
        if target.exists():
            try:
                found[name] = load_pool(target)
                continue
            except DataError as error:
                watch.note(f"note: {error}; the pool '{name}' is made again")
        shown = name.replace("_", " ")
        watch.begin(f"{source} answers healing prompts: {shown}", None, "prompts")
        pool = build_pool(teacher(), capability, items, name=name, max_examples=examples, watch=watch)
        save_pool(pool, target)
        watch.end(f"{len(pool.examples)} kept, {sum(pool.dropped.values())} dropped")
        found[name] = pool
    return found
