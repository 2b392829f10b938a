"""Heal a pruned or repaired checkpoint: pools answered by the unpruned model, training, the merged checkpoint."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regrow.capabilities.suites import healing_suite
from regrow.data.pools import Pool
from regrow.errors import ConfigError, ModelError
from regrow.heal.loop import heal as train
from regrow.heal.mixture import read_mixture, token_quotas
from regrow.heal.objective import objective_of
from regrow.heal.plan import HealPlan
from regrow.heal.predict import Prediction, predict
from regrow.heal.processes import current
from regrow.heal.validate import validate
from regrow.models.families import parameter_count
from regrow.models.identity import model_identity
from regrow.models.load import LoadedModel, load_model
from regrow.models.save import CardWriter, save_checkpoint
from regrow.planning.cost import READ_FLOPS, TRAIN_FLOPS
from regrow.protocols import Watcher
from regrow.records.checkpoint import CheckpointFacts
from regrow.records.results import Cost
from regrow.records.specs import HealSpec
from regrow.records.store import RunFolder
from regrow.study.meter import peak_bytes
from regrow.study.stages.chain import (
    checkpoint_facts,
    done_before,
    facts_before,
    note_chat_format,
    step,
    unpruned_model,
)
from regrow.study.stages.pools import content_of, pools_content, pools_of

ADAPTER = "adapter"
LOG = "healing_log.jsonl"
SAMPLED_PROMPTS = 4
"""Prompts of each pool that a forecast has answered where the pools are not made yet."""


def heal(
    pruned: str,
    spec: HealSpec,
    output: Path,
    *,
    watch: Watcher,
    suite: str = "mini",
    unpruned: str | None = None,
    pool_examples: int = 200,
    pools_folder: Path | None = None,
    dtype: str = "auto",
    device: str = "auto",
    card: CardWriter | None = None,
    only_pools: Sequence[str] | None = None,
    log_to: Sequence[str] = (),
) -> CheckpointFacts:
    """Return the facts of the healed checkpoint written to ``output`` (merged; the adapter in ``output/adapter``).

    Training state is kept in ``output``.healing until the checkpoint is complete: the same command continues a stopped
    run, another one is refused. ``only_pools`` leaves out the other pools of the suite; ``log_to`` names experiment
    trackers. Under torchrun every process calls this; the first one answers prompts and writes.
    """
    if pool_examples < 1:
        raise ConfigError(f"--pool-examples must be at least 1, got {pool_examples}", hint="--pool-examples 200")
    facts = _refused_early(pruned, spec, suite, only_pools)
    names = _pool_names(suite, only_pools)
    quotas = token_quotas(read_mixture(spec.mixture), {name: Pool(name, ()) for name in names}, spec.tokens)
    options = {
        "pruned": str(pruned),
        "input_sha256": model_identity(pruned).sha256,
        "dtype": dtype,
        "suite": suite,
        "pool_examples": pool_examples,
        "pools_sha256": pools_content(suite, pools_folder, only_pools) or "",
        "tokens_by_pool": quotas,
        **spec.model_dump(mode="json"),
    }
    found = done_before(output, "heal", options)
    if found is not None:
        watch.note(f"'{output}' is already this very checkpoint")
        return found
    state = output.with_name(output.name + ".healing")
    # The engine itself compares the sequences drawn from the pools.
    asked = {key: value for key, value in options.items() if key not in ("pruned", "pools_sha256")}
    RunFolder(state).finished("healing", asked)
    processes = current()
    teacher = _Once(lambda: unpruned_model(facts, unpruned, dtype=dtype, device=device))
    if not processes.first:
        processes.wait()
    pools = pools_of(
        suite,
        teacher,
        source=unpruned or facts.source,
        weights_sha256=facts.source_weights_sha256,
        examples=pool_examples,
        watch=watch,
        folder=pools_folder,
        only=only_pools,
    )
    if processes.first:
        processes.wait()
    if not objective_of(spec.loss).needs_unpruned:
        teacher.forget()
    if pools_folder is not None:
        options["pools_sha256"] = content_of(pools)
    watch.begin(f"loading {pruned}")
    loaded = load_model(pruned, dtype=dtype, device=device)
    watch.end()
    note_chat_format(loaded, watch)
    cpu = time.process_time()
    with RunFolder(state).claimed("healing", asked) if processes.first else nullcontext():
        result = train(loaded, pools, spec, state, watch=watch, unpruned=teacher, log_to=log_to)
    flops = float(TRAIN_FLOPS * result.tokens * parameter_count(loaded.model))
    if objective_of(spec.loss).needs_unpruned:
        flops += float(READ_FLOPS * result.tokens * parameter_count(teacher().model))
    cost = Cost(
        wall_seconds=result.wall_seconds,
        cpu_seconds=time.process_time() - cpu,
        training_tokens=result.tokens,
        flops=flops,
        peak_memory_bytes=peak_bytes(),
    )
    teacher.forget()
    if processes.first:
        watch.begin(f"saving to {output} and comparing the reloaded checkpoint")
        before = facts_before(loaded)
        facts = before.model_copy(
            update={
                "healing_tokens": before.healing_tokens + result.tokens,
                "steps": (*before.steps, step("heal", options, result.outcome, seed=spec.seed, cost=cost)),
            }
        )
        beside = {ADAPTER: result.adapter_folder, LOG: result.log_file}
        facts = save_checkpoint(
            loaded, output, facts, card=card, beside={name: path for name, path in beside.items() if path}
        )
        shutil.rmtree(state, ignore_errors=True)
        watch.end("same logits, same cached generation")
    answer: CheckpointFacts = processes.tell(facts)
    return answer


@dataclass(frozen=True)
class Forecast:
    """What a heal would do and take. ``sampled``: how many prompts of each pool were answered to tell, because the
    pools are not made yet (0: they are there, and the plan is exact); ``examples`` in each pool, as far as known."""

    plan: HealPlan
    prediction: Prediction
    sampled: int
    examples: dict[str, int]

    @property
    def facts(self) -> dict[str, Any]:
        """Plan and prediction as JSON values."""
        cycles = {draw.pool: draw.sequences / max(1, self.examples[draw.pool]) for draw in self.plan.draws}
        return {
            **self.plan.facts,
            "cycles_by_pool": {name: round(value, 3) for name, value in cycles.items()},
            "examples_by_pool": self.examples,
            "sampled_prompts_by_pool": self.sampled,
            **self.prediction.facts,
        }


def forecast(
    pruned: str,
    spec: HealSpec,
    *,
    watch: Watcher,
    suite: str = "mini",
    unpruned: str | None = None,
    pool_examples: int = 200,
    pools_folder: Path | None = None,
    dtype: str = "auto",
    device: str = "auto",
) -> Forecast:
    """Return what :func:`heal` would do with the same arguments, and how long and how much memory it takes here.

    Nothing is trained. Where the pools are not made yet, a few prompts of each are answered and the plan is drawn from
    them: its counts are then estimates.
    """
    facts = _refused_early(pruned, spec, suite, None)
    teacher = _Once(lambda: unpruned_model(facts, unpruned, dtype=dtype, device=device))

    def pools(
        load: Callable[[], LoadedModel], examples: int, folder: Path | None, watch: Watcher = watch
    ) -> dict[str, Pool]:
        return pools_of(
            suite,
            load,
            source=unpruned or facts.source,
            weights_sha256=facts.source_weights_sha256,
            examples=examples,
            watch=watch,
            folder=folder,
        )

    sampled = 0
    try:
        there = pools(_refuse_to_answer, pool_examples, pools_folder, _Notes(watch))
        examples = {name: len(pool.examples) for name, pool in there.items()}
    except _NotMade:
        sampled = min(SAMPLED_PROMPTS, pool_examples)
        watch.note(f"note: the pools are not made yet; {sampled} prompts of each are answered to estimate the plan")
        there = pools(teacher, sampled, None)
        examples = {one.name: min(pool_examples, len(one.items("heal"))) for one in healing_suite(suite)}
        spec = spec.model_copy(update={"max_cycles": float("inf")})
    if not objective_of(spec.loss).needs_unpruned:
        teacher.forget()
    watch.begin(f"loading {pruned}")
    loaded = load_model(pruned, dtype=dtype, device=device)
    watch.end()
    watch.begin("measuring a few sequences")
    plan, prediction = predict(loaded, there, spec, unpruned=teacher, watch=watch)
    watch.end()
    return Forecast(plan, prediction, sampled, examples)


class _NotMade(Exception):
    """A pool would have to be answered."""


def _refuse_to_answer() -> LoadedModel:
    raise _NotMade


class _Notes:
    """Passes notes on and nothing else: what is begun only to find out is no news."""

    def __init__(self, watch: Watcher) -> None:
        self.note = watch.note

    def begin(self, task: str, total: float | None = None, unit: str = "") -> None: ...

    def advance(self, done: float, **facts: Any) -> None: ...

    def end(self, summary: str = "") -> None: ...


class _Once:
    """The unpruned model, loaded when it is first asked for."""

    def __init__(self, load: Callable[[], LoadedModel]) -> None:
        self._load = load
        self._loaded: LoadedModel | None = None

    def __call__(self) -> LoadedModel:
        if self._loaded is None:
            self._loaded = self._load()
        return self._loaded

    def forget(self) -> None:
        """Let its memory go."""
        self._loaded = None


def _refused_early(pruned: str, spec: HealSpec, suite: str, only_pools: Sequence[str] | None) -> CheckpointFacts:
    """Return the checkpoint's facts after refusing what can be refused before pools are answered."""
    facts = checkpoint_facts(pruned, what="healing")
    if not facts.removed_blocks:
        raise ModelError(f"'{pruned}' has all its blocks, so there is nothing to heal", hint="prune it first")
    validate(spec, facts=facts, source=str(pruned), pools=_pool_names(suite, only_pools))
    return facts


def _pool_names(suite: str, only_pools: Sequence[str] | None) -> list[str]:
    return [one.name for one in healing_suite(suite) if only_pools is None or one.name in only_pools]
