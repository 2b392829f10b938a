"""The main job in one go: unpruned -> pruned -> repaired -> healed, measured at every stage, ending in one report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from regrow.models.load import locate
from regrow.protocols import Watcher
from regrow.records.checkpoint import CheckpointFacts
from regrow.records.specs import EvalSpec, HealSpec, PruneSpec, RepairSpec
from regrow.records.store import RunFolder
from regrow.study.stages.evaluate import evaluate
from regrow.study.stages.heal import LOG, heal
from regrow.study.stages.prune import prune
from regrow.study.stages.repair import repair

CHECKPOINTS = "checkpoints"
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
            prune=PruneSpec(remove=remove, seed=seed),
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
    source: str, plan: QuickstartPlan, output: Path, *, watch: Watcher, dtype: str = "auto", device: str = "auto"
) -> QuickstartResult:
    """Return the measured stages of the main job, run in ``output``; finished stages found there are not run again.

    Raises StudyError when ``output`` holds another run.
    """
    asked = {
        "source": source,
        "prune": plan.prune.model_dump(mode="json"),
        "repair": plan.repair.model_dump(mode="json"),
        "heal": plan.heal.model_dump(mode="json"),
        "evaluation": plan.evaluation.model_dump(mode="json"),
        "pool_examples": plan.pool_examples,
        "dtype": dtype,
    }
    RunFolder(output).finished("quickstart", asked)
    locate(source)
    RunFolder(output).claim("quickstart", asked)
    checkpoints, evaluations = output / CHECKPOINTS, output / EVALUATIONS
    done: list[Path] = []

    def measured(model: str, stage: str) -> None:
        watch.note(f"\n[{len(done) + 1}/4] {stage}")
        evaluate(model, plan.evaluation, evaluations / stage, watch=watch, label=stage, dtype=dtype, device=device)
        done.append(evaluations / stage)

    measured(source, "unpruned")
    prune(source, plan.prune, checkpoints / "pruned", watch=watch, dtype=dtype, device=device)
    measured(str(checkpoints / "pruned"), "pruned")
    repair(
        str(checkpoints / "pruned"),
        plan.repair,
        checkpoints / "repaired",
        watch=watch,
        unpruned=source,
        dtype=dtype,
        device=device,
    )
    measured(str(checkpoints / "repaired"), "repaired")
    healed = heal(
        str(checkpoints / "repaired"),
        plan.heal,
        checkpoints / "healed",
        watch=watch,
        suite=plan.evaluation.suite,
        unpruned=source,
        pool_examples=plan.pool_examples,
        dtype=dtype,
        device=device,
    )
    measured(str(checkpoints / "healed"), "healed")
    return QuickstartResult(done, healed, checkpoints / "healed" / LOG)
