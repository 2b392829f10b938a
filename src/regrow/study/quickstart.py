"""The main job in one go: unpruned -> pruned -> repaired -> healed, measured at every stage, ending in one report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from regrow.models.identity import model_identity
from regrow.models.load import LoadedModel, block_count, load_model
from regrow.models.save import CardWriter
from regrow.protocols import Watcher
from regrow.records.checkpoint import CheckpointFacts
from regrow.records.specs import EvalSpec, HealSpec, PruneSpec, RepairSpec
from regrow.records.store import RunFolder
from regrow.study.stages.calibration import HEALING_POOLS
from regrow.study.stages.evaluate import evaluate
from regrow.study.stages.heal import LOG, heal
from regrow.study.stages.pools import pools_of
from regrow.study.stages.prune import prune, refuse_early
from regrow.study.stages.repair import repair

CHECKPOINTS = "checkpoints"
POOLS = "pools"
EVALUATIONS = "evaluations"


@dataclass(frozen=True)
class QuickstartPlan:
    """What the main job does, stage by stage. The defaults fit two CPU cores and ten minutes on SmolLM2-135M: small
    updates at a higher rate, because a tiny budget leaves room for few of them."""

    prune: PruneSpec
    repair: RepairSpec
    heal: HealSpec
    evaluation: EvalSpec
    pool_examples: int

    @staticmethod
    def of(*, remove: str = "2", tokens: int, items: int, seed: int, pool_examples: int) -> QuickstartPlan:
        return QuickstartPlan(
            # The cut reads healing examples, as in the study; the repair needs many more tokens, so it reads prose.
            prune=PruneSpec(remove=remove, calibration=HEALING_POOLS, calibration_tokens=8_192, seed=seed),
            repair=RepairSpec(seed=seed),
            heal=HealSpec(tokens=tokens, sequences_per_update=8, learning_rate=4e-4, seed=seed),
            evaluation=EvalSpec(items=items, seed=seed),
            pool_examples=pool_examples,
        )


@dataclass(frozen=True)
class QuickstartResult:
    """The folders of the four evaluations in order, the healed checkpoint's facts and its training log."""

    evaluations: list[Path]
    healed: CheckpointFacts
    healing_log: Path


def quickstart(
    source: str,
    plan: QuickstartPlan,
    output: Path,
    *,
    watch: Watcher,
    dtype: str = "auto",
    device: str = "auto",
    card: CardWriter | None = None,
) -> QuickstartResult:
    """Return the measured stages of the main job, run in ``output``; finished stages found there are not run again.

    Raises StudyError when ``output`` holds another run.
    """
    watch.begin(f"reading {source}")
    identity = model_identity(source)
    count = block_count(source)
    watch.end(f"{count} blocks, sha256 {identity.weights_sha256[:12]}")
    refuse_early(plan.prune, count)
    asked = {
        "model_sha256": identity.sha256,
        "prune": plan.prune.model_dump(mode="json"),
        "repair": plan.repair.model_dump(mode="json"),
        "heal": plan.heal.model_dump(mode="json"),
        "evaluation": plan.evaluation.model_dump(mode="json"),
        "pool_examples": plan.pool_examples,
        "dtype": dtype,
    }
    with RunFolder(output).claimed("quickstart", asked):
        return _run(
            source, identity.weights_sha256, plan, output, _Place(watch=watch, dtype=dtype, device=device), card
        )


def _run(
    source: str, weights_sha256: str, plan: QuickstartPlan, output: Path, place: _Place, card: CardWriter | None
) -> QuickstartResult:
    watch = place["watch"]
    checkpoints, evaluations, pools = output / CHECKPOINTS, output / EVALUATIONS, output / POOLS
    done: list[Path] = []

    def measured(model: str, stage: str) -> None:
        evaluate(model, plan.evaluation, evaluations / stage, label=stage, **place)
        done.append(evaluations / stage)

    watch.note("[1/4] unpruned")
    measured(source, "unpruned")
    _answer_prompts(source, weights_sha256, plan, pools, place)
    watch.note("[2/4] pruned")
    prune(source, plan.prune, checkpoints / "pruned", pools_folder=pools, card=card, **place)
    measured(str(checkpoints / "pruned"), "pruned")
    watch.note("[3/4] repaired")
    pruned = str(checkpoints / "pruned")
    repair(pruned, plan.repair, checkpoints / "repaired", unpruned=source, pools_folder=pools, card=card, **place)
    measured(str(checkpoints / "repaired"), "repaired")
    watch.note("[4/4] healed")
    healed = heal(
        str(checkpoints / "repaired"),
        plan.heal,
        checkpoints / "healed",
        suite=plan.evaluation.suite,
        unpruned=source,
        pool_examples=plan.pool_examples,
        pools_folder=pools,
        card=card,
        **place,
    )
    measured(str(checkpoints / "healed"), "healed")
    return QuickstartResult(done, healed, checkpoints / "healed" / LOG)


class _Place(TypedDict):
    watch: Watcher
    dtype: str
    device: str


def _answer_prompts(source: str, weights_sha256: str, plan: QuickstartPlan, pools: Path, place: _Place) -> None:
    """Have the unpruned model answer the healing prompts; cut, repair and healing all read these pools."""
    loaded: list[LoadedModel] = []

    def once() -> LoadedModel:
        if not loaded:
            loaded.append(load_model(source, dtype=place["dtype"], device=place["device"]))
        return loaded[0]

    pools_of(
        plan.evaluation.suite,
        once,
        source=source,
        weights_sha256=weights_sha256,
        examples=plan.pool_examples,
        watch=place["watch"],
        folder=pools,
        owned=True,
    )
